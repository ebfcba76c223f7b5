"""How objects of the Gateway API point at others: a route at its Gateways, a rule at its backends.

`gateway.py` and Kthena's ModelRoute use them.
"""

from typing import Annotated

from msgspec import Struct

from hekla.api.fields import DEFAULTED, REQUIRED, Limits

GROUP = "gateway.networking.k8s.io"
GroupName = Annotated[
    str, Limits(max_length=253, pattern=r"^$|^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
]
KindName = Annotated[str, Limits(min_length=1, max_length=63, pattern="^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$")]
ObjectName = Annotated[str, Limits(min_length=1, max_length=253)]
NamespaceName = Annotated[str, Limits(min_length=1, max_length=63, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
SectionName = Annotated[
    str,
    Limits(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"),
]
PortNumber = Annotated[int, Limits(minimum=1, maximum=65535, format="int32")]


class ParentReference(Struct, kw_only=True, frozen=True, rename="camel"):
    """The Gateway, or the listener of it, that a route belongs to."""

    group: Annotated[GroupName, DEFAULTED] = GROUP
    """Group of the parent."""

    kind: Annotated[KindName, DEFAULTED] = "Gateway"
    """Kind of the parent."""

    name: Annotated[ObjectName, REQUIRED] = ""
    """Its name."""

    namespace: NamespaceName | None = None
    """Its namespace; the route's own if absent."""

    port: PortNumber | None = None
    """Only listeners on this port."""

    section_name: SectionName | None = None
    """Only the listener of this name."""
