"""The scale of a workload: the same small object for everything that has replicas."""

from msgspec import Struct, field

from hekla.api.meta import ObjectMeta


class ScaleSpec(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """How many are wanted."""

    replicas: int | None = None


class ScaleStatus(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """How many there are, and how to find them."""

    replicas: int = 0
    selector: str = ""


class Scale(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """What `/scale` reads and writes."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    spec: ScaleSpec = field(default_factory=ScaleSpec)
    status: ScaleStatus = field(default_factory=ScaleStatus)
