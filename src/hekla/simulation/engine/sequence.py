"""A request inside an engine: what was asked, and how far it is."""

from collections.abc import Sequence as Several
from typing import Protocol

from msgspec import Struct


class Ask(Struct, frozen=True):
    """What a request asks of an engine."""

    id: str
    prompt_tokens: int
    output_tokens: int
    """After how many tokens the answer ends."""

    hashes: Several[int] = ()
    """Of the prompt's whole blocks, each chained to those before it."""

    tokens: tuple[int, ...] = ()
    """The prompt, where block events are to carry it."""

    script: tuple[int, ...] = ()
    """The answer, where the request prescribes it."""

    lora: str = ""
    ends_by_itself: bool = False
    """Whether the answer ends with a stop token, and not by its limit."""

    is_remote: bool = False
    """The prompt's cache is fetched from the engine that computed it."""

    is_kept: bool = False
    """The prompt's cache is kept for another engine to fetch."""


class Writer(Protocol):
    """Writes the answers of an engine whose tokens matter, and names the blocks that they fill."""

    def token(self, ask: Ask, number: int) -> int:
        """The answer's token of that number, from 0."""

    def next_hash(self, parent: int | None, tokens: Several[int], lora: str) -> int:
        """The name of a block that holds these tokens after its parent."""


class Sequence:
    """A request on its way. Between steps `computed` tokens are in the cache, of `total` that are known."""

    __slots__ = (
        "answer", "arrived_s", "ask", "blocks", "cached", "computed", "first_token_s", "generated", "hashes", "learned",
        "preemptions", "scheduled_s", "was_counted", "was_fetched",
    )  # fmt: skip

    def __init__(self, ask: Ask, now: float) -> None:
        self.ask = ask
        self.arrived_s = now
        self.scheduled_s = -1.0
        self.first_token_s = -1.0
        self.computed = 0
        self.generated = 0
        self.cached = 0
        """Prompt tokens found in the cache when it was first scheduled."""
        self.preemptions = 0
        self.was_counted = False
        self.was_fetched = False
        self.blocks: list[int] = []
        self.learned = 0
        """Leading blocks that are findable, or that another block of the same content stands for."""
        self.hashes = list(ask.hashes)
        self.answer: list[int] = []

    @property
    def total(self) -> int:
        """Tokens known so far."""
        return self.ask.prompt_tokens + self.generated

    @property
    def is_done(self) -> bool:
        """Whether the answer is whole."""
        return self.generated >= self.ask.output_tokens

    def tokens_of(self, first: int, last: int) -> tuple[int, ...]:
        """The known tokens from one place up to another."""
        prompt = self.ask.prompt_tokens
        if last <= prompt:
            return self.ask.tokens[first:last]
        return (*self.ask.tokens[first:], *self.answer[max(0, first - prompt) : last - prompt])
