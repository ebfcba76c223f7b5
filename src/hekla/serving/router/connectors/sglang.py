"""SGLang: both legs at once, found by a room that is drawn anew for every attempt, at the prefill engine's bootstrap server."""

from dataclasses import dataclass
from typing import Any

import msgspec

from hekla.serving.router.bodies import fields_of, with_fields
from hekla.serving.router.connectors.prefill_body import prefill_body


@dataclass(frozen=True, slots=True)
class SglangConnector:
    """The engines meet at `prefill_host:bootstrap_port`, in a room per prompt."""

    bootstrap_port: int | None = None
    """None: the engine's own default, 8998."""

    def rooms(self, body: bytes, first: int) -> dict[str, Any]:
        """A room for the prompt, or one for each prompt of a batch."""
        count = _prompts(body)
        if count is None:
            return {"bootstrap_room": first}
        return {"bootstrap_room": [(first + number) & (2**63 - 1) for number in range(count)]}

    def legs(self, body: bytes, path: str, prefill_host: str, first_room: int) -> tuple[bytes, bytes]:
        """(what the prefill engine is sent, what the decode engine is sent)."""
        meeting = self.rooms(body, first_room)
        count = len(meeting["bootstrap_room"]) if isinstance(meeting["bootstrap_room"], list) else None
        meeting["bootstrap_host"] = prefill_host if count is None else [prefill_host] * count
        meeting["bootstrap_port"] = self.bootstrap_port if count is None else [self.bootstrap_port] * count
        return prefill_body(body, path, meeting), with_fields(body, meeting)


def _prompts(body: bytes) -> int | None:
    """How many prompts a batch has; None: it is no batch."""
    prompt = fields_of(body).get("prompt")
    if prompt is None or not bytes(prompt).startswith(b"["):
        return None
    items = msgspec.json.decode(prompt)
    return None if not items or isinstance(items[0], int) else len(items)
