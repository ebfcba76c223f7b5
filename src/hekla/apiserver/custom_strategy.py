"""The strategy of one version of a custom resource: its definition's schema in place of Go types.

`structural.py` prunes and defaults, `schema_validation.py` checks; `builtin_strategy.py` is the counterpart for
Kubernetes' own kinds.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from hekla.api.meta import Document, Kind, Scope
from hekla.api.schema import Schema, for_object_meta, from_openapi, head_descriptions
from hekla.apiserver import decoding, gotypes, schema_validation, structural
from hekla.apiserver.bodies import encode, is_same
from hekla.apiserver.builtin_strategy import (
    cannot_be_handled,
    keep,
    keep_metadata,
    set_generation,
    unrecognized,
)
from hekla.apiserver.fielderrors import FieldError, invalid, required, type_invalid
from hekla.apiserver.status import bad_request
from hekla.apiserver.strategy import Decoded
from hekla.apiserver.validation import names
from hekla.apiserver.validation.metadata import check_metadata, check_metadata_update
from hekla.apiserver.whole_parts import HEAD, WholeParts


class CustomStrategy:
    """Rules of one version of one custom resource; see `strategy.Strategy`."""

    def __init__(self, definition: Document, version: Document) -> None:
        spec = definition["spec"]
        said = (version.get("schema") or {}).get("openAPIV3Schema") or {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
        }
        self._kind = _kind(spec, version)
        self._own_schema = from_openapi(said)
        self._schema = from_openapi(_with_head(said, self._kind))
        self._scale = (version.get("subresources") or {}).get("scale")
        self._right: Mapping[str, bytes] = {}
        """The parts of the latest new object in which nothing was wrong, as JSON: what is like one of them is right as well."""
        self._left_alone: Mapping[str, bytes] = {}
        """The parts that the latest change left alone and was allowed to by rules that compare them with what was before, as JSON."""
        self._whole = WholeParts()
        if b"x-kubernetes-validations" in encode(said):
            structural.compile_rules(said)  # a rule that does not compile is told now

    @cached_property
    def _node(self) -> structural.Node:
        # compiled when the first object comes: eighteen kinds with pods inside took a quarter of a platform's start
        return structural.compiled(self._own_schema, is_root=True)

    @property
    def kind(self) -> Kind:
        """What it is the strategy of."""
        return self._kind

    @property
    def schema(self) -> Schema:
        """The version's fields, with those every object has."""
        return self._schema

    def decode(self, body: bytes, content_type: str) -> Decoded:
        """Parse, prune and check the head; raises StatusError 400."""
        try:
            parsed = decoding.parse(body, content_type)
        except decoding.DecodeError as error:
            raise unrecognized(self.kind, body, error) from None
        document = parsed.document
        self._check_head(document, body)
        if decoding.too_deep(document):
            raise bad_request("exceeded max depth")
        duplicates = parsed.duplicates
        if not duplicates and not decoding.is_yaml(content_type) and decoding.key_count(body) != _key_count(document):
            duplicates = decoding.duplicates(body)
        return Decoded(document, duplicates + self.check_types(document))

    def _check_head(self, document: Document, body: bytes) -> None:
        for key in ("kind", "apiVersion"):
            if not isinstance(document.get(key), str) or not document[key]:
                word = "Kind" if key == "kind" else "apiVersion"
                text = body[:200].decode("utf-8", "replace")
                raise bad_request(f"Object '{word}' is missing in '{text}'")
        if document["apiVersion"] != self.kind.api_version:
            raise bad_request(
                f"the API version in the data ({document['apiVersion']}) does not match the expected API version ({self.kind.api_version})"
            )

    def check_types(self, document: Document, *, is_partial: bool = False) -> list[str]:
        """Prune in place; returns sentences on what was pruned. Defaults come later, an applied document has none."""
        unknown: list[str] = []
        self._coerce_metadata(document, unknown)
        structural.prune(document, self._node, "", unknown, is_root=True, but=self._whole.meet(document).known)
        return sorted(unknown)

    def _coerce_metadata(self, document: Document, unknown: list[str]) -> None:
        schema, walk = for_object_meta(), gotypes.Walk()
        metadata = document.get("metadata")
        metadata = {} if metadata is None else metadata
        try:
            document["metadata"] = gotypes.coercion(schema.ref)(metadata, walk)
        except gotypes.GoTypeError as error:
            raise cannot_be_handled(self.kind.kind, self.kind.version, self.kind, error.sentence()) from None
        except gotypes.GoValueError as error:
            raise cannot_be_handled(self.kind.kind, self.kind.version, self.kind, str(error)) from None
        if walk.has_unknown:
            said = gotypes.unknown_fields({"metadata": metadata}, _METADATA_ONLY)
            unknown += said

    def _complete(self, document: Document) -> None:
        """Prune, drop nulls and default, but what is known to need none of it."""
        known, texts = self._whole.meet(document)
        structural.prune(document, self._node, is_root=True, but=known)
        structural.drop_nulls(document, self._node, known)
        structural.default(document, self._node, known)
        self._whole.learn(document, texts)

    def prepare_create(self, document: Document) -> Document:
        """Prune, default, drop the status."""
        if self.kind.has_status:
            document.pop("status", None)
        self._complete(document)
        set_generation(document.setdefault("metadata", {}), 1)
        return document

    def settle_create(self, document: Document) -> None:
        """Nothing: a custom object has no fields that follow from others."""

    def prepare_update(self, new: Document, old: Document, subresource: str = "") -> Document:
        """Prune and default; keep what the call may not change."""
        keep_metadata(new, old)
        if subresource == "status":
            self._keep_all_but_status(new, old)
        elif self.kind.has_status:
            keep(new, old, "status")
        self._complete(new)
        set_generation(new["metadata"], old["metadata"].get("generation", 0) + self._is_counted(new, old))
        return new

    def _keep_all_but_status(self, new: Document, old: Document) -> None:
        kept = {
            "resourceVersion": new["metadata"].get("resourceVersion"),
            "managedFields": new["metadata"].get("managedFields"),
        }
        for key in [key for key in new if key not in ("status", "kind", "apiVersion")]:
            del new[key]
        new.update({key: value for key, value in old.items() if key not in ("status", "kind", "apiVersion")})
        new["metadata"] = {**old["metadata"], **{key: value for key, value in kept.items() if value is not None}}

    def _is_counted(self, new: Document, old: Document) -> bool:
        """Whether a change is one of what a generation is about."""
        skipped = (*HEAD, "status") if self.kind.has_status else HEAD
        counted, before = new.keys() - {*skipped}, old.keys() - {*skipped}
        return counted != before or any(not is_same(new[key], old[key]) for key in counted)

    def validate_create(self, document: Document) -> list[FieldError]:
        """What is wrong with a new object."""
        return self._check(document, None)

    def validate_update(self, new: Document, old: Document, subresource: str = "") -> list[FieldError]:
        """What is wrong with a change; what was wrong before and has not changed is let pass."""
        errors = check_metadata_update(new["metadata"], old["metadata"]) + self._check(new, old)
        if errors and not self._is_counted(new, old) and is_same(new.get("status"), old.get("status")):
            return [error for error in errors if error.field.startswith("metadata")]
        return errors

    def _check(self, document: Document, old: Document | None) -> list[FieldError]:
        if document.get("kind") != self.kind.kind:
            return [invalid("kind", document.get("kind", ""), f"must be {self.kind.kind}")]
        errors = self._check_head_of(document)
        body = {key: value for key, value in document.items() if key not in HEAD}
        settled = self._settled(body, old) if old is not None else self._known_right(body)
        changed = {key: value for key, value in body.items() if key not in settled}
        found: list[FieldError] = []
        if old is None:
            schema_validation.check_values(changed, self._node, "", found)
            errors += self._check_scale(document)
        else:
            schema_validation.check_changes(changed, old, self._node, "", found)
            errors = [each for each in errors if each not in self._check_head_of(old)] if errors else errors
            errors += [each for each in self._check_scale(document) if each not in self._check_scale(old)]
        errors += [error for error in found if error.field not in settled]
        errors += _check_embedded(changed, self._node)
        errors += self._check_keys(changed, old)
        if old is None and not errors and settled == body.keys() and not self._node.rules:
            return errors
        if self._node.has_rules:
            if any(error.cause in schema_validation.BLOCKING for error in errors):
                errors.append(schema_validation.NOT_CHECKED)
            else:
                asked = self._asked(document, settled)
                schema_validation.check_rules(asked, old, old is not None, self._node, "", errors)
                if (
                    old is not None and not errors and not self._node.rules
                ):  # those speak of all parts, whatever they are called
                    self._left_alone = {**self._left_alone, **{k: encode(v) for k, v in asked.items() if k in settled}}
        if old is None and not errors:
            self._right = {key: encode(value) for key, value in body.items()}
        return errors

    def _check_head_of(self, document: Document) -> list[FieldError]:
        return check_metadata(
            document["metadata"],
            is_namespaced=self.kind.is_namespaced,
            name_check=names.dns_subdomain,
            is_custom=True,
        )

    def _check_keys(self, changed: Document, old: Document | None) -> list[FieldError]:
        """Where a value was there twice before, nothing is said of any: Kubernetes' rule, which looks at all lists together."""
        errors: list[FieldError] = []
        schema_validation.check_keys(changed, self._node, "", errors)
        if errors and old is not None:
            before: list[FieldError] = []
            schema_validation.check_keys({k: v for k, v in old.items() if k not in HEAD}, self._node, "", before)
            return [] if before else errors
        return errors

    def _asked(self, document: Document, settled: frozenset[str]) -> Document:
        """What rules can find anything in: what is settled passes those that look at nothing else."""
        if self._node.rules:
            return document
        return {k: v for k, v in document.items() if k not in settled or self._may_not_stay(k, v)}

    def _may_not_stay(self, key: str, value: Any) -> bool:
        """Whether a rule might object to a part that was left alone: rules are functions, so not where it allowed the same before.

        A sandbox that a session takes has its pool's spec, like the one before it: a rule on that is a third of what checking takes.
        """
        node = self._node.properties.get(key)
        return node is not None and node.has_transition_rules and self._left_alone.get(key) != encode(value)

    def _settled(self, body: Document, old: Document) -> frozenset[str]:
        """The parts that a change leaves alone: what is wrong in them was wrong before and is let pass.

        A status patch of a job walked all of its pod templates again: a third of what the patch cost.
        """
        if schema_validation.has_keywords(self._node.schema.raw):
            return frozenset()  # such a root speaks of its parts together
        return frozenset(key for key, value in body.items() if key in old and is_same(value, old[key]))

    def _known_right(self, body: Document) -> frozenset[str]:
        """The parts of a new object that are like those of the one before: of eight copies of a sandbox seven are not looked at again."""
        if not self._right or schema_validation.has_keywords(self._node.schema.raw):
            return frozenset()
        return frozenset(key for key, value in body.items() if self._right.get(key) == encode(value))

    def _check_scale(self, document: Document) -> list[FieldError]:
        if not self._scale:
            return []
        errors = []
        for path in (self._scale.get("specReplicasPath"), self._scale.get("statusReplicasPath")):
            found = _at(document, path or "")
            if isinstance(found, (str, float, list, dict, bool)):
                said = f"{path} accessor error: {_go_value(found)} is of the type {_go_word(found)}, expected int64"
                errors.append(invalid(str(path), 0, said))
            elif isinstance(found, int) and found < 0:
                errors.append(invalid(str(path), found, "should be a non-negative integer"))
        return errors

    def warnings(self, new: Document, old: Document | None = None) -> list[str]:
        """Nothing: that a version is deprecated is told to readers too, see `registry.Served.deprecation`."""
        return []


