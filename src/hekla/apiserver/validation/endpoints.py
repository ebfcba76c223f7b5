"""What is wrong with endpoints and endpoint slices.

Addresses of the loopback are taken, unlike in Kubernetes: pods and webhooks of one machine are there.
"""

from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import IMMUTABLE, FieldError, duplicate, invalid, not_supported, required
from hekla.apiserver.validation import names

_TYPES = ("FQDN", "IPv4", "IPv6")
_PROTOCOLS = ("SCTP", "TCP", "UDP")
_NOT_AN_ADDRESS = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"


def check_endpoints(endpoints: Document) -> list[FieldError]:
    """Endpoints: groups of addresses that are reached by the same ports."""
    errors = list[FieldError]()
    for index, subset in enumerate(endpoints.get("subsets") or ()):
        path = f"subsets[{index}]"
        ready, unready = subset.get("addresses") or (), subset.get("notReadyAddresses") or ()
        if not ready and not unready:
            errors.append(required(path, "must specify `addresses` or `notReadyAddresses`"))
        for key, addresses in (("addresses", ready), ("notReadyAddresses", unready)):
            for at, one in enumerate(addresses):
                errors += _check_address(one, f"{path}.{key}[{at}]")
        ports = subset.get("ports") or ()
        for at, port in enumerate(ports):
            errors += _check_port(port, f"{path}.ports[{at}]", needs_name=len(ports) > 1)
    return errors


def _check_address(one: Document, path: str) -> list[FieldError]:
    text = one.get("ip", "")
    errors = [invalid(f"{path}.ip", text, said) for said in _wrong_with_address(text)]
    if errors and not _is_address(text):
        errors.insert(0, invalid(f"{path}.ip", text, "must be a valid IP address"))
    if one.get("hostname"):
        errors += [invalid(f"{path}.hostname", one["hostname"], said) for said in names.dns_label(one["hostname"])]
    if "nodeName" in one:
        errors += [invalid(f"{path}.nodeName", one["nodeName"], said) for said in names.dns_subdomain(one["nodeName"])]
    return errors


def _check_port(port: Document, path: str, *, needs_name: bool) -> list[FieldError]:
    name, number = port.get("name", ""), port.get("port", 0)
    errors = [required(f"{path}.name")] if needs_name and not name else []
    if name:
        errors += [invalid(f"{path}.name", name, said) for said in names.dns_label(name)]
    errors += [invalid(f"{path}.port", number, said) for said in names.port_number(number)]
    return errors + _check_protocols(port, path)


def _check_protocols(port: Document, path: str) -> list[FieldError]:
    protocol, application = port.get("protocol", ""), port.get("appProtocol")
    errors = [] if protocol in _PROTOCOLS else [not_supported(f"{path}.protocol", protocol, _PROTOCOLS)]
    if application is not None:
        errors += [invalid(f"{path}.appProtocol", application, said) for said in names.qualified_name(application)]
    return errors


def check_endpoint_slice(endpoint_slice: Document) -> list[FieldError]:
    """An endpoint slice."""
    kind, errors = endpoint_slice.get("addressType", ""), list[FieldError]()
    if not kind:
        errors.append(required("addressType"))
    elif kind not in _TYPES:
        errors.append(not_supported("addressType", kind, _TYPES))
    for index, endpoint in enumerate(endpoint_slice.get("endpoints") or ()):
        errors += _check_endpoint(endpoint, kind, f"endpoints[{index}]")
    seen = set[str]()
    for index, port in enumerate(endpoint_slice.get("ports") or ()):
        name, path = port.get("name", ""), f"ports[{index}]"
        if name:
            errors += [invalid(f"{path}.name", name, said) for said in names.dns_label(name)]
        if name in seen:
            errors.append(duplicate(f"{path}.name", name))
        seen.add(name)
        errors += _check_protocols(port, path)
    return errors


def _check_endpoint(endpoint: Document, kind: str, path: str) -> list[FieldError]:
    addresses, errors = endpoint.get("addresses") or [], list[FieldError]()
    if not addresses:
        errors.append(required(f"{path}.addresses", "must contain at least 1 address"))
    for at, address in enumerate(addresses):
        errors += _check_slice_address(address, kind, f"{path}.addresses", at)
    for key, check in (("hostname", names.dns_label), ("nodeName", names.dns_subdomain)):
        if key in endpoint:
            errors += [invalid(f"{path}.{key}", endpoint[key], said) for said in check(endpoint[key])]
    hints = endpoint.get("hints") or {}
    errors += _check_hints(hints.get("forZones") or (), names.label_value, f"{path}.hints.forZones")
    return errors + _check_hints(hints.get("forNodes") or (), names.dns_subdomain, f"{path}.hints.forNodes")


def _check_slice_address(address: str, kind: str, path: str, at: int) -> list[FieldError]:
    where = f"{path}[{at}]"
    if kind == "FQDN":
        return [invalid(where, address, said) for said in names.dns_subdomain(address)]
    if kind not in _TYPES:
        return []
    errors = [invalid(where, address, said) for said in _wrong_with_address(address)]
    if _is_address(address) and (":" in address) != (kind == "IPv6"):
        errors.append(invalid(path, address, f"must be an {kind} address"))
    return errors


def _check_hints(hints: Sequence[Document], check: Callable[[str], Sequence[str]], path: str) -> list[FieldError]:
    errors, seen = list[FieldError](), set[str]()
    for index, hint in enumerate(hints):
        where, name = f"{path}[{index}].name", hint.get("name", "")
        errors += [duplicate(where, name)] if name in seen else [invalid(where, name, said) for said in check(name)]
        seen.add(name)
    return errors


def check_endpoint_slice_update(new: Document, old: Document) -> list[FieldError]:
    """The type of addresses stays."""
    if new.get("addressType") != old.get("addressType"):
        return [invalid("addressType", new.get("addressType", ""), IMMUTABLE)]
    return []


def _is_address(text: str) -> bool:
    return _parsed(text) is not None


def _wrong_with_address(text: str) -> list[str]:
    """Sentences on an address that no other machine can be reached by."""
    address = _parsed(text)
    if address is None:
        has_zeros = any(part != "0" and part.startswith("0") for part in text.split(".")) and _parsed(_without(text))
        return ["must not have leading 0s"] if has_zeros else [_NOT_AN_ADDRESS]
    if address.is_unspecified:
        return [f"may not be unspecified ({text})"]
    if address.is_link_local:
        return ["may not be in the link-local range (169.254.0.0/16, fe80::/10)"]
    if address.is_multicast and (address.packed[:3] == b"\xe0\x00\x00" or address.packed[:2] == b"\xff\x02"):
        return ["may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"]
    return []


def _without(text: str) -> str:
    return ".".join(part.lstrip("0") or "0" for part in text.split("."))


def _parsed(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return None if "%" in text else ip_address(text)  # Go knows no zones here
    except ValueError:
        return None
