"""Takes the names out of a snapshot so that it can be shown to others, and changes no decision by that.

    node-0007-x3fa91c      the place that the name has in the order of all names of its sort, and a keyed hash of it

Names decide: who wins a tie wins it by name or uid, a pod is placed by the number at its end. So pseudonyms keep the
order of the names (of nodes and label values by number, `n2` before `n10`), and pods keep their numbers. Whether no
decision has changed is not believed but tried: both snapshots are replayed and compared. What the configuration names,
resources, and keys of labels under well-known domains stay as they are; so do numbers and truth values.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from hekla.api.meta import Document
from hekla.dialects.drivers import CLOUD_DRIVERS
from hekla.placement.columns import natural_key
from hekla.placement.model import pod_index
from hekla.scheduler.decisions import Decisions, Moved, Started, Waiting
from hekla.scheduler.replay import Replay
from hekla.scheduler.snapshot import Snapshot, documents_of, from_documents

Rename = Callable[[str, str], str]
"""From a sort and a name to what stands in its place."""

KNOWN_DOMAINS = (
    "kubernetes.io", "k8s.io", "volcano.sh", "hekla.dev", "nvidia.com", "amd.com", "intel.com", "amazonaws.com",
    "google.com", "azure.com",
)  # fmt: skip
"""Keys of labels and taints under these say nothing about their owner."""

KNOWN_VALUES_OF = frozenset({"kubernetes.io/arch", "kubernetes.io/os"})
KEPT_QUEUES = ("default", "root")
_BETWEEN = ("a-queue", "e-queue", "s-queue")
"""Names of queues before, between and after those two: they sort where the names did."""

_BY_NUMBER = frozenset({"node", "domain", "value"})
"""Sorts whose names are compared with their numbers taken as numbers; the others are compared letter by letter."""

_ROLE_KEY, _QUEUE_KEY = "volcano.sh/task-spec", "scheduling.volcano.sh/queue-name"
_ANNOTATIONS: Mapping[str, str] = {
    "scheduling.k8s.io/group-name": "group", "scheduling.volcano.sh/group-name": "group", _ROLE_KEY: "role",
    _QUEUE_KEY: "queue", "volume.kubernetes.io/selected-node": "node", "volcano.sh/hierarchy": "queue",
    "volcano.sh/task-topology-affinity": "role", "volcano.sh/task-topology-anti-affinity": "role",
    "volcano.sh/task-topology-task-order": "role",
}  # fmt: skip
"""Of which sort the names in an annotation are; a value that is neither listed nor a number is a label's value."""

_LABELS: Mapping[str, str] = {_ROLE_KEY: "role", "volcano.sh/queue-name": "queue", "kubernetes.io/hostname": "node"}
_FIELDS: Mapping[str, str] = {
    "nodeName": "node", "nominatedNodeName": "node", "queue": "queue", "parent": "queue", "namespace": "namespace",
    "claimName": "claim", "volumeName": "volume", "storageClassName": "storage", "priorityClassName": "class",
    "image": "image", "tierName": "domain", "highestTierName": "domain", "topologyKey": "key", "uid": "uid",
    "schedulerName": "scheduler", "hostIP": "address", "provisioner": "provisioner", "driver": "provisioner",
    "attacher": "provisioner", "persistentVolumeName": "volume", "pdName": "disk", "volumeID": "disk", "iqn": "disk",
    "pool": "disk", "resourceClaimName": "device-claim", "resourceClaimTemplateName": "device-claim",
    "deviceClassName": "devices", "request": "request",
}  # fmt: skip
"""By field, the sort of the name in it."""

_LISTS: Mapping[str, str] = {
    "nodesDesired": "node", "nodesInUse": "node", "nodesToAdd": "node", "nodesToRemove": "node", "monitors": "disk",
    "matchLabelKeys": "key", "mismatchLabelKeys": "key", "namespaces": "namespace", "names": "image", "requests": "request",
    "requiredDuringSchedulingIgnoredDuringExecution": "value", "preferredDuringSchedulingIgnoredDuringExecution": "value",
}  # fmt: skip
_MAPS = frozenset({"labels", "matchLabels", "nodeSelector"})
_KIND_SORTS: Mapping[str, str] = {
    "Pod": "pod", "Node": "node", "HyperNode": "domain", "Queue": "queue", "Namespace": "namespace",
    "PodGroup": "group", "PriorityClass": "class", "PersistentVolume": "volume", "PersistentVolumeClaim": "claim",
    "StorageClass": "storage", "ResourceQuota": "limit", "PodDisruptionBudget": "limit", "CSIDriver": "provisioner",
    "CSINode": "node", "CSIStorageCapacity": "limit", "VolumeAttachment": "limit",
    "DeviceClass": "devices", "ResourceSlice": "limit", "ResourceClaim": "device-claim", "NodeShard": "shard",
}  # fmt: skip
_OF_DEVICES = frozenset({"DeviceClass", "ResourceSlice", "ResourceClaim"})
"""Kinds with selectors in CEL, which name drivers and attributes: these stay as they are, and so do names of devices, which
say no more than their place in a pool. Pools are mostly called after their node."""

