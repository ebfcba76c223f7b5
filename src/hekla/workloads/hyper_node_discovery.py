"""Makes HyperNodes of nodes' labels, as Volcano's label discovery does, so that nobody writes a tree of hundreds by hand.

    # volcano-controller.conf in the ConfigMap volcano-controller-configmap
    networkTopologyDiscovery:
    - source: label
      enabled: true
      config:
        networkTopologyTypes:
          fabric:                        # labels from the top down; the host ends them, or is left out
          - nodeLabel: example.com/row
          - nodeLabel: example.com/rack
          - nodeLabel: kubernetes.io/hostname

Each rack within its row becomes a HyperNode of tier 1, each row one of tier 2 around its racks; a tier is called like its label.
Nodes are members by their labels, so one that comes or goes changes no HyperNode; one without a rack lies in its row directly.
Equal names of racks in two rows are two racks. `hyper_node.py` counts what lies below.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeGuard

import msgspec

from hekla.api.core import ConfigMap
from hekla.api.meta import Document, Resource
from hekla.api.nodes import Node
from hekla.api.volcano.topology import HyperNode, HyperNodeSpec
from hekla.kube.commands import Command, Create, Delete, Event, Patch, target_of
from hekla.kube.reconcile import Reconciler, World, reconciler
from hekla.lib.yaml_lines import Lines, YamlError, read_mapping

CONFIG_MAP, KEY = "volcano-controller-configmap", "volcano-controller.conf"
SOURCE_LABEL, SOURCE = "volcano.sh/network-topology-source", "label"
HOST = "kubernetes.io/hostname"

_EXPECTED = "expected a mapping with the list networkTopologyDiscovery"
_Path = tuple[str | None, ...]
"""Values of a fabric's labels from the top down to some level, None where a node lacks one."""


class DiscoveryError(ValueError):
    """A configuration that cannot be used; the sentence says what to change."""


@dataclass(frozen=True)
class Fabric:
    """One network that labels describe."""

    name: str
    labels: tuple[str, ...]
    """From the top down, without the host."""


def label_discovery(namespace: str) -> Reconciler:
    """The reconciler that reads the ConfigMap of this namespace, and none that somebody puts into another."""

    def home(changed: Resource) -> Iterator[tuple[str, str]]:
        if not isinstance(changed, HyperNode) or (changed.metadata.labels or {}).get(SOURCE_LABEL) == SOURCE:
            yield namespace, CONFIG_MAP

    def is_it(one: ConfigMap, world: World) -> bool:
        return (one.metadata.namespace, one.metadata.name) == (namespace, CONFIG_MAP)

    @reconciler(
        ConfigMap,
        concerns=is_it,
        wakes={Node: home, HyperNode: home},
        heeds={Node: _labels_of},
        name="hypernode-discovery",
    )
    def reconcile_discovery(config: ConfigMap, world: World, now: datetime) -> Iterator[Command]:
        """Bring the HyperNodes of this source up to date; none is touched where the file does not name the source, or is wrong."""
        if not is_it(config, world) or config.metadata.deletion_timestamp is not None:
            return
        try:
            fabrics = parse(config.data.get(KEY, ""))
        except DiscoveryError as error:
            yield Event(target_of(config), "NetworkTopologyDiscovery", f"{KEY}: {error}", "Warning")
            return
        for source in unasked(config.data.get(KEY, "")):
            message = f"{KEY}: source {source} is not asked here; label is, or make its HyperNodes otherwise"
            yield Event(target_of(config), "NetworkTopologyDiscovery", message, "Warning")
        if fabrics is not None:
            yield from _brought_up(world.list(HyperNode), wanted(fabrics, world.list(Node)))

    return reconcile_discovery


def _labels_of(node: Node) -> Any:
    return node.metadata.labels


def _brought_up(there: Sequence[HyperNode], specs: Mapping[str, Document]) -> Iterator[Command]:
    ours = {one.metadata.name: one for one in there if (one.metadata.labels or {}).get(SOURCE_LABEL) == SOURCE}
    for name, spec in specs.items():
        known = ours.get(name)
        if known is None:
            metadata = {"name": name, "labels": {SOURCE_LABEL: SOURCE}}
            info = HyperNode.kind_info
            yield Create(
                HyperNode, {"apiVersion": info.api_version, "kind": info.kind, "metadata": metadata, "spec": spec}
            )
        elif known.spec != msgspec.convert(spec, HyperNodeSpec):
            yield Patch(target_of(known), {"spec": spec})
    for name, one in ours.items():
        if name not in specs and one.metadata.deletion_timestamp is None:
            yield Delete(target_of(one), "no node has these labels any more")


@dataclass
class _Domain:
    tier: int
    label: str
    inner: set[str] = field(default_factory=set)
    """Names of the domains right below."""

    has_nodes: bool = False
    """Whether nodes lie in it and in none below."""


