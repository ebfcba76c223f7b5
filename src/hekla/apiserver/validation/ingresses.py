"""What is wrong with ingresses and their classes."""

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import (
    IMMUTABLE,
    FieldError,
    forbidden_field,
    invalid,
    not_supported,
    required,
    too_long,
)
from hekla.apiserver.validation import names
from hekla.apiserver.validation.pod_network import NOT_AN_ADDRESS, is_ip

_PATH_TYPES = ("Exact", "ImplementationSpecific", "Prefix")
_NOT_IN_PATH = ("//", "/./", "/../", "%2f", "%2F")
_NOT_AT_END = ("/..", "/.")
_NOT_A_NAME = "must be a DNS name, not an IP address"
_CLASS_ANNOTATION = "kubernetes.io/ingress.class"
_LONGEST_CONTROLLER = 250


def check_new_ingress(ingress: Document) -> list[FieldError]:
    """An ingress that says its class in both ways says the same."""
    said, errors = ingress.get("spec", {}).get("ingressClassName"), list[FieldError]()
    annotated = ingress["metadata"].get("annotations", {}).get(_CLASS_ANNOTATION)
    if said is not None and annotated is not None and said != annotated:
        why = "must match `ingressClassName` when both are specified"
        errors.append(invalid(f"annotations.{_CLASS_ANNOTATION}", annotated, why))
    return errors


def check_ingress(ingress: Document) -> list[FieldError]:
    """An ingress: rules or a default, hosts that are names, paths that are absolute."""
    spec, errors = ingress.get("spec", {}), list[FieldError]()
    if not spec.get("rules") and "defaultBackend" not in spec:
        errors.append(invalid("spec", spec.get("rules"), "either `defaultBackend` or `rules` must be specified"))
    if "defaultBackend" in spec:
        errors += _check_backend(spec["defaultBackend"], "spec.defaultBackend")
    for index, rule in enumerate(spec.get("rules") or ()):
        errors += _check_rule(rule, f"spec.rules[{index}]")
    for index, one in enumerate(spec.get("tls") or ()):
        errors += _check_tls(one, f"spec.tls[{index}]")
    if "ingressClassName" in spec:
        errors += _named("spec.ingressClassName", spec["ingressClassName"], names.dns_subdomain)
    return errors


def _check_rule(rule: Document, path: str) -> list[FieldError]:
    host, errors = rule.get("host", ""), list[FieldError]()
    if host:
        if is_ip(host):
            errors.append(invalid(f"{path}.host", host, _NOT_A_NAME))
        errors += _check_host(host, f"{path}.host")
    if "http" not in rule:
        return errors
    paths = rule["http"].get("paths") or []
    if not paths:
        errors.append(required(f"{path}.http.paths"))
    for index, one in enumerate(paths):
        errors += _check_path(one, f"{path}.http.paths[{index}]")
    return errors


def _check_host(host: str, path: str) -> list[FieldError]:
    return _named(path, host, names.wildcard_subdomain if "*" in host else names.dns_subdomain)


def _check_path(one: Document, path: str) -> list[FieldError]:
    kind, text = one.get("pathType"), one.get("path", "")
    if kind is None:
        return [required(f"{path}.pathType", "pathType must be specified")]
    if kind not in _PATH_TYPES:
        errors = [not_supported(f"{path}.pathType", kind, _PATH_TYPES)]
    elif kind == "ImplementationSpecific":
        is_odd = bool(text) and not text.startswith("/")
        errors = [invalid(f"{path}.path", text, "must be an absolute path")] * is_odd
    else:
        errors = _check_exact_path(text, f"{path}.path")
    return errors + _check_backend(one.get("backend", {}), f"{path}.backend")


def _check_exact_path(text: str, path: str) -> list[FieldError]:
    errors = [] if text.startswith("/") else [invalid(path, text, "must be an absolute path")]
    if text:
        errors += [invalid(path, text, f"must not contain '{part}'") for part in _NOT_IN_PATH if part in text]
        errors += [invalid(path, text, f"cannot end with '{end}'") for end in _NOT_AT_END if text.endswith(end)]
    return errors


def _check_backend(backend: Document, path: str) -> list[FieldError]:
    service, resource = backend.get("service"), backend.get("resource")
    if service is not None and resource is not None:
        return [invalid(path, "", "cannot set both resource and service backends")]
    if resource is not None:
        return _check_resource(resource, f"{path}.resource")
    if service is not None:
        return _check_service(service, path)
    return [invalid(path, "", "resource or service backend is required")]