_NAMED_ENTRIES: Mapping[str, str] = {
    "volumes": "storage", "schedulingGates": "value", "subGroupPolicy": "value", "resourceClaims": "value",
    "resourceClaimStatuses": "value", "claims": "value", "requests": "request", "firstAvailable": "request",
}  # fmt: skip
"""By list, the sort of the `name` of its entries."""

_PLAIN = re.compile(
    r"true|false|[-+]?[0-9][-+0-9.,:/TZ%]*(ns|us|ms|s|m|h|d|[KMGT]i?)?([0-9]+(ms|s|m|h))*|\*?", re.IGNORECASE
)


class AnonymityError(Exception):
    """Names could not be taken out without changing a decision; the text says which."""


def anonymous(snapshot: Snapshot, key: bytes) -> Snapshot:
    """The same world under pseudonyms; AnonymityError if anything would be decided otherwise."""
    head, *objects = documents_of(snapshot)
    objects = [_without_patterns(one, objects) for one in objects]
    names = _Names(snapshot, key)
    for one in objects:
        _walk(one, names.collect)
    names.settle(objects)
    renamed = [_walk(one, names.rename) for one in objects]
    state = _state(head["state"], names.rename)
    fresh = from_documents([{**head, "state": state, "anonymous": True, "decisions": None, "source": ""}, *renamed])
    before, after = Replay(snapshot).cycle(), Replay(fresh).cycle()
    translated = _translated(before, names.rename, objects)
    _must_be_same(translated, after)
    if snapshot.decisions is None or snapshot.decisions.encoded() == before.encoded():
        return replace(fresh, decisions=after if snapshot.decisions is not None else None)
    # What the live scheduler decided is not what a replay decides: that is what the snapshot is about, so it is kept.
    return replace(fresh, decisions=_translated(snapshot.decisions, names.rename, objects))


class _Names:
    """All names of a snapshot, collected first and settled then: the order of a name is known once all are."""

    def __init__(self, snapshot: Snapshot, key: bytes) -> None:
        self._key = key
        self._found: dict[str, set[str]] = {}
        self._made: dict[tuple[str, str], str] = {}
        self._kept = {
            *re.findall(r"[\w./-]+", snapshot.configuration), *snapshot.scheduler_names, snapshot.sharding.name, "",
        }  # fmt: skip

    def collect(self, sort: str, name: str) -> str:
        """Take note of a name."""
        self._found.setdefault(sort, set()).add(name)
        return name

    def rename(self, sort: str, name: str) -> str:
        """What stands in a name's place; a name that was not collected is nobody's, and becomes a hash."""
        if self._stays(sort, name):
            return name
        sort = "node" if sort == "value" and ("node", name) in self._made else sort
        return self._made.get((sort, name)) or f"{sort}-{self._hash(name)}"

    def settle(self, objects: Iterable[Document]) -> None:
        """Give every name its pseudonym."""
        for sort, names in self._found.items():
            ranked = sorted(names, key=natural_key if sort in _BY_NUMBER else str)
            width = max(4, len(str(len(ranked))))
            for rank, name in enumerate(ranked):
                self._made[sort, name] = f"{_stem(sort, name)}-{rank:0{width}d}-{self._hash(name)}{_number(sort, name)}"
        for one in objects:
            for volume in one.get("spec", {}).get("volumes", ()) if one["kind"] == "Pod" else ():
                if "ephemeral" in volume:
                    claim, pod = f"{one['metadata']['name']}-{volume['name']}", one["metadata"]["name"]
                    self._made["claim", claim] = f"{self._made['pod', pod]}-{self._made['storage', volume['name']]}"

    def _stays(self, sort: str, name: str) -> bool:
        if sort == "key":
            domain, _, rest = name.partition("/")
            return (
                bool(rest) and any(domain == one or domain.endswith(f".{one}") for one in KNOWN_DOMAINS)
            ) or name in self._kept
        if sort == "queue":
            return name in KEPT_QUEUES or name in self._kept
        if sort == "provisioner":
            return name.startswith("kubernetes.io/") or name in CLOUD_DRIVERS
        return name in self._kept or (sort in {"value", "role"} and _PLAIN.fullmatch(name) is not None)

    def _hash(self, name: str) -> str:
        # begins with a letter: the number at the end of a pod's name is its place in its job
        return "x" + hashlib.blake2b(name.encode(), key=self._key, digest_size=3).hexdigest()


