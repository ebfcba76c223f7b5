"""Leases: who leads, who is alive."""

from msgspec import Struct, field

from hekla.api.meta import Resource, resource


class LeaseSpec(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Who holds the lease, since when and for how long."""

    acquire_time: str | None = None
    holder_identity: str = ""
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None
    preferred_holder: str = ""
    renew_time: str | None = None
    strategy: str = ""


@resource("coordination.k8s.io/v1", plural="leases")
class Lease(Resource, kw_only=True, frozen=True, rename="camel"):
    """A claim that must be renewed."""

    spec: LeaseSpec = field(default_factory=LeaseSpec)
