"""The node agent: runs the pods that are bound to its virtual nodes, and tells the API server how they are.

    async with Informers(client) as informers:
        agent = NodeAgent(client, informers, [VirtualNode(name="node-0", capacity={"cpu": "8"})], data_dir=path)
        await agent.start()
        ...
        await agent.close()

The loop is small: an event is folded into a pod's record (`pod_record.after`), the record decides
(`pod_lifecycle.decide`), the plan is carried out (`pod_actions.py`) and what came of it is the next event. Nothing here
knows how a container is run: that is the runtime's (`runtimes/`).
"""

import asyncio
import base64
import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog

from hekla.api.agents.node_contract import SecretHeader
from hekla.api.meta import Resource
from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.kube.api_client import ApiClient
from hekla.kube.client import Client
from hekla.kube.clock import Clock, SystemClock
from hekla.kube.commands import Event, target_of
from hekla.kube.errors import KubeError
from hekla.kube.events import EventRecorder
from hekla.kube.informer import Handler, Informer, Informers
from hekla.node.addresses import LoopbackAddresses, nowhere
from hekla.node.admission import Refusal, no_process, refusal_of, uninvited
from hekla.node.egress.broker import SecretAwayError
from hekla.node.eviction import Look, limits_of
from hekla.node.images import ImageRegistry
from hekla.node.late_environment import LateEnvironments
from hekla.node.memory_volumes import MemoryVolumes
from hekla.node.objects import Objects, TokenSource
from hekla.node.pod_actions import PodActions
from hekla.node.pod_lifecycle import Action, Backoff, PreparePlace, decide
from hekla.node.pod_record import (
    EVICTED,
    Exit,
    Exited,
    Memory,
    Outlived,
    Place,
    PodEvent,
    PodRecord,
    Refused,
    Stage,
    after,
    field_path,
    hurried,
    memory_of,
    recover,
)
from hekla.node.pod_status import phase_of, since_of, status_of
from hekla.node.references import CONFIG_MAP, SECRET, references_of
from hekla.node.registration import Registrar, Standing, VirtualNode, node_document, status_document
from hekla.node.runtimes import ContainerKey, Feature, NodeError, Runtime
from hekla.node.runtimes.microvm.runtime import MicrovmSandboxes
from hekla.node.runtimes.oci.engines import RUNSC
from hekla.node.runtimes.oci.runtime import OciSandboxes
from hekla.node.runtimes.process import ProcessRuntime
from hekla.node.runtimes.sandbox import SandboxRuntime
from hekla.node.runtimes.sandbox.checkpoints import CheckpointStore
from hekla.node.runtimes.sandbox.runtime import GRACE_S, DaemonSandboxes, ZygoteSandboxes
from hekla.node.runtimes.simulated import SimulatedRuntime
from hekla.node.sandbox_admission import sandbox_refusal_of
from hekla.node.sandbox_desk import SandboxDesk
from hekla.node.status_writer import PENDING, StatusWriter
from hekla.node.tracked import TrackedPod

T = TypeVar("T", bound=Resource)
log = structlog.get_logger()

HOSTS_PAUSE_S = 0.03
"""Changes of names within this time are written together."""

CONTRADICTS_S = 5.0
"""How long what somebody else says of a pod stands before it is contradicted: the node has to be believed to be back first."""

STRAY_GRACE_S = 1.0
"""Between SIGTERM and SIGKILL for what outlived its pod, as kubelets have it: what grace it had is not known any more."""

EVICT_EVERY_S = 10.0
"""How often it is looked at what pods' files take, as kubelets do."""
EVICT_LOOK_S = 0.5
"""At those of one pod, before others have their turn: it may have millions."""

REFRESH_S = 60.0
"""How often volumes with tokens and own fields are looked at."""