def _stem(sort: str, name: str) -> str:
    if sort == "uid":
        return "id"
    if sort == "queue":
        return _BETWEEN[sum(name > kept for kept in KEPT_QUEUES)]
    return sort


def _number(sort: str, name: str) -> str:
    """The number at the end of a pod's name, which decides."""
    return f"-{name.rpartition('-')[2]}" if sort == "pod" and pod_index(name) >= 0 else ""


# Where names stand


def _walk(document: Document, rename: Rename) -> Document:
    """An object with every name in it renamed."""
    sort, everything = _KIND_SORTS[document["kind"]], rename
    if document["kind"] in _OF_DEVICES:

        def rename(sort: str, name: str) -> str:
            return name if sort == "provisioner" else everything("pool" if sort == "disk" else sort, name)

    meta = dict(document["metadata"])
    meta["name"] = rename(sort, meta["name"])
    if "annotations" in meta:
        meta["annotations"] = {key: _annotation(key, text, rename) for key, text in meta["annotations"].items()}
    rest = {key: _part(key, part, rename) for key, part in document.items() if key != "metadata"}
    return {**rest, "metadata": {key: part if key in _OWN else _part(key, part, rename) for key, part in meta.items()}}


_OWN = frozenset({"name", "annotations", "creationTimestamp", "deletionTimestamp", "generation"})


def _part(field: str, value: Any, rename: Rename) -> Any:
    if isinstance(value, str):
        return _named(_FIELDS[field], value, rename) if field in _FIELDS and value else value
    if isinstance(value, list):
        return [_entry(field, one, rename) for one in value]
    if not isinstance(value, dict):
        return value
    if field in _MAPS and "nodeSelectorTerms" not in value:
        return {rename("key", key): _label(key, text, rename) for key, text in value.items()}
    if field == "minTaskMember":
        return {rename("role", role): number for role, number in value.items()}
    if field == "claimRef":
        return {
            **value,
            "namespace": rename("namespace", value.get("namespace", "")),
            "name": rename("claim", value["name"]),
        }
    if field == "exactMatch":
        return value  # renamed with its member, which says what it names
    if field == "pool" and value.get("name"):
        return {**value, "name": rename("pool", value["name"])}
    return {key: _part(key, part, rename) for key, part in value.items()}


def _entry(field: str, value: Any, rename: Rename) -> Any:
    """An entry of a list: a name, or something with a key, values or a name of its own."""
    if isinstance(value, str):
        return _named(_LISTS[field], value, rename) if field in _LISTS else value
    if not isinstance(value, dict):
        return value
    found = {key: _part(key, part, rename) for key, part in value.items()}
    if field == "matchFields":
        return {**found, "values": [rename("node", one) for one in value.get("values", ())]}
    if field in {"matchExpressions", "matchLabelExpressions", "taints", "tolerations"} and value.get("key"):
        found["key"] = rename("key", value["key"])
        if "values" in value:
            found["values"] = [_label(value["key"], one, rename) for one in value["values"]]
        if "value" in value:
            found["value"] = _label(value["key"], value["value"], rename)
    if field == "members":
        return _member(found, rename)
    if field == "drivers":
        found["name"] = rename("provisioner", value["name"])
    if field in _NAMED_ENTRIES and "name" in value:
        found["name"] = rename(_NAMED_ENTRIES[field], value["name"])
    return found


def _named(sort: str, name: str, rename: Rename) -> str:
    """A name; one of a choice within a request stands behind the request's."""
    if sort == "request":
        return "/".join(rename(sort, part) for part in name.split("/"))
    return rename(sort, name)


def _member(member: Document, rename: Rename) -> Document:
    exact = member.get("selector", {}).get("exactMatch")
    if exact is None:
        return member
    name = rename("domain" if member.get("type") == "HyperNode" else "node", exact["name"])
    return {**member, "selector": {"exactMatch": {"name": name}}}


def _label(key: str, text: str, rename: Rename) -> str:
    return text if key in KNOWN_VALUES_OF else rename(_LABELS.get(key, "value"), text)


