"""What an engine tells: tokens and ends of requests, and, where asked for, which blocks its cache gains and loses."""

from enum import StrEnum

from msgspec import Struct


class Reason(StrEnum):
    """Why a request ended, in vLLM's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class Emission(Struct, frozen=True, gc=False):
    """Tokens that a request gained at the end of a step."""

    at_s: float
    request: str
    tokens: int
    is_first: bool = False
    written: tuple[int, ...] = ()
    """Which tokens, where the engine has a writer."""


class Ending(Struct, frozen=True, gc=False):
    """A request that is over, and its times."""

    at_s: float
    request: str
    reason: Reason
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    arrived_s: float
    scheduled_s: float
    first_token_s: float
    preemptions: int = 0


Happening = Emission | Ending


class BlockStored(Struct, frozen=True, gc=False):
    """Blocks that can be reused from now on."""

    hashes: tuple[int, ...]
    parent: int | None
    tokens: tuple[int, ...]
    block_size: int
    lora: str = ""


class BlockRemoved(Struct, frozen=True, gc=False):
    """Blocks that were given to other content."""

    hashes: tuple[int, ...]


class AllBlocksCleared(Struct, frozen=True, gc=False):
    """The cache was emptied."""


BlockEvent = BlockStored | BlockRemoved | AllBlocksCleared
