"""Group shard.volcano.sh: which nodes each of several schedulers works on."""

from typing import Annotated

from msgspec import Struct, field

from hekla.api.fields import REQUIRED, Time
from hekla.api.meta import Column, Resource, Scope, resource


class NodeShardSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """The nodes that a scheduler should have."""

    nodes_desired: Annotated[list[str], REQUIRED] = []
    """Names of the nodes."""


class NodeShardStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """The nodes that it has, and what has still to change hands."""

    nodes_in_use: list[str] = []
    """Nodes that the scheduler works on."""

    nodes_to_remove: list[str] = []
    """In use but no longer desired."""

    nodes_to_add: list[str] = []
    """Desired but still held by another shard."""

    last_update_time: Time = None
    """When this was last written."""


@resource(
    "shard.volcano.sh/v1alpha1",
    plural="nodeshards",
    scope=Scope.CLUSTER,
    short=("nsh",),
    has_status=True,
    columns=(Column(name="AGE", json_path=".metadata.creationTimestamp", type="date"),),
)
class NodeShard(Resource, kw_only=True, frozen=True, rename="camel"):
    """The part of the cluster that one scheduler works on; its name is the scheduler's."""

    spec: Annotated[NodeShardSpec, REQUIRED] = field(default_factory=NodeShardSpec)
    """The nodes it should have."""

    status: NodeShardStatus = field(default_factory=NodeShardStatus)
    """The nodes it has."""
