"""The claims, volumes and classes that pods depend on, and what drivers say of them, kept by name.

Each `put_*` takes an object before and after a change and tells which claims mean something else now: `feed.py` reads
the pods anew that wait with them.
"""

from collections import defaultdict
from collections.abc import Iterable

from hekla.api.csi import CSIDriver, CSINode, CSIStorageCapacity, VolumeAttachment
from hekla.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from hekla.dialects.pod_volumes import claim_id

Key = tuple[str, str]


class Storage:
    """A part of what pods are surrounded by (see `surroundings.py`)."""

    def __init__(self) -> None:
        super().__init__()
        self._claims: dict[Key, PersistentVolumeClaim] = {}
        self._volumes: dict[str, PersistentVolume] = {}
        self._classes: dict[str, StorageClass] = {}
        self._drivers: dict[str, CSIDriver] = {}
        self._capacities: dict[Key, CSIStorageCapacity] = {}
        self._csi_nodes: dict[str, CSINode] = {}
        self._attachments: dict[str, VolumeAttachment] = {}
        self._of_class: dict[str, set[str]] = defaultdict(set)
        """Volumes by class."""

        self._unbound: dict[str, set[Key]] = defaultdict(set)
        """Claims without a volume, by class: a free volume, or room for one, means something to these alone."""

        self._told_of: dict[str, set[str]] = defaultdict(set)
        """Capacities by class, as names that tell them apart."""

        self._attached_from: dict[str, set[str]] = defaultdict(set)
        """Attachments by volume."""

    # Questions

    def claim(self, namespace: str, name: str) -> PersistentVolumeClaim | None:
        """A claim, or None."""
        return self._claims.get((namespace, name))

    def volume(self, name: str) -> PersistentVolume | None:
        """A volume, or None."""
        return self._volumes.get(name)

    def volumes_of_class(self, name: str) -> list[PersistentVolume]:
        """The volumes of a storage class, in order of name."""
        return [self._volumes[one] for one in sorted(self._of_class.get(name, ()))]

    def storage_class(self, name: str) -> StorageClass | None:
        """A storage class, or None."""
        return self._classes.get(name)

    def csi_driver(self, name: str) -> CSIDriver | None:
        """What a driver is like, or None."""
        return self._drivers.get(name)

    def capacities_of_class(self, name: str) -> list[CSIStorageCapacity]:
        """What is told of the room for volumes of a class."""
        told = sorted(self._told_of.get(name, ()))
        return [self._capacities[namespace, one] for namespace, _, one in (key.partition("/") for key in told)]

    def volume_limits(self, node: str) -> dict[str, int]:
        """By driver, how many volumes a node can attach, where its driver says."""
        known = self._csi_nodes.get(node)
        drivers = known.spec.drivers if known is not None else ()
        told = ((driver.name, driver.allocatable.count) for driver in drivers if driver.allocatable is not None)
        return {name: max(count, 0) for name, count in told if count is not None}

    def attached(self, name: str) -> tuple[str, str, str] | None:
        """What an attachment says: node, driver and volume, by its claim where it has one; None if there is none."""
        found = self._attachments.get(name)
        if found is None:
            return None
        named = found.spec.source.persistent_volume_name
        volume = self._volumes.get(named) if named else None
        holder = volume.spec.claim_ref if volume is not None else None
        own = claim_id(holder.namespace, holder.name) if holder is not None else f"volume/{named or name}"
        return found.spec.node_name, found.spec.attacher, own

    # Changes

    def put_claim(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> Iterable[Key]:
        """A claim came, changed or went."""
        claim = new or old
        assert claim is not None
        key = (claim.metadata.namespace, claim.metadata.name)
        before = self._claims.pop(key, None)
        if before is not None:
            self._unbound[before.spec.storage_class_name].discard(key)
        if new is not None:
            self._claims[key] = new
            if not new.spec.volume_name:
                self._unbound[new.spec.storage_class_name].add(key)
        return (key,) if _meaning(old) != _meaning(new) else ()

    def put_volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> Iterable[Key]:
        """A volume came, changed or went: it means something to its claim, and to those who look for one."""
        changed = [volume for volume in (old, new) if volume is not None]
        for volume in changed:
            self._of_class[volume.spec.storage_class_name].discard(volume.metadata.name)
        _put(self._volumes, old, new)
        if new is not None:
            self._of_class[new.spec.storage_class_name].add(new.metadata.name)
        if old is not None and new is not None and _of_volume(old) == _of_volume(new):
            return ()
        found = set[Key]()
        for volume in changed:
            holder = volume.spec.claim_ref
            found |= {(holder.namespace, holder.name)} if holder is not None else set()
            found |= self._unbound[volume.spec.storage_class_name]
        return found

    def put_class(self, old: StorageClass | None, new: StorageClass | None) -> Iterable[Key]:
        """A storage class came, changed or went."""
        _put(self._classes, old, new)
        return set(self._unbound[(new or old).metadata.name])  # type: ignore[union-attr]  # one of them is there

    def put_driver(self, old: CSIDriver | None, new: CSIDriver | None) -> Iterable[Key]:
        """A driver came, changed or went."""
        _put(self._drivers, old, new)
        name = (new or old).metadata.name  # type: ignore[union-attr]  # one of them is there
        classes = [one.metadata.name for one in self._classes.values() if one.provisioner == name]
        return {key for one in classes for key in self._unbound[one]}

    def put_capacity(self, old: CSIStorageCapacity | None, new: CSIStorageCapacity | None) -> Iterable[Key]:
        """Somebody tells how much room is left."""
        found = set[Key]()
        for told in (old, new):
            if told is not None:
                key = (told.metadata.namespace, told.metadata.name)
                self._capacities.pop(key, None)
                self._told_of[told.storage_class_name].discard("/".join(key))
                found |= self._unbound[told.storage_class_name]
        if new is not None:
            key = (new.metadata.namespace, new.metadata.name)
            self._capacities[key] = new
            self._told_of[new.storage_class_name].add("/".join(key))
        return found

    def put_node(self, old: CSINode | None, new: CSINode | None) -> str:
        """The drivers of a node came, changed or went; the node."""
        _put(self._csi_nodes, old, new)
        return (new or old).metadata.name  # type: ignore[union-attr]  # one of them is there

    def put_attachment(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> str:
        """A volume was attached or detached; the attachment."""
        _put(self._attachments, old, new)
        for found in (old, new):
            if found is not None and (volume := found.spec.source.persistent_volume_name):
                (self._attached_from[volume].add if found is new else self._attached_from[volume].discard)(
                    found.metadata.name
                )
        return (new or old).metadata.name  # type: ignore[union-attr]  # one of them is there

    def attachments_of(self, volume: str) -> Iterable[str]:
        """The attachments of a volume."""
        return tuple(self._attached_from.get(volume, ()))


def _meaning(claim: PersistentVolumeClaim | None) -> object:
    """What of a claim matters to pods."""
    if claim is None:
        return None
    return claim.spec, claim.metadata.annotations, claim.metadata.deletion_timestamp


def _of_volume(volume: PersistentVolume) -> object:
    return volume.spec, volume.metadata.labels, volume.metadata.deletion_timestamp, volume.status.phase


def _put(store: dict, old, new) -> None:  # type: ignore[type-arg, no-untyped-def]  # any kind by name
    if new is not None:
        store[new.metadata.name] = new
    elif old is not None:
        store.pop(old.metadata.name, None)
