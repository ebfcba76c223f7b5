"""What is served: every resource in every version, found by its path, and the groups in their order.

Built-in kinds are registered once; `crds.py` adds and removes custom ones while the server runs. `discovery.py` and
`openapi.py` read this table, so that what is announced is what is served.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from hekla.api.kubernetes.served import BY_RESOURCE, Subresource
from hekla.api.meta import Column, Document, Kind
from hekla.apiserver.bodies import decode_document, head_of, unstored_body, with_head
from hekla.apiserver.conversions import CONVERSIONS, OF_VERSIONS, Conversion
from hekla.apiserver.selectable import FieldsOf, fields_for, selectable_for
from hekla.apiserver.strategy import Strategy
from hekla.apiserver.validation.kind_warnings import ENDPOINTS

STANDARD_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
STATUS_VERBS = ("get", "patch", "update")


@dataclass(frozen=True, slots=True)
class ScalePaths:
    """Where a kind keeps its number of replicas, as dotted paths."""

    spec: str = "spec.replicas"
    status: str = "status.replicas"
    selector: str = ""
    """Of the serialised selector (custom resources); empty: none, or `spec.selector` for built-in kinds."""


@dataclass(slots=True, eq=False)
class Served:
    """One resource in one version."""

    kind: Kind
    strategy: Strategy
    storage_head: bytes
    """How stored bodies begin: the head of the storage version."""

    storage_version: str
    head: bytes
    is_custom: bool = False
    verbs: tuple[str, ...] = STANDARD_VERBS
    subresources: dict[str, Subresource] = field(default_factory=dict)
    selectable: tuple[str, ...] = ()
    fields_of: FieldsOf = field(default=lambda _document: {})
    scale: ScalePaths | None = None
    columns: tuple[Column, ...] = ()
    list_kind: str = ""
    storage_hash: str = ""
    returns_deleted: bool = False
    """Whether DELETE answers with the object, or with a Status."""

    is_virtual: bool = False
    """Reviews and the like: created, answered, never stored."""

    deprecation: str = ""
    """What everybody who reads or writes it is told: that this version will go, and what comes in its place."""

    conversion: Conversion | None = None
    """For a kind that is stored as another."""

    @property
    def resource(self) -> str:
        """`plural.group` as it is stored: the store's key."""
        return self.kind.resource if self.conversion is None else self.conversion.resource

    def shown(self, body: bytes) -> bytes:
        """A stored body in the version that is served here."""
        if self.conversion is None:
            return with_head(body, self.head)
        return unstored_body(self.head, self.conversion.from_storage(decode_document(body)))

    def document(self, body: bytes) -> Document:
        """A stored body as a document of its own, in the version that is served here."""
        document: Document = decode_document(body)
        if self.conversion is not None:
            document = self.conversion.from_storage(document)
        document["kind"], document["apiVersion"] = self.kind.kind, self.kind.api_version
        return document

    def stored_form(self, document: Document) -> Document:
        """A served document as it is stored; what lies in it is shared."""
        return document if self.conversion is None else self.conversion.to_storage(document)


RETURNS_DELETED = frozenset(
    {
        "pods", "persistentvolumes", "persistentvolumeclaims", "podtemplates", "resourcequotas", "serviceaccounts",
        "services", "namespaces", "storageclasses.storage.k8s.io", "csidrivers.storage.k8s.io",
        "csinodes.storage.k8s.io", "volumeattachments.storage.k8s.io",
        "customresourcedefinitions.apiextensions.k8s.io",
    }
)  # fmt: skip

SCALABLE = frozenset({"deployments.apps", "replicasets.apps", "statefulsets.apps", "replicationcontrollers"})
STORED_AS = {"horizontalpodautoscalers.autoscaling": "v2"}
"""The version that a kind served in several is stored in."""

PROXIED = frozenset({"log", "exec", "attach", "portforward", "proxy"})
"""Subresources that are somebody else's to answer: the node's."""


def builtin(strategy: Strategy, storage_version: str = "") -> Served:
    """A built-in resource, with the subresources and fields that Kubernetes gives it."""
    kind = strategy.kind
    known = BY_RESOURCE.get(f"{kind.resource}/{kind.version}")
    conversion = CONVERSIONS.get(kind.resource) or OF_VERSIONS.get((kind.resource, kind.version))
    stored_kind = replace(kind, group=conversion.resource.partition(".")[2]) if conversion else kind
    stored_as = storage_version or kind.version
    parts = known.subresources if known else ((_STATUS_PART,) if kind.has_status else ())
    return Served(
        kind=kind,
        strategy=strategy,
        storage_head=head_of(replace(stored_kind, version=stored_as)),
        storage_version=stored_as,
        head=head_of(kind),
        verbs=known.verbs if known else STANDARD_VERBS,
        subresources={part.name: part for part in parts},
        selectable=selectable_for(kind),
        fields_of=fields_for(kind),
        scale=ScalePaths() if kind.resource in SCALABLE else None,
        columns=kind.columns,
        list_kind=f"{kind.kind}List",
        storage_hash=known.storage_version_hash if known else "",
        returns_deleted=kind.resource in RETURNS_DELETED,
        is_virtual=known is not None and not known.is_stored,
        conversion=conversion,
        deprecation=ENDPOINTS if kind.resource == "endpoints" else "",
    )


