"""Group nodeinfo.volcano.sh: which CPUs and devices of a node belong to which NUMA cell, and who holds them."""

from typing import Annotated

from msgspec import Struct, field

from hekla.api.fields import Limits
from hekla.api.meta import Resource, Scope, resource

Index = Annotated[int, Limits(minimum=0)]


class NumaResource(Struct, kw_only=True, frozen=True, rename="camel"):
    """One resource of a node."""

    allocatable: str = ""
    """The free units, as a CPU set such as `0-3,8`."""

    capacity: int = 0
    """How many units there are."""


class CpuInfo(Struct, kw_only=True, frozen=True, rename="camel"):
    """Where a CPU lies."""

    numa: Index = 0
    """Its NUMA cell."""

    socket: Index = 0
    """Its socket."""

    core: Index = 0
    """Its core."""


class ContainerAllocation(Struct, kw_only=True, frozen=True, rename="camel"):
    """What a container holds."""

    name: str = ""
    """The container's name."""

    allocations: dict[str, str] = {}
    """By resource, the units as a CPU set."""


class PodAllocation(Struct, kw_only=True, frozen=True, rename="camel"):
    """What a pod holds."""

    uid: str = ""
    """The pod's UID."""

    name: str = ""
    """The pod's name."""

    namespace: str = ""
    """The pod's namespace."""

    container_allocations: list[ContainerAllocation] = []
    """What its containers hold."""


class NumatopologySpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """A node's NUMA layout."""

    policies: dict[str, str] = {}
    """The kubelet's policies: CPUManagerPolicy and TopologyManagerPolicy."""

    res_reserved: dict[str, str] = {}
    """Amounts that are kept from pods."""

    numares: dict[str, NumaResource] = {}
    """Units by resource."""

    cpu_detail: dict[str, CpuInfo] = {}
    """Where each CPU lies."""

    pod_allocations: list[PodAllocation] = []
    """What pods hold."""


@resource("nodeinfo.volcano.sh/v1alpha1", plural="numatopologies", scope=Scope.CLUSTER, short=("numatopo",))
class Numatopology(Resource, kw_only=True, frozen=True, rename="camel"):
    """The NUMA layout of the node of the same name."""

    spec: NumatopologySpec = field(default_factory=NumatopologySpec)
    """The layout."""
