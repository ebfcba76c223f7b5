"""How one object points at others: label selectors, references by name, by kind, by key.

`pods.py` and the workload kinds build on these.
"""

from msgspec import Struct


class LabelSelectorRequirement(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One clause of a selector: a key, an operator (In, NotIn, Exists, DoesNotExist) and its values."""

    key: str = ""
    operator: str = ""
    values: list[str] = []


class LabelSelector(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A question asked of labels; all of its clauses must hold, and an empty one matches everything."""

    match_expressions: list[LabelSelectorRequirement] = []
    match_labels: dict[str, str] = {}


class LocalObjectReference(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """The name of an object in the same namespace."""

    name: str = ""


class ObjectReference(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One object, named as exactly as the writer cared to."""

    api_version: str = ""
    field_path: str = ""
    kind: str = ""
    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    uid: str = ""


class TypedLocalObjectReference(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """An object of any kind in the same namespace."""

    api_group: str = ""
    kind: str = ""
    name: str = ""


class TypedObjectReference(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """An object of any kind, perhaps in another namespace."""

    api_group: str = ""
    kind: str = ""
    name: str = ""
    namespace: str = ""


class SecretReference(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A secret by name and namespace."""

    name: str = ""
    namespace: str = ""
