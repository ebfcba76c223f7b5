"""Carries out what `pod_lifecycle.decide` planned for one pod, and says what came of it as events of the record."""

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from hekla.api.containers import Container
from hekla.api.kthena import labels
from hekla.api.pods import Pod
from hekla.api.volumes import Volume
from hekla.kube.client import Client, PatchType
from hekla.kube.clock import Clock
from hekla.kube.errors import KubeError, NotFoundError
from hekla.lib import quantity
from hekla.node.addresses import LoopbackAddresses
from hekla.node.admission import DeviceLedger, gpu_request
from hekla.node.container_builder import build
from hekla.node.engines import ENGINE_STAND_IN, EngineChoice, entry_point, is_stand_in
from hekla.node.health import HOOK_TIMEOUT_S, ask, run_hook
from hekla.node.images import HOST_ROOTFS, ImageRegistry
from hekla.node.memory_volumes import ON_DISK, MemoryVolumes, is_memory
from hekla.node.names import hosts_file
from hekla.node.objects import Objects
from hekla.node.pod_lifecycle import (
    Action,
    AskProbe,
    DeletePod,
    PreparePlace,
    RemovePlace,
    RunPostStart,
    RunPreStop,
    StartContainer,
    StopContainer,
)
from hekla.node.pod_record import (
    Exit,
    Exited,
    NotPrepared,
    PlaceFailed,
    PlaceReady,
    PlaceRemoved,
    PodEvent,
    PostStartEnded,
    PreStopEnded,
    Probed,
    ProbeKind,
    Started,
    containers_of,
    probe_of,
)
from hekla.node.pod_status import timestamp
from hekla.node.references import Lookup
from hekla.node.runtimes import ConfigError, ContainerKey, ExecError, ExecSession, StartError, VolumeError
from hekla.node.status_writer import StatusWriter
from hekla.node.tracked import TrackedPod
from hekla.node.volumes import VolumeMaker, payload_of

log = structlog.get_logger()

MAX_STARTING = 32
"""Containers being started at the same time; more would only take turns on the processors."""


class Tell(Protocol):
    """Records an event."""

    def __call__(self, pod: Pod, kind: str, reason: str, message: str, container: str = "") -> None:
        """About a pod, or one of its containers."""


