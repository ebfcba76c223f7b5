"""Policies by name, each with the memory of prompts that it was designed for: ours, and its rivals as their makers ship them.

`configuration.py` puts one together from Kthena's file; `hekla route replay` compares these.
"""

from collections.abc import Callable
from dataclasses import dataclass

from hekla.serving.router.choosing import Chain, Dice, Policy
from hekla.serving.router.endpoints import Fleet
from hekla.serving.router.policies.kv_cache_usage import KvCacheUsage
from hekla.serving.router.policies.least_latency import LeastLatency
from hekla.serving.router.policies.least_request import LeastRequest
from hekla.serving.router.policies.prefix import Prefix
from hekla.serving.router.policies.prefix_affinity import PrefixAffinity
from hekla.serving.router.policies.random import Random
from hekla.serving.router.policies.round_robin import RoundRobin
from hekla.serving.router.policies.soonest import Soonest
from hekla.serving.router.policies.token_load import TokenLoad
from hekla.serving.router.pool import Pool
from hekla.serving.router.prefix.blocks import BLOCK_BYTES, MOST_BLOCKS


@dataclass(frozen=True, kw_only=True)
class Sight:
    """How much of prompts a policy's memory sees and keeps."""

    block_bytes: int = BLOCK_BYTES
    most_blocks: int = MOST_BLOCKS
    capacity: int = 4096
    """Blocks per endpoint, where its cache's size is not known or not followed."""
    follows_cache: bool = True
    """Whether it is sized from what an engine tells of its cache."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the pools of a router choose."""

    name: str
    make: Callable[[], Policy]
    """A policy for one pool; some remember whose turn it is."""
    sight: Sight = Sight()

    def pool(self, name: str, fleet: Fleet, dice: Dice) -> Pool:
        """A new pool that chooses so."""
        pool = Pool(name, fleet, self.make(), dice)
        self.apply(pool)
        return pool

    def apply(self, pool: Pool) -> None:
        """Have a pool choose so from now on; what it remembers of prompts stays, if it is of the same blocks."""
        sight = self.sight
        pool.policy = self.make()
        pool.see(sight.block_bytes, sight.most_blocks, follows_cache=sight.follows_cache)
        pool.index.capacity = sight.capacity


KTHENA_SIGHT = Sight(block_bytes=64, most_blocks=128, capacity=50_000, follows_cache=False)
"""8 KiB of a prompt."""
LLM_D_SIGHT = Sight(block_bytes=256, most_blocks=2048, capacity=31_250, follows_cache=False)
"""131,072 tokens in blocks of 64, 31,250 of them per server."""
LLM_D_RATE = 15_928.0
"""peakPrefillThroughput as it is shipped, tokens per second."""


def seen_tokens(sight: Sight) -> float:
    """Tokens of a prompt that a memory can see."""
    return sight.block_bytes * sight.most_blocks / 4


def kthena() -> Chain:
    """As Kthena's chart installs it."""
    return Chain(
        filters=(LeastRequest(),),
        scorers=(
            (LeastRequest(), 1.0),
            (KvCacheUsage(), 1.0),
            (LeastLatency(), 1.0),
            (Prefix(seen_tokens=seen_tokens(KTHENA_SIGHT)), 1.0),
        ),
    )


def llm_d() -> Chain:
    """Sticky until saturated, then by load in tokens."""
    return Chain(filters=(PrefixAffinity(rate=LLM_D_RATE),), scorers=((TokenLoad(), 1.0),))


RECIPES = {
    one.name: one
    for one in (
        Recipe(name="soonest", make=Soonest),
        Recipe(name="round-robin", make=RoundRobin),
        Recipe(name="random", make=lambda: Chain(scorers=((Random(), 1.0),))),
        Recipe(name="kthena", make=kthena, sight=KTHENA_SIGHT),
        Recipe(name="longest-prefix", make=lambda: Chain(scorers=((Prefix(top_k=1 << 30, rounds=False), 1.0),))),
        Recipe(name="llm-d", make=llm_d, sight=LLM_D_SIGHT),
    )
}
"""By name; the first is the default."""
DEFAULT = RECIPES["soonest"]
