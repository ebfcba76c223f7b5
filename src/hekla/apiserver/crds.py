"""Custom resources: a CustomResourceDefinition is served as soon as it is stored, and until its last object is gone.

This follows the definitions in the store as any watcher would, so that a restart, another writer and a client are all
the same to it. What it decides about a definition (names accepted, established) it writes into the definition's status.
"""

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass

import structlog

from hekla.api.kubernetes.served import Subresource
from hekla.api.meta import Column, Document
from hekla.apiserver import strategies
from hekla.apiserver.admission import AdmissionRequest, Operation, Reader
from hekla.apiserver.backend import Backend
from hekla.apiserver.bodies import decode_document, head_of, render_of, tail_of
from hekla.apiserver.conversions import OF_CUSTOM_KINDS
from hekla.apiserver.deletes import CRD_FINALIZER
from hekla.apiserver.fielderrors import invalid, invalid_object
from hekla.apiserver.handlers_write import DELETED_TOGETHER
from hekla.apiserver.registry import STANDARD_VERBS, STATUS_VERBS, ScalePaths, Served
from hekla.apiserver.selectable import reader
from hekla.apiserver.store import Change, Key, RevisionMismatchError, Stored, StoreError, Subscription

log = structlog.get_logger(__name__)

DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"
CLEANUP_PAUSE_S = 0.2
"""Between two looks at whether the objects of a definition that is going are gone."""

ACCEPTED = ("NamesAccepted", "NoConflicts", "no conflicts found")
ESTABLISHED = ("Established", "InitialNamesAccepted", "the initial names have been accepted")


@dataclass(frozen=True)
class NoWebhookConversion:
    """Refuses a definition whose versions would have to be converted by a webhook: this server calls none, and knows some itself."""

    name: str = "NoWebhookConversion"

    def wants(self, request: AdmissionRequest) -> bool:
        """Definitions, when they are written."""
        return request.kind.resource == DEFINITIONS and request.operation is not Operation.DELETE

    def mutate(self, request: AdmissionRequest, reader: Reader) -> None:
        """Nothing is changed."""

    def validate(self, request: AdmissionRequest, reader: Reader) -> None:
        """Refuse the webhook."""
        spec = (request.object or {}).get("spec") or {}
        strategy = (spec.get("conversion") or {}).get("strategy", "None")
        versions = [one.get("name") for one in spec.get("versions") or () if not one.get("storage")]
        if strategy != "None" and any((request.name, version) not in OF_CUSTOM_KINDS for version in versions):
            why = "conversion between versions by webhook is not done here: give all versions one schema and use None"
            raise invalid_object(request.kind, request.name, [invalid("spec.conversion.strategy", strategy, why)])


