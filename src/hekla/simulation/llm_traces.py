"""Traces of LLM requests: Mooncake's with the blocks that prompts share, Azure's with lengths alone, at any pace.

A block of a trace has an id in place of its text; equal ids mean equal text. `prompt_bytes` makes text of them, four bytes
a token, so that a router sees prompts of the right length that begin alike where they should.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

BLOCK_TOKENS = 512
"""Of Mooncake's traces; an Azure request has as many blocks of its own."""
BYTES_PER_TOKEN = 4


class TraceError(ValueError):
    """A file that is no trace of requests; the sentence says where."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a trace."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    """Ids of the prompt's blocks, the last of which may not be whole."""

    def prompt_bytes(self) -> bytes:
        """Text for the router: the same for the same blocks."""
        repeats = BLOCK_TOKENS * BYTES_PER_TOKEN // 8
        text = b"".join((one & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "big") * repeats for one in self.blocks)
        return text[: self.prompt_tokens * BYTES_PER_TOKEN]

    def whole_blocks(self) -> tuple[int, ...]:
        """Ids of the blocks that an engine can cache."""
        return self.blocks[: self.prompt_tokens // BLOCK_TOKENS]


def read_trace(lines: Sequence[str]) -> list[Turn]:
    """A trace of either kind, in the order of its times. Raises TraceError."""
    first = next((line for line in lines if line.strip()), "")
    if first.startswith("{"):
        turns = list(_mooncake(lines))
    elif {"TIMESTAMP", "ContextTokens", "GeneratedTokens"} <= set(first.strip().split(",")):
        turns = list(_azure(lines))
    else:
        raise TraceError(
            "the first line is neither JSON with timestamp, input_length, output_length and hash_ids (Mooncake) "
            "nor the header TIMESTAMP,ContextTokens,GeneratedTokens (Azure)"
        )
    turns.sort(key=lambda one: one.at_s)
    if not turns:
        raise TraceError("the trace has no requests")
    start_s = turns[0].at_s
    return [replace(one, at_s=one.at_s - start_s) for one in turns]


def _mooncake(lines: Iterable[str]) -> Iterator[Turn]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            said = json.loads(line)
            blocks = tuple(int(one) for one in said["hash_ids"])
            yield _turn(float(said["timestamp"]) / 1000, said["input_length"], said["output_length"], blocks)
        except KeyError as missing:
            raise TraceError(
                f"line {number} has no {missing.args[0]}; a request is "
                '{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}'
            ) from None
        except (ValueError, TypeError) as error:
            raise TraceError(f"line {number}: {error}") from None


def _azure(lines: Iterable[str]) -> Iterator[Turn]:
    for number, row in enumerate(csv.DictReader(lines), 1):
        try:
            at = datetime.fromisoformat(row["TIMESTAMP"].strip()[:26])
            tokens = int(row["ContextTokens"])
            count = -(-tokens // BLOCK_TOKENS)
            blocks = tuple(-(number << 16) - place for place in range(1, count + 1))  # nobody else's
            yield _turn((at - datetime(2023, 1, 1)).total_seconds(), tokens, int(row["GeneratedTokens"]), blocks)  # noqa: DTZ001  # the trace's times are of no zone, and only differences count
        except (ValueError, KeyError, TypeError, AttributeError):
            said = ",".join(str(one) for one in row.values())
            raise TraceError(
                f'line {number + 1}: "{said}" is no request; one is a time and two whole numbers: 2023-11-16 18:15:46.68,374,44'
            ) from None


def _turn(at_s: float, prompt: int, output: int, blocks: tuple[int, ...]) -> Turn:
    return Turn(at_s, max(1, int(prompt)), max(1, int(output)), blocks)


def ideal_hits(turns: Iterable[Turn]) -> float:
    """The share of prompt tokens that one cache without end would have: no policy can do better."""
    known: set[int] = set()
    hits = tokens = 0
    for turn in turns:
        whole, most = turn.whole_blocks(), (turn.prompt_tokens - 1) // BLOCK_TOKENS
        found = 0
        for one in whole[:most]:
            if one not in known:
                break
            found += 1
        hits += found * BLOCK_TOKENS
        tokens += turn.prompt_tokens
        known.update(whole)
    return hits / max(1, tokens)


def pace_for(turns: Sequence[Turn], tokens_per_s: float) -> float:
    """How many times as fast the trace must run to offer so many prompt tokens a second that no cache would have."""
    uncached = (1 - ideal_hits(turns)) * sum(one.prompt_tokens for one in turns)
    return tokens_per_s * max(turns[-1].at_s, 1.0) / max(1.0, uncached)
