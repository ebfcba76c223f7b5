"""Objects as `/debug/config_dump` shows them: whole, and with what Kthena's router tells of each at the same place.

    all             name, namespace
    modelservers    associatedPods; of pairs decodePods and prefillPods
    pods            engine, metrics, models, modelServers, podInfo

What is not known is null: Kthena's router tells 0 of an engine that it could not ask.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from hekla.api.core import Pod
from hekla.api.kthena import ModelServer
from hekla.api.meta import Resource
from hekla.serving.router.backends import Backend
from hekla.serving.router.endpoints import Endpoint
from hekla.serving.router.world import World

Joined = Mapping[str, Mapping[str, Backend]]
"""Of each pod that a server asks for, `namespace/name`, those servers by name, sorted."""


def dumped(found: Sequence[Resource], world: World) -> list[dict[str, Any]]:
    """Objects, and what the router makes of each; the servers are walked once for all pods, as no stream moves meanwhile."""
    joined = _servers_of_pods(world.servers) if any(isinstance(one, Pod) for one in found) else {}
    return [_shown(one, world, joined) for one in found]


def _servers_of_pods(servers: Mapping[str, Backend]) -> Joined:
    joined: dict[str, dict[str, Backend]] = {}
    for name, backend in sorted(servers.items()):
        for key in backend.joined:
            joined.setdefault(key, {})[name] = backend
    return joined


def _shown(one: Resource, world: World, joined: Joined) -> dict[str, Any]:
    meta = one.metadata
    key = f"{meta.namespace}/{meta.name}"
    shown: dict[str, Any] = {"name": meta.name, "namespace": meta.namespace, **msgspec.to_builtins(one)}
    if isinstance(one, ModelServer):
        backend = world.servers.get(key)
        shown |= _of_server(backend) if backend is not None else {}
    elif isinstance(one, Pod):
        shown |= _of_pod(one, key, joined.get(key, {}))
    return shown


def _of_server(backend: Backend) -> dict[str, Any]:
    told = {"associatedPods": sorted(backend.joined)}
    if backend.traits.pd is not None:
        for role in ("decode", "prefill"):
            told[f"{role}Pods"] = sorted(key for key, _ in _joined(backend, role))
    return told


def _joined(backend: Backend, role: str) -> Iterator[tuple[str, list[Endpoint]]]:
    for key, brought in backend.joined.items():
        engines = [engine for _, engine in brought if engine.role == role]
        if engines:
            yield key, engines


def _of_pod(pod: Pod, key: str, servers: Mapping[str, Backend]) -> dict[str, Any]:
    engines = [engine for one in servers.values() for _, engine in one.joined[key]]
    first = engines[0] if engines else None
    return {
        "engine": next((str(one.traits.engine) for one in servers.values()), ""),
        "modelServers": list(servers),
        "models": sorted({adapter for one in engines for adapter in one.adapters}),
        "metrics": {
            "gpuCacheUsage": first.kv_usage if first else None,
            "requestWaitingNum": first.waiting if first else None,
            "requestRunningNum": first.running if first else None,
            "tpot": first.tpot_s if first else None,
            "ttft": first.ttft_s if first else None,
        },
        "podInfo": {
            "podIP": pod.status.pod_ip,
            "nodeName": pod.spec.node_name,
            "phase": pod.status.phase,
            "labels": pod.metadata.labels,
        },
    }
