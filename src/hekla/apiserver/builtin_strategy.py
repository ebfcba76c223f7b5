"""The strategy of Kubernetes' own kinds: what all of them have in common. `rules.py` has what differs."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

from hekla.api.kubernetes.served import SERVED
from hekla.api.meta import Document, Kind
from hekla.api.schema import Schema, for_kind
from hekla.apiserver import decoding, gotypes
from hekla.apiserver.fielderrors import FieldError
from hekla.apiserver.rules import Generation, Rules, nothing
from hekla.apiserver.status import StatusError, bad_request
from hekla.apiserver.strategy import Decoded
from hekla.apiserver.validation.kind_warnings import KIND_WARNINGS
from hekla.apiserver.validation.metadata import check_metadata, check_metadata_update
from hekla.apiserver.validation.names import NameCheck, any_name

_KEPT_METADATA = ("uid", "deletionGracePeriodSeconds", "generateName")
_FIXED_METADATA = ("creationTimestamp", "deletionTimestamp")
_COUNTED_SUBRESOURCES = ("", "scale", "resize", "ephemeralcontainers")
"""Changes through other subresources (binding, status) do not count as a new generation."""

_CHECKED_SUBRESOURCES = ("", "scale")

_SUSPICIOUS_BRACKETS = 150  # with fewer brackets than this a text cannot be nested too deep


class BuiltinStrategy:
    """Rules of one built-in kind; see `strategy.Strategy`."""

    def __init__(self, kind: Kind, rules: Rules) -> None:
        self._kind, self.rules = kind, rules
        self._schema: Schema | None = None

    @property
    def kind(self) -> Kind:
        """What it is the strategy of."""
        return self._kind

    @property
    def schema(self) -> Schema:
        """The kind's fields; read from the data when first asked for."""
        if self._schema is None:
            self._schema = for_kind(self.kind.group, self.kind.version, self.kind.kind)
        return self._schema

    def decode(self, body: bytes, content_type: str) -> Decoded:
        """Parse and check types; raises StatusError 400 with Go's sentence."""
        try:
            parsed = decoding.parse(body, content_type)
        except decoding.DecodeError as error:
            raise unrecognized(self.kind, body, error) from None
        document = parsed.document
        said = _type_meta(document, body, self.kind)
        _refuse_other_kind(said, self.kind)
        walk = gotypes.Walk()
        made = self._coerced(document, walk)
        made["kind"], made["apiVersion"] = self.kind.kind, self.kind.api_version
        unknown = gotypes.unknown_fields(document, self.schema) if walk.has_unknown else []
        duplicates = parsed.duplicates
        if not duplicates and not decoding.is_yaml(content_type) and decoding.key_count(body) != walk.keys:
            duplicates = decoding.duplicates(body)
        return Decoded(made, duplicates + unknown)

    def check_types(self, document: Document, *, is_partial: bool = False) -> list[str]:
        """The same for a document that a patch produced; normalises it in place."""
        walk = gotypes.Walk(is_partial=is_partial)
        made = self._coerced(document, walk)
        unknown = gotypes.unknown_fields(document, self.schema) if walk.has_unknown else []
        document.clear()
        document.update(made)
        document["kind"], document["apiVersion"] = self.kind.kind, self.kind.api_version
        return unknown

    def _coerced(self, document: Document, walk: gotypes.Walk) -> Document:
        try:
            made: Document = gotypes.coercion(self.schema.ref)(document, walk)
        except gotypes.GoTypeError as error:
            raise self._mistyped(error.sentence()) from None
        except gotypes.GoValueError as error:
            raise self._mistyped(str(error)) from None
        except RecursionError:
            raise self._mistyped("exceeded max depth") from None
        return made

    def _mistyped(self, sentence: str) -> StatusError:
        return cannot_be_handled(self.kind.kind, self.kind.version, self.kind, sentence)

    def prepare_create(self, document: Document) -> Document:
        """Default and complete a new object."""
        metadata = document.setdefault("metadata", {})
        set_generation(metadata, 1 if self.rules.generation is not Generation.NONE else 0)
        self.rules.default(document)
        self.rules.create(document)
        if "status" in document:  # what the hook made lacks what Go always writes
            document["status"] = gotypes.coercion(self.schema.properties["status"].ref)(
                document["status"], gotypes.Walk()
            )
        return document

    def settle_create(self, document: Document) -> None:
        """What a new object's last word has follow from it."""
        self.rules.settle(document)

    def prepare_update(self, new: Document, old: Document, subresource: str = "") -> Document:
        """Default a change and keep what it may not change."""
        self.rules.default(new)
        keep_metadata(new, old)
        if subresource == "status":
            self._keep_all_but_status(new, old)
        elif self.kind.has_status:
            keep(new, old, "status")
        if subresource != "finalize":
            self.rules.update(new, old)
        if self.rules.generation is Generation.SPEC and subresource in _COUNTED_SUBRESOURCES:
            advance(new, self._completed(old, new), wanted)
        else:
            set_generation(new["metadata"], old["metadata"].get("generation", 0))
        return new

    def _completed(self, old: Document, new: Document) -> Document:
        """The old object with today's defaults: one stored by an earlier release lacks some, and they are no change."""
        if self.rules.default is nothing or wanted(new) == wanted(old):
            return old
        completed = copy.deepcopy(old)
        self.rules.default(completed)
        return completed

    def _keep_all_but_status(self, new: Document, old: Document) -> None:
        for key in [key for key in new if key not in ("metadata", "status", "kind", "apiVersion")]:
            del new[key]
        new.update(
            {key: value for key, value in old.items() if key not in ("metadata", "status", "kind", "apiVersion")}
        )
        if self.rules.keeps_labels_on_status:
            keep(new["metadata"], old["metadata"], "labels")

    def validate_create(self, document: Document) -> list[FieldError]:
        """What is wrong with a new object."""
        return (
            self._check_metadata(document, self.rules.name)
            + self.rules.check(document)
            + self.rules.check_new(document)
        )

    def validate_update(self, new: Document, old: Document, subresource: str = "") -> list[FieldError]:
        """What is wrong with a change."""
        errors = self._check_metadata(new, any_name) + check_metadata_update(new["metadata"], old["metadata"])
        if subresource == "status":
            return errors + self.rules.check_status(new, old)
        if subresource not in _CHECKED_SUBRESOURCES:
            return errors
        before = self._completed(old, new)
        if wanted(new) == wanted(before):
            return errors  # a binding changes what users may not; rules that came later than the object must not stop a change of its labels
        return errors + self.rules.check(new) + self.rules.check_update(new, before)

    def _check_metadata(self, document: Document, name_check: NameCheck) -> list[FieldError]:
        return check_metadata(document["metadata"], is_namespaced=self.kind.is_namespaced, name_check=name_check)

    def warnings(self, new: Document, old: Document | None = None) -> list[str]:
        """What the user should know although it is allowed; what they have been told of already is not repeated."""
        warn = KIND_WARNINGS.get(self.kind.resource)
        is_counted = self.rules.generation is Generation.SPEC
        is_as_before = old is not None and new["metadata"].get("generation") == old["metadata"].get("generation")
        return [] if warn is None or (is_counted and is_as_before) else warn(new, old is None)


