"""Claims to devices, their classes, and what drivers offer: kept by name, and followed up where a change has a meaning.

A pool of devices is told in several slices; it counts from when all slices of its newest generation are there.
"""

from collections.abc import Iterable, Iterator

from hekla.api import devices as api
from hekla.dialects.device_selectors import version_value
from hekla.dialects.node_terms import node_term
from hekla.dialects.pod_devices import milli
from hekla.lib.quantity import QuantityError
from hekla.placement.cluster import Cluster
from hekla.placement.constraint import Effect, NodeTerm, Taint
from hekla.placement.devices.claims import AttributeValue, CounterId, Device, DeviceId, DevicePool, Grant

Key = tuple[str, str]


class DeviceObjects:
    """A part of what pods are surrounded by (see `surroundings.py`)."""

    def __init__(self) -> None:
        super().__init__()
        self._resource_claims: dict[Key, api.ResourceClaim] = {}
        self._device_classes: dict[str, api.DeviceClass] = {}
        self._slices: dict[Key, dict[str, api.ResourceSlice]] = {}

    def resource_claim(self, namespace: str, name: str) -> api.ResourceClaim | None:
        """A claim, or None."""
        return self._resource_claims.get((namespace, name))

    def device_class(self, name: str) -> api.DeviceClass | None:
        """A class of devices, or None."""
        return self._device_classes.get(name)

    def put_device_class(self, old: api.DeviceClass | None, new: api.DeviceClass | None) -> bool:
        """A class came, changed or went; whether that means anything to claims."""
        known = new or old
        assert known is not None
        if new is not None:
            self._device_classes[new.metadata.name] = new
        else:
            self._device_classes.pop(known.metadata.name, None)
        return (old.spec if old is not None else None) != (new.spec if new is not None else None)

    def put_resource_claim(
        self, cluster: Cluster, old: api.ResourceClaim | None, new: api.ResourceClaim | None
    ) -> Iterable[Key]:
        """A claim came, changed or went; those that now ask for something else than before."""
        claim = new or old
        assert claim is not None
        key = (claim.metadata.namespace, claim.metadata.name)
        name = "/".join(key)
        if new is None:
            self._resource_claims.pop(key, None)
            cluster.remove_allocation(name)
            return (key,)
        self._resource_claims[key] = new
        allocation = new.status.allocation
        if allocation is None:
            cluster.remove_allocation(name)
        else:
            cluster.put_allocation(name, _grants(allocation), _where(allocation))
        return (key,) if _meaning(old) != _meaning(new) else ()

    def put_slice(self, cluster: Cluster, old: api.ResourceSlice | None, new: api.ResourceSlice | None) -> None:
        """A slice came, changed or went: its pool offers what its newest slices say, if all of them are there."""
        concerned = {_pool_of(one) for one in (old, new) if one is not None}
        if old is not None:
            self._slices.get(_pool_of(old), {}).pop(old.metadata.name, None)
        if new is not None:
            self._slices.setdefault(_pool_of(new), {})[new.metadata.name] = new
        for driver, name in sorted(concerned):
            slices = self._slices.get((driver, name), {})
            if not slices:
                self._slices.pop((driver, name), None)
            try:
                cluster.put_devices(driver, name, _pool(list(slices.values())))
            except ValueError:  # an operator that nobody knows: what cannot be read is not offered
                cluster.put_devices(driver, name, None)


def _pool_of(one: api.ResourceSlice) -> Key:
    return one.spec.driver, one.spec.pool.name


def _meaning(claim: api.ResourceClaim | None) -> object:
    """What of a claim matters to pods."""
    return None if claim is None else (claim.spec, claim.metadata.deletion_timestamp, claim.metadata.uid)


def _grants(allocation: api.AllocationResult) -> tuple[Grant, ...]:
    return tuple(
        Grant(one.request, DeviceId(one.driver, one.pool, one.device), bool(one.admin_access))
        for one in allocation.devices.results
    )


def _where(allocation: api.AllocationResult) -> tuple[NodeTerm, ...] | None:
    selector = allocation.node_selector
    try:
        return tuple(node_term(term) for term in selector.node_selector_terms) if selector is not None else None
    except ValueError:
        return ()  # an operator that nobody knows selects nothing


# What a pool offers


def _pool(slices: list[api.ResourceSlice]) -> DevicePool | None:
    newest = max((one.spec.pool.generation for one in slices), default=0)
    current = sorted((s for s in slices if s.spec.pool.generation == newest), key=lambda one: one.metadata.name)
    if not current or len(current) < current[0].spec.pool.resource_slice_count:
        return None
    return DevicePool(
        devices=tuple(device for one in current for device in _devices(one)),
        counters={
            CounterId(one.spec.driver, one.spec.pool.name, shared.name, name): _amount(counter.value)
            for one in current
            for shared in one.spec.shared_counters
            for name, counter in shared.counters.items()
        },
    )


def _devices(one: api.ResourceSlice) -> Iterator[Device]:
    spec = one.spec
    for device in spec.devices:
        says = device if spec.per_device_node_selection else spec
        selector = says.node_selector
        yield Device(
            id=DeviceId(spec.driver, spec.pool.name, device.name),
            node=says.node_name,
            terms=tuple(node_term(term) for term in selector.node_selector_terms) if selector is not None else None,
            attributes={_whole(name, spec.driver): _value(value) for name, value in device.attributes.items()},
            capacity={_whole(name, spec.driver): _amount(known.value) for name, known in device.capacity.items()},
            taints=tuple(Taint(t.key, t.value, Effect(t.effect)) for t in device.taints if t.effect in set(Effect)),
            consumes=tuple(
                (CounterId(spec.driver, spec.pool.name, taken.counter_set, name), _amount(counter.value))
                for taken in device.consumes_counters
                for name, counter in sorted(taken.counters.items())
            ),
        )


def _whole(name: str, driver: str) -> str:
    """A name without a domain is of the driver's."""
    return name if "/" in name else f"{driver}/{name}"


def _value(told: api.DeviceAttribute) -> AttributeValue:
    if told.boolean is not None:
        return told.boolean
    if told.integer is not None:
        return told.integer
    return version_value(told.version) if told.version is not None else told.string or ""


def _amount(text: str) -> int:
    """In thousandths; what cannot be read, or is less than nothing, is nothing: a part that takes less would give others more."""
    try:
        return max(0, milli(text))
    except QuantityError:
        return 0