def wanted(fabrics: Sequence[Fabric], nodes: Sequence[Node]) -> dict[str, Document]:
    """The spec of each HyperNode by name, those of low tiers first."""
    found: dict[str, Document] = {}
    for fabric in fabrics:
        domains: dict[_Path, _Domain] = {}
        for path in {_path(fabric, node) for node in nodes}:
            _grow(fabric, path, domains)
        for path, domain in sorted(domains.items(), key=lambda item: (item[1].tier, _name(fabric, item[0]))):
            members = [_inner(name) for name in sorted(domain.inner)]
            members += [_nodes(fabric, path)] if domain.has_nodes else []
            found[_name(fabric, path)] = {"tier": domain.tier, "tierName": domain.label, "members": members}
    return found


def _path(fabric: Fabric, node: Node) -> _Path:
    labels = node.metadata.labels or {}
    return tuple(labels.get(label) for label in fabric.labels)


def _grow(fabric: Fabric, path: _Path, domains: dict[_Path, _Domain]) -> None:
    """Add the domains that a node with these labels lies in, each inside the next one above that there is."""
    below = ""
    for depth in range(len(path), 0, -1):
        if path[depth - 1] is None:
            continue
        here = path[:depth]
        domain = domains.setdefault(here, _Domain(len(fabric.labels) - depth + 1, fabric.labels[depth - 1]))
        if below:
            domain.inner.add(below)
        else:
            domain.has_nodes = True
        below = _name(fabric, here)


def _name(fabric: Fabric, path: _Path) -> str:
    """Always the same for the same place; Volcano has dice at the end instead."""
    told = hashlib.sha256(msgspec.json.encode([fabric.name, fabric.labels[: len(path)], path])).hexdigest()[:10]
    word = re.sub(r"[^a-z0-9]+", "-", fabric.name.lower()).strip("-")
    return "-".join(part for part in ("hypernode", word, f"tier{len(fabric.labels) - len(path) + 1}", told) if part)


def _inner(name: str) -> Document:
    return {"type": "HyperNode", "selector": {"exactMatch": {"name": name}}}


def _nodes(fabric: Fabric, path: _Path) -> Document:
    """The nodes with these labels and none of those below."""
    known = dict(zip(fabric.labels, path, strict=False))
    selector: Document = {"matchLabels": {label: value for label, value in known.items() if value is not None}}
    absent = [label for label in fabric.labels if known.get(label) is None]
    if absent:
        selector["matchExpressions"] = [{"key": label, "operator": "DoesNotExist"} for label in absent]
    return {"type": "Node", "selector": {"labelMatch": selector}}


@lru_cache(maxsize=4)
def parse(text: str) -> tuple[Fabric, ...] | None:
    """The networks that labels describe: none where the source is switched off, None where the file does not speak of it."""
    of_labels = [one for one in _sources(text) if one.get("source") == SOURCE]
    if not of_labels:
        return None
    return tuple(fabric for one in of_labels if one.get("enabled") is True for fabric in _fabrics(one))


def unasked(text: str) -> Iterator[str]:
    """Sources that are switched on and are none of ours; DiscoveryError if the file cannot be read."""
    return (
        str(one.get("source")) for one in _sources(text) if one.get("source") != SOURCE and one.get("enabled") is True
    )


def _sources(text: str) -> Sequence[Lines]:
    if not text.strip():
        return ()
    try:
        found = read_mapping(text, _EXPECTED).get("networkTopologyDiscovery") or []
    except YamlError as error:
        raise DiscoveryError(f"line {error.line}: {error}") from None
    if not isinstance(found, list) or not all(isinstance(one, Lines) for one in found):
        raise DiscoveryError(_EXPECTED)
    for one in found:
        if not isinstance(one.get("enabled", False), bool):  # taken for false it would delete what there is
            raise DiscoveryError(f"line {one.line}: enabled is {one['enabled']!r}; write true or false, without quotes")
    return found


def _fabrics(source: Lines) -> Iterator[Fabric]:
    types = (source.get("config") or {}).get("networkTopologyTypes") if _is_mapping(source.get("config")) else None
    if not _is_mapping(types) or not types:
        raise DiscoveryError(
            f"line {source.line}: source {SOURCE} names no labels; "
            "config.networkTopologyTypes maps a name to a list of nodeLabel, from the top down"
        )
    for name, levels in types.items():
        labels = tuple(_labels(levels, f"networkTopologyTypes.{name}"))
        if not labels or len(set(labels)) < len(labels):
            raise DiscoveryError(
                f"networkTopologyTypes.{name} should name at least one label above the host, each once"
            )
        yield Fabric(str(name), labels)


def _labels(levels: object, where: str) -> Iterator[str]:
    for position, one in enumerate(levels if isinstance(levels, list) else [None]):
        label = one.get("nodeLabel") if _is_mapping(one) else None
        if not isinstance(label, str) or not label:
            raise DiscoveryError(
                f"{where}[{position}] should be a mapping with nodeLabel, such as nodeLabel: example.com/rack"
            )
        if label != HOST:
            yield label


def _is_mapping(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)
