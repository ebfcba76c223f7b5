"""Sandboxes through objects: adopts one that waits in a pool, or makes one and waits until its pod is ready; informers tell, nothing is polled.

Adoption is one merge patch that presumes the resourceVersion it read: the API server arbitrates between gateways and claims. A
conflict is tried again on the same candidate, as agent-sandbox does it, and never leads to a second adoption. Where the server is
in this process, it has decided long before the disk has answered, and the node is told meanwhile (`settled`).
"""

import asyncio
import contextlib
import hashlib
import re
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final

import structlog

from hekla.api.agents import AgentRuntime, CodeInterpreter, Sandbox, SandboxTemplate, names
from hekla.api.agents.agentcube import AuthMode, TargetPort
from hekla.api.agents.egress import secrets_trouble, trouble_of
from hekla.api.agents.node_contract import EGRESS_SECRETS, LINEAGE
from hekla.api.meta import Document, Resource
from hekla.api.nodes import RuntimeClass
from hekla.api.pods import Pod
from hekla.kube.client import Decided
from hekla.kube.errors import AlreadyExistsError, ApiError, ConflictError, NotFoundError, TransportError
from hekla.kube.informer import Informers
from hekla.lib import quantity
from hekla.lib.go_duration import DurationError, parse_duration, write_duration
from hekla.sandbox.agentcube_checks import interpreter_trouble, runtime_trouble
from hekla.sandbox.blueprint import sandbox_document
from hekla.sandbox.late_environment import is_awaited
from hekla.sandbox.observing import is_true
from hekla.sandbox.owning import controller_of, is_controlled_by, owner_reference
from hekla.sandbox.sandbox_pod import pod_document, pod_name
from hekla.sandbox.sandbox_status import refusal_told, trouble_told
from hekla.sandbox.sessions.candidates import Candidates, is_free
from hekla.sandbox.sessions.limits import RefusedError
from hekla.sandbox.sessions.network import egress_of
from hekla.sandbox.sessions.pod_waits import PodWaits, container_of, is_ready, why_ended
from hekla.sandbox.sessions.records import EntryPoint, SessionKind
from hekla.sandbox.sessions.stock import Blueprint, Held, Order, StockError

log = structlog.get_logger(__name__)

TRIES: Final = 5
"""Conflicts on one candidate before another is looked at."""
TEMPLATE_PATIENCE_S: Final = 5.0
"""How long an order waits for the template of an interpreter that has just been made."""
STOP_PATIENCE_S: Final = 2.0
"""How long what is given back holds up the end."""
INVALID: Final = 422
_NEVER = re.compile(r"^\S+ \"[^\"]*\" is invalid: |pod rejected: RuntimeClass \"[^\"]*\" not found$")
"""How an API server refuses a pod that can never be, or not before somebody makes what its template names."""
MOST_READ: Final = 1000
"""Objects whose blueprints are kept; then all are read anew."""
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz0123456789"
_SUFFIX: Final = 8
_DAEMON_PORT: Final = 8080


