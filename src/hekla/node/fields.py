"""The downward API: what a pod may read of itself, for environment variables and files.

Pure. Field paths as Kubernetes has them; resources divided by their divisor and rounded up.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hekla.api.containers import Container
from hekla.api.pods import Pod
from hekla.api.volumes import ObjectFieldSelector, ResourceFieldSelector
from hekla.lib import quantity
from hekla.node.runtimes import ConfigError

_KEYED = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


@dataclass(frozen=True, kw_only=True)
class Self:
    """A pod with what its node knows of it before the API does."""

    pod: Pod
    pod_ip: str
    host_ip: str
    allocatable: Mapping[str, str]


def field_value(me: Self, selector: ObjectFieldSelector) -> str:
    """The text of a field; labels and annotations as a whole are one `key="value"` line each."""
    pod, path = me.pod, selector.field_path
    meta = pod.metadata
    keyed = _KEYED.fullmatch(path)
    if keyed:
        values = meta.labels if keyed[1] == "labels" else meta.annotations
        return values.get(keyed[2], "")
    plain = {
        "metadata.name": meta.name,
        "metadata.namespace": meta.namespace,
        "metadata.uid": meta.uid,
        "metadata.labels": _lines(meta.labels),
        "metadata.annotations": _lines(meta.annotations),
        "spec.nodeName": pod.spec.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name or "default",
        "status.hostIP": me.host_ip,
        "status.hostIPs": me.host_ip,
        "status.podIP": me.pod_ip,
        "status.podIPs": me.pod_ip,
    }
    if path not in plain:
        raise ConfigError(f'unsupported fieldPath: "{path}"')
    return plain[path]


def resource_value(me: Self, selector: ResourceFieldSelector, container: Container | None) -> str:
    """A request or limit, in units of the divisor; without a limit it is what the node has."""
    if selector.container_name:
        every = (*me.pod.spec.init_containers, *me.pod.spec.containers)
        container = next((each for each in every if each.name == selector.container_name), None)
    if container is None:
        raise ConfigError(f'container "{selector.container_name}" not found')
    which, _, name = selector.resource.partition(".")
    wanted = container.resources
    limits, requests = (wanted.limits, wanted.requests) if wanted else ({}, {})
    text = limits.get(name) if which == "limits" else requests.get(name)
    if text is None:
        text = me.allocatable.get(name, "0") if which == "limits" else limits.get(name, "0")
    divisor = quantity.parse(selector.divisor or "1").value or 1
    return str(-(-quantity.parse(text).value // divisor))


def _lines(values: Mapping[str, str]) -> str:
    return "\n".join(f"{key}={_quoted(value)}" for key, value in sorted(values.items()))


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'