class NodeAgent:
    """All virtual nodes of this process."""

    def __init__(
        self,
        client: ApiClient,
        informers: Informers,
        nodes: Sequence[VirtualNode],
        *,
        data_dir: Path,
        runtimes: Sequence[Runtime] = (),
        clock: Clock | None = None,
        images: ImageRegistry | None = None,
        token_source: TokenSource | None = None,
        api_address: tuple[str, int] = ("", 0),
        hidden: Sequence[Path] = (),
        backoff: Backoff | None = None,
        sandbox_grace_s: float = GRACE_S,
        pod_grace_s: float = GRACE_S,
        is_hurried: Callable[[], bool] = lambda: False,
        engine_python: Path | None = None,
        is_guest: bool = False,
        takes_processes: bool = True,
    ) -> None:
        """`hidden` directories and files (keys, databases) are covered in containers, as `data_dir` is; a pod chooses among
        `runtimes` by runtimeClassName, by default all there are. For `sandbox_grace_s` sandboxes outlive us if we are killed,
        and for `pod_grace_s`, which may be infinite, other containers.
        `is_hurried` says that somebody waits for sessions: what is told of those that run already can wait.
        `engine_python` is of an environment that has vLLM, where ours has not (`engines.py`). A guest is in a cluster of somebody
        else, and sees its own pods alone (`objects.py`); unless it `takes_processes`, they are sandboxes, or only pretend.
        """
        self._clock = clock or SystemClock()
        self._nodes = {node.name: node for node in nodes}
        self._directory = data_dir = data_dir.absolute()  # what is hidden is so by its place, seen from the root
        self._memory = MemoryVolumes(_digest(data_dir))
        hidden = (data_dir, *(each.absolute() for each in hidden), *self._memory.hidden())
        checkpoints = CheckpointStore(data_dir / "checkpoints")
        own = runtimes or (
            ProcessRuntime(data_dir / "runtime", hidden=hidden, grace_s=pod_grace_s), SimulatedRuntime(self._clock),
            ZygoteSandboxes(data_dir / "sandboxes", checkpoints=checkpoints, grace_s=sandbox_grace_s),
            OciSandboxes(data_dir / "oci", checkpoints=checkpoints),
            OciSandboxes(data_dir / "gvisor", checkpoints=checkpoints, name="gvisor", engines=(RUNSC,)),
            MicrovmSandboxes(data_dir / "microvm", checkpoints=checkpoints),
        )  # fmt: skip
        self.runtimes: Mapping[str, Runtime] = {each.name: each for each in own}
        self.sandbox_runtimes: Mapping[str, SandboxRuntime] = {
            each.name: each for each in own if isinstance(each, DaemonSandboxes)
        }
        for each in own:
            if isinstance(each, DaemonSandboxes):
                each.secret_of = self._secret_of
        self.sandboxes = SandboxDesk(self, checkpoints)
        self._backoff = backoff or Backoff()
        self._client = client
        self._addresses = LoopbackAddresses(offset=_offset(data_dir))
        self._objects = Objects(
            informers, client, self._addresses, token_source=token_source, api_address=api_address,
            guests=tuple(self._nodes) if is_guest else (),
        )  # fmt: skip
        self._statuses = StatusWriter(client, is_hurried)
        self._events = EventRecorder(
            client, self._clock, component="hekla-node", is_busy=lambda: self._actions.is_starting or is_hurried()
        )
        images = images or ImageRegistry.of_directory(data_dir / "images")
        self._actions = PodActions(
            client=client, clock=self._clock, objects=self._objects, addresses=self._addresses, images=images,
            statuses=self._statuses, tell=self._tell, memory=self._memory, engine_python=engine_python, hidden=hidden,
        )  # fmt: skip
        self._late_environments = LateEnvironments(client, self.sandboxes, images, self._now)
        self._pods: dict[str, TrackedPod] = {}
        self._by_node: dict[str, dict[str, TrackedPod]] = {name: {} for name in self._nodes}
        """Pods that may still run on each node; those that are over leave it when the next one comes."""
        self._node_objects: dict[str, Node] = {}
        self._outlived: dict[tuple[str, str], dict[str, Outlived]] = {}
        """What the runtimes found running at the start, by runtime and pod; empty once the pods were taken up."""
        self._tasks: list[asyncio.Task[None]] = []
        self._strays_ending: set[asyncio.Task[None]] = set()
        self._names_dirty = asyncio.Event()
        self._is_closing = False
        self.is_starting = True
        """Pods of an earlier life have not been taken up yet."""
        self._is_guest, self._takes_processes = is_guest, takes_processes
        self.registrar: Registrar | None = None
        """Who writes our Node objects, once the runtimes are open."""
        self._unfollow: list[Callable[[], None]] = []

    async def start(self) -> None:
        """Open the runtimes, register the nodes, take up the pods that are bound to them."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for runtime in self.runtimes.values():
            await runtime.open(self._container_ended)
        await self._objects.synced()
        self._reserve_addresses()
        registrar = self.registrar = Registrar(self._client, self._clock, self._nodes, self._standing)
        self._spawn(registrar.run(), "renew node leases")
        await (registrar.register_patiently() if self._is_guest else registrar.register())
        self._spawn(self._statuses.run(), "write pod statuses")
        self._spawn(self._events.run(), "write events")
        self._spawn(self._keep_names(), "keep pods' names")
        self._spawn(self._refresh(), "refresh volumes")
        self._spawn(self._evict(), "evict pods over their limits")
        await self._find_outlived()
        self._listen()  # nothing may happen in between: what ends from here on is heard as an event
        self.is_starting = False
        strays = list(self._strays())
        for runtime, key, why in strays:
            log.info("container of an earlier life ends", pod_uid=key.pod_uid, container=key.name, why=why)
            self._spawn_apart(self._end_stray(runtime, key))
        self._spawn_apart(self._remove_leftovers({key.pod_uid for _, key, _ in strays}))

    async def close(self, *, leaves_containers: bool = False) -> None:
        """Leave: pods stay bound and are taken up by the next life. Containers are ended; or left to it, where their runtime can."""
        self._is_closing = True
        for unfollow in self._unfollow:
            unfollow()
        await self._cancel((*self._tasks, *self._strays_ending))
        for tracked in self._pods.values():
            tracked.cancel_wake()
            await self._cancel(tracked.tasks)
        for runtime in self.runtimes.values():
            await (runtime.leave() if leaves_containers else runtime.close())
        if not leaves_containers:  # as at the end of a machine: nobody should have to look for memory that is gone
            for tracked in self._pods.values():
                self._memory.drop(tracked.directory, tracked.uid)
            self._memory.close()

    async def say_goodbye(self, why: str, remover: Client | None = None) -> None:
        """Tell the API server that the nodes are ready no more; a `remover`, who may, deletes them."""
        if self.registrar is not None:
            await self.registrar.say_goodbye(why, remover)

    async def ended(self) -> None:
        """Raise when one of the tasks that keep the node true has died; none does while all is well."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    def find(self, namespace: str, name: str) -> TrackedPod | None:
        """A pod of these nodes by name, for logs and commands."""
        pod = self._objects.pods.cache.get(namespace, name)
        return self._pods.get(pod.metadata.uid) if pod is not None else None

    @property
    def pods(self) -> Iterable[TrackedPod]:
        """All pods that these nodes hold."""
        return self._pods.values()

    async def _find_outlived(self) -> None:
        """Containers that outlived an earlier life of this node, by pod."""
        for runtime in self.runtimes.values():
            for key, found in sorted((await runtime.observe()).items()):
                self._addresses.reserve(key.pod_uid, found.pod_ip)
                pod = self._outlived.setdefault((runtime.name, key.pod_uid), {})
                before = pod.get(key.name)
                pod[key.name] = Outlived(
                    key.attempt, found.container_id, found.started_at, found.exit, before.exit if before else None,
                    found.devices, _memory_in(found.memory),
                )  # fmt: skip

    def _strays(self) -> Iterator[tuple[Runtime, ContainerKey, str]]:
        """Of those the ones that no pod has, or needs, any more."""
        for (name, uid), containers in self._outlived.items():
            tracked = self._pods.get(uid)
            for container, found in containers.items():
                key = ContainerKey(uid, container, found.attempt)
                if tracked is None:
                    yield self.runtimes[name], key, "there is no such pod"
                elif found.exit is not None:
                    continue
                elif tracked.record.is_over:
                    yield self.runtimes[name], key, "its pod is over"
                elif tracked.key(container) != key:
                    yield self.runtimes[name], key, "its pod has another attempt at it"
        self._outlived.clear()

    async def _end_stray(self, runtime: Runtime, key: ContainerKey) -> None:
        await runtime.stop(key, grace_s=STRAY_GRACE_S)
        if key.pod_uid not in self._pods:
            await self._remove_all_of(key.pod_uid)

    async def _remove_leftovers(self, ending: Collection[str]) -> None:
        """What is kept of pods that went while nobody was there, and of which nothing ran any more: the machine was down."""
        kept = self._memory.leftovers()
        with contextlib.suppress(FileNotFoundError):
            kept += os.listdir(self._directory / "pods")
        for uid in sorted(set(kept)):
            if uid not in self._pods and uid not in ending:
                await self._remove_all_of(uid)

    async def _remove_all_of(self, uid: str) -> None:
        self._addresses.release(uid)
        for runtime in self.runtimes.values():
            await runtime.remove(uid)
        directory = self._directory / "pods" / uid
        await asyncio.to_thread(self._memory.drop, directory, uid)
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    def _listen(self) -> None:
        objects = self._objects
        self._follow(objects.pods, self._pod_changed)
        if self._is_guest:
            self._follow(objects.nodes, self._node_changed)
        self._follow(objects.services, lambda old, new: self._names_changed())
        self._follow(objects.slices, lambda old, new: self._names_changed())
        self._follow(objects.config_maps, lambda old, new: self._referent_changed(CONFIG_MAP, old, new))
        self._follow(objects.secrets, lambda old, new: self._referent_changed(SECRET, old, new))
        self._follow(objects.claims, lambda old, new: self._storage_changed())
        self._follow(objects.volumes, lambda old, new: self._storage_changed())

    def _follow(self, informer: Informer[T], handler: Handler[T]) -> None:
        informer.add_handler(handler)
        self._unfollow.append(lambda: informer.remove_handler(handler))

    def _reserve_addresses(self) -> None:
        for pod in self._objects.pods.cache:
            if pod.status.pod_ip and not pod.spec.host_network and pod.status.phase not in ("Succeeded", "Failed"):
                self._addresses.reserve(pod.metadata.uid, pod.status.pod_ip)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if old is None or new is None or _names_differ(old, new):
            self._names_changed()
        if new is None:
            if old is not None and old.metadata.uid in self._pods:
                self._orphaned(self._pods[old.metadata.uid])
            return
        tracked = self._pods.get(new.metadata.uid)
        if tracked is not None:
            tracked.pod = new
            if tracked.is_sandbox and (work := self._late_environments.look(new)) is not None:
                self._spawn_for(tracked, work)
            if old is None or _matters(old, new):
                self._decide(tracked)
            if old is not None and _ready(old) and not _ready(new) and tracked.is_told_ready:
                asyncio.get_running_loop().call_later(CONTRADICTS_S, self._contradict, tracked.uid)
        elif new.spec.node_name in self._nodes:
            self._take_up(new)

    def _contradict(self, uid: str) -> None:
        """Say again that a pod is ready: a cluster that took its node for gone has called it unready, and nobody else takes that back."""
        tracked = self._pods.get(uid)
        if tracked is not None and tracked.is_told_ready and not tracked.is_orphan and not _ready(tracked.pod):
            self._statuses.doubt(uid)
            self._tell_status(tracked)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        node = new or old
        if node is not None and node.metadata.name in self._nodes and self.registrar is not None:
            self._spawn_apart(self.registrar.correct(node.metadata.name, new))

    def _take_up(self, pod: Pod) -> None:
        """A pod bound to one of our nodes, seen for the first time in this life."""
        node = self._nodes[pod.spec.node_name]
        runtime = self.runtimes.get(pod.spec.runtime_class_name or node.runtime)
        now = self._now()
        outlived = self._outlived.get((runtime.name, pod.metadata.uid), {}) if runtime is not None else {}
        was_ours = bool(pod.status.start_time or outlived)
        address = ""  # a guest has told another, and what began under one that was killed may not have told its own
        if outlived:
            address = node.address if pod.spec.host_network else self._addresses.of(pod.metadata.uid)
        record = recover(pod, now, outlived, address=address) if was_ours else PodRecord(accepted_at=now)
        tracked = TrackedPod(
            pod=pod, record=replace(record, host_ip=node.address), node=node,
            runtime=runtime or self.runtimes[node.runtime], directory=self._directory / "pods" / pod.metadata.uid,
            since=since_of(pod),
        )  # fmt: skip
        self._pods[pod.metadata.uid] = self._by_node[node.name][pod.metadata.uid] = tracked
        if not record.is_over:
            self._actions.recall_devices(tracked, {name: each.devices for name, each in outlived.items()})
        if record.is_over:
            tracked.record = replace(tracked.record, pod_ip=pod.status.pod_ip)
            self._addresses.release(pod.metadata.uid)
        elif runtime is None:
            message = (
                f'runtimeClassName "{pod.spec.runtime_class_name}" is no runtime of node {node.name}; '
                f"it has {', '.join(sorted(self.runtimes))}"
            )
            self._apply(tracked, Refused("UnknownRuntimeClass", message))
            return
        elif not was_ours:
            self._admit(tracked)
        elif (refusal := self._refusal_of_guest(tracked)) is not None:
            self._reject(tracked, refusal)  # it was another's, whose node had our name
        elif (
            record.place is Place.READY
        ):  # it is; but what of it is read again, and mounted by later attempts, this life must make
            self._spawn_for(tracked, self._carry_out(tracked, PreparePlace()))
        self._decide(tracked)

    def _admit(self, tracked: TrackedPod) -> None:
        here = self._by_node[tracked.node.name]
        # Ended pods stay until their jobs go: by the thousand on a node where short ones follow one another.
        for uid in [uid for uid, each in here.items() if each.record.is_over]:
            del here[uid]
        others = [each.requests for each in here.values() if each is not tracked]
        refusal = refusal_of(tracked.pod, self._node_object(tracked.node), others)
        refusal = refusal or self._refusal_of_guest(tracked)
        sandboxes = self.sandbox_runtimes.get(tracked.runtime.name)
        if refusal is None and sandboxes is not None:
            refusal = sandbox_refusal_of(tracked.pod, sandboxes.name, sandboxes.isolation, sandboxes.refusal)
        if refusal is not None:
            self._reject(tracked, refusal)

    def _refusal_of_guest(self, tracked: TrackedPod) -> Refusal | None:
        if not self._is_guest or not tracked.is_real:
            return None
        refusal = uninvited(tracked.pod, tracked.node.taints, self.runtimes)
        if refusal is None and not self._takes_processes and not tracked.is_sandbox:
            return no_process(tracked.pod)
        return refusal

    def _reject(self, tracked: TrackedPod, refusal: Refusal) -> None:
        self._tell(tracked.pod, "Warning", refusal.reason, refusal.message)
        message = f"Pod was rejected: {refusal.message}"
        tracked.record = after(tracked.pod, tracked.record, Refused(refusal.reason, message), self._now())

    def _node_object(self, node: VirtualNode) -> Node:
        """The node as admission sees it; made once, but for the labels that others may have put on it."""
        made = self._node_objects.get(node.name)
        if made is None:
            made = self._node_objects[node.name] = _node_of(node, self._standing(node), self._clock)
        labels = made.metadata.labels | self._objects.labels_of_node(node.name)
        return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, labels=labels))

    def _orphaned(self, tracked: TrackedPod) -> None:
        """The API has forgotten the pod (a forced deletion): end what runs, at once."""
        meta = msgspec.structs.replace(
            tracked.pod.metadata, deletion_timestamp="1970-01-01T00:00:00Z", deletion_grace_period_seconds=0
        )
        tracked.pod = msgspec.structs.replace(tracked.pod, metadata=meta)
        tracked.is_orphan = True
        self._statuses.forget(tracked.uid)
        self._decide(tracked)
        if tracked.record.is_deleted:
            self._forget(tracked)

    def _forget(self, tracked: TrackedPod) -> None:
        tracked.cancel_wake()
        self._pods.pop(tracked.uid, None)
        self._by_node[tracked.node.name].pop(tracked.uid, None)
        self._statuses.forget(tracked.uid)
        self._objects.forget(tracked.uid)
        self._addresses.release(tracked.uid)
        self._names_changed()

    def _container_ended(self, key: ContainerKey, end: Exit) -> None:
        tracked = self._pods.get(key.pod_uid)
        if tracked is not None:
            self._apply(tracked, Exited(key.name, end, key.attempt))

    def _apply(self, tracked: TrackedPod, event: PodEvent) -> None:
        if self._is_closing:
            return
        tracked.record = after(tracked.pod, tracked.record, event, self._now())
        self._decide(tracked)

    def _decide(self, tracked: TrackedPod) -> None:
        """Decide, order what was decided, tell the API, and set the alarm."""
        if self._is_closing:
            return
        tracked.cancel_wake()
        had_address = tracked.record.pod_ip
        was_over = tracked.record.is_over
        plan = decide(tracked.pod, tracked.record, self._now(), self._backoff)
        before, tracked.record = tracked.record, plan.record
        self._tell_turns(tracked, before)
        if tracked.record.is_over and not was_over:
            self._actions.release_devices(tracked)
        if not tracked.is_orphan:
            self._tell_status(tracked)
        self._remember(tracked)
        for action in plan.actions:
            task = asyncio.get_running_loop().create_task(self._carry_out(tracked, action))
            tracked.tasks.add(task)
            task.add_done_callback(tracked.tasks.discard)
        if plan.wake_at is not None:
            delay_s = max(0.0, plan.wake_at - self._now())
            tracked.wake = asyncio.get_running_loop().call_later(delay_s, self._decide, tracked)
        if tracked.record.pod_ip and not had_address:
            self._names_changed()

    def _tell_turns(self, tracked: TrackedPod, before: PodRecord) -> None:
        """What a decision alone brings about, and no action tells."""
        pod, record = tracked.pod, tracked.record
        if record is before:
            return
        for name, known in record.containers.items():
            if known.is_backing_off and not before.container(name).is_backing_off:
                meta = pod.metadata
                where = f"{meta.name}_{meta.namespace}({meta.uid})"
                self._tell(
                    pod, "Warning", "BackOff", f"Back-off restarting failed container {name} in pod {where}", name
                )
        if record.refusal is not None and before.refusal is None:
            self._tell(pod, "Normal", *record.refusal)

    def _remember(self, tracked: TrackedPod) -> None:
        """What the next life could not find out: tell it to who outlives us, where that is kept and has changed."""
        if Feature.MEMORY not in tracked.runtime.features:
            return
        for name, known in tracked.record.containers.items():
            before = tracked.remembered.get(name, (None, None, Memory()))
            if known is before[0] or known.stage not in (Stage.RUNNING, Stage.EXITED):
                continue
            key, memory = tracked.key(name), memory_of(known)
            tracked.remembered[name] = known, key, memory
            if key is not None and memory != (before[2] if key == before[1] else Memory()):
                self._spawn_for(tracked, tracked.runtime.remember(key, msgspec.to_builtins(memory)))

    def _tell_status(self, tracked: TrackedPod) -> None:
        is_own = not self._is_guest or tracked.record.pod_ip == tracked.node.address
        told_ip = "" if is_own else nowhere(tracked.uid)
        write = partial(status_of, tracked.pod, tracked.record, self._now(), tracked.since, told_ip=told_ip)
        if phase_of(tracked.pod, tracked.record) == PENDING:
            self._statuses.put_pending(tracked.pod, write)
            return
        status = write()
        self._statuses.put(tracked.pod, status)
        if tracked.is_sandbox:
            self.sandboxes.hear(tracked.pod, status)

    async def _carry_out(self, tracked: TrackedPod, action: Action) -> None:
        """Until it is done, ever less often: only the action itself knows when it has failed for good."""
        failures = 0
        while not self._is_closing:
            try:
                event = await self._actions.carry_out(tracked, action)
            except Exception as problem:  # a task's end: one pod's trouble must not become silence
                failures += 1
                is_expected = isinstance(problem, NodeError | KubeError | OSError)
                log.warning(
                    "pod action failed", pod=tracked.pod.metadata.name, action=str(action), error=str(problem),
                    failures=failures, exc_info=not is_expected,
                )  # fmt: skip
                await asyncio.sleep(min(30.0, 0.5 * 2.0 ** min(failures, 8)))
                continue
            if event is not None:
                self._apply(tracked, event)
            break
        if tracked.is_orphan and tracked.record.is_deleted:
            self._forget(tracked)

    def _referent_changed(self, kind: str, old: Resource | None, new: Resource | None) -> None:
        """A config map or secret: pods that wait for it, or show it as files."""
        changed = new or old
        if changed is None:
            return
        name, namespace = changed.metadata.name, changed.metadata.namespace
        for tracked in list(self._pods.values()):
            if tracked.pod.metadata.namespace == namespace and (kind, name) in references_of(tracked.pod):
                tracked.record = hurried(tracked.record)
                self._decide(tracked)
                if tracked.places and not tracked.record.is_over:
                    self._spawn_for(tracked, self._actions.refresh_volumes(tracked))

    def _storage_changed(self) -> None:
        for tracked in list(self._pods.values()):
            if tracked.record.place_failures and not tracked.record.is_over:
                tracked.record = hurried(tracked.record)
                self._decide(tracked)

    def _names_changed(self) -> None:
        self._objects.names_changed()
        self._names_dirty.set()

    async def _keep_names(self) -> None:
        """Write every pod's hosts file anew when names have changed; a large cluster is written less often."""
        loop = asyncio.get_running_loop()
        while True:
            await self._names_dirty.wait()
            await asyncio.sleep(HOSTS_PAUSE_S)
            self._names_dirty.clear()
            began = loop.time()
            for tracked in list(self._pods.values()):
                if tracked.hosts_text and not tracked.record.is_over:
                    with contextlib.suppress(OSError):  # the pod is being removed, or the disk is full: told elsewhere
                        self._actions.write_hosts(tracked)
            await asyncio.sleep(10 * (loop.time() - began))

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            for tracked in list(self._pods.values()):
                if tracked.places and tracked.is_real and not tracked.record.is_over:
                    await self._actions.refresh_volumes(tracked)

    async def _evict(self) -> None:
        """Looks at each pod in turn, for a while at most; where that is not enough, its look goes on at the next turn."""
        looks: dict[str, Look] = {}
        while True:
            began = asyncio.get_running_loop().time()
            limited = {uid: each for uid, each in self._pods.items() if _may_outgrow(each)}
            looks = {uid: looks.get(uid) or Look(each.pod, dict(each.places)) for uid, each in limited.items()}
            for uid, tracked in limited.items():
                try:
                    why = await asyncio.to_thread(looks[uid].go_on, EVICT_LOOK_S)
                except OSError as problem:
                    log.warning("volumes not looked at", pod=tracked.pod.metadata.name, error=str(problem))
                    why = ""
                if why is not None:
                    del looks[uid]
                if why and not tracked.record.is_over:
                    self._tell(tracked.pod, "Warning", EVICTED, why)
                    self._apply(tracked, Refused(EVICTED, why))
            took_s = asyncio.get_running_loop().time() - began
            await asyncio.sleep(max(EVICT_EVERY_S, 10 * took_s))  # of the disk's time a tenth at the most

    async def _secret_of(self, pod_uid: str, header: SecretHeader) -> str:
        """What the egress broker adds for a pod: of its own namespace only, and as it is now."""
        tracked = self._pods.get(pod_uid)
        namespace = tracked.pod.metadata.namespace if tracked is not None else ""
        try:
            secret = await self._objects.secret(namespace, header.secret)
        except KubeError as error:
            log.info("secret not read", namespace=namespace, secret=header.secret, why=str(error))
            raise SecretAwayError(header.secret) from None
        if secret is None or header.key not in secret.data:
            raise LookupError(header.secret)
        return base64.b64decode(secret.data[header.key]).decode()

    def _standing(self, node: VirtualNode) -> Standing:
        runtime = self.runtimes[node.runtime]
        if isinstance(runtime, ProcessRuntime):
            isolation = runtime.isolation
            return Standing(
                rung=isolation.rung.name, isolation=isolation.sentence, limits=f"{runtime.cgroups.describe()}; {runtime.process_bound.describe()}",
                sandboxes=tuple(self.sandbox_runtimes.values()),
            )  # fmt: skip
        return Standing(
            rung=node.runtime, isolation=f"pods are run by the {node.runtime} runtime", limits="nothing is limited"
        )

    def _tell(self, pod: Pod, kind: str, reason: str, message: str, container: str = "") -> None:
        self.record(Event(target_of(pod), reason, message, kind, field_path(pod, container)))

    def record(self, event: Event) -> None:
        """Write an event in the nodes' name, soon."""
        self._events.record(event)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(_tell_unexpected_end)
        self._tasks.append(task)

    def _spawn_apart(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._strays_ending.add(task)
        task.add_done_callback(self._strays_ending.discard)

    def _spawn_for(self, tracked: TrackedPod, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        tracked.tasks.add(task)
        task.add_done_callback(tracked.tasks.discard)

    async def _cancel(self, tasks: Iterable["asyncio.Task[None]"]) -> None:
        running = list(tasks)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _now(self) -> float:
        return self._clock.now().timestamp()


def _may_outgrow(tracked: TrackedPod) -> bool:
    """Whether it has volumes with a limit that can be looked at."""
    is_there = tracked.places and tracked.is_real and not tracked.record.is_over
    return bool(is_there and limits_of(tracked.pod))


def _memory_in(told: Mapping[str, Any]) -> Memory | None:
    """What an earlier life remembered, if it did, and in words of ours."""
    try:
        return msgspec.convert(told, Memory) if told else None
    except msgspec.ValidationError as problem:
        log.info("what an earlier life remembered is not understood", why=str(problem))
        return None


def _tell_unexpected_end(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (problem := task.exception()) is not None:
        log.error("node task ended", task=task.get_name(), exc_info=problem)


def _matters(old: Pod, new: Pod) -> bool:
    """Whether a change of a pod can change what its node does; most are echoes of our own statuses."""
    return (
        old.metadata.generation != new.metadata.generation
        or old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
        or old.metadata.deletion_grace_period_seconds != new.metadata.deletion_grace_period_seconds
        or bool(new.spec.readiness_gates)
        or old.spec != new.spec
    )


def _names_differ(old: Pod, new: Pod) -> bool:
    return (old.status.pod_ip, old.status.phase, old.metadata.labels, _ready(old)) != (
        new.status.pod_ip, new.status.phase, new.metadata.labels, _ready(new),
    )  # fmt: skip


def _ready(pod: Pod) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions)


def _node_of(node: VirtualNode, standing: Standing, clock: Clock) -> Node:
    document = node_document(node, standing) | {"status": status_document(node, standing, clock.now(), clock.now())}
    return msgspec.convert(document, Node)


def _digest(directory: Path) -> str:
    return hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:12]


def _offset(directory: Path) -> int:
    """Two agents on one machine begin at different addresses."""
    digest = hashlib.sha256(os.fsencode(directory.resolve())).digest()
    return int.from_bytes(digest[:2], "big") << 8
