"""Know which engine holds which blocks, from the events that it publishes.

Engines' hashes are opaque, so each stored block is hashed again from its tokens (`token_blocks.py`), and a map from the engine's
hash to ours undoes it when the block is removed. What an engine holds is walked block by block from a prompt's beginning, as
engines may drop a block in the middle. A hybrid model's full-attention groups must all hold a block for it to count; groups with
a sliding window keep only their last blocks and are not asked.

Bounds: blocks per endpoint and in all, beyond which an endpoint begins anew from empty; events that wait for a parent that was
never heard of, of which the oldest are dropped.
"""

from collections import OrderedDict
from itertools import repeat
from typing import Any

from hekla.serving.router.prefix.kv_events import Batch, Cleared, EngineHash, Removed, Stored
from hekla.serving.router.prefix.token_blocks import Tokens, chain, root, with_extras

MOST_BLOCKS = 262_144
"""Per endpoint: four million tokens in blocks of 16."""
MOST_IN_ALL = 2_097_152
"""Of all endpoints; some 400 MB. Beyond, the endpoint that told most begins anew."""
MOST_PARKED = 256
"""Events per publisher that wait for their parent."""
STRIDE = 64
"""Blocks hashed before anybody is asked about them, eight times as many each time after: most prompts are unknown after the first."""


class _Publisher:
    """One cache: an endpoint's, or one data-parallel rank's of it."""

    __slots__ = ("held", "parked")

    def __init__(self) -> None:
        self.held: dict[tuple[str, int], dict[EngineHash, int]] = {}
        """By medium and group: the engine's hash to ours."""
        self.parked: OrderedDict[EngineHash, list[Stored]] = OrderedDict()
        """By the parent that is missing."""

    def ours(self, group: int, engine_hash: EngineHash) -> int | None:
        """Our hash of a block that any medium of this group holds."""
        for (_, held_group), held in self.held.items():
            if held_group == group and engine_hash in held:
                return held[engine_hash]
        return None