class PodActions:
    """The hands of the agent."""

    def __init__(
        self,
        *,
        client: Client,
        clock: Clock,
        objects: Objects,
        addresses: LoopbackAddresses,
        images: ImageRegistry,
        statuses: StatusWriter,
        tell: Tell,
        memory: MemoryVolumes,
        engine_python: Path | None = None,
        hidden: Sequence[Path] = (),
    ) -> None:
        """No hostPath of a pod leads into what is `hidden`."""
        self._memory = memory
        self._client, self._clock, self._objects = client, clock, objects
        self._addresses, self._images, self._statuses, self._tell = addresses, images, statuses, tell
        self._engine_python, self._hidden = engine_python, hidden
        self._devices: dict[str, DeviceLedger] = {}
        self._starting = asyncio.Semaphore(MAX_STARTING)
        self._starts = 0

    @property
    def is_starting(self) -> bool:
        """Whether containers are being started: what only tells of them can wait."""
        return self._starts > 0

    async def carry_out(self, tracked: TrackedPod, action: Action) -> PodEvent | None:
        """Do one thing; the event says how it went, None that there is nothing to say."""
        match action:
            case PreparePlace():
                return await self._prepare(tracked)
            case StartContainer(name, attempt):
                async with self._starting:
                    return await self._start(tracked, containers_of(tracked.pod)[name], attempt)
            case RunPreStop(name, grace_s, reason):
                return await self._pre_stop(tracked, containers_of(tracked.pod)[name], grace_s, reason)
            case StopContainer(name, grace_s, reason):
                await self._stop(tracked, containers_of(tracked.pod)[name], grace_s, reason)
            case RunPostStart(name):
                return await self._post_start(tracked, containers_of(tracked.pod)[name])
            case AskProbe(name, kind):
                return await self._ask(tracked, containers_of(tracked.pod)[name], kind)
            case RemovePlace():
                return await self._remove(tracked)
            case DeletePod():
                await self._delete(tracked)
        return None

    async def refresh_volumes(self, tracked: TrackedPod) -> None:
        """Bring config maps, secrets, tokens and own fields up to date in a running pod."""
        try:
            await self._make_volumes(tracked)
        except (VolumeError, KubeError) as problem:
            log.info("volumes not refreshed", pod=tracked.pod.metadata.name, error=str(problem))

    def release_devices(self, tracked: TrackedPod) -> None:
        """Its GPUs may go to others."""
        ledger = self._devices.get(tracked.node.name)
        if ledger is not None:
            ledger.release(tracked.uid)

    def recall_devices(self, tracked: TrackedPod, devices: Mapping[str, tuple[int, ...]]) -> None:
        """What its containers were given in an earlier life is theirs still: by name of the container."""
        for name, indices in devices.items():
            container = containers_of(tracked.pod).get(name)
            if container is not None and indices:
                self._ledger(tracked).hold(gpu_request(container)[0], tracked.uid, name, indices)

    def write_hosts(self, tracked: TrackedPod) -> None:
        """Bring the pod's names up to date, in place: the file is bound into the containers."""
        shared = self._objects.names().lines_for(tracked.pod.metadata.namespace)
        text = hosts_file(tracked.pod, tracked.record.pod_ip or self._addresses.of(tracked.uid), shared)
        if text != tracked.hosts_text:
            with tracked.hosts_file.open("r+b" if tracked.hosts_file.exists() else "wb") as file:
                file.write(text.encode())
                file.truncate()
            tracked.hosts_text = text

    async def _prepare(self, tracked: TrackedPod) -> PodEvent:
        host_network = tracked.pod.spec.host_network
        address = tracked.node.address if host_network else self._addresses.of(tracked.uid)
        if not tracked.is_real:
            return PlaceReady(address)
        try:
            if tracked.needs_directory:
                tracked.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            await self._make_volumes(tracked)
            if not tracked.is_sandbox:  # it has names of its own, and sees nobody else's
                self.write_hosts(tracked)
        except (VolumeError, OSError, KubeError) as problem:
            sentence = str(problem) if isinstance(problem, VolumeError) else f"MountVolume.SetUp failed: {problem}"
            self._tell(tracked.pod, "Warning", "FailedMount", sentence)
            return PlaceFailed(sentence)
        return PlaceReady(address)

    async def _make_volumes(self, tracked: TrackedPod) -> None:
        pod = tracked.pod
        if not pod.spec.volumes:
            return
        lookup = await self._objects.lookup(pod)
        tokens = await self._objects.tokens(pod)
        claimed = await self._objects.volumes_of_claims(pod)
        maker = VolumeMaker(tracked.directory / "volumes", pod, claimed.get, self._hidden)
        for volume in pod.spec.volumes:
            try:
                if is_memory(volume):
                    await self._make_memory_volume(tracked, volume)
                    continue
                payload = payload_of(volume, tracked.myself(), lookup, tokens)
                tracked.places[volume.name] = await asyncio.to_thread(maker.make, volume, payload)
            except (ConfigError, VolumeError) as problem:
                why = str(problem).removeprefix(f'volume "{volume.name}": ')
                raise VolumeError(f'MountVolume.SetUp failed for volume "{volume.name}" : {why}') from None

    async def _make_memory_volume(self, tracked: TrackedPod, volume: Volume) -> None:
        if volume.name in tracked.places:
            return
        is_running = any(each.is_live for each in tracked.record.containers.values())
        try:
            place, why = await asyncio.to_thread(
                self._memory.make, tracked.directory, tracked.pod, volume, is_running=is_running
            )
        except OSError as problem:
            raise VolumeError(f"{problem.strerror} ({problem.filename})") from None
        tracked.places[volume.name] = place
        if why:
            message = f'volume "{volume.name}" was to be in memory (medium: Memory) and is on disk: {why}'
            self._tell(tracked.pod, "Warning", ON_DISK, message)

    async def _start(self, tracked: TrackedPod, container: Container, attempt: int) -> PodEvent:
        pod, name = tracked.pod, container.name
        if not tracked.is_real and self._objects.is_guest:
            # what only pretends to run needs no right to read what its variables would be made of
            container = msgspec.structs.replace(container, env=[], env_from=[])
        if tracked.is_sandbox and any(each.name == name for each in pod.spec.ephemeral_containers):
            message = "a sandbox takes no container of kubectl debug; look into it with kubectl exec"
            self._tell(pod, "Warning", "Failed", f"Error: {message}", name)
            return Exited(name, Exit(code=128, reason="StartError", message=message, finished_at=self._now()), attempt)
        if tracked.is_real and (why := self._images.refusal_of(container.image)):
            self._tell(pod, "Warning", "InspectFailed", why, name)
            self._tell(pod, "Warning", "Failed", "Error: InvalidImageName", name)
            return NotPrepared(name, "InvalidImageName", why, attempt)
        engine = EngineChoice.of(self._engine_python, (one.image for one in pod.spec.containers))
        try:
            spec = build(
                container,
                tracked.myself(),
                await self._objects.lookup(pod) if tracked.is_real or not self._objects.is_guest else Lookup(),
                attempt=attempt,
                # a simulated pod has no files, so nothing is mounted
                places=tracked.places if tracked.is_real else None,
                rootfs=self._images.rootfs_of(container.image),
                hosts_file=tracked.hosts_file if tracked.is_real and not tracked.is_sandbox else None,
                devices=self._devices_of(tracked, container),
                default_command=self._default_command(tracked, container),
                entry=entry_point(container.image, is_installed=engine.is_real) if tracked.is_real else (),
                engine=engine,
                needs_command=not tracked.is_sandbox,
            )
        except ConfigError as problem:
            self._tell(pod, "Warning", "Failed", f"Error: {problem}", name)
            return NotPrepared(name, "CreateContainerConfigError", str(problem), attempt)
        self._tell_image(tracked, container)
        await self._tell_stand_in(tracked, spec.argv, engine)
        self._starts += 1
        try:
            container_id = await tracked.runtime.start(spec)
        except StartError as refusal:
            message = f'failed to start container "{name}": {refusal}'
            self._tell(pod, "Warning", "Failed", f"Error: {message}", name)
            end = Exit(code=128, reason="StartError", message=message, finished_at=self._now())
            return Exited(name, end, attempt)
        finally:
            self._starts -= 1
        if tracked.is_real:
            self._tell(pod, "Normal", "Created", "Container created", name)
            self._tell(pod, "Normal", "Started", "Container started", name)
        return Started(name, container_id, attempt)

    def _default_command(self, tracked: TrackedPod, container: Container) -> tuple[str, ...]:
        if tracked.is_sandbox and self._images.rootfs_of(container.image) is None:
            return ()  # its daemon is what it runs
        return self._images.default_command(container.image) if tracked.is_real else ("simulated",)

    def _tell_image(self, tracked: TrackedPod, container: Container) -> None:
        if not tracked.is_real:
            return
        if self._images.rootfs_of(container.image) is not None:
            message = f'Container image "{container.image}" already present on machine and can be accessed by the pod'
            self._tell(tracked.pod, "Normal", "Pulled", message, container.name)
        else:
            subject = (HOST_ROOTFS, container.image)
            if subject not in tracked.told:
                tracked.told.add(subject)
                self._tell(tracked.pod, "Normal", HOST_ROOTFS, self._images.sentence_for(container.image))

    async def _tell_stand_in(self, tracked: TrackedPod, argv: Sequence[str], engine: EngineChoice) -> None:
        """By an event, and by a condition, from which whoever made the pod knows that nobody has looked for the weights."""
        subject = (ENGINE_STAND_IN, "")
        if not tracked.is_real or not is_stand_in(argv) or subject in tracked.told:
            return
        tracked.told.add(subject)
        self._tell(tracked.pod, "Normal", ENGINE_STAND_IN, engine.sentence)
        meta = tracked.pod.metadata
        condition = {
            "type": labels.ENGINE_STAND_IN, "status": "True", "reason": ENGINE_STAND_IN, "message": engine.sentence,
            "lastTransitionTime": timestamp(self._now()),
        }  # fmt: skip
        with suppress(KubeError):  # the event was told, and the pod may be gone
            await self._client.patch(
                Pod, meta.name, {"metadata": {"uid": meta.uid}, "status": {"conditions": [condition]}}, meta.namespace,
                patch_type=PatchType.STRATEGIC, subresource="status", field_manager="hekla-node",
            )  # fmt: skip

    def _ledger(self, tracked: TrackedPod) -> DeviceLedger:
        return self._devices.setdefault(tracked.node.name, DeviceLedger())

    def _devices_of(self, tracked: TrackedPod, container: Container) -> tuple[int, ...]:
        resource, count = gpu_request(container)
        if not count:
            return ()
        capacity = quantity.to_int(tracked.node.capacity.get(resource, "0"))
        indices = self._ledger(tracked).take(resource, capacity, tracked.uid, container.name, count)
        if indices is None:
            raise ConfigError(f"{count} {resource} were promised, but fewer are free on node {tracked.node.name}")
        return indices

    async def _stop(self, tracked: TrackedPod, container: Container, grace_s: float, reason: str) -> None:
        key = tracked.key(container.name)
        if key is None:
            return
        if reason:
            self._tell(tracked.pod, "Normal", "Killing", _killing(container.name, reason), container.name)
        signal = container.lifecycle.stop_signal if container.lifecycle else ""
        await tracked.runtime.stop(key, grace_s=grace_s, signal=signal or "SIGTERM")

    async def _pre_stop(
        self, tracked: TrackedPod, container: Container, grace_s: float, reason: str
    ) -> PodEvent | None:
        key = tracked.key(container.name)
        hook = container.lifecycle.pre_stop if container.lifecycle else None
        if key is None or hook is None:
            return None
        self._tell(tracked.pod, "Normal", "Killing", _killing(container.name, reason), container.name)
        answer = await run_hook(hook, container, tracked.place(key), self._exec_in(tracked, key), within_s=grace_s)
        if not answer.is_healthy:
            self._tell(
                tracked.pod, "Warning", "FailedPreStopHook", f"PreStopHook failed: {answer.message}", container.name
            )
        return PreStopEnded(container.name, key.attempt)

    async def _post_start(self, tracked: TrackedPod, container: Container) -> PodEvent | None:
        key = tracked.key(container.name)
        hook = container.lifecycle.post_start if container.lifecycle else None
        if key is None or hook is None:
            return None
        answer = await run_hook(
            hook, container, tracked.place(key), self._exec_in(tracked, key), within_s=HOOK_TIMEOUT_S
        )
        if not answer.is_healthy:
            self._tell(
                tracked.pod, "Warning", "FailedPostStartHook", f"PostStartHook failed: {answer.message}", container.name
            )
        return PostStartEnded(container.name, answer.is_healthy, key.attempt)

    async def _ask(self, tracked: TrackedPod, container: Container, kind: ProbeKind) -> PodEvent | None:
        key, probe = tracked.key(container.name), probe_of(container, kind)
        if key is None or probe is None:
            return None
        answer = await ask(probe, container, tracked.place(key), self._exec_in(tracked, key))
        if not answer.is_healthy:
            message = f"{kind.value.capitalize()} probe failed: {answer.message}"
            self._tell(tracked.pod, "Warning", "Unhealthy", message, container.name)
        elif answer.has_warning:
            message = f"{kind.value.capitalize()} probe warning: {answer.message}"
            self._tell(tracked.pod, "Warning", "ProbeWarning", message, container.name)
        return Probed(container.name, kind, answer.is_healthy, answer.message, key.attempt)

    def _exec_in(
        self, tracked: TrackedPod, key: ContainerKey
    ) -> "Callable[[Sequence[str]], asyncio.Future[ExecSession]]":
        async def run(argv: Sequence[str]) -> ExecSession:
            if not argv:
                raise ExecError("the command is empty")
            return await tracked.runtime.exec(key, argv)

        return lambda argv: asyncio.ensure_future(run(argv))

    async def _remove(self, tracked: TrackedPod) -> PodEvent:
        await self._statuses.written(tracked.uid)
        self.release_devices(tracked)
        await tracked.runtime.remove(tracked.uid)
        if tracked.is_real and tracked.directory.exists():  # an earlier release made one for every pod
            await asyncio.to_thread(self._memory.drop, tracked.directory, tracked.uid)
            await asyncio.to_thread(shutil.rmtree, tracked.directory, ignore_errors=True)
        return PlaceRemoved()

    async def _delete(self, tracked: TrackedPod) -> None:
        if tracked.is_orphan:
            return
        meta = tracked.pod.metadata
        await self._statuses.written(tracked.uid)
        try:
            await self._client.delete(Pod, meta.name, meta.namespace, grace_s=0, uid=meta.uid)
        except NotFoundError:
            return

    def _now(self) -> float:
        return self._clock.now().timestamp()


def _killing(name: str, reason: str) -> str:
    why = {
        "LivenessProbeFailed": f"Container {name} failed liveness probe, will be restarted",
        "StartupProbeFailed": f"Container {name} failed startup probe, will be restarted",
        "FailedPostStartHook": "FailedPostStartHook",
    }.get(reason)
    return why or f"Stopping container {name}"