def wanted(document: Document) -> Document:
    """All of an object but its metadata and status: what a change of generation is about."""
    return {key: value for key, value in document.items() if key not in ("metadata", "status", "kind", "apiVersion")}


def advance(new: Document, old: Document, part: Callable[[Document], Document]) -> None:
    """Count a change of the part of an object that a generation is about."""
    generation = old["metadata"].get("generation", 0)
    set_generation(new["metadata"], generation + (part(new) != part(old)))


def unrecognized(kind: Kind, body: bytes, why: object) -> StatusError:
    """400 for a body of which not even the kind could be read."""
    return bad_request(
        f"the object provided is unrecognized (must be of type {kind.kind}): couldn't get version/kind; "
        f"json parse error: {why} ({_summary(body)})"
    )


def cannot_be_handled(said_kind: str, said_version: str, kind: Kind, why: str) -> StatusError:
    """400 for a body of another kind or with a wrong type in it."""
    return bad_request(f'{said_kind} in version "{said_version}" cannot be handled as a {kind.kind}: {why}')


def _summary(body: bytes) -> str:
    if not body:
        return "<empty>"
    if body.startswith(b"{"):
        return body[:30].decode("utf-8", "replace") + (" ..." if len(body) > 30 else "")
    return body[:30].hex() + (" ..." if len(body) > 30 else "")


def _type_meta(document: Document, body: bytes, kind: Kind) -> tuple[str, str]:
    """The apiVersion and kind that a body says of itself; those of the request where it says nothing."""
    if body.count(b"{") + body.count(b"[") > _SUSPICIOUS_BRACKETS and decoding.too_deep(document):
        raise bad_request("exceeded max depth")
    said = []
    for key, otherwise in (("apiVersion", kind.api_version), ("kind", kind.kind)):
        value = document.get(key)
        if value is not None and not isinstance(value, str):
            word = gotypes.GoTypeError(value, "string").sentence().split(" into ")[0]
            raise unrecognized(kind, body, f"{word} into Go struct field .{key} of type string")
        said.append(value or otherwise)
    return said[0], said[1]


def _refuse_other_kind(said: tuple[str, str], kind: Kind) -> None:
    api_version, name = said
    if name != kind.kind:
        _refuse_kind(api_version, name, kind)
    if api_version != kind.api_version:
        raise bad_request(
            f"the API version in the data ({api_version}) does not match the expected API version ({kind.api_version})"
        )


def _refuse_kind(api_version: str, name: str, kind: Kind) -> None:
    group, _, version = api_version.rpartition("/")
    if (group, version, name) in _known_kinds():
        why = f"converting ({version}.{name}) to ({_internal_package(kind.group)}.{kind.kind}): unknown conversion"
    else:
        why = f'no kind "{name}" is registered for version "{api_version}" in scheme "k8s.io/kubernetes/pkg/api/legacyscheme/scheme.go:30"'
    raise cannot_be_handled(name, version, kind, why)


def _known_kinds() -> set[tuple[str, str, str]]:
    return {(one.kind.group, one.kind.version, one.kind.kind) for one in SERVED}


def _internal_package(group: str) -> str:
    return group.split(".", 1)[0] or "core"


def set_generation(metadata: Document, generation: int) -> None:
    """Write the generation; 0 is none."""
    if generation:
        metadata["generation"] = generation
    else:
        metadata.pop("generation", None)


def keep_metadata(new: Document, old: Document) -> None:
    """A writer that leaves out what the server set does not mean to take it away.

    Nor does one whose manifest was exported from another object mean to change when this one was made: Kubernetes passes
    over times that differ, once there are some.
    """
    metadata, before = new.setdefault("metadata", {}), old["metadata"]
    for key in _KEPT_METADATA:
        if key in before and not metadata.get(key):
            metadata[key] = before[key]
    for key in _FIXED_METADATA:
        if key in before:
            metadata[key] = before[key]


def keep(new: Document, old: Mapping[str, Any], key: str) -> None:
    """Take one field from the old object."""
    if key in old:
        new[key] = old[key]
    else:
        new.pop(key, None)
