"""What can be done to queues: create, open, close, change their weight, delete, and show them with what is in them."""

from collections import Counter
from typing import TYPE_CHECKING

from hekla.cli.main import EXIT_USAGE, CommandError
from hekla.cli.volcano.columns import (
    Column,
    PeerColumn,
    age_of,
    name_of,
    peer_table,
    spec_text,
    status_number,
)
from hekla.cli.volcano.lookups import found, listed
from hekla.cli.volcano.orders import send_order

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hekla.api.meta import Document
    from hekla.cli.connection import Connection

ROOT = "root"
PHASES = ("inqueue", "pending", "running", "unknown", "completed")
STATES = ("Open", "Closed")
SHUT = ("Closed", "Closing")
ACTIONS = ("open", "close", "update")
NAMED_AT_MOST = 5


def weight_of(queue: "Document") -> int:
    """The queue's weight."""
    return int((queue.get("spec") or {}).get("weight") or 0)


def state_of(queue: "Document") -> str:
    """Whether the queue is open."""
    return str((queue.get("status") or {}).get("state") or "")


def _amounts(field: str) -> "Callable[[Document], str]":
    """A reader of a list of amounts, of the spec or, what is allocated, of the status."""
    part = "status" if field == "allocated" else "spec"

    def read(queue: "Document") -> str:
        amounts = (queue.get(part) or {}).get(field) or {}
        return ",".join(f"{name}={amount}" for name, amount in amounts.items()) or "<none>"

    return read


_NAME, _WEIGHT = PeerColumn("Name", name_of, 25), PeerColumn("Weight", weight_of, 8)
_STATE, _PARENT = PeerColumn("State", state_of, 8), PeerColumn("Parent", spec_text("parent"), 8)
_COUNTS = tuple(PeerColumn(phase.capitalize(), status_number(phase), 8) for phase in PHASES)
PEER_COLUMNS = (_NAME, _WEIGHT, _STATE, _PARENT, *_COUNTS)
VQUEUES_COLUMNS = (_NAME, _WEIGHT, _STATE, *_COUNTS[:4])
"""Those of `vqueues`, which knows neither parents nor what has completed."""

COLUMNS = (
    Column("Name", name_of),
    Column("Parent", spec_text("parent")),
    Column("State", state_of),
    Column("Weight", weight_of),
    *(Column(phase.capitalize(), status_number(phase)) for phase in ("pending", "inqueue", "running")),
    Column("Age", age_of),
    *(Column(phase.capitalize(), status_number(phase), is_wide=True) for phase in ("unknown", "completed")),
    *(Column(field.capitalize(), _amounts(field), is_wide=True) for field in ("deserved", "capability", "allocated")),
)


async def queues_with_counts(connection: "Connection", name: str = "") -> "list[Document]":
    """One queue, or all, with their gangs counted now: Volcano's own counts in the status are not kept up to date.

    Whoever may look at queues and not at everybody's gangs is shown the counts of the status.
    """
    from hekla.api.volcano import PodGroup, Queue
    from hekla.kube.errors import ApiError

    kind = Queue.kind_info
    queues = [await found(connection, kind, name)] if name else (await listed(connection, kind)).items
    try:
        groups = (await listed(connection, PodGroup.kind_info)).items
    except ApiError as refused:
        if refused.code != 403:
            raise
        return queues
    counted: dict[str, Counter[str]] = {}
    for group in groups:
        counted.setdefault(_queue_of(group), Counter())[_phase_of(group)] += 1
    return [_with_counts(queue, counted.get(name_of(queue), Counter())) for queue in queues]


def _with_counts(queue: "Document", counted: "Counter[str]") -> "Document":
    return {**queue, "status": (queue.get("status") or {}) | {phase: counted[phase] for phase in PHASES}}


def _queue_of(group: "Document") -> str:
    return str((group.get("spec") or {}).get("queue") or "default")


def _phase_of(group: "Document") -> str:
    return str((group.get("status") or {}).get("phase") or "Pending").lower()


async def peer_queue_list(
    connection: "Connection", name: str = "", columns: "Sequence[PeerColumn]" = PEER_COLUMNS
) -> str:
    """What `vcctl queue list`, `vcctl queue get` and `vqueues` print."""
    queues = await queues_with_counts(connection, name)
    return peer_table(columns, queues) if queues else "No resources found"