class KubeStock:
    """A `Stock` over the API server."""

    def __init__(self, informers: Informers, *, makes_pods: bool = False) -> None:
        """`makes_pods`: pods are made together with their Sandboxes and share their commits: what the reconciler would do next."""
        self._client = informers.client
        self._sandboxes, self._pods = informers.of(Sandbox), informers.of(Pod)
        self._classes = informers.of(RuntimeClass) if makes_pods else None
        self._interpreters, self._runtimes = informers.of(CodeInterpreter), informers.of(AgentRuntime)
        self._templates = informers.of(SandboxTemplate)
        self._read: dict[tuple[str, str, str], tuple[Resource | None, Blueprint | None]] = {}
        """Objects as they were when they were read, and what they said."""
        self._candidates = Candidates()
        self._waits = PodWaits()
        self._for_templates: dict[tuple[str, str], list[asyncio.Future[None]]] = {}
        """Orders that wait for a template, by its namespace and name."""
        self._dropping: set[asyncio.Task[None]] = set()
        """Those that were made and waited for in vain."""
        self._undurable: dict[str, Decided[Sandbox]] = {}
        """Sandboxes on their way to the disk, by uid, until whoever took asks for them or gives back."""
        self._on_restart: Callable[[str, str, str], None] = lambda session, container, why: None

    async def start(self) -> None:
        """Wait for the caches, and follow pods."""
        for informer in (self._sandboxes, self._pods, self._interpreters, self._runtimes, self._templates):
            await informer.synced()
        if self._classes is not None:
            await self._classes.synced()
        self._pods.add_handler(self._pod_changed)
        self._sandboxes.add_handler(self._sandbox_changed)
        self._templates.add_handler(self._template_changed)

    async def stop(self) -> None:
        """Give back what was waited for in vain, as far as the API server answers soon: a sweep of the next life finds the rest."""
        if self._dropping:
            await asyncio.wait(self._dropping, timeout=STOP_PATIENCE_S)

    def next_up(self, each: int) -> list[Held]:
        """By their age."""
        return [_held(one) for one in self._candidates.next_up(each)]

    def tell_waiting(self, listener: Callable[[], None]) -> None:
        """By what the informer tells of Sandboxes, and by what is taken."""
        self._candidates.on_change = listener

    def tell_restarts(self, listener: Callable[[str, str, str], None]) -> None:
        """By what nodes say of their containers."""
        self._on_restart = listener

    def _sandbox_changed(self, old: Sandbox | None, new: Sandbox | None) -> None:
        self._candidates.changed(old, new)
        # a quota may have room later, and a webhook another mind: who waits for these goes on waiting
        if new is not None and _NEVER.search(told := refusal_told(new)):
            self._waits.refused(new.metadata.namespace, pod_name(new), told)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            return
        self._waits.changed(new)
        if old is None:
            return
        before, now = container_of(old), container_of(new)
        if before and now and before != now and (session := self._session_of(new)):
            self._on_restart(session, now, why_ended(new))

    def _template_changed(self, old: SandboxTemplate | None, new: SandboxTemplate | None) -> None:
        if old is None and new is not None:
            for waiting in self._for_templates.pop((new.metadata.namespace, new.metadata.name), []):
                if not waiting.done():
                    waiting.set_result(None)

    def _session_of(self, pod: Pod) -> str:
        """By its Sandbox, which a pod may not follow yet."""
        owner = controller_of(pod)
        sandbox = self._sandboxes.cache.get(pod.metadata.namespace, owner.name) if owner is not None else None
        follows = sandbox if sandbox is not None and is_controlled_by(pod, sandbox) else pod
        return follows.metadata.labels.get(names.SESSION_ID, "")

    def is_ready_at_node(self, namespace: str, pod: str, container: str) -> None:
        """What the node of this process tells, before it has written it down."""
        self._waits.is_ready_at_node(namespace, pod, container)

    # What there is

    def blueprint(self, kind: str, namespace: str, name: str) -> Blueprint | None:
        """What the named object says; read once while it stays as it is: four times a create were 50 us of its 1.2 ms."""
        found = self._object(kind, namespace, name)
        known, read = self._read.get((kind, namespace, name), (None, None))
        if found is known:
            return read
        if len(self._read) >= MOST_READ:
            self._read.clear()
        read = _blueprint_of(found) if found is not None else None
        self._read[kind, namespace, name] = found, read
        return read

    def _object(self, kind: str, namespace: str, name: str) -> CodeInterpreter | AgentRuntime | SandboxTemplate | None:
        if kind == SessionKind.INTERPRETER:
            return self._interpreters.cache.get(namespace, name)
        if kind == SessionKind.RUNTIME:
            return self._runtimes.cache.get(namespace, name)
        return self._templates.cache.get(namespace, name) if kind == SessionKind.TEMPLATE else None

    def egress(self, kind: str, namespace: str, name: str) -> str:
        """What its Sandboxes are told."""
        blueprint = Blueprint(kind=kind, namespace=namespace, name=name)
        return self._from_object(
            Order(session="", blueprint=blueprint), {"name": name, "labels": {}, "annotations": {}}
        )[1]

    def blueprints(self) -> list[Blueprint]:
        """All interpreters and agents, and templates that are nobody's."""
        found = [_of_interpreter(one) for one in self._interpreters.cache]
        found += [_of_runtime(one) for one in self._runtimes.cache]
        found += [_of_template(one) for one in self._templates.cache if controller_of(one) is None]
        return sorted(found, key=lambda one: (one.namespace, one.name, one.kind))

    def sandbox(self, namespace: str, name: str) -> Held | None:
        """A Sandbox by its name, whoever's it is but a pool's, if it has a pod that is ready and all that its claim brought."""
        found = self._sandboxes.cache.get(namespace, name)
        if found is None or found.metadata.deletion_timestamp is not None or is_free(found):
            return None
        held = _held(found)
        pod = self._pods.cache.get(namespace, held.pod)
        return held if pod is not None and is_ready(pod) and not is_awaited(found, pod) else None

    def owner(self, held: Held) -> str:
        """By the annotation of the Sandbox."""
        found = self._sandboxes.cache.get(held.namespace, held.name)
        return found.metadata.annotations.get(names.OWNER, "") if found is not None else ""

    def addresses(self, held: Held) -> frozenset[str]:
        """Of a Sandbox's pod."""
        pod = self._pods.cache.get(held.namespace, held.pod)
        return frozenset(one.ip for one in pod.status.pod_ips) if pod is not None else frozenset()

    def trouble(self, session: str) -> str:
        """As its Sandbox's status tells of it: of the API server, or of the scheduler."""
        its = self._candidates.of_session(session)
        return trouble_told(its) if its is not None else ""

    # Taking

    async def take(self, order: Order) -> Held:
        """One that waits, or a new one."""
        try:
            return await self._take(order)
        except TransportError as error:
            raise StockError(503, "api_server", f"the API server does not answer: {error}") from error
        except ApiError as error:
            status = 429 if error.code == 429 or "quota" in error.message else 500 if error.code >= 500 else 422
            raise StockError(status, error.reason or "refused", error.message) from error

    async def _take(self, order: Order) -> Held:
        if (its := self._candidates.of_session(order.session)) is not None:
            return await self._ready(_held(its))
        blueprint = order.blueprint
        if not order.restore_from and not order.network and blueprint.kind != SessionKind.RUNTIME:
            while (candidate := self._candidates.take(blueprint.namespace, blueprint.name)) is not None:
                if (adopted := await self._adopt(candidate, order)) is not None:
                    return adopted
        await self._until_template(blueprint)
        made = await self._make(order)
        try:
            if made.is_alone:
                order.tell_made(made)
            await self.settled(made)
            return await self._ready(made)
        except (
            BaseException
        ):  # who waited has left, or is refused: else it took the room that is freed next, as nobody's
            self._drop_soon(made)
            raise

    async def _wanted(
        self, asking: Coroutine[Any, Any, Decided[Sandbox]], is_there: Callable[[], bool] = lambda: False
    ) -> Decided[Sandbox]:
        """The API server's answer. What it does for somebody who leaves meanwhile is undone: it was nobody's until the next sweep.

        One task for all that is asked: between two tasks a turn of the loop passes, and with it the commit that they would share.
        Once the Sandbox `is_there`, what else is asked for it is not waited for: it ends, and drops the Sandbox.
        """
        asked = asyncio.get_running_loop().create_task(asking)
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            if is_there():
                asked.cancel()
            self._soon(self._undone(asked), "drop what was asked for in vain")
            raise

    async def _undone(self, asked: asyncio.Task[Decided[Sandbox]]) -> None:
        with contextlib.suppress(ApiError, TransportError):
            await self._drop_in_vain(_held((await asked).object))

    def _drop_soon(self, made: Held) -> None:
        self._soon(self._drop_in_vain(made), f"drop {made.name}")

    def _soon(self, dropping_it: Coroutine[Any, Any, None], name: str) -> None:
        dropping = asyncio.get_running_loop().create_task(dropping_it, name=name)
        self._dropping.add(dropping)
        dropping.add_done_callback(self._dropping.discard)

    async def _drop_in_vain(self, made: Held) -> None:
        try:
            await self.drop(made)
        except StockError as error:
            log.info("a sandbox that nobody waits for stays until the next sweep", sandbox=made.name, error=str(error))

    async def _until_template(self, blueprint: Blueprint) -> None:
        """An interpreter that was made a moment ago has no template yet; one that the reconciler has looked at and told why not is not waited for."""
        key = blueprint.namespace, blueprint.name
        if blueprint.kind != SessionKind.INTERPRETER or self._templates.cache.get(*key) is not None:
            return
        interpreter = self._interpreters.cache.get(*key)
        if interpreter is None or (
            interpreter.status.conditions and not is_true(interpreter.status.conditions, "Ready")
        ):
            return
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._for_templates.setdefault(key, []).append(waiting)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(waiting, TEMPLATE_PATIENCE_S)
        finally:
            left = self._for_templates.get(key, [])
            if waiting in left:
                left.remove(waiting)
            if not left:
                self._for_templates.pop(key, None)

    async def _adopt(self, candidate: Sandbox, order: Order) -> Held | None:
        """Make it the session's; None: somebody else was faster."""
        try:
            adopted = await self._patched(candidate, order)
        except BaseException:  # not the candidate's fault: whoever comes next may have it
            self._candidates.let_go(candidate, is_as_it_was=True)
            raise
        if adopted is None:
            self._candidates.let_go(candidate)
        return adopted

    async def _patched(self, candidate: Sandbox, order: Order) -> Held | None:
        meta = candidate.metadata
        for _ in range(TRIES):
            patch = _adoption(candidate, order)
            try:
                adopted = await self._wanted(self._client.patch_soon(Sandbox, meta.name, patch, meta.namespace))
                held = self._with_container(_held(adopted.object, is_warm=True))
                self._undurable[held.uid] = adopted
                return held
            except ConflictError:
                try:
                    candidate = await self._client.get(Sandbox, meta.name, meta.namespace)
                except NotFoundError:
                    return None
                if not is_free(candidate) or candidate.metadata.uid != meta.uid:
                    return None
            except NotFoundError:
                return None
        return None

    async def settled(self, held: Held) -> None:
        """Wait for the disk: the node was told meanwhile."""
        decided = self._undurable.pop(held.uid, None)
        if decided is not None:
            try:
                await decided.durable()
            except TransportError as error:
                raise StockError(503, "api_server", f"whose the sandbox is could not be written: {error}") from error

    async def _make(self, order: Order) -> Held:
        """A new one, which may not be on disk yet (`settled`)."""
        return await self._made(order, self._document(order, order.node))

    async def _made(self, order: Order, document: Document) -> Held:
        pod: Pod | None = None
        is_there = False

        async def with_pod() -> Decided[Sandbox]:
            nonlocal pod, is_there
            decided = await self._client.create_soon(Sandbox, document, order.blueprint.namespace)
            is_there = True
            if self._classes is not None and not decided.object.spec.volume_claim_templates:
                try:
                    pod = await self._made_pod(decided.object)
                except BaseException:
                    self._drop_soon(_held(decided.object))
                    raise
            return decided

        try:
            decided = await self._wanted(with_pod(), lambda: is_there)
        except AlreadyExistsError:  # 36^8 names, and one was met
            return await self._made(order, _for_order(document, order))
        held = _held(decided.object)
        self._undurable[held.uid] = decided
        return _with_pod(held, pod) if pod is not None else held

    async def _made_pod(self, sandbox: Sandbox) -> Pod | None:
        """The pod that a new Sandbox is to have, made in its commit; None: the reconciler makes it, or says why not. ApiError: it cannot be."""
        has_runtime = self._classes is not None and self._classes.cache.get("", names.RUNTIME_CLASS) is not None
        try:
            document = pod_document(sandbox, has_runtime=has_runtime)
            made = await self._client.create_soon(Pod, document, sandbox.metadata.namespace)
        except ApiError as error:
            if error.code == INVALID or _NEVER.search(error.message):  # as it is, it will never be
                raise
            log.info("pod not made with its sandbox", sandbox=sandbox.metadata.name, error=str(error))
            return None
        return made.object

    def _document(self, order: Order, node: str) -> Document:
        metadata: Document = {
            "name": _new_name(order),
            "labels": {**_labels(order), names.LAUNCH_TYPE: "cold"},
            "annotations": _annotations(order),
        }
        if order.restore_from:
            metadata["annotations"][names.RESTORE_FROM] = order.restore_from
        document, egress = self._from_object(order, metadata)
        secrets = document["metadata"]["annotations"].get(EGRESS_SECRETS, "")
        # its pod would be started again and again, and never run
        if wrong := trouble_of(egress) or secrets_trouble(egress, secrets):
            raise StockError(422, "egress", wrong)
        if order.network:
            try:
                document["metadata"]["annotations"][names.EGRESS] = egress = egress_of(egress, order.network)
            except RefusedError as error:  # of a row that was written before networks were checked
                raise StockError(422, error.reason, error.sentence) from error
        spec = document["spec"]["podTemplate"]["spec"]
        if node:
            spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), "kubernetes.io/hostname": node}
        return document

    def _from_object(self, order: Order, metadata: Document) -> tuple[Document, str]:
        """The Sandbox that the session's object stands for, and whom it may reach."""
        blueprint = order.blueprint
        if blueprint.kind == SessionKind.RUNTIME:
            runtime = self._runtimes.cache.get(blueprint.namespace, blueprint.name)
            if runtime is None:
                raise StockError(404, "template_not_found", f'agent runtime "{blueprint.name}" not found')
            return _of_agent(runtime, metadata), runtime.metadata.annotations.get(names.EGRESS, "")
        template = self._templates.cache.get(blueprint.namespace, blueprint.name)
        if template is None:
            raise StockError(503, "template_pending", f'template "{blueprint.name}" is not there{self._why(blueprint)}')
        owner: Resource = template
        if blueprint.kind == SessionKind.INTERPRETER:
            owner = self._interpreters.cache.get(blueprint.namespace, blueprint.name) or template
        document = sandbox_document(template, owner, metadata)
        return document, document["metadata"]["annotations"].get(names.EGRESS, "")

    def _why(self, blueprint: Blueprint) -> str:
        interpreter = self._interpreters.cache.get(blueprint.namespace, blueprint.name)
        told = interpreter.status.conditions if interpreter is not None else ()
        sentence = next((one.message for one in told if one.type == "Ready" and one.status == "False"), "")
        return f": {sentence}" if sentence else " yet; look at the conditions of the CodeInterpreter"

    async def _ready(self, held: Held) -> Held:
        """Wait until its pod is ready."""
        there = self._sandboxes.cache.get(held.namespace, held.name)
        if there is not None and _NEVER.search(told := refusal_told(there)):
            raise StockError(422, "refused", told)
        return replace(held, container=await self._waits.ready(held, self._pods.cache.get(held.namespace, held.pod)))

    async def take_forks(self, orders: list[Order]) -> list[Held]:
        """Sandboxes on the parent's node: those of the pool that wait there, and new ones, bound and waiting for the fork."""
        parent = self._pods.cache.get(orders[0].blueprint.namespace, orders[0].fork_of)
        if parent is None or not parent.spec.node_name:
            raise StockError(404, "sandbox_gone", f'pod "{orders[0].fork_of}" is gone')
        node = parent.spec.node_name
        waiting = self._near(orders[0], len(orders), node)
        try:
            # put together once: they differ in their names and in whose they are
            document = self._document(orders[0], node) if len(waiting) < len(orders) else None
            taken = await asyncio.gather(
                *(self._adopted_or_made(order, waiting, document, node) for order in orders), return_exceptions=True
            )
            held = [one for one in taken if isinstance(one, Held)]
            if len(held) < len(taken):
                await asyncio.gather(*(self.drop(one) for one in held))
                raise next(one for one in taken if isinstance(one, BaseException))
            bound = await asyncio.gather(*(self._bound(one) for one in held))
        except TransportError as error:
            raise StockError(503, "api_server", f"the API server does not answer: {error}") from error
        except ApiError as error:
            raise StockError(
                429 if error.code in (403, 429) else 500, error.reason or "refused", error.message
            ) from error
        finally:
            for candidate in waiting:  # whose adoption has not begun
                self._candidates.let_go(candidate, is_as_it_was=True)
        return list(bound)

    def _near(self, order: Order, most: int, node: str) -> list[Sandbox]:
        """Who waits on a node and can become a copy there."""
        blueprint = order.blueprint
        if order.network or blueprint.kind == SessionKind.RUNTIME:
            return []
        return self._candidates.take_near(
            blueprint.namespace, blueprint.name, most, lambda one: one.status.node_name == node
        )

    async def _adopted_or_made(
        self, order: Order, waiting: list[Sandbox], document: Document | None, node: str
    ) -> Held:
        if waiting and (held := await self._adopt(waiting.pop(0), order)) is not None:
            pod = self._pods.cache.get(held.namespace, held.pod)
            return replace(held, pod_uid=pod.metadata.uid if pod is not None else "")
        return await self._made(order, _for_order(document or self._document(order, node), order))

    async def _bound(self, held: Held) -> Held:
        """Wait until its pod has a node, unless the pod is known already: whoever fills it waits for it there."""
        if held.pod_uid:
            return held
        pod = await self._waits.bound(held, self._pods.cache.get(held.namespace, held.pod))
        return replace(held, pod_uid=pod.metadata.uid)

    # Giving back

    async def drop(self, held: Held) -> None:
        """Delete the Sandbox, and its pod at once: there is nothing in it to save."""
        self._undurable.pop(held.uid, None)
        try:
            with contextlib.suppress(NotFoundError, ConflictError):  # gone, or another one by that name
                await self._client.delete(Sandbox, held.name, held.namespace, uid=held.uid)
            pod = self._pods.cache.get(held.namespace, held.pod)
            if pod is not None and any(one.uid == held.uid for one in pod.metadata.owner_references):
                with contextlib.suppress(NotFoundError, ConflictError):
                    await self._client.delete(Pod, held.pod, held.namespace, grace_s=0, uid=pod.metadata.uid)
        except (ApiError, TransportError) as error:
            raise StockError(503, "api_server", f'sandbox "{held.name}" could not be deleted: {error}') from error

    async def held(self) -> list[Held]:
        """All Sandboxes that carry a session's label, as the API server has them now."""
        try:
            page = await self._client.list(Sandbox, label_selector=names.SESSION_ID)
        except (ApiError, TransportError) as error:
            raise StockError(503, "api_server", f"sandboxes cannot be listed: {error}") from error
        return [self._with_container(_held(one)) for one in page.items if one.metadata.deletion_timestamp is None]

    async def logs(self, held: Held, most: int) -> str:
        """What its pod's container wrote, as the API server has it of the node."""
        path = f"/api/v1/namespaces/{held.namespace}/pods/{held.pod}/log?timestamps=true&tailLines={most}"
        try:
            return await self._client.text(path)
        except ApiError as error:
            if error.code in (400, 404):  # it has not begun, or its log is gone
                return ""
            raise StockError(502, "api_server", f'the log of sandbox "{held.name}" cannot be had: {error}') from error
        except TransportError as error:
            raise StockError(503, "api_server", f"the API server does not answer: {error}") from error

    def _with_container(self, held: Held) -> Held:
        pod = self._pods.cache.get(held.namespace, held.pod)
        return held if pod is None else replace(held, container=container_of(pod))


