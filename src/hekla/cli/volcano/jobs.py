"""What can be done to jobs: run, suspend, resume, delete. `job_lists.py` and `job_text.py` show them."""

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hekla.cli.main import EXIT_USAGE, CommandError
from hekla.cli.volcano.amounts import parse_amounts
from hekla.cli.volcano.lookups import demand_name, found
from hekla.cli.volcano.orders import send_order

if TYPE_CHECKING:
    from hekla.api.meta import Document
    from hekla.cli.connection import Connection

LABEL = "job.volcano.sh"
"""What vcctl puts on the pods of a job that it makes."""

ENDED = ("Completed", "Terminated", "Failed", "Completing", "Terminating")
IDLE = ("Aborted", "Aborting")


@dataclass(frozen=True, kw_only=True)
class JobWish:
    """A job of one task, as flags describe it."""

    name: str
    image: str = "busybox"
    replicas: int = 1
    minimum: int | None = 1
    """Pods that must start together; all of them if nothing is said."""

    requests: str = ""
    limits: str = ""
    scheduler: str = "volcano"
    queue: str = ""
    priority_class: str = ""
    command: tuple[str, ...] = ()


def job_document(wish: JobWish, name_option: str = "--name") -> "Document":
    """The Job; CommandError for a wish that contradicts itself."""
    demand_name(wish.name, "job", name_option)
    _check_counts(wish)
    requests, limits = parse_amounts(wish.requests, "--requests"), parse_amounts(wish.limits, "--limits")
    # devices cannot be promised beyond what there is: Kubernetes refuses a request for one without the same limit
    limits = {name: amount for name, amount in requests.items() if "/" in name} | limits
    container: Document = {
        "name": wish.name,
        "image": wish.image,
        "imagePullPolicy": "IfNotPresent",
        **({"command": list(wish.command)} if wish.command else {}),
        "resources": {key: value for key, value in (("requests", requests), ("limits", limits)) if value},
    }
    template = {
        "metadata": {"name": wish.name, "labels": {LABEL: wish.name}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    spec = {
        "schedulerName": wish.scheduler,
        "minAvailable": wish.minimum,
        "queue": wish.queue or None,
        "priorityClassName": wish.priority_class or None,
        "tasks": [{"replicas": wish.replicas, "template": template}],
    }
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": wish.name},
        "spec": {key: value for key, value in spec.items() if value is not None},
    }


def _check_counts(wish: JobWish) -> None:
    for option, count, least in (("--replicas", wish.replicas, 1), ("--min", wish.minimum, 0)):
        if count is not None and count < least:
            raise CommandError(f'job "{wish.name}": {option} is {count}; use {least} or more', EXIT_USAGE)
    if wish.minimum is not None and wish.minimum > wish.replicas:
        raise CommandError(
            f'job "{wish.name}": --min is {wish.minimum} but --replicas is {wish.replicas}; '
            f"lower --min or raise --replicas",
            EXIT_USAGE,
        )


def words_of(command: str) -> tuple[str, ...]:
    """A command line cut into words as a shell would."""
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        reason = str(error).lower()
        raise CommandError(f'--command is "{command}": {reason}; close the quotes', EXIT_USAGE) from None


def job_of_file(file: str) -> "Document":
    """The one Job that a file holds."""
    from hekla.cli.manifests import read_manifests

    manifests = read_manifests([file])
    kinds = [one.document["kind"] for one in manifests]
    if kinds != ["Job"] or not manifests[0].document["apiVersion"].startswith("batch.volcano.sh/"):
        held = ", ".join(f"{one.document['apiVersion']} {one.document['kind']}" for one in manifests)
        raise CommandError(f"{file} holds {held}; it must hold one batch.volcano.sh/v1alpha1 Job, or use `hekla apply`")
    return manifests[0].document


async def run_job(connection: "Connection", document: "Document", namespace: str) -> "Document":
    """Create a job; one that names its namespace is created there unless another is asked for."""
    from hekla.api.volcano import Job
    from hekla.kube.errors import AlreadyExistsError

    where = namespace or document["metadata"].get("namespace") or connection.default_namespace
    try:
        return await connection.client.create_document(Job.kind_info, document, where)
    except AlreadyExistsError:
        name = document["metadata"]["name"]
        message = f'job "{name}" exists already in namespace "{where}"; choose another name, or delete that one'
        raise CommandError(message) from None


async def suspend_job(connection: "Connection", name: str, namespace: str) -> None:
    """Order that a job's pods end and the job waits."""
    from hekla.api.volcano import Job
    from hekla.api.volcano.bus import Action
    from hekla.cli.volcano.columns import phase_of

    job = await found(connection, Job.kind_info, name, namespace)
    if (phase := phase_of(job)) in (*ENDED, *IDLE):
        raise CommandError(f'job "{name}" is {phase}; only a job that waits or runs can be suspended')
    await send_order(connection, job, Action.ABORT_JOB, namespace)


async def resume_job(connection: "Connection", name: str, namespace: str) -> None:
    """Order that a suspended job goes on."""
    from hekla.api.volcano import Job
    from hekla.api.volcano.bus import Action
    from hekla.cli.volcano.columns import phase_of

    job = await found(connection, Job.kind_info, name, namespace)
    if (phase := phase_of(job)) not in IDLE:
        raise CommandError(
            f'job "{name}" is {phase or "Pending"}; only a job that is Aborted or Aborting can be resumed'
        )
    await send_order(connection, job, Action.RESUME_JOB, namespace)


async def delete_job(connection: "Connection", name: str, namespace: str) -> None:
    """Delete a job; its pods go with it."""
    from hekla.api.volcano import Job
    from hekla.kube.errors import NotFoundError

    try:
        await connection.client.delete_document(Job.kind_info, name, namespace, propagation="Background")
    except NotFoundError:
        await found(connection, Job.kind_info, name, namespace)
        raise
