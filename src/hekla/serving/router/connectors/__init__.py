"""How a prefill engine hands a prompt's KV cache to a decode engine: one file per family of connectors, pure functions over bodies.

`connector_of` chooses by what a ModelServer says; `pair_plan.py` sends what these make. The client's body is never changed.
"""

from hekla.serving.router.connectors.mooncake import MooncakeConnector
from hekla.serving.router.connectors.sequential import SequentialConnector
from hekla.serving.router.connectors.sglang import SglangConnector

__all__ = ["Connector", "connector_of"]

Connector = SequentialConnector | MooncakeConnector | SglangConnector

_PLAIN = SequentialConnector()
_TRANSFER = SequentialConnector(has_transfer_params=True)
_BY_NAME: dict[str, Connector] = {"http": _PLAIN, "lmcache": _PLAIN, "nixl": _TRANSFER, "mooncake": _TRANSFER}


def connector_of(name: str, bootstrap_port: int) -> Connector:
    """The connector of this name; `mooncake` with a bootstrap port is vLLM's own, without one vllm-ascend's."""
    if name == "sglang":
        return SglangConnector(bootstrap_port or None)
    if name == "mooncake" and bootstrap_port:
        return MooncakeConnector(bootstrap_port)
    return _BY_NAME.get(name, _PLAIN)
