"""Plays the kubelets of a real cluster: nodes that stay Ready, and pods that run, end and go.

    with Kubelets(kubernetes.kubeconfig) as kubelets:
        kubelets.add("n1", cpu="8", memory="32Gi")

A pod's containers run their commands as processes of this machine, with the literal values and fields of their `env`, where
the program is here; elsewhere, and where the annotations of the simulated runtime say so (`hekla.dev/simulated-duration`
and `-exit-code`), they only seem to run. No probe is asked, no volume mounted: the judge of our own node is elsewhere.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from hekla.api.coordination import Lease
from hekla.api.core import Pod
from hekla.api.meta import Document
from hekla.api.nodes import Node
from hekla.kube.api_client import ApiClient
from hekla.kube.client import PatchType
from hekla.kube.errors import AlreadyExistsError, ConflictError, KubeError, NotFoundError
from hekla.kube.kubeconfig import load_kubeconfig
from hekla.node.runtimes import ContainerKey
from hekla.node.runtimes.simulated import PREFIX, script_of

LEASE_NAMESPACE, LEASE_S, RENEW_S = "kube-node-lease", 40, 10.0
RETRY_S = 0.3


@dataclass
class _Played:
    """One pod as its kubelet has it."""

    task: "asyncio.Task[None] | None" = None
    is_ending: bool = False
    processes: "list[asyncio.subprocess.Process]" = field(default_factory=list)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)


class Kubelets:
    """Every node of a cluster, played in one thread over one watch."""

    def __init__(self, kubeconfig: Path, *, runs_commands: bool = True, renews_leases: bool = True) -> None:
        """`renews_leases` may be left out for thousands of nodes, where the controllers are told to be patient."""
        self._kubeconfig, self._runs_commands, self._renews_leases = kubeconfig, runs_commands, renews_leases
        self._nodes: set[str] = set()
        self._pods: dict[str, _Played] = {}
        self._addresses = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> "Kubelets":
        self._thread.start()
        self._client = ApiClient(load_kubeconfig(self._kubeconfig).connection().transport())
        self._folder = tempfile.TemporaryDirectory(prefix="hekla-kubelets-")
        self._wait(self._begin())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wait(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()
        self._folder.cleanup()

    def add(
        self,
        name: str,
        *,
        labels: dict[str, str] | None = None,
        taints: list[Document] | None = None,
        **capacity: str,
    ) -> None:
        """A node that is Ready; `capacity` in quantities: cpu, memory, pods, nvidia.com/gpu."""
        self._wait(
            self._add(name, labels or {}, taints or [], {"cpu": "8", "memory": "32Gi", "pods": "110", **capacity})
        )

    def add_many(self, names: list[str], **capacity: str) -> None:
        """Many alike, some at a time."""

        async def add_all() -> None:
            for start in range(0, len(names), 50):
                whole = {"cpu": "8", "memory": "32Gi", "pods": "110", **capacity}
                await asyncio.gather(*(self._add(name, {}, [], whole) for name in names[start : start + 50]))

        self._wait(add_all())

    def fail(self, name: str) -> None:
        """The node goes silent: its lease is no longer renewed, its pods' ends are no longer told."""
        self._loop.call_soon_threadsafe(self._nodes.discard, name)

    # ---- in the loop's thread

    def _wait(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(300)

    async def _begin(self) -> None:
        self._tasks = [self._loop.create_task(self._follow())]
        if self._renews_leases:
            self._tasks.append(self._loop.create_task(self._renew()))

    async def _end(self) -> None:
        tasks = [*self._tasks, *(played.task for played in self._pods.values() if played.task)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for played in self._pods.values():
            _kill(played)
            await asyncio.gather(*(process.wait() for process in played.processes))
        await self._client.close()

    async def _add(self, name: str, labels: dict[str, str], taints: list[Document], capacity: dict[str, str]) -> None:
        here = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", **labels}
        node = {"metadata": {"name": name, "labels": here}, "spec": {"taints": taints} if taints else {}}
        with contextlib.suppress(AlreadyExistsError):
            await self._client.create(Node, node)
        await self._client.patch(
            Node, name, _ready(name, capacity), patch_type=PatchType.STRATEGIC, subresource="status"
        )
        if self._renews_leases:
            await self._renew_one(name)
        self._nodes.add(name)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            for name in list(self._nodes):
                with contextlib.suppress(KubeError):
                    await self._renew_one(name)

    async def _renew_one(self, name: str) -> None:
        spec = {
            "holderIdentity": name,
            "leaseDurationSeconds": LEASE_S,
            "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        try:
            await self._client.patch(Lease, name, {"spec": spec}, LEASE_NAMESPACE)
        except NotFoundError:
            await self._client.create(Lease, {"metadata": {"name": name}, "spec": spec}, LEASE_NAMESPACE)

    async def _follow(self) -> None:
        while True:
            try:
                page = await self._client.list_documents(Pod.kind_info, field_selector="spec.nodeName!=")
                here = {item["metadata"]["uid"] for item in page.items}
                for uid in set(self._pods) - here:
                    self._forget(uid)
                for item in page.items:
                    self._saw(item)
                events = self._client.watch_documents(
                    Pod.kind_info, resource_version=page.resource_version, field_selector="spec.nodeName!="
                )
                async for event in events:
                    if event.type == "DELETED":
                        self._forget(event.object["metadata"]["uid"])
                    elif event.type in ("ADDED", "MODIFIED"):
                        self._saw(event.object)
            except (KubeError, OSError):
                await asyncio.sleep(RETRY_S)

    def _saw(self, pod: Document) -> None:
        if pod["spec"]["nodeName"] not in self._nodes:
            return
        uid, is_over = pod["metadata"]["uid"], pod["status"].get("phase") in ("Succeeded", "Failed")
        played = self._pods.setdefault(uid, _Played())
        if "deletionTimestamp" in pod["metadata"]:
            if not played.is_ending:
                played.is_ending = True
                self._start(played, self._remove(pod, played))
        elif played.task is None and not is_over:
            self._start(played, self._live(pod, played))

    def _start(self, played: _Played, work: Coroutine[Any, Any, None]) -> None:
        if played.task is not None:
            played.task.cancel()
        played.task = self._loop.create_task(work)

    def _forget(self, uid: str) -> None:
        played = self._pods.pop(uid, None)
        if played is not None:
            _kill(played)
            if played.task is not None:
                played.task.cancel()

    async def _live(self, pod: Document, played: _Played) -> None:
        self._addresses += 1
        address = f"10.244.{self._addresses // 250 % 250}.{self._addresses % 250 + 1}"
        restarts: dict[str, int] = {}
        spec = pod["spec"]
        for one in spec.get("initContainers") or []:
            if self._is_program_here(one) and await self._run(pod, one, address, played):
                await self._tell(pod, _over(pod, {one["name"]: 1}, address))
                return
        await self._tell(pod, _running(pod, restarts, address))
        policy = spec.get("restartPolicy", "Always")

        async def until_over(container: Document) -> tuple[str, int]:
            name = container["name"]
            while True:
                code = await self._run(pod, container, address, played)
                if policy == "Never" or (policy == "OnFailure" and not code):
                    return name, code
                restarts[name] = restarts.get(name, 0) + 1
                await asyncio.sleep(min(10.0, 0.2 * 2 ** restarts[name]))
                await self._tell(pod, _running(pod, restarts, address))

        codes = dict(await asyncio.gather(*(until_over(one) for one in spec["containers"])))
        await self._tell(pod, _over(pod, codes, address))

    async def _run(self, pod: Document, container: Document, address: str, played: _Played) -> int:
        annotations = pod["metadata"].get("annotations") or {}
        if any(key.startswith(PREFIX) for key in annotations):
            script = script_of(annotations, ContainerKey(pod["metadata"]["uid"], container["name"], 0))
            await asyncio.sleep(script.start_delay_s + (script.duration_s if script.duration_s is not None else 1e9))
            return script.exit_code
        command = [*(container.get("command") or []), *(container.get("args") or [])]
        if not self._is_program_here(container):
            await asyncio.sleep(1e9)
        process = await asyncio.create_subprocess_exec(
            *command,
            env=_environment(pod, container, address),
            cwd=self._folder.name,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        played.processes.append(process)
        code = await process.wait()
        return code if code >= 0 else 128 - code

    def _is_program_here(self, container: Document) -> bool:
        """An init container whose program is not here has seemed to run, and is over: else no pod with one was ever Ready."""
        command = container.get("command") or []
        return self._runs_commands and bool(command) and shutil.which(command[0]) is not None

    async def _remove(self, pod: Document, played: _Played) -> None:
        _kill(played)
        meta = pod["metadata"]
        while True:
            try:
                path = Pod.kind_info.path(meta["namespace"], meta["name"])
                options = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
                await self._client.request("DELETE", path, options)
            except (NotFoundError, ConflictError):
                pass
            except (KubeError, OSError):
                await asyncio.sleep(RETRY_S)
                continue
            return

    async def _tell(self, pod: Document, status: Document) -> None:
        meta = pod["metadata"]
        patch = {"metadata": {"uid": meta["uid"]}, "status": status}
        while True:
            try:
                await self._client.patch(
                    Pod, meta["name"], patch, meta["namespace"], patch_type=PatchType.STRATEGIC, subresource="status"
                )
            except (NotFoundError, ConflictError):
                pass
            except (KubeError, OSError):
                await asyncio.sleep(RETRY_S)
                continue
            return


def _kill(played: _Played) -> None:
    for process in played.processes:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _environment(pod: Document, container: Document, address: str) -> dict[str, str]:
    fields = {
        "metadata.name": pod["metadata"]["name"],
        "metadata.namespace": pod["metadata"]["namespace"],
        "metadata.uid": pod["metadata"]["uid"],
        "spec.nodeName": pod["spec"]["nodeName"],
        "status.podIP": address,
        "status.hostIP": "127.0.0.1",
    }
    found = {"PATH": os.environ.get("PATH", ""), "HOSTNAME": pod["spec"].get("hostname") or pod["metadata"]["name"]}
    for one in container.get("env") or []:
        path = ((one.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath", "")
        found[one["name"]] = one.get("value", "") or fields.get(path, "")
    return found


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _conditions(is_ready: bool, reason: str = "") -> list[Document]:
    said = {"lastTransitionTime": _now(), **({"reason": reason} if reason else {})}
    ready = {"status": "True"} if is_ready else {"status": "False"}
    return [
        {"type": "PodReadyToStartContainers", "status": "True", "lastTransitionTime": _now()},
        {"type": "Initialized", "status": "True", "lastTransitionTime": _now()},
        *({"type": kind, **ready, **said} for kind in ("ContainersReady", "Ready")),
    ]


def _running(pod: Document, restarts: dict[str, int], address: str) -> Document:
    return {
        "phase": "Running",
        "startTime": _now(),
        "hostIP": "127.0.0.1",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": _conditions(True),
        "initContainerStatuses": [
            _container(one, {"terminated": {"exitCode": 0, "reason": "Completed"}}, 0)
            for one in pod["spec"].get("initContainers") or []
        ],
        "containerStatuses": [
            _container(one, {"running": {"startedAt": _now()}}, restarts.get(one["name"], 0), is_ready=True)
            for one in pod["spec"]["containers"]
        ],
    }


def _over(pod: Document, codes: dict[str, int], address: str) -> Document:
    has_failed = any(codes.values())
    return {
        "phase": "Failed" if has_failed else "Succeeded",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": _conditions(False, "PodFailed" if has_failed else "PodCompleted"),
        "containerStatuses": [
            _container(
                one,
                {
                    "terminated": {
                        "exitCode": codes.get(one["name"], 0),
                        "reason": "Error" if codes.get(one["name"]) else "Completed",
                        "finishedAt": _now(),
                    }
                },
                0,
            )
            for one in pod["spec"]["containers"]
        ],
    }


def _container(container: Document, state: Document, restarts: int, *, is_ready: bool = False) -> Document:
    return {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "played",
        "ready": is_ready,
        "started": is_ready,
        "restartCount": restarts,
        "state": state,
    }


def _ready(name: str, capacity: dict[str, str]) -> Document:
    def condition(kind: str, status: str, reason: str) -> Document:
        return {
            "type": kind, "status": status, "reason": reason, "message": "played", "lastHeartbeatTime": _now(),
            "lastTransitionTime": _now(),
        }  # fmt: skip

    return {
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": name}],
            "conditions": [
                condition("Ready", "True", "KubeletReady"),
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID"),
            ],
            "nodeInfo": {
                "machineID": name, "systemUUID": name, "bootID": name, "kernelVersion": "6", "osImage": "Linux",
                "containerRuntimeVersion": "played://1", "kubeletVersion": "v1.36.2", "kubeProxyVersion": "",
                "operatingSystem": "linux", "architecture": "amd64",
            },
        }
    }  # fmt: skip
