"""What a pod refers to (config maps, secrets, services) and how it is looked up while an environment is made.

Pure. `agent.py` fills a `Lookup` from its caches; `environment.py` and `volumes.py` read it.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hekla.api.containers import Container
from hekla.api.core import ConfigMap, Secret, Service
from hekla.api.pods import Pod
from hekla.node.runtimes import ConfigError

CONFIG_MAP, SECRET = "configmap", "secret"


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """The objects of one namespace that a pod may refer to, and its services."""

    config_maps: Mapping[str, ConfigMap] = field(default_factory=dict)
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    services: tuple[Service, ...] = ()
    api_host: str = ""
    api_port: int = 0

    def values(self, kind: str, name: str, *, optional: bool = False) -> dict[str, bytes]:
        """All keys of a config map or secret; ConfigError if it is absent and not optional."""
        found: dict[str, bytes] | None = None
        if kind == CONFIG_MAP and name in self.config_maps:
            config_map = self.config_maps[name]
            found = {key: text.encode() for key, text in config_map.data.items()}
            found.update({key: _decoded(text, name) for key, text in config_map.binary_data.items()})
        elif kind == SECRET and name in self.secrets:
            found = {key: _decoded(text, name) for key, text in self.secrets[name].data.items()}
        if found is None and not optional:
            raise ConfigError(f'{kind} "{name}" not found')
        return found or {}

    def value(self, kind: str, name: str, key: str, *, namespace: str, optional: bool = False) -> bytes | None:
        """One key; None if it is absent and optional."""
        values = self.values(kind, name, optional=optional)
        if key in values:
            return values[key]
        if optional:
            return None
        label = "ConfigMap" if kind == CONFIG_MAP else "Secret"
        raise ConfigError(f"couldn't find key {key} in {label} {namespace}/{name}")


def _decoded(text: str, name: str) -> bytes:
    try:
        return base64.b64decode(text)
    except (binascii.Error, ValueError):
        raise ConfigError(f'"{name}" holds a value that is not base64') from None


def references_of(pod: Pod) -> set[tuple[str, str]]:
    """Every config map and secret that the pod's environment and volumes name."""
    return set(_volume_references(pod)) | {
        reference
        for container in (*pod.spec.init_containers, *pod.spec.containers)
        for reference in _environment_references(container)
    }


def _environment_references(container: Container) -> Iterator[tuple[str, str]]:
    for source in container.env_from:
        if source.config_map_ref is not None:
            yield CONFIG_MAP, source.config_map_ref.name
        if source.secret_ref is not None:
            yield SECRET, source.secret_ref.name
    for variable in container.env:
        if variable.value_from is not None:
            if variable.value_from.config_map_key_ref is not None:
                yield CONFIG_MAP, variable.value_from.config_map_key_ref.name
            if variable.value_from.secret_key_ref is not None:
                yield SECRET, variable.value_from.secret_key_ref.name


def _volume_references(pod: Pod) -> Iterator[tuple[str, str]]:
    for volume in pod.spec.volumes:
        if volume.config_map is not None:
            yield CONFIG_MAP, volume.config_map.name
        if volume.secret is not None:
            yield SECRET, volume.secret.secret_name
        for source in volume.projected.sources if volume.projected else ():
            if source.config_map is not None:
                yield CONFIG_MAP, source.config_map.name
            if source.secret is not None:
                yield SECRET, source.secret.name
