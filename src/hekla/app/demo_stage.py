"""What the demo's acts work with: a client, what is watched, the story told so far, and the picture of it.

`demo.py` plays the acts, `demo_picture.py` draws.
"""

import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import yaml

from hekla.api.agents import Sandbox
from hekla.api.core import Node, Pod
from hekla.api.kthena import ModelServing, labels
from hekla.api.meta import Document, Resource
from hekla.api.volcano import Job, PodGroup
from hekla.app.demo_errors import DemoError
from hekla.app.demo_picture import GPU, GangView, PlacedPod, Scene, picture
from hekla.kube.answers import lines
from hekla.kube.api_client import ApiClient
from hekla.kube.informer import Informer, Informers

T = TypeVar("T", bound=Resource)

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
NAMESPACE = "default"
ACT_LIMIT_S = 60.0


@dataclass
class Stage:
    """What the acts work with: a client, the caches, the story, and the picture."""

    client: ApiClient
    informers: Informers
    said: list[str] = field(default_factory=list)
    heard: deque[str] = field(default_factory=lambda: deque(maxlen=200))
    _followers: list[asyncio.Task[None]] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _is_drawn: bool = False

    def __post_init__(self) -> None:
        """Watch what the picture shows."""
        self.nodes: Informer[Node] = self.informers.of(Node)
        self.pods: Informer[Pod] = self.informers.of(Pod, namespace=NAMESPACE)
        self.jobs: Informer[Job] = self.informers.of(Job, namespace=NAMESPACE)
        self.groups: Informer[PodGroup] = self.informers.of(PodGroup, namespace=NAMESPACE)
        self.servings: Informer[ModelServing] = self.informers.of(ModelServing, namespace=NAMESPACE)
        self.sandboxes: Informer[Sandbox] = self.informers.of(Sandbox, namespace=NAMESPACE)
        for informer in (self.nodes, self.pods, self.jobs, self.groups, self.servings, self.sandboxes):
            informer.add_handler(lambda _old, _new: self._changed.set())

    def say(self, line: str) -> None:
        """Tell the next line of the story."""
        self.said.append(line)
        self._changed.set()
        if not self._is_drawn:
            print(line, flush=True)  # noqa: T201 - the demo's own voice

    async def submit(self, document: Document) -> None:
        """Create a Volcano Job as `kubectl apply` would."""
        await self.client.create(Job, document, NAMESPACE)

    async def create(self, kind: type[Resource], example: str) -> None:
        """Create the object of an example."""
        await self.client.create(kind, read_example(example), NAMESPACE)

    def trains(self) -> str:
        """Which training is under way, in words."""
        names = [f"`{job.metadata.name}`" for job in self.jobs.cache.list() if job.status.state.phase == "Running"]
        return f"while {' and '.join(names)} train{'' if len(names) > 1 else 's'}" if names else "after the training"

    def pods_of(self, job: str) -> list[Pod]:
        """A job's pods, in order of name."""
        return [pod for pod in self.pods.cache.list() if pod.metadata.labels.get("volcano.sh/job-name") == job]

    # ---- waiting

    async def comes(self, informer: Informer[T], holds: Callable[[Sequence[T]], bool], within_s: float) -> bool:
        """Whether `holds` becomes true of the cache within this time."""
        try:
            async with asyncio.timeout(within_s):
                while not holds(informer.cache.list()):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def until(self, informer: Informer[T], holds: Callable[[Sequence[T]], bool], what: str) -> None:
        """Return when `holds` is true of the cache; DemoError after a minute."""
        await self._until(lambda: holds(informer.cache.list()), what)

    async def until_phase(self, job: str, *phases: str) -> None:
        """Return when a job is in one of the phases."""
        await self._until(lambda: phase_of(job, self.jobs.cache.list()) in phases, f"{job} is {' or '.join(phases)}")

    async def until_lines(self, word: str, count: int) -> None:
        """Return when the training has printed that many lines with a word."""
        await self._until(lambda: sum(word in line for line in self.heard) >= count, f"{count} lines with {word!r}")

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(ACT_LIMIT_S):
                while not holds():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise DemoError(f"waited {ACT_LIMIT_S:.0f} s in vain until {what}; last seen: {self._summary()}") from None

    def _summary(self) -> str:
        pods = ", ".join(f"{pod.metadata.name} {pod.status.phase}" for pod in self.pods.cache.list())
        return f"{[f'{gang.name} {gang.phase}' for gang in self._gangs()]}; pods: {pods or 'none'}"

    # ---- logs

    def follow(self, job: str) -> None:
        """Read the log of the job's first pod as it grows."""
        pods = self.pods_of(job)
        if pods:
            path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pods[0].metadata.name}/log?follow=true"
            self._followers.append(asyncio.create_task(self._read(path)))

    async def _read(self, path: str) -> None:
        # a pod that is killed takes its log along: what was heard until then is enough
        from hekla.kube.errors import KubeError

        with contextlib.suppress(KubeError):
            async for line in lines(self.client.stream(path)):
                text = line.decode(errors="replace")
                self.heard.append(text)
                self._changed.set()
                if not self._is_drawn:
                    print(f"    {text}", flush=True)  # noqa: T201 - the demo's own voice

    def last_line(self, word: str) -> str:
        """The last line that the training printed with a word."""
        return next((line for line in reversed(self.heard) if word in line), "")

    async def finish(self) -> None:
        """Stop reading logs."""
        for follower in self._followers:
            follower.cancel()
        await asyncio.gather(*self._followers, return_exceptions=True)

    # ---- the picture

    @contextlib.asynccontextmanager
    async def drawn(self) -> AsyncIterator[None]:
        """Draw while the block runs, if this is a terminal; leave the last picture standing."""
        if not sys.stdout.isatty():
            yield
            return
        from rich.live import Live

        self._is_drawn = True
        with Live(picture(self.scene()), refresh_per_second=8, transient=False) as live:
            drawing = asyncio.create_task(self._draw(lambda: live.update(picture(self.scene()))))
            try:
                yield
            finally:
                drawing.cancel()
                live.update(picture(self.scene()))
        self._is_drawn = False

    async def _draw(self, update: Callable[[], None]) -> None:
        while True:
            update()
            await asyncio.sleep(0.125)

    def scene(self) -> Scene:
        """What the caches hold, as the picture shows it."""
        gpus = {n.metadata.name: int(n.status.allocatable.get(GPU, "0")) for n in self.nodes.cache.list()}
        placed = [
            PlacedPod(p.metadata.name, p.spec.node_name, _gpus_of(p), _owner_of(p))
            for p in self.pods.cache.list()
            if p.spec.node_name and p.status.phase in {"Pending", "Running"}
        ]
        return Scene(gpus, placed, self._gangs(), list(self.heard), list(self.said))

    def _gangs(self) -> list[GangView]:
        groups = self.groups.cache.list()
        return [
            GangView(
                job.metadata.name,
                job.status.state.phase or "Pending",
                _pods_text(job),
                why_of(job.metadata.name, groups),
            )
            for job in sorted(self.jobs.cache.list(), key=lambda job: job.metadata.creation_timestamp or "")
        ] + [
            GangView(
                serving.metadata.name,
                "Serving" if serving.status.available_replicas else "Pending",
                f"{serving.status.available_replicas} of {serving.spec.replicas} engines ready",
            )
            for serving in self.servings.cache.list()
        ]


