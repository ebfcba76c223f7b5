"""Read what engines publish about their KV caches: blocks stored, blocks removed, all cleared.

Two encodings are about: tagged arrays `["BlockStored", hashes, parent, tokens, ...]`, whose trailing fields may be missing (vLLM
until 2026-06, SGLang), and maps `{"type": "BlockStored", ...}` (vLLM since). A batch is `[time, events, data parallel rank]` or
a map with `ts`, `events`, `data_parallel_rank`. Hashes are integers or bytes, and opaque. An event that is of no known kind or
makes no sense is left out, not its batch. `precise.py` makes an index of them, `following.py` knows when one is missing.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

EngineHash = int | bytes


class Stored(Struct, frozen=True, gc=False):
    """Blocks that continue one another."""

    block_hashes: list[EngineHash]
    parent_block_hash: EngineHash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | str | None = None
    medium: str | None = None
    """GPU, CPU, ...; None: GPU."""
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    """Per block, what else its hash depends on: a salt, pictures, the adapter."""
    group_idx: int | None = None
    """The group of layers, in hybrid models."""
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class Removed(Struct, frozen=True, gc=False):
    """Blocks that are gone from one medium."""

    block_hashes: list[EngineHash]
    medium: str | None = None
    group_idx: int | None = None


class Cleared(Struct, frozen=True, gc=False):
    """Nothing is left."""


KvEvent = Stored | Removed | Cleared
_KINDS: dict[object, type[Stored] | type[Removed] | type[Cleared]] = {
    "BlockStored": Stored,
    "BlockRemoved": Removed,
    "AllBlocksCleared": Cleared,
}
_FIELDS = {kind: tuple(field.name for field in msgspec.structs.fields(kind)) for kind in _KINDS.values()}
MOST_TOKENS_A_BLOCK = 65_536


class Batch(Struct, frozen=True, gc=False):
    """What one message carries."""

    events: Sequence[KvEvent]
    rank: int | None = None
    """The data-parallel rank that publishes; None: it does not say."""
    skipped: int = 0
    """Events that were left out."""


class KvEventError(ValueError):
    """A payload that is no batch of events."""


def read_batch(payload: bytes) -> Batch:
    """The events of one message."""
    try:
        batch = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise KvEventError(f"the payload of {len(payload)} bytes is not MessagePack: {error}") from error
    if isinstance(batch, dict):
        events, rank = batch.get("events"), batch.get("data_parallel_rank")
    elif isinstance(batch, list) and len(batch) >= 2:
        events, rank = batch[1], batch[2] if len(batch) > 2 else None
    else:
        events, rank = None, None
    if not isinstance(events, list):
        raise KvEventError(f"the payload of {len(payload)} bytes has no list of events; expected [time, events, rank]")
    read = [one for event in events if (one := _event(event)) is not None]
    return Batch(read, rank if isinstance(rank, int) else None, len(events) - len(read))


def _event(event: Any) -> KvEvent | None:
    """One event in either encoding; None if it makes no sense."""
    tag = event.get("type") if isinstance(event, dict) else event[0] if isinstance(event, list) and event else None
    kind = _KINDS.get(tag) if isinstance(tag, str) else None
    if kind is None:
        return None
    fields = event if isinstance(event, dict) else dict(zip(_FIELDS[kind], event[1:], strict=False))
    try:
        read: KvEvent = msgspec.convert(fields, kind)
    except msgspec.ValidationError:
        return None
    return None if isinstance(read, Stored) and not _is_whole(read) else read


def _is_whole(stored: Stored) -> bool:
    """Whether there are as many tokens as its blocks need, and they are ids."""
    size, count = stored.block_size, len(stored.block_hashes)
    return (
        0 < size <= MOST_TOKENS_A_BLOCK
        and len(stored.token_ids) == size * count
        and count > 0
        and min(stored.token_ids) >= 0
        and max(stored.token_ids) < 1 << 32
        and (stored.extra_keys is None or len(stored.extra_keys) == count)
    )