async def create_queue(
    connection: "Connection", name: str, *, weight: int, state: str = "Open", parent: str = "",
    amounts: "Document | None" = None,
) -> "Document":  # fmt: skip
    """Create a queue; one that is to be closed is closed as soon as it is there."""
    from hekla.api.volcano import Queue
    from hekla.api.volcano.bus import QUEUE_ORDERS_NAMESPACE, Action
    from hekla.kube.errors import AlreadyExistsError

    _check_weight(name, weight)
    if state not in STATES:
        raise CommandError(f'queue "{name}": --state is "{state}"; use {" or ".join(STATES)}', EXIT_USAGE)
    spec = {"weight": weight, **({"parent": parent} if parent else {}), **(amounts or {})}
    kind = Queue.kind_info
    document = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": spec}
    try:
        made = await connection.client.create_document(kind, document)
    except AlreadyExistsError:
        message = f'queue "{name}" exists already; `hekla queue operate {name} --action update` changes its weight'
        raise CommandError(message) from None
    if state == "Closed":
        await send_order(connection, made, Action.CLOSE_QUEUE, QUEUE_ORDERS_NAMESPACE)
    return made


def _check_weight(name: str, weight: int) -> None:
    if not 1 <= weight <= 65535:
        raise CommandError(f'queue "{name}": --weight is {weight}; use a number from 1 to 65535', EXIT_USAGE)


async def operate_queue(connection: "Connection", name: str, action: str, weight: int = 0) -> str:
    """Open or close a queue, or change its weight; returns the word for what was done."""
    from hekla.api.volcano import Queue
    from hekla.api.volcano.bus import QUEUE_ORDERS_NAMESPACE, Action

    if action not in ACTIONS:
        said = f'--action is "{action}"' if action else "--action is missing"
        raise CommandError(f'queue "{name}": {said}; use open, close or update', EXIT_USAGE)
    if action == "update":
        _check_weight(name, weight)
    queue = await found(connection, Queue.kind_info, name)
    if action == "update":
        await connection.client.patch_document(Queue.kind_info, name, {"spec": {"weight": weight}})
        return "updated"
    await (_may_open if action == "open" else _may_close)(connection, queue)
    await send_order(
        connection, queue, Action.OPEN_QUEUE if action == "open" else Action.CLOSE_QUEUE, QUEUE_ORDERS_NAMESPACE
    )
    return "opened" if action == "open" else "closed"


async def _may_open(connection: "Connection", queue: "Document") -> None:
    from hekla.api.volcano import Queue

    parent = spec_text("parent")(queue)
    if not parent or parent == name_of(queue):
        return
    if (state := state_of(await found(connection, Queue.kind_info, parent))) in SHUT:
        raise CommandError(
            f'queue "{name_of(queue)}" cannot be opened: its parent "{parent}" is {state}; open that first'
        )


async def _may_close(connection: "Connection", queue: "Document") -> None:
    if name_of(queue) == ROOT:
        raise CommandError('queue "root" cannot be closed: every queue is below it; close the queues that you mean')


async def delete_queue(connection: "Connection", name: str, *, is_forced: bool = False) -> None:
    """Delete a queue that nothing is in; its children must be gone, and its jobs too unless that is forced."""
    from hekla.api.volcano import Queue

    await found(connection, Queue.kind_info, name)
    children = [one for one in (await listed(connection, Queue.kind_info)).items if spec_text("parent")(one) == name]
    if children and name != ROOT:
        told = _told([name_of(one) for one in children])
        raise CommandError(f'queue "{name}" cannot be deleted: it is the parent of {told}; delete or move those first')
    if not is_forced and (left := await _unfinished(connection, name)):
        jobs = "1 job in it has" if len(left) == 1 else f"{len(left)} jobs in it have"
        raise CommandError(
            f'queue "{name}" cannot be deleted: {jobs} not ended, {_told(left)}; close it and wait, delete what is in '
            "it, or use `hekla queue delete --force`"
        )
    await connection.client.delete_document(Queue.kind_info, name)


async def _unfinished(connection: "Connection", queue: str) -> list[str]:
    """The jobs and other gangs of a queue that still want something of it, as NAMESPACE/NAME."""
    from hekla.api.volcano import Job, PodGroup

    jobs = (await listed(connection, Job.kind_info)).items
    groups = (await listed(connection, PodGroup.kind_info)).items
    waiting = {_key(one) for one in jobs if (spec_text("queue")(one) or "default") == queue and not _has_ended(one)}
    gangs = {_owner_key(one) for one in groups if _queue_of(one) == queue and _phase_of(one) != "completed"}
    ended = {_key(one) for one in jobs if _has_ended(one)}
    return sorted(waiting | (gangs - ended))


def _has_ended(job: "Document") -> bool:
    from hekla.cli.volcano.columns import phase_of
    from hekla.cli.volcano.jobs import ENDED

    return phase_of(job) in ENDED


def _key(document: "Document") -> str:
    return f"{document['metadata'].get('namespace', '')}/{name_of(document)}"


def _owner_key(group: "Document") -> str:
    owners = group["metadata"].get("ownerReferences") or ()
    name = next((one["name"] for one in owners if one.get("controller")), name_of(group))
    return f"{group['metadata'].get('namespace', '')}/{name}"


def _told(names: "Sequence[str]") -> str:
    more = len(names) - NAMED_AT_MOST
    return ", ".join(names[:NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")
