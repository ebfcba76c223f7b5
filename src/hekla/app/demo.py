"""`make demo`: the platform starts, a gang of real processes trains, another waits its turn, and all ends by itself.

    act 1   two virtual nodes with eight GPUs each
    act 2   a Volcano Job of four workers: they start together, meet, learn; one is killed, and its policy restarts the gang;
            meanwhile a model comes up in the same queue and answers a chat (`demo_serving.py`)
    act 3   a second gang that does not fit waits whole, says why, and starts when the first has ended;
            meanwhile agents open sessions, run code in them, put them to sleep, wake and fork one (`demo_agents.py`)
    act 4   a crowd asks the model, and its replicas follow the load
    act 5   what to try next

In a terminal the cluster is drawn and redrawn; elsewhere the story is printed line by line. Everything shown is read
back from the API server by watching it.
"""

import asyncio
import contextlib
import os
import sys
import tempfile
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
from hekla.app.data_directory import DataDirectory
from hekla.app.demo_agents import DemoAgents
from hekla.app.demo_errors import DemoError
from hekla.app.demo_picture import GPU, GangView, PlacedPod, Scene, picture
from hekla.app.demo_serving import DemoModel
from hekla.app.detached import start_detached, stop
from hekla.app.settings import Settings
from hekla.kube.answers import lines
from hekla.kube.api_client import ApiClient
from hekla.kube.informer import Informer, Informers
from hekla.kube.kubeconfig import client_from_kubeconfig

T = TypeVar("T", bound=Resource)

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
NAMESPACE = "default"
NODES, GPUS_PER_NODE = 2, 8
ACT_LIMIT_S = 60.0
LOSS_LINES_BEFORE_THE_KILL = 3


def run_demo() -> None:
    """Play every act in a platform of its own, and leave nothing behind."""
    with tempfile.TemporaryDirectory(prefix="hekla-demo-", ignore_cleanup_errors=True) as folder:
        settings = Settings(
            data_dir=Path(folder),
            port=0,
            nodes=NODES,
            gpus_per_node=GPUS_PER_NODE,
            cpu_per_node="32",
            memory_per_node="64Gi",
        )
        directory = DataDirectory(settings.data_dir)
        # the platform holds the reading end: should we be killed, it sees the pipe close and ends
        reading, writing = os.pipe()
        try:
            url = start_detached(settings, lives_while=reading)
            asyncio.run(_play(directory, url))
        finally:
            running = directory.running()
            if running is not None and not stop(running, timeout_s=20):
                raise DemoError(f"the platform (process {running.pid}) had to be killed at the end")
            os.close(reading)
            os.close(writing)
    print(NEXT_STEPS)  # noqa: T201 - the demo's own voice


async def _play(directory: DataDirectory, url: str) -> None:
    client = client_from_kubeconfig(directory.kubeconfig)
    try:
        async with Informers(client) as informers:
            stage = Stage(client, informers)
            await informers.synced()
            async with stage.drawn():
                stage.say(f"act 1: a platform is up at {url}, with {NODES} virtual nodes of {GPUS_PER_NODE} GPUs")
                await stage.until(stage.nodes, lambda nodes: sum(map(_is_ready, nodes)) == NODES, "the nodes are ready")
                model = DemoModel(stage, directory)
                async with asyncio.TaskGroup() as group:
                    group.create_task(model.bring_up())
                    group.create_task(_train(stage))
                agents = DemoAgents(stage, directory)
                async with asyncio.TaskGroup() as group:
                    group.create_task(_wait_in_line(stage))
                    group.create_task(agents.visit())
                await model.follow_the_load()
                await model.close()
                await agents.close()
            await stage.finish()
    except* DemoError as errors:
        raise errors.exceptions[0] from None
    finally:
        await client.close()


async def _train(stage: "Stage") -> None:
    job = read_example("training/job.yaml")
    await stage.submit(job)
    stage.say("act 2: `train` asks for four workers with three GPUs each; they start together or not at all")
    await stage.until_phase("train", "Running")
    where = ", ".join(f"{pod.metadata.name} on {pod.spec.node_name}" for pod in stage.pods_of("train"))
    stage.say(f"all four run as real processes: {where}")
    stage.follow("train")
    await stage.until_lines("loss", LOSS_LINES_BEFORE_THE_KILL)
    await _kill_one(stage)


async def _wait_in_line(stage: "Stage") -> None:
    await stage.submit(read_example("training/second.yaml"))
    stage.say("act 3: `second` asks for two workers with four GPUs each; three are left in all")
    await stage.until(stage.groups, lambda groups: bool(_why("second", groups)), "the second gang says why it waits")
    stage.say(f"it waits whole: {_why('second', stage.groups.cache.list())}")
    await stage.until_phase("train", "Completed")
    stage.say(f"`train` is done: {stage.last_line('loss')}")
    await stage.until_phase("second", "Running", "Completed")
    stage.say("its GPUs are free, so `second` starts, whole")
    await stage.until_phase("second", "Completed")
    stage.say("`second` is done")


async def _kill_one(stage: "Stage") -> None:
    victim = stage.pods_of("train")[-1]
    stage.say(f"now {victim.metadata.name} is killed; the job's policy for that is RestartJob")
    await stage.client.delete(Pod, victim.metadata.name, NAMESPACE, grace_s=0)
    await stage.until(stage.jobs, lambda jobs: _retries("train", jobs) > 0, "the job restarts")
    await stage.until_phase("train", "Running", "Completed")
    stage.say("the whole gang has started anew, and meets again")
    stage.follow("train")


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

    def pods_of(self, job: str) -> list[Pod]:
        """A job's pods, in order of name."""
        return [pod for pod in self.pods.cache.list() if pod.metadata.labels.get("volcano.sh/job-name") == job]

    # ---- waiting

    async def until(self, informer: Informer[T], holds: Callable[[Sequence[T]], bool], what: str) -> None:
        """Return when `holds` is true of the cache; DemoError after a minute."""
        await self._until(lambda: holds(informer.cache.list()), what)

    async def until_phase(self, job: str, *phases: str) -> None:
        """Return when a job is in one of the phases."""
        await self._until(lambda: _phase(job, self.jobs.cache.list()) in phases, f"{job} is {' or '.join(phases)}")

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
                job.metadata.name, job.status.state.phase or "Pending", _pods_text(job), _why(job.metadata.name, groups)
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


def _is_ready(node: Node) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in node.status.conditions)


def _phase(name: str, jobs: Sequence[Job]) -> str:
    return next((job.status.state.phase for job in jobs if job.metadata.name == name), "")


def _retries(name: str, jobs: Sequence[Job]) -> int:
    return next((job.status.retry_count for job in jobs if job.metadata.name == name), 0)


def _why(job: str, groups: Sequence[PodGroup]) -> str:
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


NEXT_STEPS = """
act 5: yours. The platform of the demo is gone; `make up` (or `hekla up --detach`) starts one that stays:

    export PATH="$PWD/.venv/bin:$PATH"
    hekla up --detach --nodes 2 --gpus-per-node 8
    hekla apply -f examples/training/job.yaml
    hekla get vcjob,podgroups,pods        # -w to watch, -o wide to see where
    hekla logs -f vcjob/train
    hekla apply -f examples/serving/chat.yaml; hekla status       # where the model is asked, and the keys to it
    hekla describe podgroup
    hekla down

Every Kubernetes client works too: export KUBECONFIG=$(hekla kubeconfig); kubectl get queues"""
