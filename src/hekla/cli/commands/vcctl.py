"""Volcano's own command line, with its flags, defaults and columns; `vcctl` is installed as a program as well.

docs/howto/from-vcctl.md has the few differences, and what `hekla job` and `hekla queue` do beyond it.

Examples:

  vcctl job run -N train -m 2 -r 4 -i pytorch:2

  vcctl job list --all-namespaces

  vcctl job suspend -N train -n research

  vcctl queue operate -n research -a close
"""

import platform
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from hekla.cli.flow_commands import FLOW, TEMPLATE, peer_commands
from hekla.cli.groups import Commands, Group
from hekla.cli.peer_options import (
    AMOUNTS,
    EveryNamespace,
    JobName,
    Limits,
    Master,
    Minimum,
    OfJob,
    OfQueue,
    OfScheduler,
    PartOfName,
    PeerKubeconfig,
    PeerNamespace,
    QueueName,
    Replicas,
    Requests,
)

if TYPE_CHECKING:
    from hekla.cli.connection import Connection


def job_run(
    image: Annotated[str, typer.Option("-i", "--image", help="The image of every pod.")] = "busybox",
    namespace: Annotated[
        str, typer.Option("-n", "--namespace", help="The namespace; the file's, else `default`.", show_default=False)
    ] = "",
    name: Annotated[str, typer.Option("-N", "--name", help="The job's name.", show_default=False)] = "",
    minimum: Minimum = 1,
    replicas: Replicas = 1,
    requests: Requests = AMOUNTS,
    limits: Limits = AMOUNTS,
    scheduler: Annotated[str, typer.Option("-S", "--scheduler", help="Who places the pods.")] = "volcano",
    file: Annotated[
        str, typer.Option("-f", "--filename", help="A YAML file with one Job; instead of flags.", show_default=False)
    ] = "",
    master: Master = "",
    kubeconfig: PeerKubeconfig = "",
) -> None:
    """Run a job of equal pods, or one from a file.

    Examples:

      vcctl job run -N train -r 4 -m 2

      vcctl job run -f job.yaml
    """
    from hekla.cli.connection import run_connected
    from hekla.cli.volcano import jobs

    wish = jobs.JobWish(
        name=name, image=image, replicas=replicas, minimum=minimum, requests=requests, limits=limits,
        scheduler=scheduler,
    )  # fmt: skip
    document = jobs.job_of_file(file) if file else jobs.job_document(wish)
    where = namespace or document["metadata"].get("namespace") or "default"
    made = run_connected(kubeconfig, lambda link: jobs.run_job(link, document, where), master)
    typer.echo(f"run job {made['metadata']['name']} successfully")


def job_list(
    queue: OfQueue = "",
    namespace: PeerNamespace = "default",
    scheduler: OfScheduler = "",
    all_namespaces: EveryNamespace = False,
    part: PartOfName = "",
    master: Master = "",
    kubeconfig: PeerKubeconfig = "",
) -> None:
    """List jobs.

    Examples:

      vcctl job list -n research -q vision
    """
    from hekla.cli.connection import run_connected
    from hekla.cli.volcano.job_lists import peer_job_list

    where = "" if all_namespaces else namespace
    typer.echo(
        run_connected(
            kubeconfig,
            lambda link: peer_job_list(link, where, queue=queue, scheduler=scheduler, part_of_name=part),
            master,
        )
    )


def job_view(
    namespace: PeerNamespace = "default", name: JobName = "", master: Master = "", kubeconfig: PeerKubeconfig = ""
) -> None:
    """Show everything about a job.

    Examples:

      vcctl job view -N train
    """
    from hekla.cli.connection import run_connected
    from hekla.cli.volcano.job_text import job_view as text_of
    from hekla.cli.volcano.lookups import demand_name

    demand_name(name, "job", "--name")
    typer.echo(run_connected(kubeconfig, lambda link: text_of(link, name, namespace), master))


def job_suspend(
    namespace: PeerNamespace = "default", name: JobName = "", master: Master = "", kubeconfig: PeerKubeconfig = ""
) -> None:
    """Suspend a job: its pods end, and it waits as Aborted.

    Examples:

      vcctl job suspend -N train
    """
    from hekla.cli.connection import run_connected
    from hekla.cli.volcano.jobs import suspend_job
    from hekla.cli.volcano.lookups import demand_name

    demand_name(name, "job", "--name")
    run_connected(kubeconfig, lambda link: suspend_job(link, name, namespace), master)


def job_resume(
    namespace: PeerNamespace = "default", name: JobName = "", master: Master = "", kubeconfig: PeerKubeconfig = ""
) -> None:
    """Resume a suspended job.

    Examples:

      vcctl job resume -N train
    """
    from hekla.cli.connection import run_connected
    from hekla.cli.volcano.jobs import resume_job
    from hekla.cli.volcano.lookups import demand_name

    demand_name(name, "job", "--name")
    run_connected(kubeconfig, lambda link: resume_job(link, name, namespace), master)


