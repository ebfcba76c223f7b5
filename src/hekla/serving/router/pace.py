"""Learn how fast engines are from the answers that pass through: prefill rate, pace of answers, their length, bytes per token.

No calibration job and no scrape: a first byte that came t seconds after n uncached tokens were ahead of it is a sample n / t.
Samples weigh as much as their tokens, so that the overhead of short prompts does not count as slowness, and the median
forgives guesses about the cache that were wrong.
"""

from collections import deque

WINDOW = 64
"""Samples that are remembered."""
LEARN_EVERY = 16
"""Samples, once there are as many; sorting 64 takes 8 us."""
SHORTEST_TOKENS = 64
"""A prompt this short says nothing about the rate."""


class Pace:
    """What a pool's engines have shown, with assumptions until they have."""

    __slots__ = ("_fresh", "_samples", "answer_tokens", "bytes_per_token", "prefill_rate", "tpot_s")

    def __init__(self, prefill_rate: float = 8000.0, answer_tokens: float = 256.0) -> None:
        self.prefill_rate = prefill_rate
        """Tokens per second and endpoint."""
        self.answer_tokens = answer_tokens
        """The mean length of an answer."""
        self.tpot_s = 0.02
        """The mean time per token of an answer, after the first."""
        self.bytes_per_token = 4.0
        self._samples: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        self._fresh = 0

    def first_byte(self, tokens: int, seconds: float) -> None:
        """`tokens` were to be prefilled, this prompt's and those before it, and the first byte came `seconds` later."""
        if tokens < SHORTEST_TOKENS or seconds <= 0:
            return
        self._samples.append((tokens / seconds, tokens))
        self._fresh += 1
        if self._fresh >= LEARN_EVERY or len(self._samples) < LEARN_EVERY:
            self._fresh = 0
            self.prefill_rate = self._median()

    def ended(self, prompt_bytes: int, input_tokens: int, output_tokens: int, answering_s: float) -> None:
        """What the engine counted, and how long the answer took after its first byte."""
        if output_tokens > 0:
            self.answer_tokens += (output_tokens - self.answer_tokens) / 32
            if output_tokens > 1 and answering_s > 0:
                self.tpot_s += (answering_s / (output_tokens - 1) - self.tpot_s) / 32
        if input_tokens >= SHORTEST_TOKENS and prompt_bytes:
            seen = prompt_bytes / input_tokens
            self.bytes_per_token += ((1.0 if seen < 1.0 else 16.0 if seen > 16.0 else seen) - self.bytes_per_token) / 32

    def _median(self) -> float:
        """The rate that half of the tokens were prefilled at or faster."""
        ordered = sorted(self._samples)
        half = sum(tokens for _, tokens in ordered) / 2
        for rate, tokens in ordered:
            half -= tokens
            if half <= 0:
                return rate
        raise AssertionError("half of a sum is reached before its end")
