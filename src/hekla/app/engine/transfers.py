"""Prefill here, decode there: the parameters that one engine hands to another, and the word that a cache was fetched.

As with NIXL: prefill keeps its blocks under a lease and answers where they are; decode fetches them and says so. Bytes
are not moved, time is. The word goes to the HTTP port of the engine that kept them, in place of NIXL's side channel.
"""

import asyncio
import contextlib
import os
import time
from typing import Any
from uuid import uuid4

from hekla.simulation.engine.sequence import Ask

TELL_TIMEOUT_S = 5.0


class Transfers:
    """The transfers of one engine."""

    def __init__(self, lease_s: float) -> None:
        self.engine_id = uuid4().hex
        self._host = os.environ.get("VLLM_NIXL_SIDE_CHANNEL_HOST") or os.environ.get("POD_IP") or "127.0.0.1"
        self.port = 0
        """Where this engine listens, once it does."""
        self._lease_s = lease_s
        self._telling: set[asyncio.Task[None]] = set()

    def kept(self, ask: Ask) -> dict[str, Any] | None:
        """What a prefill's answer tells the decode engine; None where nothing is kept."""
        if not ask.is_kept:
            return None
        return {
            "do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[]],
            "remote_engine_id": self.engine_id, "remote_request_id": ask.id, "remote_host": self._host,
            "remote_port": self.port, "tp_size": 1, "remote_num_tokens": ask.prompt_tokens,
            "remote_blocks_expiry_time": time.time() + self._lease_s,
        }  # fmt: skip

    def fetched(self, params: dict[str, Any] | None) -> None:
        """Tell the engine that kept the blocks that they are here; if it is gone, so are they."""
        if params and params.get("remote_request_id") and isinstance(params.get("remote_port"), int):
            task = asyncio.create_task(self._tell(params))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def _tell(self, params: dict[str, Any]) -> None:
        request, host = params["remote_request_id"], str(params.get("remote_host") or "127.0.0.1")
        with contextlib.suppress(OSError, TimeoutError, ValueError):
            async with asyncio.timeout(TELL_TIMEOUT_S):
                _, writer = await asyncio.open_connection(host, params["remote_port"])
                head = f"POST /kv_transfer/{request}/fetched HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n"
                writer.write(f"{head}content-length: 0\r\n\r\n".encode())
                await writer.drain()
                writer.close()
                await writer.wait_closed()
