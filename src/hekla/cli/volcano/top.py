"""Who holds what: jobs with the state of their pods and the resources that those hold, the largest holders first."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hekla.api.core import Node, Pod
    from hekla.api.volcano import Job
    from hekla.cli.connection import Connection

from hekla.cli.volcano.pods import JOB_LABEL

TITLES = ("Namespace", "Job", "Queue", "Phase", "Pods", "CPU", "Memory", "Others", "Nodes", "Age")
PHASES = ("Running", "Pending", "Succeeded", "Failed", "Unknown")
OVER = ("Succeeded", "Failed")
NEVER_SHOWN = ("pods",)


@dataclass(kw_only=True)
class Use:
    """One job, its pods by phase, and what they hold: the requests of those that have a node and have not ended."""

    namespace: str
    name: str
    queue: str = ""
    phase: str = ""
    created: str = ""
    pods: Counter[str] = field(default_factory=Counter)
    held: Counter[str] = field(default_factory=Counter)
    nodes: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Picture:
    """What is true at one moment."""

    uses: Sequence[Use]
    capacity: Mapping[str, int]
    """What the nodes have together; empty if the user may not see nodes."""


async def look(connection: "Connection", namespace: str, *, with_ended: bool) -> Picture:
    """Ask for jobs, their pods and the nodes; an empty namespace means all."""
    from hekla.api.core import Node, Pod
    from hekla.api.volcano import Job
    from hekla.kube.errors import ApiError

    jobs = (await connection.client.list(Job, namespace)).items
    pods = (await connection.client.list(Pod, namespace, label_selector=JOB_LABEL)).items
    try:
        nodes = (await connection.client.list(Node)).items
    except ApiError as error:
        if error.code != 403:
            raise
        nodes = []
    uses = uses_of(jobs, pods)
    return Picture([one for one in uses if with_ended or one.pods.total() or not _is_over(one)], _capacity(nodes))


def _is_over(use: Use) -> bool:
    return use.phase in ("Completed", "Terminated", "Failed", "Aborted")


def uses_of(jobs: "Sequence[Job]", pods: "Sequence[Pod]") -> list[Use]:
    """What each job holds, the largest holders first: by devices, then by processors, then by name."""
    uses = {
        (job.metadata.namespace, job.metadata.name): Use(
            namespace=job.metadata.namespace, name=job.metadata.name, queue=job.spec.queue,
            phase=job.status.state.phase or "Pending", created=job.metadata.creation_timestamp or "",
        )
        for job in jobs
    }  # fmt: skip
    for pod in pods:
        use = uses.get((pod.metadata.namespace, pod.metadata.labels.get(JOB_LABEL, "")))
        if use is not None:
            _add(use, pod)
    return sorted(uses.values(), key=lambda one: (-_devices(one), -one.held["cpu"], one.namespace, one.name))


def _add(use: Use, pod: "Pod") -> None:
    from hekla.dialects.pod_requests import pod_request

    phase = pod.status.phase or "Pending"
    use.pods["Terminating" if pod.metadata.deletion_timestamp and phase not in OVER else phase] += 1
    if pod.spec.node_name and phase not in OVER:
        use.nodes.add(pod.spec.node_name)
        use.held.update(pod_request(pod.spec))


def _devices(use: Use) -> int:
    return sum(amount for name, amount in use.held.items() if "/" in name)


def _capacity(nodes: "Sequence[Node]") -> Counter[str]:
    from hekla.dialects.pod_requests import amounts

    total: Counter[str] = Counter()
    for node in nodes:
        total.update(amounts(node.status.allocatable))
    return total


def cells(use: Use, age: str) -> tuple[str, ...]:
    """One row."""
    others = " ".join(f"{name}={amount}" for name, amount in sorted(use.held.items()) if _is_other(name) and amount)
    return (
        use.namespace, use.name, use.queue, use.phase, pods_text(use.pods), written("cpu", use.held["cpu"]),
        written("memory", use.held["memory"]), others or "-", str(len(use.nodes)), age,
    )  # fmt: skip


def _is_other(name: str) -> bool:
    return name not in ("cpu", "memory", *NEVER_SHOWN)


def pods_text(pods: Mapping[str, int]) -> str:
    """`2 running, 1 pending`."""
    order = (*PHASES, "Terminating")
    return ", ".join(f"{pods[phase]} {phase.lower()}" for phase in order if pods.get(phase)) or "none"


def written(name: str, amount: int) -> str:
    """An amount in base units as people write it."""
    from hekla.lib import quantity

    if not amount:
        return "-"
    if name == "cpu":
        return quantity.from_milli(amount)
    return quantity.from_bytes(amount) if name == "memory" else str(amount)


def summary(picture: Picture) -> str:
    """One line: how many pods run and wait, and how much of the cluster these jobs hold."""
    pods, held = _sum(one.pods for one in picture.uses), _sum(one.held for one in picture.uses)
    count = len(picture.uses)
    parts = [f"{count} job{'' if count == 1 else 's'}", f"pods: {pods_text(pods)}"]
    return "; ".join([*parts, *_holdings(held, picture.capacity)])


def _sum(counters: "Iterator[Counter[str]]") -> Counter[str]:
    total: Counter[str] = Counter()
    for one in counters:
        total.update(one)
    return total


def _holdings(held: Mapping[str, int], capacity: Mapping[str, int]) -> Iterator[str]:
    for name in ("cpu", "memory", *sorted(name for name in held if _is_other(name))):
        if amount := held.get(name, 0):
            of = f" of {written(name, capacity[name])}" if capacity.get(name) else ""
            yield f"{name} {written(name, amount)}{of}"


def text(picture: Picture) -> str:
    """The picture without a terminal."""
    from hekla.cli.output import columns_text

    return f"{summary(picture)}\n{columns_text(TITLES, _rows(picture))}"


def _rows(picture: Picture) -> list[tuple[str, ...]]:
    from datetime import UTC, datetime

    from hekla.apiserver.tables import since

    now = datetime.now(UTC)
    return [cells(one, since(one.created, now)) for one in picture.uses]


async def live(connection: "Connection", namespace: str, *, with_ended: bool, interval_s: float) -> None:
    """The picture in a terminal, drawn anew until the user has seen enough."""
    import asyncio

    from rich.console import Group
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    with Live(screen=True, auto_refresh=False) as screen:
        while True:
            picture = await look(connection, namespace, with_ended=with_ended)
            table = Table(*TITLES, box=None, header_style="bold", pad_edge=False)
            for row in _rows(picture):
                table.add_row(*row)
            screen.update(Group(Text(summary(picture)), "", table), refresh=True)
            await asyncio.sleep(interval_s)