def _new_name(order: Order) -> str:
    number = secrets.randbelow(len(_LETTERS) ** _SUFFIX)
    letters = []
    for _ in range(_SUFFIX):
        number, letter = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[letter])
    return f"{order.blueprint.name[:54]}-{''.join(letters)}"


def _for_order(document: Document, order: Order) -> Document:
    """The same for another session of the same owner."""
    metadata = document["metadata"]
    labels = {**metadata["labels"], names.SESSION_ID: order.session}
    return {**document, "metadata": {**metadata, "name": _new_name(order), "labels": labels}}


def _held(sandbox: Sandbox, *, is_warm: bool = False) -> Held:
    meta = sandbox.metadata
    return Held(
        namespace=meta.namespace, name=meta.name, uid=meta.uid, pod=meta.annotations.get(names.POD_NAME) or meta.name,
        session=meta.labels.get(names.SESSION_ID, ""), is_warm=is_warm,
    )  # fmt: skip


def _adoption(sandbox: Sandbox, order: Order) -> Document:
    return {
        "metadata": {
            "resourceVersion": sandbox.metadata.resource_version,
            "labels": {**_labels(order), names.WARM_POOL: None, names.LAUNCH_TYPE: "warm"},
            "annotations": _annotations(order),
            "ownerReferences": [],
        }
    }


