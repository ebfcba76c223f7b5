"""Prefill, then decode: LMCache and plain HTTP share a store, NIXL and vllm-ascend's Mooncake hand over where the blocks lie.

With `kv_transfer_params` the prefill engine answers with the parameters that the decode engine must be sent, unchanged. It keeps
the blocks for half a minute, so decode follows at once.
"""

from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Raw, Struct

from hekla.serving.router.bodies import with_fields
from hekla.serving.router.connectors.prefill_body import prefill_body

REMOTE_DECODE: Final = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


class _PrefillAnswer(Struct, gc=False):
    kv_transfer_params: Raw = Raw(b"")


_decode = msgspec.json.Decoder(_PrefillAnswer).decode


@dataclass(frozen=True, slots=True)
class SequentialConnector:
    """Decode is sent when prefill has answered."""

    has_transfer_params: bool = False

    def prefill(self, body: bytes, path: str) -> bytes:
        """What the prefill engine is sent."""
        return prefill_body(body, path, {"kv_transfer_params": REMOTE_DECODE} if self.has_transfer_params else {})

    def decode(self, body: bytes, prefill_answer: bytes) -> bytes:
        """What the decode engine is sent; without parameters it prefills by itself."""
        if not self.has_transfer_params:
            return body
        try:
            params = _decode(prefill_answer).kv_transfer_params
        except msgspec.DecodeError:
            return body
        return with_fields(body, {"kv_transfer_params": params}) if bytes(params) not in (b"", b"null") else body
