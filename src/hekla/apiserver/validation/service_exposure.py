"""What is wrong with how a service is reached: from outside, by which policy, in which address family."""

import ipaddress

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import FieldError, forbidden_field, invalid, not_supported
from hekla.apiserver.validation import names
from hekla.apiserver.validation.pod_network import NOT_AN_ADDRESS, is_ip

_POLICIES = ("Cluster", "Local")
_FAMILY_POLICIES = ("PreferDualStack", "RequireDualStack", "SingleStack")
_DISTRIBUTIONS = ("PreferClose", "PreferSameZone", "PreferSameNode")
_ONLY_BALANCED = "may only be used when `type` is 'LoadBalancer'"
_LONGEST_AFFINITY_S = 86400


def check_exposure(spec: Document) -> list[FieldError]:
    """Everything but the ports' numbers and names."""
    kind, errors = spec.get("type", ""), list[FieldError]()
    for index, port in enumerate(spec.get("ports", ())):
        if port.get("nodePort") and kind in ("ClusterIP", "ExternalName"):
            said = f"may not be used when `type` is '{kind}'"
            errors.append(forbidden_field(f"spec.ports[{index}].nodePort", said))
        protocol = port.get("appProtocol")
        if protocol is not None:
            where = f"spec.ports[{index}].appProtocol"
            errors += [invalid(where, protocol, said) for said in names.qualified_name(protocol)]
    errors += _check_external_addresses(spec.get("externalIPs", ()))
    errors += _check_balancer(spec, kind) + _check_policies(spec, kind) + _check_families(spec)
    seconds = spec.get("sessionAffinityConfig", {}).get("clientIP", {}).get("timeoutSeconds")
    if spec.get("sessionAffinity") == "ClientIP" and seconds is not None and not 0 < seconds <= _LONGEST_AFFINITY_S:
        said = f"must be greater than 0 and less than {_LONGEST_AFFINITY_S}"
        errors.append(invalid("spec.sessionAffinityConfig.clientIP.timeoutSeconds", seconds, said))
    return errors


def _check_external_addresses(addresses: list[str]) -> list[FieldError]:
    errors = []
    for index, text in enumerate(addresses):
        where = f"spec.externalIPs[{index}]"
        if not is_ip(text):
            errors.append(invalid(where, text, NOT_AN_ADDRESS))
            continue
        address = ipaddress.ip_address(text)
        if address.is_unspecified:
            errors.append(invalid(where, text, f"may not be unspecified ({text})"))
        if address.is_loopback:
            errors.append(invalid(where, text, "may not be in the loopback range (127.0.0.0/8, ::1/128)"))
        if address.is_link_local:
            errors.append(invalid(where, text, "may not be in the link-local range (169.254.0.0/16, fe80::/10)"))
    return errors


def _check_balancer(spec: Document, kind: str) -> list[FieldError]:
    errors, is_balanced = list[FieldError](), kind == "LoadBalancer"
    ranges = spec.get("loadBalancerSourceRanges") or ()
    if ranges and not is_balanced:
        errors.append(forbidden_field("spec.LoadBalancerSourceRanges", _ONLY_BALANCED))
    for index, text in enumerate(ranges):
        if not is_network(text.strip()):
            said = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
            errors.append(invalid(f"spec.LoadBalancerSourceRanges[{index}]", text, said))
    if not is_balanced:
        keys = ("allocateLoadBalancerNodePorts", "loadBalancerClass")
        errors += [forbidden_field(f"spec.{key}", _ONLY_BALANCED) for key in keys if key in spec]
    elif "loadBalancerClass" in spec:
        name = spec["loadBalancerClass"]
        errors += [invalid("spec.loadBalancerClass", name, said) for said in names.qualified_name(name)]
    check_port = spec.get("healthCheckNodePort")
    if check_port and not (is_balanced and spec.get("externalTrafficPolicy") == "Local"):
        said = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
        errors.append(invalid("spec.healthCheckNodePort", check_port, said))
    return errors


def is_network(text: str) -> bool:
    """Whether a text is a range of addresses, as Go reads one: with a length in digits, without a zone."""
    _, _, length = text.partition("/")
    if "%" in text or not (length.isascii() and length.isdecimal()):
        return False
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def _check_policies(spec: Document, kind: str) -> list[FieldError]:
    errors, outer = list[FieldError](), spec.get("externalTrafficPolicy")
    is_external = kind in ("NodePort", "LoadBalancer") or (kind == "ClusterIP" and spec.get("externalIPs"))
    if outer and not is_external:
        said = "may only be set for externally-accessible services"
        errors.append(invalid("spec.externalTrafficPolicy", outer, said))
    elif outer and outer not in _POLICIES:
        errors.append(not_supported("spec.externalTrafficPolicy", outer, _POLICIES))
    for key, allowed in (("internalTrafficPolicy", _POLICIES), ("trafficDistribution", _DISTRIBUTIONS)):
        if spec.get(key) is not None and spec[key] not in allowed:
            errors.append(not_supported(f"spec.{key}", spec[key], allowed))
    return errors


def _check_families(spec: Document) -> list[FieldError]:
    policy, errors = spec.get("ipFamilyPolicy"), list[FieldError]()
    if policy is not None and policy not in _FAMILY_POLICIES:
        errors.append(not_supported("spec.ipFamilyPolicy", policy, _FAMILY_POLICIES))
    for index, family in enumerate(spec.get("ipFamilies", ())):
        if family not in ("IPv4", "IPv6"):
            errors.append(not_supported(f"spec.ipFamilies[{index}]", family, ("IPv4", "IPv6")))
    return errors
