"""What a listener of a Gateway needs to be served: a protocol that we speak, a port that nobody else has, certificates for HTTPS. Pure.

`gateway_ports.py` opens ports by it, `certificates.py` shows the certificates, `hekla.serving.listener_status` tells of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from hekla.api.foreign import Gateway, ReferenceGrant
from hekla.api.foreign.gateway import CertificateRef, Listener
from hekla.api.foreign.references import GROUP
from hekla.serving.router.attachment import HTTP, HTTPS, Door, doors
from hekla.serving.router.certificate_pairs import TLS_SECRET
from hekla.serving.router.grants import Reference, may_refer

MOST_CERTIFICATES: Final = 64
"""References of one listener that are looked at, as many as the Gateway API allows."""


class Complaint(NamedTuple):
    """Why something of a listener cannot be: a reason that the Gateway API knows, and a sentence."""

    reason: str
    said: str


NOTHING_WRONG: Final = Complaint("", "")


@dataclass(frozen=True)
class Clash:
    """Who was first."""

    holder: Door
    is_about_protocol: bool
    """The port speaks another protocol; else it is the hostname that is taken."""


def protocol_complaint(listener: Listener) -> Complaint:
    """Whether its protocol is spoken here."""
    if listener.protocol not in (HTTP, HTTPS):
        said = f"listeners of protocol {listener.protocol} are not served, only {HTTP} and {HTTPS} are"
        return Complaint("UnsupportedProtocol", said)
    if listener.protocol == HTTPS and listener.tls is not None and listener.tls.mode == "Passthrough":
        said = "TLS that is passed through cannot be routed by what is asked; set tls.mode to Terminate"
        return Complaint("UnsupportedValue", said)
    return NOTHING_WRONG


def certificates_of(gateway: Gateway, listener: Listener) -> Sequence[Reference]:
    """The secrets with the certificates of a listener; none of one for HTTP."""
    if listener.protocol != HTTPS or listener.tls is None:
        return ()
    return [_secret(one, gateway) for one in listener.tls.certificate_refs[:MOST_CERTIFICATES]]


def certificate_complaint(
    gateway: Gateway,
    listener: Listener,
    grants: Iterable[ReferenceGrant],
    existing: Iterable[str],
    broken: Mapping[str, str] | None = None,
) -> Complaint:
    """Whether every certificate of a listener can be had; `existing` are the secrets there are, as `namespace/name`, and
    `broken` says of some of them why they cannot be shown.
    """
    if listener.protocol != HTTPS:
        return NOTHING_WRONG
    wanted, there, grants = certificates_of(gateway, listener), set(existing), list(grants)
    if not wanted:
        said = f"an {HTTPS} listener needs tls.certificateRefs; name a Secret of type {TLS_SECRET}"
        return Complaint("InvalidCertificateRef", said)
    who = Reference(GROUP, "Gateway", gateway.metadata.namespace)
    for one in wanted:
        if (one.group, one.kind) != ("", "Secret"):
            return Complaint(
                "InvalidCertificateRef", f'certificate "{one.name}" is a {one.kind}, only Secrets can be read'
            )
        if not may_refer(who, one, grants):
            said = (
                f'Secret "{one.key}" may not be referred to from namespace "{who.namespace}"; '
                f'make a ReferenceGrant in namespace "{one.namespace}"'
            )
            return Complaint("RefNotPermitted", said)
        if one.key not in there:
            return Complaint("InvalidCertificateRef", f'Secret "{one.key}" does not exist')
        if broken is not None and (why := broken.get(one.key)):
            return Complaint("InvalidCertificateRef", why)
    return NOTHING_WRONG


def clashes(gateways: Iterable[Gateway]) -> dict[tuple[str, str], Clash]:
    """Listeners, by Gateway and name, that come too late: a port has one protocol, and one listener for each hostname."""
    by_port: dict[int, Door] = {}
    by_place: dict[tuple[int, str], Door] = {}
    found: dict[tuple[str, str], Clash] = {}
    for door in doors(gateways):
        port = door.listener.port
        first = by_port.setdefault(port, door)
        if first.listener.protocol != door.listener.protocol:
            found[door.gateway_key, door.listener.name] = Clash(first, is_about_protocol=True)
        elif (holder := by_place.setdefault((port, door.hostname), door)) is not door:
            found[door.gateway_key, door.listener.name] = Clash(holder, is_about_protocol=False)
    return found


def doors_by_port(gateways: Iterable[Gateway]) -> Mapping[int, list[Door]]:
    """What is open: by port the listeners, all of one protocol; a hostname that is there twice is the older one's."""
    every = list(gateways)
    late = {key for key, one in clashes(every).items() if one.is_about_protocol}
    found: dict[int, list[Door]] = {}
    for door in doors(every):
        if (door.gateway_key, door.listener.name) not in late:
            found.setdefault(door.listener.port, []).append(door)
    return found


def _secret(one: CertificateRef, gateway: Gateway) -> Reference:
    return Reference(one.group, one.kind, one.namespace or gateway.metadata.namespace, one.name)
