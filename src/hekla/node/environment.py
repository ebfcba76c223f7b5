"""A container's environment: services first, then whole config maps and secrets, then the variables one by one.

Pure. `$(NAME)` is replaced by what has been set so far, `$$(NAME)` stays as `$(NAME)`, and an unknown name stays as it
is: the rules of Kubernetes, for command and args too.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from hekla.api.containers import Container, EnvFromSource, EnvVar
from hekla.api.core import Service
from hekla.node.fields import Self, field_value, resource_value
from hekla.node.references import CONFIG_MAP, SECRET, Lookup
from hekla.node.runtimes import ConfigError

_REFERENCE = re.compile(r"\$(\$|\(([^()]*)\))")
_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")


def environment_of(container: Container, me: Self, lookup: Lookup) -> dict[str, str]:
    """All variables; raises ConfigError for what is missing and not optional."""
    pod = me.pod
    env: dict[str, str] = {}
    if pod.spec.enable_service_links is not False:
        for service in lookup.services:
            env.update(_service_variables(service))
    # after the Services: the one named `kubernetes` must not lead to an address that our certificate does not name
    env.update(_api_server(lookup))
    for source in container.env_from:
        env.update(_whole(source, lookup))
    declared: dict[str, str] = {}
    for variable in container.env:
        value = _value(variable, container, me, lookup, {**env, **declared})
        if value is not None:
            declared[variable.name] = value
    return {**env, **declared}


def command_of(container: Container, env: Mapping[str, str]) -> tuple[str, ...]:
    """Command and args with their references replaced."""
    return tuple(expand(word, env) for word in (*container.command, *container.args))


def expand(text: str, env: Mapping[str, str]) -> str:
    """`text` with every `$(NAME)` that is known replaced."""

    def replace(found: re.Match[str]) -> str:
        if found[1] == "$":
            return "$"
        return env.get(found[2], found[0])

    return _REFERENCE.sub(replace, text)


def _value(variable: EnvVar, container: Container, me: Self, lookup: Lookup, known: Mapping[str, str]) -> str | None:
    source = variable.value_from
    if source is None:
        return expand(variable.value, known)
    namespace = me.pod.metadata.namespace
    if source.field_ref is not None:
        return field_value(me, source.field_ref)
    if source.resource_field_ref is not None:
        return resource_value(me, source.resource_field_ref, container)
    for kind, reference in ((CONFIG_MAP, source.config_map_key_ref), (SECRET, source.secret_key_ref)):
        if reference is not None:
            found = lookup.value(kind, reference.name, reference.key, namespace=namespace, optional=reference.optional)
            return None if found is None else found.decode("utf-8", "replace")
    raise ConfigError(f'variable "{variable.name}": its valueFrom names no source that this node knows')


def _whole(source: EnvFromSource, lookup: Lookup) -> Iterator[tuple[str, str]]:
    """Every key of a config map or secret that is a name; others are skipped, as the kubelet does."""
    config_map, secret, prefix = source.config_map_ref, source.secret_ref, source.prefix
    values: dict[str, bytes] = {}
    if config_map is not None:
        values = lookup.values(CONFIG_MAP, config_map.name, optional=config_map.optional)
    elif secret is not None:
        values = lookup.values(SECRET, secret.name, optional=secret.optional)
    for key, value in sorted(values.items()):
        if _NAME.fullmatch(prefix + key):
            yield prefix + key, value.decode("utf-8", "replace")


def _api_server(lookup: Lookup) -> Iterator[tuple[str, str]]:
    if lookup.api_host:
        yield from _variables("KUBERNETES", lookup.api_host, [("https", lookup.api_port, "TCP")])


def _service_variables(service: Service) -> Iterator[tuple[str, str]]:
    spec = service.spec
    if spec.cluster_ip and spec.cluster_ip != "None":
        name = service.metadata.name.upper().replace("-", "_").replace(".", "_")
        yield from _variables(name, spec.cluster_ip, [(p.name, p.port, p.protocol or "TCP") for p in spec.ports])


def _variables(name: str, host: str, ports: Sequence[tuple[str, int, str]]) -> Iterator[tuple[str, str]]:
    """The variables of Docker's links, which Kubernetes keeps alive."""
    yield f"{name}_SERVICE_HOST", host
    for index, (port_name, port, protocol) in enumerate(ports):
        if index == 0:
            yield f"{name}_SERVICE_PORT", str(port)
            yield f"{name}_PORT", f"{protocol.lower()}://{host}:{port}"
        if port_name:
            yield f"{name}_SERVICE_PORT_{port_name.upper().replace('-', '_')}", str(port)
        prefix = f"{name}_PORT_{port}_{protocol.upper()}"
        yield prefix, f"{protocol.lower()}://{host}:{port}"
        yield f"{prefix}_PROTO", protocol.lower()
        yield f"{prefix}_PORT", str(port)
        yield f"{prefix}_ADDR", host
