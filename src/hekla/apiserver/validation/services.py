"""What is wrong with services; `endpoints.py` has what they lead to."""

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import FieldError, duplicate, invalid, not_supported, required
from hekla.apiserver.validation import names
from hekla.apiserver.validation.metadata import check_labels
from hekla.apiserver.validation.pod_network import is_ip
from hekla.apiserver.validation.probes import check_port
from hekla.apiserver.validation.service_exposure import check_exposure

_TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_PROTOCOLS = ("SCTP", "TCP", "UDP")


def check_service(service: Document) -> list[FieldError]:
    """A service."""
    spec = service.get("spec", {})
    kind, address = spec.get("type", ""), spec.get("clusterIP", "")
    errors = []
    if not spec.get("ports") and address != "None" and kind != "ExternalName":
        errors.append(required("spec.ports"))
    if kind == "LoadBalancer" and address == "None":
        errors.append(invalid("spec.clusterIPs[0]", address, "may not be set to 'None' for LoadBalancer services"))
    if kind == "NodePort" and address == "None":
        errors.append(invalid("spec.clusterIPs[0]", address, "may not be set to 'None' for NodePort services"))
    if kind == "ExternalName":
        errors += _check_external_name(spec)
    errors += _check_ports(spec.get("ports", []), has_names=len(spec.get("ports", ())) > 1)
    errors += check_labels(spec.get("selector", {}), "spec.selector") + check_exposure(spec)
    if spec.get("sessionAffinity") not in ("ClientIP", "None"):
        errors.append(not_supported("spec.sessionAffinity", spec.get("sessionAffinity", ""), ("ClientIP", "None")))
    for index, one in enumerate(spec.get("clusterIPs", ())):
        if one != "None" and not is_ip(one):
            errors.append(
                invalid(
                    f"spec.clusterIPs[{index}]", one, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
                )
            )
    if not kind:
        errors.append(required("spec.type"))
    elif kind not in _TYPES:
        errors.append(not_supported("spec.type", kind, _TYPES))
    return errors


def _check_external_name(spec: Document) -> list[FieldError]:
    name = spec.get("externalName", "").rstrip(".")
    if not name:
        return [required("spec.externalName")]
    return [invalid("spec.externalName", name, said) for said in names.dns_subdomain(name)]


def _check_ports(ports: list[Document], *, has_names: bool) -> list[FieldError]:
    errors, seen_names, seen = list[FieldError](), set[str](), set[tuple[str, int]]()
    for index, port in enumerate(ports):
        where, name, number = f"spec.ports[{index}]", port.get("name", ""), port.get("port", 0)
        if has_names and not name:
            errors.append(required(f"{where}.name"))
        elif name:
            errors += [invalid(f"{where}.name", name, said) for said in names.dns_label(name)]
            if name in seen_names:
                errors.append(duplicate(f"{where}.name", name))
            seen_names.add(name)
        errors += [invalid(f"{where}.port", number, said) for said in names.port_number(number)]
        protocol = port.get("protocol", "")
        if protocol not in _PROTOCOLS:
            errors.append(not_supported(f"{where}.protocol", protocol, _PROTOCOLS))
        errors += check_port(port.get("targetPort", 0), f"{where}.targetPort")
        if (protocol, number) in seen:
            errors.append(duplicate(where, {"name": name, "protocol": protocol, "port": number}))
        seen.add((protocol, number))
    return errors


def check_service_update(new: Document, old: Document) -> list[FieldError]:
    """A service keeps its address."""
    wanted, before = new["spec"], old["spec"]
    if "ExternalName" in (wanted.get("type"), before.get("type")):
        return []
    address, earlier = wanted.get("clusterIP", ""), before.get("clusterIP", "")
    if earlier and address != earlier:
        return [
            invalid("spec.clusterIPs[0]", address, "may not change once set"),
        ]
    return []