def _check_service(service: Document, path: str) -> list[FieldError]:
    name, port = service.get("name", ""), service.get("port", {})
    if not name:
        errors = [required(f"{path}.service.name")]
    else:
        errors = _named(f"{path}.service.name", name, names.dns_label)
    if port.get("name") and port.get("number"):
        errors.append(invalid(path, "", "cannot set both port name & port number"))
    elif port.get("name"):
        where = f"{path}.service.port.name"
        errors += [invalid(where, port["name"], said) for said in names.port_name(port["name"])]
    elif port.get("number"):
        where = f"{path}.service.port.number"
        errors += [invalid(where, port["number"], said) for said in names.port_number(port["number"])]
    else:
        errors.append(required(path, "port name or number is required"))
    return errors


def _check_resource(resource: Document, path: str) -> list[FieldError]:
    errors = list[FieldError]()
    if resource.get("apiGroup"):
        errors += _named(f"{path}.apiGroup", resource["apiGroup"], names.dns_subdomain)
    for key in ("kind", "name"):
        if resource.get(key):
            errors += _named(f"{path}.{key}", resource[key], names.path_segment)
        else:
            errors.append(required(f"{path}.{key}"))
    return errors


def _check_tls(tls: Document, path: str) -> list[FieldError]:
    errors = list[FieldError]()
    for index, host in enumerate(tls.get("hosts") or ()):
        errors += _check_host(host, f"{path}.hosts[{index}]")
    if tls.get("secretName"):
        errors += _named(f"{path}.secretName", tls["secretName"], names.dns_subdomain)
    return errors


def check_ingress_status(new: Document, old: Document) -> list[FieldError]:
    """Where an ingress can be reached: addresses and names."""
    errors = list[FieldError]()
    for index, one in enumerate(new.get("status", {}).get("loadBalancer", {}).get("ingress") or ()):
        errors += _check_reached_at(one, f"status.loadBalancer.ingress[{index}]")
    return errors


def _check_reached_at(one: Document, path: str) -> list[FieldError]:
    address, host, errors = one.get("ip", ""), one.get("hostname", ""), list[FieldError]()
    if address and not is_ip(address):
        errors.append(invalid(f"{path}.ip", address, NOT_AN_ADDRESS))
    if host:
        errors += _named(f"{path}.hostname", host, names.dns_subdomain)
        if is_ip(host):
            errors.append(invalid(f"{path}.hostname", host, _NOT_A_NAME))
    return errors


def check_ingress_class(ingress_class: Document) -> list[FieldError]:
    """A class: whose it is, and where its parameters are."""
    spec = ingress_class.get("spec", {})
    errors = _check_controller(spec.get("controller", ""), "spec.controller")
    return errors + (_check_parameters(spec["parameters"], "spec.parameters") if "parameters" in spec else [])


def _check_controller(controller: str, path: str) -> list[FieldError]:
    if not controller:
        return [required(path)]
    if len(controller) > _LONGEST_CONTROLLER:
        return [too_long(path, _LONGEST_CONTROLLER)]
    domain, _, rest = controller.partition("/")
    if not domain or not rest:
        return [invalid(path, controller, 'must be a domain-prefixed path (such as "acme.io/foo")')]
    return _named(path, domain, names.dns_subdomain) + [invalid(path, rest, said) for said in names.url_path(rest)]


def _check_parameters(parameters: Document, path: str) -> list[FieldError]:
    errors = _check_resource(parameters, path)
    scope, namespace = parameters.get("scope"), parameters.get("namespace")
    if scope is None:
        return [*errors, required(f"{path}.scope")]
    if scope not in ("Cluster", "Namespace"):
        errors.append(not_supported(f"{path}.scope", scope, ("Cluster", "Namespace")))
    if scope == "Namespace":
        if not namespace:
            errors.append(required(f"{path}.namespace", "`parameters.scope` is set to 'Namespace'"))
        else:
            errors += _named(f"{path}.namespace", namespace, names.dns_label)
    if scope == "Cluster" and namespace is not None:
        errors.append(forbidden_field(f"{path}.namespace", "`parameters.scope` is set to 'Cluster'"))
    return errors


def check_ingress_class_update(new: Document, old: Document) -> list[FieldError]:
    """Whose a class is stays."""
    controller = new["spec"].get("controller", "")
    return (
        [] if controller == old["spec"].get("controller", "") else [invalid("spec.controller", controller, IMMUTABLE)]
    )


def _named(path: str, value: str, check: names.NameCheck) -> list[FieldError]:
    return [invalid(path, value, said) for said in check(value, False)]
