"""The options of vcctl and of the commands in LSF's manner, with Volcano's letters and defaults.

vcctl writes -n for the namespace and -N for the name; `vsub` and its kin have it the other way round.
"""

from typing import Annotated

import typer

from hekla.cli import completion

Master = Annotated[
    str, typer.Option("-s", "--master", help="Address of the API server; the kubeconfig's.", show_default=False)
]
PeerKubeconfig = Annotated[
    str,
    typer.Option("-k", "--kubeconfig", help="Path of a kubeconfig; the running platform's.", show_default=False),
]
PeerNamespace = Annotated[str, typer.Option("-n", "--namespace", help="The namespace.")]
EveryNamespace = Annotated[bool, typer.Option("--all-namespaces", help="Look in every namespace.")]
JobName = Annotated[
    str,
    typer.Option("-N", "--name", help="The job's name.", show_default=False, autocompletion=completion.jobs),
]
QueueName = Annotated[
    str,
    typer.Option("-n", "--name", help="The queue's name.", show_default=False, autocompletion=completion.queues),
]
OfQueue = Annotated[
    str,
    typer.Option("-q", "--queue", help="Only this queue.", show_default=False, autocompletion=completion.queues),
]
OfJob = Annotated[
    str, typer.Option("-j", "--job", help="Only this job.", show_default=False, autocompletion=completion.jobs)
]
OfScheduler = Annotated[str, typer.Option("-S", "--scheduler", help="Only this scheduler's.", show_default=False)]
PartOfName = Annotated[str, typer.Option("--selector", help="Only names with this text in them.", show_default=False)]

Minimum = Annotated[int, typer.Option("-m", "--min", help="How many pods must start together.")]
Replicas = Annotated[int, typer.Option("-r", "--replicas", help="How many pods.")]
Requests = Annotated[str, typer.Option("-R", "--requests", help="What every pod asks for.")]
Limits = Annotated[str, typer.Option("-L", "--limits", help="What every pod may use at most.")]
AMOUNTS = "cpu=1000m,memory=100Mi"

LsfJobName = Annotated[
    str,
    typer.Option("-n", "--name", help="The job's name.", show_default=False, autocompletion=completion.jobs),
]
LsfNamespace = Annotated[str, typer.Option("-N", "--namespace", help="The namespace.")]