class CustomResources:
    """Keeps the registry in step with the stored definitions."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._subscription: Subscription | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._served_for: dict[str, str] = {}
        """The resource that each definition made us serve, by the definition's name."""

    async def start(self) -> None:
        """Serve what is stored, and follow what comes."""
        if self._backend.registry.stored(DEFINITIONS) is None:
            return
        store = self._backend.store
        for stored in store.list_durable(DEFINITIONS):
            self._take(stored)
        self._subscription = store.subscribe(self._follow, resource=DEFINITIONS, since=None)

    async def stop(self) -> None:
        """Follow no more."""
        if self._subscription is not None:
            self._subscription.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _follow(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.current is not None:
                self._take(change.current)
            else:
                self._drop(change.key.name)

    def _drop(self, name: str) -> None:
        resource = self._served_for.pop(name, "")
        if resource:
            self._backend.registry.remove(resource)
            log.info("custom resource withdrawn", resource=resource)

    def _take(self, stored: Stored) -> None:
        definition: Document = decode_document(stored.body)
        is_going = "deletionTimestamp" in definition["metadata"]
        name = stored.key.name
        conflict = self._name_conflict(definition)
        if not conflict:
            self._serve(name, definition, is_going=is_going)
        if is_going:
            self._run(self._clean_up(stored.key))
        elif _status_differs(definition, conflict):
            self._run(self._write_status(stored.key))

    def _serve(self, name: str, definition: Document, *, is_going: bool) -> None:
        try:
            served = served_by(definition, is_going=is_going)
        except (KeyError, TypeError, ValueError) as error:
            # validation lets no such definition in; one from an older version must not keep the others from starting
            log.error("custom resource cannot be served", definition=name, error=str(error))
            return
        resource = f"{definition['spec']['names']['plural']}.{definition['spec']['group']}"
        self._backend.registry.replace(resource, served)
        self._served_for[name] = resource

    def _name_conflict(self, definition: Document) -> str:
        """Why a definition's names cannot be accepted; empty if they can."""
        spec, mine = definition["spec"], definition["metadata"]["name"]
        names = spec["names"]
        wanted = {names["plural"], names.get("singular", ""), *names.get("shortNames", ())} - {""}
        for served in self._backend.registry:
            kind = served.kind
            if kind.group != spec["group"] or kind.resource == mine:
                continue
            taken = wanted & {kind.plural, kind.singular, *kind.short_names}
            if taken:
                return f'"{sorted(taken)[0]}" is already in use'
            if kind.kind == names["kind"]:
                return f'"{kind.kind}" is already in use'
        return ""

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("custom resource work failed", exc_info=task.exception())

    async def _write_status(self, key: Key) -> None:
        stored = self._backend.store.get(key)
        if stored is None:
            return
        definition: Document = decode_document(stored.body)
        conflict = self._name_conflict(definition)
        if not _status_differs(definition, conflict) or "deletionTimestamp" in definition["metadata"]:
            return
        _set_status(definition, conflict, self._backend.now())
        with contextlib.suppress(RevisionMismatchError):  # whoever was faster makes us look again
            await self._put(stored, definition)

    async def _put(self, stored: Stored, definition: Document) -> None:
        served = self._backend.registry.stored(DEFINITIONS)
        assert served is not None, "definitions are followed only where they are served"
        render = render_of(served.storage_head, tail_of(definition), stored.managed_fields)
        fields = served.fields_of(definition)
        await self._backend.store.put(stored.key, render, expected=stored.revision, labels=stored.labels, fields=fields)

    # ---- going

    async def _clean_up(self, key: Key) -> None:
        """Delete the objects of a definition that is going, then let it go."""
        store = self._backend.store
        while (stored := store.get(key)) is not None:
            definition: Document = decode_document(stored.body)
            if CRD_FINALIZER not in definition["metadata"].get("finalizers", []):
                return
            spec = definition["spec"]
            resource = f"{spec['names']['plural']}.{spec['group']}"
            for instances in batched(list(store.list(resource)), DELETED_TOGETHER):
                await asyncio.gather(*(self._delete_instance(instance) for instance in instances))
            if not store.count(resource):
                await self._release(stored, definition)
                return
            await asyncio.sleep(CLEANUP_PAUSE_S)

    async def _delete_instance(self, instance: Stored) -> None:
        document: Document = decode_document(instance.body)
        metadata = document["metadata"]
        head = instance.body[: instance.body.index(b'"metadata":{')]
        try:
            if not metadata.get("finalizers"):
                render = render_of(head, tail_of(document), instance.managed_fields)
                await self._backend.store.delete(instance.key, render, expected=instance.revision)
            elif "deletionTimestamp" not in metadata:
                metadata |= {"deletionTimestamp": self._backend.now(), "deletionGracePeriodSeconds": 0}
                render = render_of(head, tail_of(document), instance.managed_fields)
                await self._backend.store.put(
                    instance.key, render, expected=instance.revision, labels=instance.labels, fields=instance.fields
                )
        except (RevisionMismatchError, StoreError) as error:
            log.debug("custom object not deleted yet", name=instance.key.name, error=str(error))

    async def _release(self, stored: Stored, definition: Document) -> None:
        metadata = definition["metadata"]
        metadata["finalizers"] = [one for one in metadata["finalizers"] if one != CRD_FINALIZER]
        if metadata["finalizers"]:
            with contextlib.suppress(RevisionMismatchError):
                await self._put(stored, definition)
            return
        del metadata["finalizers"]
        served = self._backend.registry.stored(DEFINITIONS)
        assert served is not None, "definitions are followed only where they are served"
        render = render_of(served.storage_head, tail_of(definition), stored.managed_fields)
        with contextlib.suppress(RevisionMismatchError):
            await self._backend.store.delete(stored.key, render, expected=stored.revision)


def batched(items: Sequence[Stored], size: int) -> Iterator[Sequence[Stored]]:
    """The items in runs of at most `size`."""
    return (items[at : at + size] for at in range(0, len(items), size))


def served_by(definition: Document, *, is_going: bool = False) -> list[Served]:
    """What a definition makes the server serve: one entry per served version."""
    spec = definition["spec"]
    storage = next(one["name"] for one in spec["versions"] if one.get("storage"))
    return [_served_version(definition, one, storage, is_going) for one in spec["versions"] if one.get("served")]


def _served_version(definition: Document, version: Document, storage: str, is_going: bool) -> Served:
    from dataclasses import replace

    strategy = strategies.for_custom_resource(definition, version["name"])
    kind = strategy.kind
    parts = version.get("subresources") or {}
    selectable = tuple(one["jsonPath"].lstrip(".") for one in version.get("selectableFields") or ())
    return Served(
        kind=kind,
        strategy=strategy,
        storage_head=head_of(replace(kind, version=storage)),
        storage_version=storage,
        head=head_of(kind),
        is_custom=True,
        verbs=_verbs(is_going),
        subresources=_parts(parts),
        selectable=selectable,
        fields_of=reader(selectable),
        scale=_scale(parts.get("scale")),
        deprecation=_deprecation(version, f"{kind.api_version} {kind.kind}"),
        columns=tuple(_column(one) for one in version.get("additionalPrinterColumns") or ()),
        list_kind=definition["spec"]["names"].get("listKind") or f"{kind.kind}List",
        conversion=OF_CUSTOM_KINDS.get((kind.resource, kind.version)) if storage != kind.version else None,
    )


def _deprecation(version: Document, kind: str) -> str:
    return str(version.get("deprecationWarning") or f"{kind} is deprecated") if version.get("deprecated") else ""


def _verbs(is_going: bool) -> tuple[str, ...]:
    order = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")
    assert set(order) == set(STANDARD_VERBS), "only the order is Kubernetes' own here"
    return tuple(verb for verb in order if not is_going or verb != "create")


def _parts(parts: Document) -> dict[str, Subresource]:
    found: dict[str, Subresource] = {}
    if "status" in parts:
        found["status"] = Subresource(name="status", group="", version="", kind="", verbs=STATUS_VERBS)
    if parts.get("scale"):
        found["scale"] = Subresource(name="scale", group="autoscaling", version="v1", kind="Scale", verbs=STATUS_VERBS)
    return found


def _scale(said: Document | None) -> ScalePaths | None:
    if not said:
        return None
    return ScalePaths(
        spec=said["specReplicasPath"].lstrip("."),
        status=said["statusReplicasPath"].lstrip("."),
        selector=said.get("labelSelectorPath", "").lstrip("."),
    )


def _column(said: Document) -> Column:
    return Column(
        name=said["name"],
        json_path=said["jsonPath"],
        type=said["type"],
        priority=said.get("priority", 0),
        format=said.get("format", ""),
        description=said.get("description", ""),
    )


# ---- status


def _status_differs(definition: Document, conflict: str) -> bool:
    status = definition.get("status") or {}
    known = {one["type"]: one["status"] for one in status.get("conditions") or ()}
    if conflict:
        return known.get("NamesAccepted") != "False"
    names = {key: value for key, value in definition["spec"]["names"].items() if value}
    accepted = {key: value for key, value in (status.get("acceptedNames") or {}).items() if value}
    stored = {one["name"] for one in definition["spec"]["versions"] if one.get("storage")}
    return (
        known.get("NamesAccepted") != "True"
        or known.get("Established") != "True"
        or names != accepted
        or not stored <= set(status.get("storedVersions") or ())
    )


def _set_status(definition: Document, conflict: str, now: str) -> None:
    status = definition.setdefault("status", {})
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    if conflict:
        _set_condition(conditions, ("NamesAccepted", "Conflict", conflict), now, is_true=False)
        _set_condition(conditions, ("Established", "NotAccepted", "not all names are accepted"), now, is_true=False)
    else:
        _set_condition(conditions, ACCEPTED, now, is_true=True)
        _set_condition(conditions, ESTABLISHED, now, is_true=True)
        status["acceptedNames"] = dict(definition["spec"]["names"])
    status["conditions"] = list(conditions.values())
    stored = [one["name"] for one in definition["spec"]["versions"] if one.get("storage")]
    known = status.get("storedVersions") or []
    status["storedVersions"] = [*known, *(one for one in stored if one not in known)]


def _set_condition(conditions: dict[str, Document], said: tuple[str, str, str], now: str, *, is_true: bool) -> None:
    kind, reason, message = said
    value = "True" if is_true else "False"
    if conditions.get(kind, {}).get("status") == value:
        return
    conditions[kind] = {"type": kind, "status": value, "lastTransitionTime": now, "reason": reason, "message": message}