_METADATA_ONLY = from_openapi({"type": "object", "properties": {"metadata": {"$ref": for_object_meta().ref}}})


def _kind(spec: Document, version: Document) -> Kind:
    said = spec["names"]
    return Kind(
        group=spec["group"],
        version=version["name"],
        kind=said["kind"],
        plural=said["plural"],
        singular=said.get("singular") or said["kind"].lower(),
        scope=Scope(spec["scope"]),
        short_names=tuple(said.get("shortNames") or ()),
        categories=tuple(said.get("categories") or ()),
        has_status="status" in (version.get("subresources") or {}),
    )


def _with_head(said: Document, kind: Kind) -> Document:
    """The schema with apiVersion, kind and metadata, as the API publishes it."""
    words = head_descriptions()
    properties = dict(said.get("properties") or {})
    properties["apiVersion"] = {"type": "string", "description": words["apiVersion"]}
    properties["kind"] = {"type": "string", "description": words["kind"]}
    properties["metadata"] = {"$ref": for_object_meta().ref, "description": words["metadata"]}
    gvk = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    return {**said, "properties": properties, "x-kubernetes-group-version-kind": [gvk]}


def _check_embedded(document: Document, node: structural.Node) -> list[FieldError]:
    errors: list[FieldError] = []
    for path, embedded in structural.embedded_objects(document, node):
        for key in ("apiVersion", "kind"):
            value = embedded.get(key)
            if value is None or value == "":
                errors.append(required(f"{path}.{key}"))
            elif not isinstance(value, str):
                errors.append(type_invalid(f"{path}.{key}", value, "must be a string"))
        metadata = embedded.get("metadata", {})
        if not isinstance(metadata, dict):
            errors.append(type_invalid(f"{path}.metadata", metadata, "must be an object"))
    return errors


def _key_count(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(_key_count(item) for item in value.values() if type(item) in (dict, list))
    if isinstance(value, list):
        return sum(_key_count(item) for item in value if type(item) in (dict, list))
    return 0


def _at(document: Document, path: str) -> Any:
    value: Any = document
    for part in path.strip(".").split("."):
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    return value


def _go_word(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return {str: "string", float: "float64", list: "[]interface {}", dict: "map[string]interface {}"}[type(value)]


def _go_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
