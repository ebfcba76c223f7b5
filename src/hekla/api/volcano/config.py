"""Group config.volcano.sh: how best-effort pods of a namespace share memory with others on a node."""

from typing import Annotated

from msgspec import Struct, field

from hekla.api.fields import DEFAULTED, REQUIRED, Limits
from hekla.api.meta import Resource, resource
from hekla.api.selectors import LabelSelector
from hekla.api.volcano.scheduling import SELECTOR
from hekla.api.volcano.topology import StrictCondition

Percent = Annotated[int, Limits(minimum=0, maximum=100)]


class MemoryQos(Struct, kw_only=True, frozen=True, rename="camel"):
    """Memory protection as percentages of the containers' requests and limits."""

    high_ratio: Annotated[Percent, DEFAULTED] = 100
    """memory.high in percent of the limit: above it the pod is throttled."""

    low_ratio: Annotated[Percent, DEFAULTED] = 0
    """memory.low in percent of the request: below it the pod is spared while others have more to give."""

    min_ratio: Annotated[Percent, DEFAULTED] = 0
    """memory.min in percent of the request: never taken."""


class ColocationSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """The pods and what they are given."""

    selector: Annotated[LabelSelector | None, SELECTOR] = None
    """The pods of the namespace that this is for."""

    memory_qos: MemoryQos | None = None
    """Memory protection."""


class ColocationStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """What became of the configuration."""

    conditions: Annotated[list[StrictCondition], Limits(list_type="map", list_keys=("type",))] = []
    """Observations."""


@resource("config.volcano.sh/v1alpha1", plural="colocationconfigurations", has_status=True)
class ColocationConfiguration(Resource, kw_only=True, frozen=True, rename="camel"):
    """Memory protection for the pods of a namespace that share nodes with others."""

    spec: Annotated[ColocationSpec, REQUIRED] = field(default_factory=ColocationSpec)
    """The pods and what they are given."""

    status: ColocationStatus = field(default_factory=ColocationStatus)
    """What became of it."""
