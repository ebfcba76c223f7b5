"""What is said of one listener of a Gateway: whether it is accepted, in nobody's way, and has its certificates.

`router/listeners.py` decides, of what is in a Secret `router/certificate_pairs.py`; `gateway_status.py` writes it into the Gateway.
Of a Secret nothing is kept but its name and what is wrong with it: a process that watches all of them should not be worth breaking into.
"""

from collections.abc import Iterable
from typing import ClassVar, Final

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from hekla.api.core import Secret
from hekla.api.foreign import Gateway, ReferenceGrant
from hekla.api.foreign.gateway import Listener
from hekla.api.meta import Kind, Resource
from hekla.kube.reconcile import World
from hekla.serving.conditions import Observation
from hekla.serving.router.certificate_pairs import CERTIFICATE, KEY, pair_complaint
from hekla.serving.router.listeners import (
    NOTHING_WRONG,
    Clash,
    Complaint,
    certificate_complaint,
    certificates_of,
    protocol_complaint,
)


class CertificateEntries(Struct, frozen=True, rename={"certificate": CERTIFICATE, "key": KEY}):
    """The two entries of a Secret that a listener shows; others are passed over when it is read."""

    certificate: str = ""
    """In base64."""
    key: str = ""
    """In base64."""


NO_ENTRIES: Final = CertificateEntries()


class CertificateSecret(Resource, kw_only=True, frozen=True, rename="camel"):
    """Secrets as they are kept here: looked at when they are read, and their entries and annotations let go of at once."""

    kind_info: ClassVar[Kind] = Secret.kind_info

    data: CertificateEntries = field(default_factory=CertificateEntries)
    """What it holds; empty from the moment it has been read."""

    type: str = ""
    """What it is for."""

    complaint: str = ""
    """Why a listener cannot show it; empty: it can. Found out when it is read, in 0.1 ms, once for each version."""

    def __post_init__(self) -> None:
        meta, data = self.metadata, {CERTIFICATE: self.data.certificate, KEY: self.data.key}
        if not meta.name:
            return  # a bookmark of the watch, which says by an annotation that a list is whole
        force_setattr(self, "complaint", pair_complaint(f"{meta.namespace}/{meta.name}", self.type, data))
        force_setattr(self, "data", NO_ENTRIES)
        # `kubectl apply` writes the whole object into one, keys and all.
        force_setattr(self, "metadata", replace(meta, annotations={}))


def listener_said(gateway: Gateway, listener: Listener, clash: Clash | None, world: World) -> list[Observation]:
    """All that is observed of a listener."""
    protocol, clashing = protocol_complaint(listener), _clash_complaint(clash)
    certificates = _certificates(gateway, listener, world) if not protocol.reason else NOTHING_WRONG
    accepted = protocol if protocol.reason else clashing
    programmed = next((one for one in (protocol, clashing, certificates) if one.reason), NOTHING_WRONG)
    return [
        _observed("Accepted", accepted, "Accepted", "the listener is served"),
        # the reason is the same whatever it is, the sentence says more
        _observed("Programmed", programmed._replace(reason="Invalid" if programmed.reason else ""), "Programmed", "the router listens"),
        _observed("ResolvedRefs", certificates, "ResolvedRefs", "all that the listener refers to is there"),
        Observation("Conflicted", bool(clashing.reason), clashing.reason or "NoConflicts", clashing.said or "no other listener is in its way"),
    ]  # fmt: skip


def _observed(kind: str, complaint: Complaint, reason: str, said: str) -> Observation:
    return Observation(kind, not complaint.reason, complaint.reason or reason, complaint.said or said)


def _certificates(gateway: Gateway, listener: Listener, world: World) -> Complaint:
    wanted = certificates_of(gateway, listener)
    found = {one.key: world.get(CertificateSecret, one.namespace, one.name) for one in wanted}
    broken = {key: one.complaint for key, one in found.items() if one is not None}
    return certificate_complaint(gateway, listener, _grants(world, {one.namespace for one in wanted}), broken, broken)


def _grants(world: World, namespaces: Iterable[str]) -> Iterable[ReferenceGrant]:
    return [grant for namespace in sorted(namespaces) for grant in world.list(ReferenceGrant, namespace)]


def _clash_complaint(clash: Clash | None) -> Complaint:
    if clash is None:
        return NOTHING_WRONG
    holder = clash.holder
    who = f'listener "{holder.listener.name}" of Gateway "{holder.gateway_key}"'
    if clash.is_about_protocol:
        return Complaint("ProtocolConflict", f"{who} speaks {holder.listener.protocol} on port {holder.listener.port}")
    host = f' of host "{holder.hostname}"' if holder.hostname else ""
    return Complaint("HostnameConflict", f"{who} has port {holder.listener.port}{host} already")
