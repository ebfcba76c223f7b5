"""Submit a job from flags, in LSF's manner: -n is the name and -N the namespace, unlike in vcctl.

VOLCANO_SCHEDULER_NAME, VOLCANO_DEFAULT_IMAGE and VOLCANO_DEFAULT_JOB_NAMESPACE stand in for flags that are not given.

Examples:

  vsub -n train -i pytorch:2 -r 4 -m 2 -c "python train.py"

  VOLCANO_DEFAULT_JOB_NAMESPACE=research vsub -n hello -c "echo hello"
"""

import os
from typing import Annotated

import typer

from hekla.cli.peer_options import AMOUNTS, Limits, Master, Minimum, PeerKubeconfig, Replicas, Requests


def run(
    image: Annotated[
        str,
        typer.Option("-i", "--image", help="The image; $VOLCANO_DEFAULT_IMAGE, else busybox.", show_default=False),
    ] = "",
    namespace: Annotated[
        str,
        typer.Option(
            "-N", "--namespace", help="Its namespace; $VOLCANO_DEFAULT_JOB_NAMESPACE, else default.", show_default=False
        ),
    ] = "",
    name: Annotated[str, typer.Option("-n", "--name", help="The job's name.", show_default=False)] = "",
    minimum: Minimum = 1,
    replicas: Replicas = 1,
    requests: Requests = AMOUNTS,
    limits: Limits = AMOUNTS,
    scheduler: Annotated[
        str,
        typer.Option("-S", "--scheduler", help="Who places it; $VOLCANO_SCHEDULER_NAME, else volcano.",
                     show_default=False),
    ] = "",
    command: Annotated[
        str, typer.Option("-c", "--command", help="What every pod runs; the image's own by default.",
                          show_default=False)
    ] = "",
    master: Master = "",
    kubeconfig: PeerKubeconfig = "",
) -> None:  # fmt: skip
    """Submit a job."""
    from hekla.cli.connection import run_connected
    from hekla.cli.volcano import jobs

    wish = jobs.JobWish(
        name=name, image=image or os.environ.get("VOLCANO_DEFAULT_IMAGE") or "busybox", replicas=replicas,
        minimum=minimum, requests=requests, limits=limits, command=jobs.words_of(command),
        scheduler=scheduler or os.environ.get("VOLCANO_SCHEDULER_NAME") or "volcano",
    )  # fmt: skip
    document = jobs.job_document(wish)
    where = namespace or os.environ.get("VOLCANO_DEFAULT_JOB_NAMESPACE") or "default"
    made = run_connected(kubeconfig, lambda link: jobs.run_job(link, document, where), master)
    typer.echo(f"run job {made['metadata']['name']} successfully")
