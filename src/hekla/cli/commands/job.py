"""Run Volcano's jobs, and see, suspend, resume and delete them.

`hekla job COMMAND --help` tells more about each. `hekla why vcjob/NAME` says why one waits.

Examples:

  hekla job run train --image pytorch:2 --replicas 4 -R cpu=2,nvidia.com/gpu=1 -- python train.py

  hekla job list -A -w

  hekla job logs -f train

  hekla job suspend train

  hekla job top
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from hekla.cli import completion
from hekla.cli.options import AllNamespaces, Kubeconfig, Namespace, Output, Watch

if TYPE_CHECKING:
    from hekla.api.meta import Document
    from hekla.cli.connection import Connection

Names = Annotated[list[str], typer.Argument(metavar="NAME...", show_default=False, autocompletion=completion.jobs)]
Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False, autocompletion=completion.jobs)]
QueueName = Annotated[
    str, typer.Option("-q", "--queue", help="The queue.", show_default=False, autocompletion=completion.queues)
]


def run(
    name: Annotated[str, typer.Argument(metavar="[NAME]", show_default=False)] = "",
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND [ARGUMENT...]]", show_default=False)
    ] = None,
    file: Annotated[
        str, typer.Option("-f", "--filename", help="A file with one Job, or -; instead of flags.", show_default=False)
    ] = "",
    image: Annotated[str, typer.Option("-i", "--image", help="The image of every pod.")] = "busybox",
    replicas: Annotated[int, typer.Option("-r", "--replicas", help="How many pods.")] = 1,
    minimum: Annotated[
        int | None,
        typer.Option("-m", "--min", help="How many must start together; all of them by default.", show_default=False),
    ] = None,
    requests: Annotated[
        str, typer.Option("-R", "--requests", help="What every pod asks for.")
    ] = "cpu=1000m,memory=100Mi",
    limits: Annotated[
        str, typer.Option("-L", "--limits", help="What every pod may use at most.", show_default=False)
    ] = "",
    queue: QueueName = "",
    priority_class: Annotated[
        str, typer.Option("--priority-class", help="The job's PriorityClass.", show_default=False)
    ] = "",
    scheduler: Annotated[str, typer.Option("-S", "--scheduler", help="Who places the pods.")] = "volcano",
    namespace: Namespace = "",
    output: Output = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Create a job of equal pods from flags, or a job from a file.

    Examples:

      hekla job run hello --image busybox -- echo hello

      hekla job run train -r 4 --min 2 -R cpu=2,memory=4Gi,nvidia.com/gpu=1 -q research -- python train.py

      hekla job run -f job.yaml -n research
    """
    from hekla.cli.connection import run_connected
    from hekla.cli.main import EXIT_USAGE, CommandError
    from hekla.cli.output import print_document, resource_name
    from hekla.cli.volcano import jobs
    from hekla.cli.volcano.listing import without_managed_fields

    if bool(name) == bool(file):
        raise CommandError("say either NAME, for a job from flags, or -f FILE", EXIT_USAGE)
    wish = jobs.JobWish(
        name=name, image=image, replicas=replicas, minimum=minimum, requests=requests, limits=limits,
        scheduler=scheduler, queue=queue, priority_class=priority_class, command=tuple(command or ()),
    )  # fmt: skip
    document = jobs.job_of_file(file) if file else jobs.job_document(wish, "hekla job run")
    made = run_connected(kubeconfig, lambda link: jobs.run_job(link, document, namespace))
    if output:
        print_document(without_managed_fields(made), output)
    else:
        typer.echo(f"{resource_name(made)} created")


def list_jobs(
    namespace: Namespace = "",
    all_namespaces: AllNamespaces = False,
    queue: QueueName = "",
    scheduler: Annotated[str, typer.Option("-S", "--scheduler", help="Only its jobs.", show_default=False)] = "",
    part: Annotated[str, typer.Option("--name", help="Only names with this text in them.", show_default=False)] = "",
    output: Output = "",
    watch: Watch = False,
    kubeconfig: Kubeconfig = "",
) -> None:
    """List jobs with their phase, queue and pods.

    Examples:

      hekla job list

      hekla job list -A -q research -w

      hekla job list -o wide
    """
    from hekla.api.volcano import Job
    from hekla.cli.connection import run_connected
    from hekla.cli.names import queue_hint
    from hekla.cli.volcano.job_lists import COLUMNS, job_filter
    from hekla.cli.volcano.listing import Listing

    async def work(connection: "Connection") -> None:
        listing = Listing(
            kind=Job.kind_info, columns=COLUMNS, output=output, is_watched=watch,
            namespace="" if all_namespaces else namespace or connection.default_namespace,
            is_wanted=job_filter(queue, scheduler, part), why_empty=partial(queue_hint, name=queue) if queue else None,
        )  # fmt: skip
        await listing.show(connection)

    run_connected(kubeconfig, work)


