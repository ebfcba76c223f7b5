"""Sends pods' statuses to the API server: only what changed, only the newest, many at a time.

A pod that changes five times while its status waits is written once. What was refused for good (the pod is gone) is
forgotten; what could not be sent is tried again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import structlog

from hekla.api.agents import names
from hekla.api.meta import Document
from hekla.api.pods import Pod
from hekla.kube.client import Client, PatchType
from hekla.kube.errors import ApiError, ConflictError, KubeError, NotFoundError

log = structlog.get_logger()
_encode = msgspec.json.Encoder().encode

AT_ONCE = 256
"""Statuses on their way at the same time: each waits for a commit, and a commit of many costs little more than one."""

PAUSE_S = 0.005
"""How long a status waits for the next change: the first steps of a pod's life then cost one write instead of four."""

WAITING_S = 0.1
"""The same for what is told of a pod that is still being started: it is nearly always out of date by then."""

SESSION_WAITS_S = 1.0
"""How long a session's pod that runs may wait with saying so, while other sessions are being made: its own was told by the node."""

RETRY_S = (0.2, 10.0)
PENDING = "Pending"


class _Wanted(NamedTuple):
    """What is to be told of a pod, and how it is put into words."""

    pod: Pod
    phase: str
    write: Callable[[], Document]


class StatusWriter:
    """Statuses by pod uid, waiting to be sent. `run` sends them."""

    def __init__(self, client: Client, is_hurried: Callable[[], bool] = lambda: False) -> None:
        """`is_hurried`: somebody waits for sessions, and what nobody waits for gives way."""
        self._client, self._is_hurried = client, is_hurried
        self._wanted: dict[str, _Wanted] = {}
        self._ready: OrderedDict[str, None] = OrderedDict()
        """Uids of what is wanted and not on its way: looking for them among thousands took longer than sending one."""

        self._sent: dict[str, dict[str, int]] = {}
        """By uid, a digest of each field that was sent: the statuses themselves were 5 kB a pod."""

        self._later: set[str] = set()
        """Uids of what is wanted and has some time."""

        self._busy: set[str] = set()
        self._forgotten: set[str] = set()
        """Of what is on its way: whose pod is gone meanwhile."""
        self._wake = asyncio.Event()
        self._settled: dict[str, asyncio.Event] = {}
        """For who waits until nothing of a pod waits."""
        self._failures = 0

    def put(self, pod: Pod, status: Document) -> None:
        """Send this status soon, unless it is what was sent last."""
        uid = pod.metadata.uid
        self._forgotten.discard(uid)
        if uid in self._wanted or uid in self._busy or self._sent.get(uid) != _digests(status):
            self._want(uid, _Wanted(pod, status.get("phase", ""), lambda: status))

    def put_pending(self, pod: Pod, write: Callable[[], Document]) -> None:
        """The same of a pod that is still being started: written once it is sent, for nearly always another one comes first."""
        self._forgotten.discard(pod.metadata.uid)
        self._want(pod.metadata.uid, _Wanted(pod, PENDING, write))

    def doubt(self, uid: str) -> None:
        """Somebody else has changed the pod's conditions: what was sent of them does not stand any more."""
        self._sent.get(uid, {}).pop("conditions", None)

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self._sent.pop(uid, None)
        self._wanted.pop(uid, None)
        self._ready.pop(uid, None)
        if uid in self._busy:
            self._forgotten.add(uid)
        self._settle(uid)

    async def written(self, uid: str) -> None:
        """Wait until nothing of this pod waits to be sent; what had some time is sent now."""
        self._make_ready(uid)
        while uid in self._wanted or uid in self._busy:
            await self._settled.setdefault(uid, asyncio.Event()).wait()

    def _settle(self, uid: str) -> None:
        if uid not in self._wanted and uid not in self._busy and (settled := self._settled.pop(uid, None)):
            settled.set()

    async def run(self) -> None:
        """Send until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wake.wait()
                await asyncio.sleep(PAUSE_S)
                self._wake.clear()
                while self._ready and len(self._busy) < AT_ONCE:
                    uid, _ = self._ready.popitem(last=False)
                    self._busy.add(uid)
                    group.create_task(self._deliver(uid, self._wanted.pop(uid)))

    def _want(self, uid: str, wanted: "_Wanted") -> None:
        self._wanted[uid] = wanted
        if uid in self._busy or uid in self._ready:
            return
        if wanted.phase != PENDING and not self._gives_way(uid):
            self._make_ready(uid)
        elif uid not in self._later:
            self._later.add(uid)
            asyncio.get_running_loop().call_later(WAITING_S, self._look_again, uid, SESSION_WAITS_S - WAITING_S)

    def _gives_way(self, uid: str) -> bool:
        wanted = self._wanted[uid]
        is_of_session = names.SESSION_ID in wanted.pod.metadata.labels
        return is_of_session and wanted.phase == "Running" and self._is_hurried()

    def _look_again(self, uid: str, left_s: float) -> None:
        if uid not in self._later:
            return
        if left_s >= WAITING_S / 2 and uid in self._wanted and self._gives_way(uid):
            asyncio.get_running_loop().call_later(WAITING_S, self._look_again, uid, left_s - WAITING_S)
        else:
            self._make_ready(uid)

    def _make_ready(self, uid: str) -> None:
        self._later.discard(uid)
        if uid in self._wanted and uid not in self._busy:
            self._ready[uid] = None
            self._wake.set()

    async def _deliver(self, uid: str, wanted: "_Wanted") -> None:
        pod = wanted.pod
        try:
            await self._send(uid, pod, wanted.write())
            self._failures = 0
        except KubeError as problem:
            self._failures = min(self._failures + 1, 8)
            log.info("pod status not written", pod=pod.metadata.name, error=str(problem), failures=self._failures)
            if uid not in self._forgotten:
                self._wanted.setdefault(uid, wanted)
            await asyncio.sleep(min(RETRY_S[1], RETRY_S[0] * 2**self._failures))
        except Exception:  # the task boundary: one pod's status that cannot be written must not end all others'
            log.exception("pod status lost", pod=pod.metadata.name)
        finally:
            self._busy.discard(uid)
            if uid in self._forgotten:
                self._forgotten.discard(uid)
                self._sent.pop(uid, None)
            if uid in self._wanted:
                self._ready[uid] = None
            self._wake.set()
            self._settle(uid)

    async def _send(self, uid: str, pod: Pod, status: Document) -> None:
        before, now = self._sent.get(uid, {}), _digests(status)
        changes: Document = {key: value for key, value in status.items() if before.get(key) != now[key]}
        if not changes:
            return
        if "hostIPs" in changes and pod.status.host_ip not in ("", status.get("hostIP")):
            # the node has moved: lists of addresses are merged by address, and API servers take no two of one family
            changes["hostIPs"] = [*changes["hostIPs"], {"$patch": "replace"}]
        patch = {"metadata": {"uid": uid}, "status": changes}
        try:
            await self._client.patch(
                Pod, pod.metadata.name, patch, pod.metadata.namespace,
                patch_type=PatchType.STRATEGIC, subresource="status", field_manager="hekla-node",
            )  # fmt: skip
        except (NotFoundError, ConflictError):
            pass  # gone, or another pod has its name: nothing to tell any more
        except ApiError as refusal:
            if refusal.code >= 500 or refusal.code == 429:
                raise
            log.warning("pod status refused", pod=pod.metadata.name, error=str(refusal))
        self._sent[uid] = now


def _digests(status: Document) -> dict[str, int]:
    return {key: hash(_encode(value)) for key, value in status.items()}
