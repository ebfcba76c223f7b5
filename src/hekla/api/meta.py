"""What every object has: type, metadata, conditions; and what declares a kind.

Kinds are typed views for reading. Writing goes through patches (`hekla.kube.commands`), because a decoded object
knows only the fields declared here, and writing it back whole would erase the others.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote

from msgspec import Struct, field

_is_plain = re.compile(r"[a-zA-Z0-9._{}-]*").fullmatch  # braces: OpenAPI writes `{namespace}`


def segment(name: str) -> str:
    """A name as one segment of a URL's path."""
    return name if _is_plain(name) else quote(name, safe=":")


class Scope(StrEnum):
    """Where names of a kind live."""

    NAMESPACED = "Namespaced"
    CLUSTER = "Cluster"


class OwnerReference(Struct, kw_only=True, frozen=True, rename="camel"):
    """A reference from an object to one that owns it; garbage collection follows it."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Name, identity and bookkeeping of one object. Times are RFC 3339 text, as on the wire."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[OwnerReference] = []
    finalizers: list[str] = []


class Condition(Struct, kw_only=True, frozen=True, rename="camel"):
    """One observation of an object's state."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    observed_generation: int | None = None


class Column(Struct, kw_only=True, frozen=True, rename="camel"):
    """A printer column of `kubectl get`."""

    name: str
    json_path: str
    type: str = "string"
    priority: int = 0
    format: str = ""
    description: str = ""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a server, a client and a generator must know of one kind."""

    group: str
    version: str
    kind: str
    plural: str
    singular: str
    scope: Scope
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    has_status: bool = False
    """Whether /status is a resource of its own."""
    label_selector_path: str = ""
    """Where the selector of the counted pods stands, for a kind whose /scale is `.spec.replicas` and `.status.replicas`."""

    @property
    def api_version(self) -> str:
        """`group/version`, or the version alone for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """`plural.group`, or the plural alone for the core group: the key of a kind everywhere inside."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def is_namespaced(self) -> bool:
        """Whether objects of this kind live in a namespace."""
        return self.scope is Scope.NAMESPACED

    def path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        """The URL path of a collection or an object; `namespace` None or empty means all, or none.

        Names are escaped where they have to be: one with a blank or a slash is somebody's mistake, and no other path.
        """
        parts = [f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"]
        if self.is_namespaced and namespace:
            parts.append(f"namespaces/{segment(namespace)}")
        parts.append(self.plural)
        parts += [part for part in (segment(name), subresource) if part]
        return "/".join(parts)


class Resource(Struct, kw_only=True, frozen=True, rename="camel"):
    """Base of every typed kind: subclasses add `spec`, `status` or their own fields, each with a default."""

    kind_info: ClassVar[Kind]

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = field(default_factory=ObjectMeta)


R = TypeVar("R", bound=type[Resource])

KINDS: dict[str, type[Resource]] = {}
"""Every declared kind by `plural.group/version`; filled as the modules of `hekla.api` are imported."""


def resource(
    api_version: str,
    *,
    plural: str,
    scope: Scope = Scope.NAMESPACED,
    short: tuple[str, ...] = (),
    categories: tuple[str, ...] = (),
    columns: tuple[Column, ...] = (),
    has_status: bool = False,
    label_selector_path: str = "",
    singular: str = "",
    kind: str = "",
) -> Callable[[R], R]:
    """Declare the class below as a kind. The class name is the kind's name unless `kind` says otherwise."""

    def declare(cls: R) -> R:
        group, _, version = api_version.rpartition("/")
        name = kind or cls.__name__
        cls.kind_info = Kind(
            group=group,
            version=version,
            kind=name,
            plural=plural,
            singular=singular or name.lower(),
            scope=scope,
            short_names=short,
            categories=categories,
            columns=columns,
            has_status=has_status,
            label_selector_path=label_selector_path,
        )
        KINDS[f"{cls.kind_info.resource}/{version}"] = cls
        return cls

    return declare


Document = dict[str, Any]
"""An object as it is on the wire, decoded from JSON or YAML."""