def view(name: Name, namespace: Namespace = "", output: Output = "", kubeconfig: Kubeconfig = "") -> None:
    """Show everything about a job: its spec in short, its status, and what happened to it.

    Examples:

      hekla job view train

      hekla job view train -o yaml
    """
    from hekla.api.volcano import Job
    from hekla.cli.connection import run_connected
    from hekla.cli.output import print_document
    from hekla.cli.volcano.job_text import job_view
    from hekla.cli.volcano.listing import without_managed_fields
    from hekla.cli.volcano.lookups import found

    async def document(connection: "Connection") -> "Document":
        return await found(connection, Job.kind_info, name, namespace or connection.default_namespace)

    if output not in ("", "wide"):
        print_document(without_managed_fields(run_connected(kubeconfig, document)), output)
        return
    typer.echo(run_connected(kubeconfig, lambda link: job_view(link, name, namespace or link.default_namespace)))


def suspend(names: Names, namespace: Namespace = "", kubeconfig: Kubeconfig = "") -> None:
    """Suspend jobs: their pods end, and they keep their place as Aborted until they are resumed.

    Examples:

      hekla job suspend train

      hekla job suspend train evaluate -n research
    """
    from hekla.cli.volcano.jobs import suspend_job

    _each(names, namespace, kubeconfig, suspend_job, "suspended")


def resume(names: Names, namespace: Namespace = "", kubeconfig: Kubeconfig = "") -> None:
    """Resume suspended jobs: they start again from the beginning.

    Examples:

      hekla job resume train
    """
    from hekla.cli.volcano.jobs import resume_job

    _each(names, namespace, kubeconfig, resume_job, "resumed")


def delete(names: Names, namespace: Namespace = "", kubeconfig: Kubeconfig = "") -> None:
    """Delete jobs; their pods end with them.

    Examples:

      hekla job delete train
    """
    from hekla.cli.volcano.jobs import delete_job

    _each(names, namespace, kubeconfig, delete_job, "deleted")


def _each(
    names: list[str],
    namespace: str,
    kubeconfig: str,
    act: Callable[["Connection", str, str], Awaitable[object]],
    done: str,
) -> None:
    """Do something to one job after the other, and say of each that it is `done`; the first that is refused ends it."""
    from hekla.cli.connection import run_connected

    async def work(connection: "Connection") -> None:
        for name in names:
            await act(connection, name, namespace or connection.default_namespace)
            typer.echo(f"job.batch.volcano.sh/{name} {done}")

    run_connected(kubeconfig, work)


def logs(
    name: Name,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on until the job ends, with the pods of every retry.")
    ] = False,
    task: Annotated[str, typer.Option("--task", help="Only the pods of this task.", show_default=False)] = "",
    container: Annotated[
        str, typer.Option("-c", "--container", help="Which container; the first by default.", show_default=False)
    ] = "",
    tail: Annotated[int, typer.Option("--tail", help="Only the last lines of each pod; -1 for all.")] = -1,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Put the time before each line.")] = False,
    namespace: Namespace = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Print what the pods of a job wrote, each line with its pod's name if there are several.

    Examples:

      hekla job logs train

      hekla job logs -f train --task worker --tail 20
    """
    from hekla.cli.connection import run_connected
    from hekla.cli.volcano.job_logs import JobLogs

    query = {"container": container, "timestamps": "true" if timestamps else ""}
    query["tailLines"] = str(tail) if tail >= 0 else ""

    async def work(connection: "Connection") -> None:
        shown = JobLogs(connection, name, namespace or connection.default_namespace, task, query)
        await (shown.follow() if follow else shown.show())

    run_connected(kubeconfig, work)


def top(
    namespace: Annotated[
        str, typer.Option("-n", "--namespace", help="Only this namespace; all by default.", show_default=False)
    ] = "",
    with_ended: Annotated[bool, typer.Option("--ended", help="Also jobs that have ended and have no pods.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Print one picture, as is done outside a terminal.")] = False,
    interval: Annotated[str, typer.Option("--interval", help="How often the picture is drawn.")] = "2s",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Show which jobs hold what, the largest holders first: live in a terminal, one picture elsewhere.

    A job holds what those of its pods ask for that have a node and have not ended. Ctrl-C ends it.

    Examples:

      hekla job top

      hekla job top -n research --interval 10s

      hekla job top --once
    """
    import sys

    from hekla.cli.connection import run_connected
    from hekla.cli.durations import parse_duration
    from hekla.cli.volcano import top as picture

    interval_s = max(0.1, parse_duration(interval, "--interval"))
    if once or not sys.stdout.isatty():
        typer.echo(
            picture.text(run_connected(kubeconfig, lambda link: picture.look(link, namespace, with_ended=with_ended)))
        )
        return
    try:
        run_connected(
            kubeconfig, lambda link: picture.live(link, namespace, with_ended=with_ended, interval_s=interval_s)
        )
    except KeyboardInterrupt:  # the way to say that one has seen enough
        return


COMMANDS = {
    "run": run,
    "list": list_jobs,
    "view": view,
    "suspend": suspend,
    "resume": resume,
    "delete": delete,
    "logs": logs,
    "top": top,
}
