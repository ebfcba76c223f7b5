"""vLLM's own Mooncake connector: the prefill engine's bootstrap server names its engines, then both legs go at once.

(vllm-ascend's Mooncake hands parameters over in the answer instead; `sequential.py` has it.)
"""

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from hekla.serving.router.bodies import with_fields
from hekla.serving.router.connectors.prefill_body import prefill_body

QUERY_PATH: Final = "/query"


class _Engine(msgspec.Struct, gc=False):
    engine_id: str = ""


_decode_engines = msgspec.json.Decoder(dict[str, _Engine]).decode


@dataclass(frozen=True, slots=True)
class MooncakeConnector:
    """The engines know one another by engine id and transfer id."""

    bootstrap_port: int

    def engines(self, answer: bytes) -> dict[int, str]:
        """Engine ids by data-parallel rank, as the bootstrap server answers; empty: it could not be read."""
        try:
            return {int(rank): one.engine_id for rank, one in _decode_engines(answer).items() if one.engine_id}
        except (msgspec.DecodeError, ValueError):
            return {}

    def legs(self, body: bytes, path: str, prefill_host: str, engine_id: str, transfer_id: str) -> tuple[bytes, bytes]:
        """(what the prefill engine is sent, what the decode engine is sent)."""
        host = f"[{prefill_host}]" if ":" in prefill_host else prefill_host
        sent: dict[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer_id}
        got = {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "remote_bootstrap_addr": f"http://{host}:{self.bootstrap_port}",
            "remote_engine_id": engine_id,
            "transfer_id": transfer_id,
        }
        return prefill_body(body, path, {"kv_transfer_params": sent}), with_fields(body, {"kv_transfer_params": got})