def _labels(order: Order) -> dict[str, Any]:
    return {
        names.SESSION_ID: order.session,
        names.WORKLOAD_NAME: order.blueprint.name[:63],
        names.MANAGED_BY: names.MANAGER,
        names.OWNER_HASH: hashlib.sha256(order.owner.encode()).hexdigest()[:63],
    }


def _annotations(order: Order) -> dict[str, Any]:
    told = {names.OWNER: order.owner, names.IDLE_TIMEOUT: write_duration(order.blueprint.idle_s)}
    if order.fork_of:
        told |= {names.FORK_OF: f"{order.blueprint.namespace}/{order.fork_of}", LINEAGE: ",".join(order.lineage)}
    return told


def _of_agent(runtime: AgentRuntime, metadata: Document) -> Document:
    template = runtime.spec.pod_template
    given = runtime.metadata.annotations
    handed = {
        key: given[key] for key in (names.MIN_ISOLATION, names.QUEUE, names.EGRESS, EGRESS_SECRETS) if key in given
    }
    info = Sandbox.kind_info
    return {
        "apiVersion": info.api_version,
        "kind": info.kind,
        "metadata": {
            **metadata,
            "namespace": runtime.metadata.namespace,
            "annotations": {**handed, **metadata["annotations"]},
            "ownerReferences": [owner_reference(runtime)],
        },
        "spec": {
            "podTemplate": {
                "metadata": {"labels": dict(template.labels), "annotations": dict(template.annotations)},
                "spec": {"automountServiceAccountToken": False, **template.spec},
            }
        },
    }