def _annotation(key: str, text: str, rename: Rename) -> str:
    sort = _ANNOTATIONS.get(key, "value")
    if sort == "value":
        return text if _PLAIN.fullmatch(text) else rename(sort, text)
    return "".join(
        part if index % 2 else rename(sort, part) if part else ""
        for index, part in enumerate(re.split(r"([/,;])", text))
    )


def _without_patterns(document: Document, objects: Iterable[Document]) -> Document:
    """A HyperNode that names its members one by one where it had a pattern: what names match is no more to be seen."""
    if document["kind"] != "HyperNode":
        return document
    spec = document.get("spec", {})
    members = [exact for member in spec.get("members", ()) for exact in _one_by_one(member, objects)]
    return {**document, "spec": {**spec, "members": members}}


def _one_by_one(member: Document, objects: Iterable[Document]) -> Iterator[Document]:
    pattern = member.get("selector", {}).get("regexMatch", {}).get("pattern")
    if pattern is None:
        yield member
        return
    try:
        matches = re.compile(pattern).search
    except re.error:
        return
    kind = "HyperNode" if member.get("type") == "HyperNode" else "Node"
    for one in objects:
        if one["kind"] == kind and matches(one["metadata"]["name"]):
            yield {**member, "selector": {"exactMatch": {"name": one["metadata"]["name"]}}}


_STATE: Mapping[str, str] = {
    "uid": "uid",
    "for": "uid",
    "node": "node",
    "namespace": "namespace",
    "name": "limit",
    "queue": "queue",
}
"""By the field in an entry of the engine's state, the sort of the name in it."""


def _state(state: Any, rename: Rename) -> Any:
    """The engine's state, in which uids stand alone, as keys, or in fields among others."""
    return {name: _remembered(name, section, rename) for name, section in state.items()}


def _remembered(name: str, value: Any, rename: Rename) -> Any:
    if isinstance(value, list):
        return [_remembered(name, one, rename) for one in value]
    if isinstance(value, str):
        return _uid(value, rename)
    if not isinstance(value, dict):
        return value
    if name in {"phases", "devices"}:
        return {_uid(uid, rename): kept for uid, kept in value.items()}
    return {
        key: rename(_STATE[key], part)
        if key in _STATE
        else part
        if key == "had" or name == "due"
        else _remembered(key, part, rename)
        for key, part in value.items()
    }


def _uid(uid: str, rename: Rename) -> str:
    lone, _, own = uid.rpartition(":")
    return f"{lone}:{rename('uid', own)}" if lone else rename("uid", uid)


# Whether nothing has changed


def _translated(decisions: Decisions, rename: Rename, objects: Iterable[Document]) -> Decisions:
    """Decisions under pseudonyms; sentences name things, so they are left out."""
    groups = {f"{_namespace(one)}/{one['metadata']['name']}" for one in objects if one["kind"] == "PodGroup"}

    def pod(key: str) -> str:
        namespace, _, name = key.partition("/")
        return f"{rename('namespace', namespace)}/{rename('pod', name)}"

    def job(key: str) -> str:
        namespace, _, name = key.partition("/")
        return f"{rename('namespace', namespace)}/{rename('group', name)}" if key in groups else pod(key)

    def queue(name: str) -> str:
        return rename("queue", name)

    return Decisions(
        [job(one) for one in decisions.admitted],
        [Started(pod(s.pod), rename("node", s.node), job(s.job), queue(s.queue)) for s in decisions.started],
        [Moved(m.action, pod(m.pod), rename("node", m.node), job(m.job), queue(m.queue)) for m in decisions.moved],
        [Waiting(job(w.job), queue(w.queue), w.pods, w.code, "") for w in decisions.waiting],
    )


def _must_be_same(wanted: Decisions, found: Decisions) -> None:
    moved = [replace_reason(one) for one in found.moved]
    waiting = sorted((w.job, w.queue, w.pods, w.code) for w in found.waiting)
    same = (
        wanted.admitted == found.admitted
        and wanted.started == found.started
        and wanted.moved == moved
        and sorted((w.job, w.queue, w.pods, w.code) for w in wanted.waiting) == waiting
    )
    if not same:
        raise AnonymityError(
            "with pseudonyms something would be decided otherwise, so none are given: two names of which one is decided"
            " by must have changed their order; take the snapshot without --anonymize, and keep it among yourselves"
        )


def replace_reason(move: Moved) -> Moved:
    """A move without its sentence."""
    return Moved(move.action, move.pod, move.node, move.job, move.queue)


def _namespace(document: Document) -> str:
    return str(document["metadata"].get("namespace", ""))
