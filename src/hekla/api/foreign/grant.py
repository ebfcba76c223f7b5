"""ReferenceGrant of the Gateway API: what objects of one namespace let objects of another refer to them.

`hekla.serving.router.grants` asks it for backends of routes and certificates of listeners.
"""

from typing import Annotated

from msgspec import Struct, field

from hekla.api.fields import REQUIRED, Limits
from hekla.api.foreign.references import GroupName, KindName, NamespaceName, ObjectName
from hekla.api.meta import Column, Resource, resource


class GrantFrom(Struct, kw_only=True, frozen=True, rename="camel"):
    """Who may refer."""

    group: Annotated[GroupName, REQUIRED] = ""
    """Group of the objects that refer."""

    kind: Annotated[KindName, REQUIRED] = ""
    """Their kind."""

    namespace: Annotated[NamespaceName | None, REQUIRED] = None
    """Their namespace."""


class GrantTo(Struct, kw_only=True, frozen=True, rename="camel"):
    """What may be referred to, in the grant's own namespace."""

    group: Annotated[GroupName, REQUIRED] = ""
    """Group of the objects that are referred to; empty is Kubernetes' own."""

    kind: Annotated[KindName, REQUIRED] = ""
    """Their kind."""

    name: ObjectName | None = None
    """The one that is meant; absent: all of the kind."""


class ReferenceGrantSpec(Struct, kw_only=True, frozen=True, rename={"from_": "from", "to": "to"}):
    """Who may refer to what: each of `from` to each of `to`."""

    from_: Annotated[list[GrantFrom], Limits(min_items=1, max_items=16), REQUIRED] = []
    """Who may refer."""

    to: Annotated[list[GrantTo], Limits(min_items=1, max_items=16), REQUIRED] = []
    """What may be referred to."""


@resource(
    "gateway.networking.k8s.io/v1beta1",
    plural="referencegrants",
    short=("refgrant",),
    categories=("gateway-api",),
    columns=(Column(name="Age", json_path=".metadata.creationTimestamp", type="date"),),
)
class ReferenceGrant(Resource, kw_only=True, frozen=True, rename="camel"):
    """What objects of another namespace may refer to here."""

    spec: Annotated[ReferenceGrantSpec, REQUIRED] = field(default_factory=ReferenceGrantSpec)
    """Who may refer to what."""
