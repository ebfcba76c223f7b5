"""Prefer engines that were sent prompts with the same beginning: Kthena's `prefix-cache`.

    score = tokens of the prompt that it holds / tokens of the prompt * 100, for the best few; 0 for the others

Alone it sends every request that shares a system prompt to one engine; it wants a score of load beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hekla.serving.router.choosing import Look
from hekla.serving.router.endpoints import Endpoint


@dataclass(frozen=True, kw_only=True)
class Prefix:
    """By the longest match; `prefix/` has the memory."""

    top_k: int = 5
    """`topKMatches`: how many engines get a score."""
    seen_tokens: float = float("inf")
    """What the memory can see of a prompt; Kthena's sees 8 KiB."""
    rounds: bool = True
    """Whether scores are whole numbers, as Kthena's: less than a hundredth of a prompt is nothing then."""

    name = "prefix-cache"
    wants_prefix = True

    def scores(self, look: Look, candidates: Sequence[Endpoint]) -> Sequence[float]:
        """The share that is held, in percent."""
        seen = max(1.0, min(look.tokens, self.seen_tokens))
        shares = [look.matched[one.slot] / seen for one in candidates]
        least = sorted(shares, reverse=True)[: self.top_k][-1] if shares else 0.0
        scores = [min(100.0, share * 100) if share >= least else 0.0 for share in shares]
        return [int(score) for score in scores] if self.rounds else scores
