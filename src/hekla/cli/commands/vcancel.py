"""Delete a job, in LSF's manner: -n is the name and -N the namespace.

Examples:

  vcancel -n train

  vcancel -n train -N research
"""

import typer

from hekla.cli.peer_options import LsfJobName, LsfNamespace, Master, PeerKubeconfig


def run(
    namespace: LsfNamespace = "default", name: LsfJobName = "", master: Master = "", kubeconfig: PeerKubeconfig = ""
) -> None:
    """Cancel a job."""
    from hekla.cli.connection import run_connected
    from hekla.cli.volcano.jobs import delete_job
    from hekla.cli.volcano.lookups import demand_name

    demand_name(name, "job", "--name")
    run_connected(kubeconfig, lambda link: delete_job(link, name, namespace), master)
    typer.echo(f"cancel job {name} successfully")