_STATUS_PART = Subresource(name="status", group="", version="", kind="", verbs=STATUS_VERBS)


@dataclass(slots=True)
class Group:
    """An API group and its versions, the preferred one first."""

    name: str
    versions: list[str] = field(default_factory=list)


class Registry:
    """Every served resource."""

    def __init__(self) -> None:
        self._by_path: dict[tuple[str, str, str], Served] = {}
        self._by_resource: dict[str, list[Served]] = {}
        self._listeners: list[Callable[[], None]] = []

    def add(self, served: Iterable[Served]) -> None:
        """Serve these from now on (in place of what was served there)."""
        for one in served:
            kind = one.kind
            known = self._by_resource.setdefault(kind.resource, [])
            known[:] = [other for other in known if other.kind.version != kind.version] + [one]
            self._by_path[kind.group, kind.version, kind.plural] = one
        self._changed()

    def remove(self, resource: str) -> None:
        """Stop serving a resource in every version."""
        for one in self._by_resource.pop(resource, ()):
            del self._by_path[one.kind.group, one.kind.version, one.kind.plural]
        self._changed()

    def replace(self, resource: str, served: Iterable[Served]) -> None:
        """Serve a resource in these versions and no other."""
        for one in self._by_resource.pop(resource, ()):
            del self._by_path[one.kind.group, one.kind.version, one.kind.plural]
        self.add(served)

    def at(self, group: str, version: str, plural: str) -> Served | None:
        """What is served at a path."""
        return self._by_path.get((group, version, plural))

    def stored(self, resource: str) -> Served | None:
        """A resource in its storage version (or any, if that one is not served)."""
        known = self._by_resource.get(resource, [])
        return next((one for one in known if one.kind.version == one.storage_version), known[0] if known else None)

    def __iter__(self) -> Iterator[Served]:
        return iter(self._by_path.values())

    def resources(self) -> Iterator[str]:
        """Every resource that can be stored, as `plural.group`."""
        return (name for name, known in self._by_resource.items() if not known[0].is_virtual)

    def in_version(self, group: str, version: str) -> list[Served]:
        """What one group serves in one version, by plural."""
        return sorted(
            (one for one in self if one.kind.group == group and one.kind.version == version),
            key=lambda one: one.kind.plural,
        )

    def groups(self) -> list[Group]:
        """All groups but the core one, built-in ones in Kubernetes' order, then custom ones by name."""
        found: dict[str, Group] = {}
        for one in self:
            group = found.setdefault(one.kind.group, Group(one.kind.group))
            if one.kind.version not in group.versions:
                group.versions.append(one.kind.version)
        found.pop("", None)
        for group in found.values():
            group.versions.sort(key=version_priority)
        return sorted(found.values(), key=_group_priority)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call back after something was added or removed (caches of documents)."""
        self._listeners.append(listener)

    def _changed(self) -> None:
        for listener in self._listeners:
            listener()


GROUP_ORDER = (
    "apiregistration.k8s.io", "apps", "events.k8s.io", "authentication.k8s.io", "authorization.k8s.io", "autoscaling",
    "batch", "certificates.k8s.io", "networking.k8s.io", "policy", "rbac.authorization.k8s.io", "storage.k8s.io",
    "admissionregistration.k8s.io", "apiextensions.k8s.io", "scheduling.k8s.io", "coordination.k8s.io", "node.k8s.io",
    "discovery.k8s.io", "resource.k8s.io", "flowcontrol.apiserver.k8s.io",
)  # fmt: skip


def _group_priority(group: Group) -> tuple[int, str]:
    place = GROUP_ORDER.index(group.name) if group.name in GROUP_ORDER else len(GROUP_ORDER)
    return place, group.name


def version_priority(version: str) -> tuple[int, int, int, str]:
    """Kubernetes' order of versions: stable before beta before alpha, higher before lower, others last by name."""
    import re

    found = re.fullmatch(r"v(\d+)(?:(alpha|beta)(\d+))?", version)
    if not found:
        return 3, 0, 0, version
    stage = {None: 0, "beta": 1, "alpha": 2}[found[2]]
    return stage, -int(found[1]), -int(found[3] or 0), version


def document_paths(document: Document, path: str) -> object:
    """The value at a dotted path, or None."""
    value: object = document
    for part in path.strip(".").split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value