def read_example(name: str) -> Document:
    """One manifest of examples/."""
    try:
        document: Document = next(iter(yaml.safe_load_all((EXAMPLES / name).read_text())))
    except OSError as error:
        raise DemoError(f"examples/{name} cannot be read ({error.strerror}); the demo runs from a checkout") from None
    return document


def _owner_of(pod: Pod) -> str:
    own = pod.metadata.labels
    return own.get("volcano.sh/job-name", "") or own.get(labels.NAME, "")


def is_ready(node: Node) -> bool:
    """Whether pods may be placed there."""
    return any(one.type == "Ready" and one.status == "True" for one in node.status.conditions)


def phase_of(name: str, jobs: Sequence[Job]) -> str:
    """The phase of a job; empty: there is none."""
    return next((job.status.state.phase for job in jobs if job.metadata.name == name), "")


def why_of(job: str, groups: Sequence[PodGroup]) -> str:
    """Why a job waits, in the scheduler's words."""
    for group in groups:
        if any(owner.name == job for owner in group.metadata.owner_references) and group.status.phase != "Running":
            for condition in group.status.conditions:
                if condition.type == "Unschedulable" and condition.status == "True":
                    return condition.message
    return ""


def _gpus_of(pod: Pod) -> int:
    return sum(int(c.resources.requests.get(GPU, "0")) for c in pod.spec.containers if c.resources)


def _pods_text(job: Job) -> str:
    status = job.status
    counts = [
        (status.running, "running"),
        (status.pending, "pending"),
        (status.succeeded, "done"),
        (status.failed, "failed"),
    ]
    return ", ".join(f"{count} {word}" for count, word in counts if count) or "none yet"
