"""What is wrong with network policies."""

import ipaddress

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import FieldError, forbidden_field, invalid, not_supported, required
from hekla.apiserver.validation import names
from hekla.apiserver.validation.probes import check_port
from hekla.apiserver.validation.selectors import check_label_selector

_KINDS = ("Ingress", "Egress")
_PROTOCOLS = ("TCP", "UDP", "SCTP")
_NOT_A_RANGE = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"


def check_network_policy(policy: Document) -> list[FieldError]:
    """A network policy: whom it is about, and whom and which ports it lets through."""
    spec = policy.get("spec", {})
    errors = check_label_selector(spec.get("podSelector"), "spec.podSelector")
    for key, peers in (("ingress", "from"), ("egress", "to")):
        for index, rule in enumerate(spec.get(key) or ()):
            where = f"spec.{key}[{index}]"
            for at, port in enumerate(rule.get("ports") or ()):
                errors += _check_port(port, f"{where}.ports[{at}]")
            for at, peer in enumerate(rule.get(peers) or ()):
                errors += _check_peer(peer, f"{where}.{peers}[{at}]")
    return errors + _check_kinds(spec.get("policyTypes") or [], "spec.policyTypes")


def _check_kinds(kinds: list[str], path: str) -> list[FieldError]:
    if len(kinds) > len(_KINDS):
        return [invalid(path, kinds, "may not specify more than two policyTypes")]
    return [not_supported(f"{path}[{index}]", kind, _KINDS) for index, kind in enumerate(kinds) if kind not in _KINDS]


def _check_port(one: Document, path: str) -> list[FieldError]:
    protocol, port, end, errors = one.get("protocol"), one.get("port"), one.get("endPort"), list[FieldError]()
    if protocol is not None and protocol not in _PROTOCOLS:
        errors.append(not_supported(f"{path}.protocol", protocol, _PROTOCOLS))
    if port is not None:
        errors += check_port(port, f"{path}.port")
    if end is None:
        return errors
    if port is None:
        return [*errors, invalid(f"{path}.endPort", end, "may not be specified when `port` is not specified")]
    if isinstance(port, str):
        return [*errors, invalid(f"{path}.endPort", end, "may not be specified when `port` is non-numeric")]
    if end < port:  # Kubernetes shows the port here, and not its end
        errors.append(invalid(f"{path}.endPort", port, "must be greater than or equal to `port`"))
    return errors + [invalid(f"{path}.endPort", end, said) for said in names.port_number(end)]


def _check_peer(peer: Document, path: str) -> list[FieldError]:
    errors = check_label_selector(peer.get("podSelector"), f"{path}.podSelector")
    errors += check_label_selector(peer.get("namespaceSelector"), f"{path}.namespaceSelector")
    if "ipBlock" in peer:
        errors += _check_block(peer["ipBlock"], f"{path}.ipBlock")
    if not peer:
        errors.append(required(path, "must specify a peer"))
    elif "ipBlock" in peer and len(peer) > 1:
        errors.append(forbidden_field(path, "may not specify both ipBlock and another peer"))
    return errors


def _check_block(block: Document, path: str) -> list[FieldError]:
    text = block.get("cidr", "")
    if not text:
        return [required(f"{path}.cidr")]
    wrong = check_range(text, f"{path}.cidr")
    whole = _range(text)
    if whole is None:
        return wrong
    for index, part in enumerate(block.get("except") or ()):
        where = f"{path}.except[{index}]"
        wrong += check_range(part, where)
        inner = _range(part)
        if inner is not None and not _is_within(inner, whole):
            wrong.append(invalid(where, part, "must be a strict subset of `cidr`"))
    return wrong


def check_range(text: str, path: str) -> list[FieldError]:
    """A range of addresses, written in the one way that nobody reads otherwise."""
    found = _range(text)
    if found is None:
        return [invalid(path, text, _NOT_A_RANGE)]
    address, _, length = text.partition("/")
    if any(len(part) > 1 and part[0] == "0" for part in (*address.split("."), length)) and ":" not in address:
        return [invalid(path, text, "must not have leading 0s in IP or prefix length")]
    if str(found.network_address) != str(ipaddress.ip_address(address)):
        return [invalid(path, text, "must not have bits set beyond the prefix length")]
    return []


def _range(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    address, slash, length = text.partition("/")
    if not slash or "%" in address or not (length.isascii() and length.isdecimal()):
        return None
    if ":" not in address:  # Go read such numbers as if they had no zeros before them
        address = ".".join(part.lstrip("0") or "0" if part else "" for part in address.split("."))
    try:
        return ipaddress.ip_network(f"{address}/{int(length)}", strict=False)
    except ValueError:
        return None


def _is_within(
    inner: ipaddress.IPv4Network | ipaddress.IPv6Network, whole: ipaddress.IPv4Network | ipaddress.IPv6Network
) -> bool:
    return inner.version == whole.version and inner.network_address in whole and inner.prefixlen > whole.prefixlen
