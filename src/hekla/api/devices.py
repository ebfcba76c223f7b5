"""Devices that pods claim: what drivers offer, classes of it, and claims (group resource.k8s.io).

Only what decides where a pod may run, and what the scheduler writes, is typed.
"""

from typing import Any

from msgspec import Struct, field

from hekla.api.meta import Document, Resource, Scope, resource
from hekla.api.pod_scheduling import NodeSelector

# What drivers offer


class DeviceAttribute(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A fact about a device: one of these."""

    integer: int | None = field(default=None, name="int")
    boolean: bool | None = field(default=None, name="bool")
    string: str | None = None
    version: str | None = None


class DeviceCapacity(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """How much of something a device has."""

    value: str = "0"


class DeviceCounter(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """An amount that devices share."""

    value: str = "0"


class CounterSet(Struct, kw_only=True, frozen=True, rename="camel"):
    """Amounts that devices of a pool are cut from."""

    name: str = ""
    counters: dict[str, DeviceCounter] = {}


class DeviceCounterConsumption(Struct, kw_only=True, frozen=True, rename="camel"):
    """What a device takes of a set of counters."""

    counter_set: str = ""
    counters: dict[str, DeviceCounter] = {}


class DeviceTaint(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A device's wish to be left alone."""

    key: str = ""
    value: str = ""
    effect: str = ""


class Device(Struct, kw_only=True, frozen=True, rename="camel"):
    """One device of a slice."""

    name: str = ""
    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    consumes_counters: list[DeviceCounterConsumption] = []
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    allow_multiple_allocations: bool | None = None
    taints: list[DeviceTaint] = []


class ResourcePool(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """The pool that a slice is a part of; the slices of the newest generation are what there is."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 1


class ResourceSliceSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """A part of what a driver offers."""

    driver: str = ""
    pool: ResourcePool = field(default_factory=ResourcePool)
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    per_device_node_selection: bool = False
    devices: list[Device] = []
    shared_counters: list[CounterSet] = []


@resource("resource.k8s.io/v1", plural="resourceslices", scope=Scope.CLUSTER)
class ResourceSlice(Resource, kw_only=True, frozen=True, rename="camel"):
    """Devices that a driver offers."""

    spec: ResourceSliceSpec = field(default_factory=ResourceSliceSpec)


# Classes and claims


class CELDeviceSelector(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """An expression over `device` that must be true."""

    expression: str = ""


class DeviceSelector(Struct, kw_only=True, frozen=True, rename="camel"):
    """Which devices are meant."""

    cel: CELDeviceSelector | None = None


class DeviceToleration(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """An answer to taints of devices."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class CapacityRequirements(Struct, kw_only=True, frozen=True, rename="camel"):
    """How much of what a device must have."""

    requests: dict[str, str] = {}


class DeviceClassSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """Which devices are of the class."""

    selectors: list[DeviceSelector] = []
    config: list[Document] = []


@resource("resource.k8s.io/v1", plural="deviceclasses", scope=Scope.CLUSTER)
class DeviceClass(Resource, kw_only=True, frozen=True, rename="camel"):
    """A kind of devices that claims may ask for by name."""

    spec: DeviceClassSpec = field(default_factory=DeviceClassSpec)


class ExactDeviceRequest(Struct, kw_only=True, frozen=True, rename="camel"):
    """So many devices of one class."""

    device_class_name: str = ""
    selectors: list[DeviceSelector] = []
    allocation_mode: str = ""
    count: int = 0
    admin_access: bool | None = None
    tolerations: list[DeviceToleration] = []
    capacity: CapacityRequirements | None = None


class DeviceSubRequest(Struct, kw_only=True, frozen=True, rename="camel"):
    """One of several ways to answer a request."""

    name: str = ""
    device_class_name: str = ""
    selectors: list[DeviceSelector] = []
    allocation_mode: str = ""
    count: int = 0
    tolerations: list[DeviceToleration] = []
    capacity: CapacityRequirements | None = None


class DeviceRequest(Struct, kw_only=True, frozen=True, rename="camel"):
    """What a claim asks for under one name."""

    name: str = ""
    exactly: ExactDeviceRequest | None = None
    first_available: list[DeviceSubRequest] = []


class DeviceConstraint(Struct, kw_only=True, frozen=True, rename="camel"):
    """What devices of several requests have in common, or have not."""

    requests: list[str] = []
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaim(Struct, kw_only=True, frozen=True, rename="camel"):
    """What a claim asks for."""

    requests: list[DeviceRequest] = []
    constraints: list[DeviceConstraint] = []
    config: list[Document] = []


class ResourceClaimSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """What a claim asks for."""

    devices: DeviceClaim = field(default_factory=DeviceClaim)


class DeviceRequestAllocationResult(Struct, kw_only=True, frozen=True, rename="camel"):
    """A device that a claim has."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None


class DeviceAllocationResult(Struct, kw_only=True, frozen=True, rename="camel"):
    """The devices that a claim has, and how they are to be set up."""

    results: list[DeviceRequestAllocationResult] = []
    config: list[Document] = []


class AllocationResult(Struct, kw_only=True, frozen=True, rename="camel"):
    """What a claim was given."""

    devices: DeviceAllocationResult = field(default_factory=DeviceAllocationResult)
    node_selector: NodeSelector | None = None


class ResourceClaimConsumerReference(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Who may use a claim."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """What a claim has, and for whom."""

    allocation: AllocationResult | None = None
    reserved_for: list[ResourceClaimConsumerReference] = []
    devices: list[Document] = []


@resource("resource.k8s.io/v1", plural="resourceclaims", has_status=True)
class ResourceClaim(Resource, kw_only=True, frozen=True, rename="camel"):
    """A claim to devices."""

    spec: ResourceClaimSpec = field(default_factory=ResourceClaimSpec)
    status: ResourceClaimStatus = field(default_factory=ResourceClaimStatus)


class ResourceClaimTemplateSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """What claims that are made for pods look like; taken over as it is."""

    metadata: dict[str, Any] = {}
    spec: dict[str, Any] = {}


@resource("resource.k8s.io/v1", plural="resourceclaimtemplates")
class ResourceClaimTemplate(Resource, kw_only=True, frozen=True, rename="camel"):
    """What a pod's own claims are made from."""

    spec: ResourceClaimTemplateSpec = field(default_factory=ResourceClaimTemplateSpec)
