"""A cycle's inputs in one file: enough to take the same decisions again, anywhere, with no API server.

    line 1       {"format": "hekla-snapshot", "version": 1, settings, time, configuration, engine's state, decisions}
    then         one object per line, as on the wire, trimmed to what decides (`trimming.py`)

The lines are compressed with gzip. `replay.py` decides by a snapshot, `engine_state.py` knows what objects do not say,
`pseudonyms.py` takes the names out.
"""

import gzip
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from hekla import __version__
from hekla.api.core import Namespace, ResourceQuota
from hekla.api.csi import CSIDriver, CSINode, CSIStorageCapacity, VolumeAttachment
from hekla.api.devices import DeviceClass, ResourceClaim, ResourceSlice
from hekla.api.meta import Document, Resource
from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.api.policy import PodDisruptionBudget
from hekla.api.scheduling import PriorityClass
from hekla.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from hekla.api.volcano.scheduling import PodGroup, Queue
from hekla.api.volcano.shard import NodeShard
from hekla.api.volcano.topology import HyperNode
from hekla.dialects.shards import HEEDLESS, Sharding, ShardingMode
from hekla.dialects.volcano import DEFAULT_QUEUE
from hekla.scheduler.configuration import without_secrets
from hekla.scheduler.decisions import Decisions
from hekla.scheduler.trimming import images_of, trimmed

if TYPE_CHECKING:
    from hekla.scheduler.batch import BatchScheduler

FORMAT, VERSION = "hekla-snapshot", 1
MOST_BYTES = 4 << 30
"""More than this is not unpacked: two hundred thousand pods take a tenth of it."""

SNAPSHOT_KINDS: tuple[type[Resource], ...] = (
    PriorityClass, Queue, Namespace, ResourceQuota, PodDisruptionBudget, CSIDriver, CSIStorageCapacity, StorageClass,
    PersistentVolume, PersistentVolumeClaim, CSINode, VolumeAttachment, DeviceClass, ResourceSlice, ResourceClaim, NodeShard, Node, HyperNode,
    PodGroup, Pod,
)  # fmt: skip
"""Every kind that decides, in the order in which a feed is told: pods last."""

_BY_NAME = {(kind.kind_info.api_version, kind.kind_info.kind): kind for kind in SNAPSHOT_KINDS}


class SnapshotError(ValueError):
    """A file that cannot be read as a snapshot; the text is a sentence."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What one cycle decided by."""

    objects: tuple[Resource, ...]
    configuration: str
    """Text of the scheduler's configuration."""

    source: str = ""
    """Where the configuration came from."""

    scheduler_names: tuple[str, ...] = ("volcano",)
    default_queue: str = DEFAULT_QUEUE
    waits_for_groups: bool = False
    sharding: Sharding = HEEDLESS
    seed: int = 0
    now: float = 0.0
    """The scheduler's own time, which begins when it starts."""

    wall_s: float = 0.0
    """Seconds since 1970: the time in which objects say when they were created."""

    state: Mapping[str, Any] = field(default_factory=dict)
    """See `engine_state.py`."""

    decisions: Decisions | None = None
    """What the live scheduler decided by it; None if nobody recorded that."""

    made_by: str = ""
    is_anonymous: bool = False

    def of_kind(self, kind: type[Resource]) -> list[Any]:
        """The objects of one kind."""
        return [obj for obj in self.objects if type(obj) is kind]


def snapshot_of(scheduler: "BatchScheduler", objects: Iterable[Resource], state: Document) -> Snapshot:
    """The inputs of a live scheduler's next cycle."""
    settings = scheduler.settings
    return Snapshot(
        objects=tuple(objects), configuration=without_secrets(scheduler.configuration.text), source=scheduler.configuration_source,
        scheduler_names=settings.scheduler_names, default_queue=settings.default_queue,
        waits_for_groups=settings.waits_for_groups, sharding=settings.sharding, seed=settings.seed,
        state=state, made_by=__version__,
    )  # fmt: skip


def in_order(objects: Iterable[Resource]) -> list[Resource]:
    """Objects in the order in which a file has them: by kind, namespace and name, whatever order they came in."""
    places = {kind: place for place, kind in enumerate(SNAPSHOT_KINDS)}
    return sorted(objects, key=lambda obj: (places[type(obj)], obj.metadata.namespace, obj.metadata.name))


# As documents: what travels


def documents_of(snapshot: Snapshot) -> Iterator[Document]:
    """The lines of a file: the head, then the objects."""
    ordered = in_order(snapshot.objects)
    yield _head(snapshot, len(ordered))
    images = images_of(snapshot.of_kind(Pod))
    for obj in ordered:
        yield trimmed(obj, images)


