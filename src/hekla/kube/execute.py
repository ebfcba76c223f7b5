"""Carries out commands, and says which revisions they made so that the runtime can wait until its caches show them.

Every command is safe to repeat: what is done already counts as done. `events.py` takes the events, `runtime.py` the
wishes to look again later.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

import structlog

from hekla.api.meta import Document, Resource
from hekla.kube.api_client import ApiClient
from hekla.kube.cache import ObjectKey
from hekla.kube.client import PatchType
from hekla.kube.commands import (
    Apply,
    Command,
    Create,
    Delete,
    Event,
    Evict,
    Patch,
    RequeueAfter,
    SetStatus,
    Target,
)
from hekla.kube.errors import AlreadyExistsError, ApiError, ConflictError, NotFoundError
from hekla.kube.informer import revision_number
from hekla.kube.metadata_kinds import metadata_only

log = structlog.get_logger()

MAX_AT_ONCE = 256
"""Commands of one reconcile that are under way together."""
CROWD = 8
"""Objects that one reconcile makes before it is asked whether they are wanted any more; few are made to the end."""


@dataclass(frozen=True, slots=True)
class Done:
    """What a command has changed: a new revision of an object, or (`revision` 0) an object that will be gone."""

    kind: type[Resource]
    key: ObjectKey
    uid: str = ""
    revision: int = 0


class EventSink(Protocol):
    """Takes events; never blocks."""

    def record(self, event: Event, component: str = "") -> None:
        """Write it some time soon, in the name of a component."""


class Executor:
    """Carries out commands with one client."""

    def __init__(
        self, client: ApiClient, events: EventSink, *, field_manager: str = "hekla", component: str = ""
    ) -> None:
        self._client = client
        self._component = component
        self._events = events
        self._field_manager = field_manager
        self._status_at: dict[str, str] = {}
        """By resource, the subresource that took a status ("" is the object itself), once one was seen to."""

    async def run(self, commands: Sequence[Command], is_overtaken: Callable[[], bool] = lambda: False) -> list[Done]:
        """All commands in order; like ones in growing batches. The first failure ends it and is raised.

        A crowd that is no longer wanted is not made to its end: where `is_overtaken`, the rest is left to the next look.
        """
        done: list[Done] = []
        created = 0
        for batch in _batches(commands):
            if isinstance(batch[0], Create):
                if created >= CROWD and is_overtaken():
                    return done
                created += len(batch)
            if len(batch) == 1:  # the usual case by far, and a task for it cost as much as many a command
                try:
                    made = await self._one(batch[0])
                except Exception as error:  # as gathered below: whoever runs commands tells failures apart
                    raise CommandError(batch[0], done) from error
                done += [made] if made is not None else []
                continue
            results = await asyncio.gather(*(self._one(command) for command in batch), return_exceptions=True)
            done += [result for result in results if isinstance(result, Done)]
            for command, result in zip(batch, results, strict=True):
                if isinstance(result, BaseException):
                    raise CommandError(command, done) from result
        return done

    async def _one(self, command: Command) -> Done | None:
        match command:
            case Create():
                return await self._create(command)
            case Patch():
                return await self._patch(command)
            case Apply():
                return await self._apply(command)
            case SetStatus(target, status):
                return await self._set_status(target, {"status": status})
            case Delete():
                return await self._delete(command)
            case Evict():
                return await self._evict(command)
            case Event():
                self._events.record(command, self._component)
        return None

    async def _create(self, command: Create) -> Done:
        metadata = command.document["metadata"]
        kind, namespace, name = command.kind, metadata.get("namespace", ""), metadata.get("name", "")
        document = command.document
        if command.filled_by is not None:
            document = await asyncio.to_thread(command.filled_by, document)
        try:
            made = await self._client.create_document(kind.kind_info, document, namespace)
        except AlreadyExistsError:
            if not name:
                # A generated name was taken; the next try makes another.
                raise
            made = await self._client.get_document(kind.kind_info, name, namespace)
            if _controller(made) != _controller(command.document):
                self._say_taken(command, made)
                raise
            return _done(kind, made)
        except ApiError as error:
            if not is_ending(error):
                self._say_refused(command, error)
            raise
        if command.is_announced:
            message = f"Created {kind.kind_info.singular}: {made['metadata']['name']}"
            said = command.announced_as[0] if command.announced_as else message
            self._announce(command, "SuccessfulCreate", said, "Normal")
        return _done(kind, made)

    def _say_refused(self, command: Create, error: ApiError) -> None:
        """Tell the controller of what is created that the server refuses it."""
        if command.is_announced or command.is_told_of_when_refused:
            said = command.announced_as[1] if command.announced_as else "Error creating"
            self._announce(command, "FailedCreate", f"{said}: {error.message}", "Warning")

    def _announce(self, command: Create, reason: str, message: str, event_type: str) -> None:
        """An event on the controller of what is created, or on what the command names instead."""
        if command.announced_to is not None:
            self._events.record(Event(command.announced_to, reason, message, event_type), self._component)
            return
        owner = _controller_reference(command.document)
        if owner is None:
            return
        namespace = command.document["metadata"].get("namespace", "")
        try:
            kind = metadata_only(self._client.kind_of(owner["apiVersion"], owner["kind"]))
        except KeyError:
            # A controller of a kind that we know nothing of hears nothing from us.
            return
        target = Target(kind=kind, name=owner["name"], namespace=namespace, uid=owner["uid"])
        self._events.record(Event(target, reason, message, event_type), self._component)

    def _say_taken(self, command: Create, taken: Document) -> None:
        """Tell the owner of what could not be created who has the name."""
        owner = _controller_reference(command.document)
        if owner is None:
            return
        metadata = command.document["metadata"]
        holder = _controller_reference(taken)
        held_by = f"{holder['kind']} {holder['name']!r}" if holder else "nobody"
        message = (
            f"{command.kind.kind_info.kind} {metadata['name']!r} exists already and is controlled by {held_by}; "
            f"delete it or choose another name"
        )
        self._announce(command, "NameTaken", message, "Warning")

    async def _patch(self, command: Patch) -> Done | None:
        for other in command.provided_gone:
            await self._check_gone(other)
        patch = command.patch
        if command.is_guarded:
            metadata = {**patch.get("metadata", {}), "resourceVersion": command.target.resource_version}
            patch = {**patch, "metadata": metadata}
        return await self._merge(command.target, patch, command.subresource)

    async def _check_gone(self, target: Target) -> None:
        info = target.kind.kind_info
        with suppress(NotFoundError):
            found = await self._client.get_document(info, target.name, target.namespace)
            if target.uid in ("", found["metadata"].get("uid")):
                raise ConflictError(409, "Conflict", f'{info.singular} "{target.name}" is not gone; the cache is late')

    async def _set_status(self, target: Target, patch: Document) -> Done | None:
        """Write a status where this server keeps it. Releases of Volcano differ in which of their kinds have /status, and a
        server drops a status in silence that comes by the other way; so what it answers is looked at until one way works.
        """
        kind = target.kind.kind_info
        known = self._status_at.get(kind.resource)
        if known is not None:
            return await self._merge(target, patch, known)
        declared, other = ("status", "") if kind.has_status else ("", "status")
        first: Document | None = None
        for subresource in (declared, other):
            changed = await self._patched(target, patch, subresource)
            if changed is not None and _shows(changed.get("status"), patch["status"]):
                self._status_at[kind.resource] = subresource
                return _done(target.kind, changed)
            first = first or changed
        return _done(target.kind, first) if first is not None else None

    async def _merge(self, target: Target, patch: Document, subresource: str) -> Done | None:
        changed = await self._patched(target, patch, subresource)
        return _done(target.kind, changed) if changed is not None else None

    async def _patched(self, target: Target, patch: Document, subresource: str) -> Document | None:
        try:
            return await self._client.patch_document(
                target.kind.kind_info, target.name, patch, target.namespace,
                subresource=subresource, field_manager=self._field_manager,
            )  # fmt: skip
        except NotFoundError:
            # It is gone; its own deletion event will be the next thing the reconciler hears.
            return None

    async def _apply(self, command: Apply) -> Done:
        metadata = command.document["metadata"]
        applied = await self._client.patch_document(
            command.kind.kind_info, metadata["name"], command.document, metadata.get("namespace", ""),
            patch_type=PatchType.APPLY, field_manager=self._field_manager, force=command.force,
        )  # fmt: skip
        return _done(command.kind, applied)

    async def _delete(self, command: Delete) -> Done:
        target = command.target
        log.debug("deleting", kind=target.kind.kind_info.kind, name=target.name, reason=command.reason)
        try:
            await self._client.delete_document(
                target.kind.kind_info, target.name, target.namespace,
                grace_s=command.grace_s, propagation=command.propagation, uid=target.uid,
                resource_version=target.resource_version if command.is_guarded else "",
            )  # fmt: skip
        except NotFoundError:
            pass
        except ConflictError:
            # The uid is another: the object that was meant is gone.
            if not target.uid or command.is_guarded:
                raise
        return Done(target.kind, (target.namespace, target.name), target.uid)

    async def _evict(self, command: Evict) -> Done:
        target = command.target
        with suppress(NotFoundError):
            await self._client.evict(target.namespace, target.name)
        return Done(target.kind, (target.namespace, target.name), target.uid)


def is_ending(error: ApiError) -> bool:
    """Whether a write was refused because its namespace is going away: nobody need hear of it."""
    causes = error.details.get("causes") or ()
    return any(cause.get("reason") == "NamespaceTerminating" for cause in causes)


class CommandError(Exception):
    """`command` failed (the cause); `done` is what those before it and beside it have changed."""

    def __init__(self, command: Command, done: list[Done]) -> None:
        super().__init__("a command failed")
        self.command, self.done = command, done


def _batches(commands: Sequence[Command]) -> Iterator[Sequence[Command]]:
    """Commands of one kind that follow each other, in batches of 1, 2, 4...: a quota that is full costs one refusal."""
    for _, same in groupby(commands, key=_batch_key):
        rest = [command for command in same if not isinstance(command, RequeueAfter)]
        size = 1
        while rest:
            yield rest[:size]
            rest = rest[size:]
            size = min(size * 2, MAX_AT_ONCE)


def _batch_key(command: Command) -> tuple[type, Any]:
    match command:
        case Create(kind, _):
            return Create, kind
        case Delete(target):
            return Delete, target.kind
    # Patches may build on one another, so each goes alone.
    return type(command), id(command)


def _shows(found: Any, patch: Any) -> bool:
    """Whether a document looks as a merge patch wants it."""
    if not isinstance(patch, dict):
        return bool(found == patch)
    found = found if isinstance(found, dict) else {}
    return all(key not in found if value is None else _shows(found.get(key), value) for key, value in patch.items())


def _done(kind: type[Resource], document: Document) -> Done:
    metadata = document.get("metadata", {})
    key = (metadata.get("namespace", ""), metadata.get("name", ""))
    return Done(kind, key, metadata.get("uid", ""), revision_number(metadata.get("resourceVersion", "")))


def _controller_reference(document: Document) -> Document | None:
    owners = document.get("metadata", {}).get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def _controller(document: Document) -> str:
    return str((_controller_reference(document) or {}).get("uid", ""))
