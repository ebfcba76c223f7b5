"""Objects as `/debug/config_dump` shows them: whole, and with what Kthena's router tells of each at the same place.

    all             name, namespace
    modelservers    associatedPods; of pairs decodePods and prefillPods
    pods            engine, metrics, models, modelServers, podInfo

What is not known is null: Kthena's router tells 0 of an engine that it could not ask.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from hekla.api.core import Pod
from hekla.api.kthena import ModelServer
from hekla.api.meta import Resource
from hekla.serving.router.backends import Backend
from hekla.serving.router.endpoints import Endpoint
from hekla.serving.router.world import World


def dumped(one: Resource, world: World) -> dict[str, Any]:
    """One object, and what the router makes of it."""
    meta = one.metadata
    shown: dict[str, Any] = {"name": meta.name, "namespace": meta.namespace, **msgspec.to_builtins(one)}
    if isinstance(one, ModelServer):
        backend = world.servers.get(f"{meta.namespace}/{meta.name}")
        shown |= _of_server(backend) if backend is not None else {}
    elif isinstance(one, Pod):
        shown |= _of_pod(one, world)
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


def _of_pod(pod: Pod, world: World) -> dict[str, Any]:
    key = f"{pod.metadata.namespace}/{pod.metadata.name}"
    servers = {name: one for name, one in sorted(world.servers.items()) if key in one.joined}
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