def from_documents(documents: Iterable[Document]) -> Snapshot:
    """The other way round; SnapshotError says what is wrong."""
    lines = iter(documents)
    head = next(lines, {})
    snapshot = _from_head(head)
    objects = tuple(typed(document) for document in lines)
    if len(objects) != head.get("objects"):
        raise SnapshotError(
            f"it is cut short: it should have {head.get('objects')} objects and has {len(objects)}; take it anew"
        )
    return replace(snapshot, objects=objects)


def typed(document: Document) -> Resource:
    """An object of one of the kinds that decide."""
    name = (document.get("apiVersion", ""), document.get("kind", ""))
    kind = _BY_NAME.get(name)
    if kind is None:
        raise SnapshotError(
            f"it has an object of kind {name[1]!r} ({name[0]}), which decides nothing here; leave it out"
        )
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        where = document.get("metadata", {}).get("name", "without a name")
        raise SnapshotError(f'{name[1]} "{where}" in it cannot be read: {error}') from None


def _sharding(sharding: Sharding) -> Document:
    if sharding.mode is ShardingMode.NONE:
        return {}
    return {"shardingMode": str(sharding.mode), "shardingName": sharding.name}


def _head(snapshot: Snapshot, count: int) -> Document:
    return {
        "format": FORMAT, "version": VERSION, "objects": count, "madeBy": snapshot.made_by,
        "anonymous": snapshot.is_anonymous, "now": snapshot.now, "wallSeconds": snapshot.wall_s, "seed": snapshot.seed,
        "schedulerNames": list(snapshot.scheduler_names), "defaultQueue": snapshot.default_queue,
        **({"waitsForGroups": True} if snapshot.waits_for_groups else {}),
        **_sharding(snapshot.sharding),
        "source": snapshot.source, "configuration": snapshot.configuration, "state": dict(snapshot.state),
        "decisions": None if snapshot.decisions is None else msgspec.to_builtins(snapshot.decisions),
    }  # fmt: skip


def _from_head(head: Document) -> Snapshot:
    if head.get("format") != FORMAT:
        raise SnapshotError("it is no snapshot; take one with `hekla snapshot -o FILE`")
    version = head.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise SnapshotError(
            f"it is of version {version} and this hekla reads versions up to {VERSION}; "
            "replay it with the hekla that took it, or a newer one"
        )
    try:
        decisions = head["decisions"]
        return Snapshot(
            objects=(), configuration=head["configuration"], source=head["source"],
            scheduler_names=tuple(head["schedulerNames"]), default_queue=head["defaultQueue"], seed=head["seed"],
            waits_for_groups=bool(head.get("waitsForGroups")),
            sharding=Sharding(
                mode=ShardingMode(head.get("shardingMode", "none")), name=head.get("shardingName", HEEDLESS.name)
            ),
            now=head["now"], wall_s=head["wallSeconds"], state=head["state"], made_by=head["madeBy"],
            is_anonymous=head["anonymous"],
            decisions=None if decisions is None else msgspec.convert(decisions, Decisions),
        )  # fmt: skip
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise SnapshotError(f"its first line cannot be read ({error}); take it anew") from None


# As bytes: what is kept


def packed(snapshot: Snapshot) -> bytes:
    """A file's content; the same snapshot gives the same bytes."""
    lines = b"".join(_line(document) for document in documents_of(snapshot))
    return gzip.compress(lines, mtime=0)


def unpacked(content: bytes) -> Snapshot:
    """The snapshot in a file's content; SnapshotError if there is none."""
    return from_documents(_decoded(line) for line in _plain(content).splitlines())


def _line(document: Document) -> bytes:
    return msgspec.json.encode(document, order="deterministic") + b"\n"


def _plain(content: bytes) -> bytes:
    """What was compressed, up to a bound: a small file may unpack to more than a machine has."""
    unzipping = zlib.decompressobj(wbits=31)
    try:
        plain = unzipping.decompress(content, MOST_BYTES)
    except zlib.error:
        raise SnapshotError("it is no snapshot, or a broken one: it is not compressed with gzip") from None
    if unzipping.unconsumed_tail:
        raise SnapshotError(f"it unpacks to more than {MOST_BYTES >> 30} GiB, which no snapshot does")
    if not unzipping.eof:
        raise SnapshotError("it is cut short: the end of the file is missing; copy it again")
    return plain


def _decoded(line: bytes) -> Document:
    try:
        return msgspec.json.decode(line, type=dict)
    except msgspec.DecodeError:
        raise SnapshotError("a line in it is no JSON object; take it anew") from None