def job_delete(
    namespace: PeerNamespace = "default", name: JobName = "", master: Master = "", kubeconfig: PeerKubeconfig = ""
) -> None:
    """Delete a job.

    Examples:

      vcctl job delete -N train
    """
    from hekla.cli.connection import run_connected
    from hekla.cli.volcano.jobs import delete_job
    from hekla.cli.volcano.lookups import demand_name

    demand_name(name, "job", "--name")
    run_connected(kubeconfig, lambda link: delete_job(link, name, namespace), master)
    typer.echo(f"delete job {name} successfully")


def queue_create(
    name: Annotated[str, typer.Option("-n", "--name", help="The queue's name.")] = "test",
    weight: Annotated[int, typer.Option("-w", "--weight", help="Its part beside its siblings.")] = 1,
    state: Annotated[str, typer.Option("-S", "--state", help="Open or Closed.")] = "Open",
    master: Master = "",
    kubeconfig: PeerKubeconfig = "",
) -> None:
    """Create a queue.

    Examples:

      vcctl queue create -n research -w 3
    """
    from hekla.cli.connection import run_connected
    from hekla.cli.volcano.queues import create_queue

    run_connected(kubeconfig, lambda link: create_queue(link, name, weight=weight, state=state), master)


def queue_delete(name: QueueName = "", master: Master = "", kubeconfig: PeerKubeconfig = "") -> None:
    """Delete a queue that has no children and no jobs.

    Examples:

      vcctl queue delete -n research
    """
    from hekla.cli.connection import run_connected
    from hekla.cli.volcano.lookups import demand_name
    from hekla.cli.volcano.queues import delete_queue

    demand_name(name, "queue", "--name")
    run_connected(kubeconfig, lambda link: delete_queue(link, name), master)


def queue_operate(
    name: QueueName = "",
    weight: Annotated[int, typer.Option("-w", "--weight", help="The new weight, for update.")] = 0,
    action: Annotated[str, typer.Option("-a", "--action", help="open, close or update.", show_default=False)] = "",
    master: Master = "",
    kubeconfig: PeerKubeconfig = "",
) -> None:
    """Open or close a queue, or change its weight.

    Examples:

      vcctl queue operate -n research -a close

      vcctl queue operate -n research -a update -w 5
    """
    from hekla.cli.connection import run_connected
    from hekla.cli.volcano.lookups import demand_name
    from hekla.cli.volcano.queues import operate_queue

    demand_name(name, "queue", "--name")
    run_connected(kubeconfig, lambda link: operate_queue(link, name, action, weight), master)


def queue_list(master: Master = "", kubeconfig: PeerKubeconfig = "") -> None:
    """List queues with how many gangs are in them.

    Examples:

      vcctl queue list
    """
    _print_queues("", kubeconfig, master)


def queue_get(name: QueueName = "", master: Master = "", kubeconfig: PeerKubeconfig = "") -> None:
    """Show one queue.

    Examples:

      vcctl queue get -n research
    """
    from hekla.cli.volcano.lookups import demand_name

    demand_name(name, "queue", "--name")
    _print_queues(name, kubeconfig, master)


def _print_queues(name: str, kubeconfig: str, master: str) -> None:
    from hekla.cli.connection import run_connected
    from hekla.cli.volcano.queues import peer_queue_list

    typer.echo(run_connected(kubeconfig, lambda link: peer_queue_list(link, name), master))


def pod_list(
    queue: OfQueue = "",
    job: OfJob = "",
    namespace: PeerNamespace = "default",
    all_namespaces: EveryNamespace = False,
    master: Master = "",
    kubeconfig: PeerKubeconfig = "",
) -> None:
    """List the pods of jobs; with a queue, all pods of that queue.

    Examples:

      vcctl pod list -j train

      vcctl pod list -q research --all-namespaces
    """
    from hekla.cli.connection import run_connected
    from hekla.cli.volcano.pods import peer_pod_list

    async def work(connection: "Connection") -> str:
        return await peer_pod_list(connection, "" if all_namespaces else namespace, queue=queue, job=job)

    typer.echo(run_connected(kubeconfig, work, master))


def version() -> None:
    """Print the version of this program.

    Examples:

      vcctl version
    """
    from hekla import __version__

    typer.echo("API Version: v1alpha1")
    typer.echo(f"Version: hekla {__version__}")
    typer.echo(f"Python Version: {platform.python_version()}")
    typer.echo(f"Python OS/Arch: {sys.platform}/{platform.machine()}")


COMMANDS: Commands = {
    "job": Group(
        "Run, list, view, suspend, resume and delete jobs.",
        {
            "run": job_run,
            "list": job_list,
            "view": job_view,
            "suspend": job_suspend,
            "resume": job_resume,
            "delete": job_delete,
        },
    ),
    "queue": Group(
        "Create, delete, operate, list and get queues.",
        {
            "create": queue_create,
            "delete": queue_delete,
            "operate": queue_operate,
            "list": queue_list,
            "get": queue_get,
        },
    ),
    "pod": Group("List the pods of jobs and queues.", {"list": pod_list}),
    "jobflow": Group("Create, list, get, describe and delete JobFlows.", peer_commands(FLOW)),
    "jobtemplate": Group("Create, list, get, describe and delete JobTemplates.", peer_commands(TEMPLATE)),
    "version": version,
}
