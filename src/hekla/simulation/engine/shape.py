"""How large an engine is and how fast: its limits, and the time that a step takes.

A step's time is `max(fixed, prefill) + decodes + context` on a GPU: a forward pass reads the weights once whatever it
computes, prompts cost by the token once they fill the machine, and each answer adds its row and the cache that it looks
back on. On a CPU nothing overlaps: `fixed + prefill + decodes + context`. The parameters come from measurements; `bench/serving_engine.py` fits them to a real vLLM and prints the error.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of one step; the defaults are Qwen3-32B on two H100, whose prefill peaks at 20,480 tokens/s."""

    fixed_s: float = 0.014
    """What the smallest step takes."""

    prefill_s: float = 1 / 20_480
    """For each prompt token computed in the step."""

    decode_s: float = 0.00006
    """For each answer that grows in the step."""

    context_s: float = 2.0e-8
    """For each cached token that the growing answers look back on."""

    attention_s: float = 0.0
    """For each pair of a prompt token and a cached token before it; what makes the end of a long prompt dearer."""

    overlap: float = 1.0
    """How much of the fixed part and the prompts' is done at the same time: 1 the longer of both, 0 one after the other."""

    def of(self, prefill: int, decodes: int, context: int, pairs: float = 0.0) -> float:
        """The time of a step."""
        work_s = prefill * self.prefill_s + pairs * self.attention_s
        both_s = self.fixed_s + work_s - self.overlap * min(self.fixed_s, work_s)
        return both_s + decodes * self.decode_s + context * self.context_s


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """Drafted tokens: how many are tried in a step, how likely each is right, and what trying costs."""

    tokens: int = 0
    """Drafted for each answer in each step; 0: none."""

    acceptance: float = 0.7
    """The chance that a drafted token is right, given that those before it were."""

    draft_s: float = 0.0
    """Time that each round of drafting adds to the step."""


@dataclass(frozen=True, kw_only=True)
class EngineShape:
    """An engine's limits, named as vLLM names them."""

    block_size: int = 16
    num_blocks: int = 62_500
    """Blocks of the KV cache; the default holds a million tokens."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int = 131_072
    max_loras: int = 4
    """Adapters that may be at work in one step."""

    enable_prefix_caching: bool = True
    lora_load_s: float = 0.05
    """What an adapter costs the step before which it comes into a slot."""

    transfer_s: float = 3e-6
    """For each token whose cache comes from another engine."""

    lease_s: float = 30.0
    """How long a prefill engine keeps blocks for the engine that is to fetch them."""

    step: StepTime = field(default_factory=StepTime)
    speculation: Speculation = field(default_factory=Speculation)

    @property
    def cache_tokens(self) -> int:
        """Tokens that the cache holds."""
        return self.block_size * self.num_blocks
