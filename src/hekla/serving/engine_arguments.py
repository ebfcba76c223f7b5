"""What a ModelBooster's worker says to its engine: the port, and the connector that prefill and decode must share. Pure.

Admission refuses what cannot be read; the expansion into a ModelServer reads the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from hekla.api.kthena.booster import ModelBackend, ModelWorker, WorkerType
from hekla.api.kthena.server import Connector
from hekla.lib.digits import whole_number

DEFAULT_PORT: Final = 8000
RUNTIME_PORT: Final = 8100
"""Where the side-car of every engine listens, in the same pod, if nothing else is said."""
CONNECTORS: Final = {
    "LMCacheConnectorV1": Connector.LMCACHE,
    "MooncakeConnector": Connector.MOONCAKE,
    "MooncakeConnectorV1": Connector.MOONCAKE,
    "NixlConnector": Connector.NIXL,
}
"""vLLM's names of connectors."""
_ROLES: Final = {
    WorkerType.PREFILL: ("kv_producer", "kv_both"),
    WorkerType.DECODE: ("kv_consumer", "kv_both"),
}
_SAME = "prefill and decode must configure the same kv connector"


@dataclass
class ArgumentError(Exception):
    """A worker's arguments contradict one another; `str` is the sentence."""

    sentence: str
    worker: int = -1
    """Which worker; -1: several."""
    value: Any = None

    def __str__(self) -> str:
        return self.sentence


def engine_port(workers: Sequence[ModelWorker]) -> int:
    """The port that all engines of a backend listen on; raises ArgumentError."""
    found = 0
    for number, worker in enumerate(workers):
        if worker.type not in (WorkerType.SERVER, WorkerType.PREFILL, WorkerType.DECODE):
            continue
        port = _port(worker, number)
        if found and found != port:
            raise ArgumentError(f"workers use different engine ports: {found} and {port}", number, port)
        found = port
    return found or DEFAULT_PORT


def _port(worker: ModelWorker, number: int) -> int:
    said = (worker.config or {}).get("port", DEFAULT_PORT)
    text = str(said)
    port = whole_number(text)
    if isinstance(said, bool) or port is None or not 1 <= port <= 65535:
        shown = str(said).lower() if isinstance(said, bool) else text
        raise ArgumentError(f'invalid port "{shown}" for worker {worker.type}', number, said)
    return port


def runtime_port(backend: ModelBackend) -> int:
    """The port of the side-car: the variable RUNTIME_PORT where that is one, else Kthena's."""
    said = next((one.get("value") for one in backend.env if one.get("name") == "RUNTIME_PORT"), None)
    port = whole_number(str(said or "")) or 0
    return port if 1 <= port <= 65535 else RUNTIME_PORT


def kv_connector(backend: ModelBackend) -> Connector | None:
    """The connector that prefill and decode share; None: neither names one. Raises ArgumentError."""
    found: dict[str, tuple[str, Connector] | None] = {}
    for kind in (WorkerType.PREFILL, WorkerType.DECODE):
        workers = [one for one in backend.workers if one.type == kind]
        if len(workers) > 1:
            raise ArgumentError(
                f"backend {backend.name}: found {len(workers)} {kind} workers, expected at most 1; "
                f"duplicate {kind} workers are not supported"
            )
        found[kind] = _connector(workers[0]) if workers else None
    prefill, decode = found[WorkerType.PREFILL], found[WorkerType.DECODE]
    if prefill is None and decode is None:
        return None
    if prefill is None or decode is None:
        has, lacks = ("decode", "prefill") if prefill is None else ("prefill", "decode")
        named = prefill or decode
        assert named is not None, "one of them names a connector"
        raise ArgumentError(
            f'backend {backend.name}: {has} worker specifies kv_connector "{named[0]}" but the {lacks} worker has no '
            f"kv-transfer-config; {_SAME}"
        )
    if prefill[1] != decode[1]:
        raise ArgumentError(
            f'backend {backend.name}: kv_connector mismatch between prefill ("{prefill[0]}") and decode ("{decode[0]}") '
            "workers; prefill and decode must use the same kv connector"
        )
    return prefill[1]


def _connector(worker: ModelWorker) -> tuple[str, Connector] | None:
    said = (worker.config or {}).get("kv-transfer-config")
    if said is None:
        return None
    if not isinstance(said, str):
        raise ArgumentError(f"worker {worker.type}: kv-transfer-config must be a JSON string, got {_go_type(said)}")
    try:
        config = msgspec.json.decode(said, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ArgumentError(
            f"worker {worker.type}: invalid kv-transfer-config: failed to unmarshal config: {error}"
        ) from None
    name, role = config.get("kv_connector"), config.get("kv_role")
    if not name or not isinstance(name, str):
        raise ArgumentError(f"worker {worker.type}: kv-transfer-config is set but kv_connector is missing")
    if name not in CONNECTORS:
        supported = ", ".join(sorted(CONNECTORS))
        raise ArgumentError(f'worker {worker.type}: unsupported kv_connector "{name}" (supported: {supported})')
    if not role or not isinstance(role, str):
        raise ArgumentError(f"worker {worker.type}: kv-transfer-config is set but kv_role is missing")
    allowed = _ROLES[WorkerType(worker.type)]
    if role not in allowed:
        raise ArgumentError(f'worker {worker.type}: invalid kv_role "{role}", expected one of [{", ".join(allowed)}]')
    return name, CONNECTORS[name]


def _go_type(value: object) -> str:
    return {dict: "map[string]interface {}", list: "[]interface {}", bool: "bool"}.get(type(value), "float64")