def _blueprint_of(one: CodeInterpreter | AgentRuntime | SandboxTemplate) -> Blueprint:
    if isinstance(one, CodeInterpreter):
        return _of_interpreter(one)
    return _of_runtime(one) if isinstance(one, AgentRuntime) else _of_template(one)


def _of_interpreter(one: CodeInterpreter) -> Blueprint:
    meta, spec = one.metadata, one.spec
    limits = {**(spec.template.resources.get("requests") or {}), **(spec.template.resources.get("limits") or {})}
    return Blueprint(
        kind=SessionKind.INTERPRETER, namespace=meta.namespace, name=meta.name,
        idle_s=_seconds(spec.session_timeout, 900.0), life_s=_seconds(spec.max_session_duration, 8 * 3600.0),
        entry_points=_entry_points(spec.ports) or (EntryPoint("/", _DAEMON_PORT),),
        is_checked=spec.auth_mode == AuthMode.PICOD, budget=meta.annotations.get(names.BUDGET, ""), trouble=interpreter_trouble(one),
        **_sizes(limits),
    )  # fmt: skip


def _with_pod(held: Held, pod: Pod) -> Held:
    is_alone = len(pod.spec.containers) == 1 and not pod.spec.init_containers
    return replace(held, pod_uid=pod.metadata.uid, is_alone=is_alone)


