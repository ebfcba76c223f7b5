"""List jobs, or show everything about one, in LSF's manner: -n is the name and -N the namespace.

Examples:

  vjobs -N research

  vjobs --all-namespaces --selector train

  vjobs -n train
"""

import typer

from hekla.cli.peer_options import (
    EveryNamespace,
    LsfJobName,
    LsfNamespace,
    Master,
    OfScheduler,
    PartOfName,
    PeerKubeconfig,
)


def run(
    namespace: LsfNamespace = "default",
    name: LsfJobName = "",
    scheduler: OfScheduler = "",
    all_namespaces: EveryNamespace = False,
    part: PartOfName = "",
    master: Master = "",
    kubeconfig: PeerKubeconfig = "",
) -> None:
    """List jobs, or show one."""
    from hekla.cli.connection import run_connected
    from hekla.cli.volcano.job_lists import peer_job_list
    from hekla.cli.volcano.job_text import job_view

    if name:
        typer.echo(run_connected(kubeconfig, lambda link: job_view(link, name, namespace), master))
        return
    where = "" if all_namespaces else namespace
    typer.echo(
        run_connected(
            kubeconfig,
            lambda link: peer_job_list(link, where, queue="", scheduler=scheduler, part_of_name=part),
            master,
        )
    )