class PreciseIndex:
    """Who holds what, as told."""

    def __init__(self, most_blocks: int = MOST_BLOCKS, most_in_all: int = MOST_IN_ALL) -> None:
        self.most_blocks = most_blocks
        self.most_in_all = most_in_all
        self.holders: dict[int, int] = {}
        self._again: dict[tuple[int, int], int] = {}
        """By endpoint and block: how many more times it is held, by other ranks or media; rare."""
        self._publishers: dict[int, dict[int, _Publisher]] = {}
        self._blocks: dict[int, int] = {}
        self._total = 0
        self._shapes: dict[tuple[int, int], int] = {}
        """By group and block size: the endpoints that store such blocks."""

    def apply(self, slot: int, batch: Batch) -> bool:
        """Take a batch in; True: everything that the endpoint held is gone, so guesses about it should go too."""
        publisher = self._publishers.setdefault(slot, {}).setdefault(batch.rank or 0, _Publisher())
        is_cleared = False
        for event in batch.events:
            if type(event) is Stored:
                self._store(slot, publisher, event)
            elif type(event) is Removed:
                self._remove(slot, publisher, event)
            elif type(event) is Cleared:
                self._clear(slot, publisher)
                is_cleared = True
        return is_cleared

    def match(self, tokens: Tokens, among: int, adapter: str = "") -> list[tuple[int, int]]:
        """Who holds how many tokens of the beginning: (endpoints as bits, tokens), only those that hold any."""
        found: dict[int, int] = {}
        """By endpoints: the fewest tokens of any group so far."""
        for (group, size), slots in self._shapes.items():
            asked = slots & among
            if asked:
                depths = self._walk(tokens, asked, root(adapter, group), size)
                found = _fewest(found, depths, asked) if found else depths
        return [(slots, depth) for slots, depth in found.items() if depth]

    def forget(self, slot: int) -> None:
        """The endpoint is gone, or what it told cannot be trusted any more; one that never told anything is fine."""
        for publisher in self._publishers.pop(slot, {}).values():
            self._clear(slot, publisher)
        self._blocks.pop(slot, None)
        self._shapes = {shape: left for shape, slots in self._shapes.items() if (left := slots & ~(1 << slot))}

    def held(self, slot: int) -> int:
        """Blocks that the endpoint told of and has not removed."""
        return self._blocks.get(slot, 0)

    def _store(self, slot: int, publisher: _Publisher, event: Stored) -> None:
        if event.kv_cache_spec_sliding_window or "sliding" in (event.kv_cache_spec_kind or ""):
            return
        group = event.group_idx or 0
        parent = self._parent(publisher, group, event)
        if parent is None:
            self._park(publisher, event)
            return
        if self.held(slot) + len(event.block_hashes) > self.most_blocks:
            self._begin_anew(slot)
            return
        if self._total + len(event.block_hashes) > self.most_in_all:
            self._begin_anew(max(self._blocks, key=self.held))
            return
        ours = chain(event.token_ids, event.block_size, parent)
        if event.extra_keys is not None and any(event.extra_keys):
            ours = with_extras(ours, [_extras(one, event.lora_name) for one in event.extra_keys], parent)
        self._keep(slot, publisher, event, group, ours)
        if publisher.parked:
            for child in [c for theirs in event.block_hashes for c in publisher.parked.pop(theirs, ())]:
                self._store(slot, publisher, child)

    def _parent(self, publisher: _Publisher, group: int, event: Stored) -> int | None:
        if event.parent_block_hash is None or event.parent_block_hash == 0:
            return root(event.lora_name or (str(event.lora_id) if event.lora_id is not None else ""), group)
        return publisher.ours(group, event.parent_block_hash)

    def _park(self, publisher: _Publisher, event: Stored) -> None:
        """A parent may be told of later; the events that waited longest are dropped first."""
        assert event.parent_block_hash is not None
        publisher.parked.setdefault(event.parent_block_hash, []).append(event)
        while sum(map(len, publisher.parked.values())) > MOST_PARKED:
            publisher.parked.popitem(last=False)

    def _keep(self, slot: int, publisher: _Publisher, event: Stored, group: int, ours: list[int]) -> None:
        held = publisher.held.setdefault((event.medium or "GPU", group), {})
        holders, bit, added = self.holders, 1 << slot, 0
        for theirs, one in zip(event.block_hashes, ours, strict=True):
            if theirs in held:
                continue
            held[theirs] = one
            added += 1
            others = holders.get(one, 0)
            if others & bit:
                self._again[slot, one] = self._again.get((slot, one), 0) + 1
            else:
                holders[one] = others | bit
        self._blocks[slot] = self.held(slot) + added
        self._total += added
        shape = (group, event.block_size)
        self._shapes[shape] = self._shapes.get(shape, 0) | bit

    def _remove(self, slot: int, publisher: _Publisher, event: Removed) -> None:
        held = publisher.held.get((event.medium or "GPU", event.group_idx or 0))
        for theirs in event.block_hashes if held else ():
            ours = held.pop(theirs, None) if held else None
            if ours is not None:
                self._drop(slot, ours)

    def _clear(self, slot: int, publisher: _Publisher) -> None:
        for held in publisher.held.values():
            for ours in held.values():
                self._drop(slot, ours)
        publisher.held.clear()
        publisher.parked.clear()

    def _drop(self, slot: int, ours: int) -> None:
        self._blocks[slot] -= 1
        self._total -= 1
        again = self._again.get((slot, ours), 0)
        if again > 1:
            self._again[slot, ours] = again - 1
        elif again:
            del self._again[slot, ours]
        elif left := self.holders[ours] & ~(1 << slot):
            self.holders[ours] = left
        else:
            del self.holders[ours]

    def _begin_anew(self, slot: int) -> None:
        """It stores and never removes: something is off, and an index without bound helps nobody."""
        for publisher in self._publishers[slot].values():
            self._clear(slot, publisher)

    def _walk(self, tokens: Tokens, among: int, start: int, size: int) -> dict[int, int]:
        """How many tokens each endpoint holds from the beginning: endpoints as bits to tokens."""
        depths: dict[int, int] = {}
        depth, get, parent, stride = 0, self.holders.get, start, STRIDE * size
        while len(tokens) - depth >= size:
            hashes = chain(tokens[depth : depth + stride], size, parent)
            stride *= 8
            for holders in map(get, hashes, repeat(0)):
                left = holders & among
                if left != among:
                    depths[among ^ left] = depth
                    if not left:
                        return depths
                    among = left
                depth += size
            parent = hashes[-1]
        depths[among] = depth
        return depths


def _fewest(one: dict[int, int], other: dict[int, int], asked: int) -> dict[int, int]:
    """Endpoints that store blocks of two groups hold what both hold; those of one group only keep theirs."""
    both: dict[int, int] = {}
    rest = asked
    for slots, depth in one.items():
        for again, depth_again in other.items():
            if common := slots & again:
                both[common] = min(depth, depth_again)
                rest &= ~common
        if alone := slots & ~asked:
            both[alone] = depth
    for slots, depth in other.items():
        if alone := slots & rest:
            both[alone] = depth
    return both


def _extras(extras: Any, adapter: str | None) -> Any:
    """What keeps a block apart besides the adapter, in which its chain begins."""
    kept = [one for one in extras if one != adapter] if isinstance(extras, list | tuple) else extras
    return kept or None