def _of_runtime(one: AgentRuntime) -> Blueprint:
    meta, spec = one.metadata, one.spec
    return Blueprint(
        kind=SessionKind.RUNTIME, namespace=meta.namespace, name=meta.name,
        idle_s=_seconds(spec.session_timeout, 900.0), life_s=_seconds(spec.max_session_duration, 8 * 3600.0),
        entry_points=_entry_points(spec.target_ports), is_checked=False, budget=meta.annotations.get(names.BUDGET, ""),
        trouble=runtime_trouble(one),
    )  # fmt: skip


def _of_template(one: SandboxTemplate) -> Blueprint:
    meta = one.metadata
    containers = one.spec.pod_template.spec.get("containers") or [{}]
    resources = containers[0].get("resources") or {}
    limits = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return Blueprint(
        kind=SessionKind.TEMPLATE, namespace=meta.namespace, name=meta.name, is_checked=True,
        budget=meta.annotations.get(names.BUDGET, ""), **_sizes(limits),
    )  # fmt: skip


def _sizes(limits: dict[str, Any]) -> dict[str, Any]:
    return {
        "cpu_milli": quantity.to_milli(str(limits.get("cpu", "0"))),
        "memory_bytes": quantity.to_milli(str(limits.get("memory", "0"))) // 1000,
        "disk_bytes": quantity.to_milli(str(limits.get("ephemeral-storage", "0"))) // 1000,
    }


def _entry_points(ports: list[TargetPort]) -> tuple[EntryPoint, ...]:
    return tuple(EntryPoint(one.path_prefix or "/", one.port, one.protocol) for one in ports)


def _seconds(text: str, default: float) -> float:
    try:
        return parse_duration(text).total_seconds()
    except DurationError:
        return default
