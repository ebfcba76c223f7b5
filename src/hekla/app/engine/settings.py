"""Every setting of `hekla engine`, named as vLLM names its own; a field's docstring is the flag's help."""

from dataclasses import dataclass, field, replace

import msgspec

from hekla.simulation.engine.shape import EngineShape, Speculation, StepTime


class EngineSettingsError(Exception):
    """A setting that cannot be; the sentence names it, its value and what would do."""


class KvEvents(msgspec.Struct, frozen=True):
    """`--kv-events-config`, as vLLM reads it."""

    enable_kv_cache_events: bool = False
    publisher: str = "null"
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""

    @property
    def is_on(self) -> bool:
        """Whether events go out."""
        return self.enable_kv_cache_events and self.publisher == "zmq"


class SpeculativeConfig(msgspec.Struct, frozen=True):
    """`--speculative-config`, as far as it changes a simulated engine."""

    num_speculative_tokens: int = 0
    method: str = ""
    model: str = ""
    acceptance: float = 0.7
    """Ours: the chance that a drafted token is right."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """The settings of one engine process."""

    model: str = "simulated"
    """The model that it says it serves; nothing is loaded."""

    served_model_names: tuple[str, ...] = ()
    """The name in the API, in place of the model's; more than one may be given."""

    host: str = "0.0.0.0"  # as vLLM: pods are reached from outside
    """Address to listen on."""

    port: int = 8000
    """Port to listen on; 0 picks one and prints it."""

    max_model_len: int = 32_768
    """Prompt and answer together, in tokens."""

    block_size: int = 16
    """Tokens of a block of the KV cache."""

    num_blocks: int = 8192
    """Blocks of the KV cache."""

    max_num_seqs: int = 256
    """Requests that run at the same time."""

    max_num_batched_tokens: int = 8192
    """Tokens of one step; longer prompts are cut into chunks."""

    enable_prefix_caching: bool = True
    """Whether blocks are reused."""

    enable_lora: bool = False
    """Whether adapters may be loaded."""

    lora_modules: tuple[tuple[str, str], ...] = ()
    """Adapters that are there from the start, NAME=PATH."""

    max_loras: int = 4
    """Adapters in one step."""

    kv_events: KvEvents = field(default_factory=KvEvents)
    """Where blocks are told of, in JSON."""

    speculative: SpeculativeConfig = field(default_factory=SpeculativeConfig)
    """Drafted tokens, in JSON."""

    step: StepTime = field(default_factory=StepTime)
    """How long a step takes."""

    time_scale: float = 1.0
    """Makes every step take so many times as long: 0.1 is ten times as fast."""

    mean_output_tokens: int = 64
    """How long answers are on average where the request sets no shorter limit."""

    seed: int = 0
    """Of the dice by which drafted tokens are right."""

    startup_s: float = 0.0
    """How long /health answers 503 first, as while a model loads."""

    grace_s: float = 30.0
    """How long requests that run may take to end after SIGTERM."""

    log_level: str = "info"
    """debug, info, warning or error."""

    def __post_init__(self) -> None:
        """Refuse what cannot be, by name and value."""
        for name in (
            "max_model_len",
            "block_size",
            "num_blocks",
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_loras",
        ):
            if getattr(self, name) < 1:
                raise EngineSettingsError(f"--{name.replace('_', '-')} is {getattr(self, name)}; it must be 1 or more")
        if not 0 <= self.port <= 65_535:
            raise EngineSettingsError(f"--port is {self.port}; a port lies between 0 (any) and 65535")
        if self.time_scale <= 0:
            raise EngineSettingsError(f"--time-scale is {self.time_scale:g}; it must be more than 0")
        if self.lora_modules and not self.enable_lora:
            raise EngineSettingsError("--lora-modules needs --enable-lora")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the model in the API, the first of which is shown."""
        return self.served_model_names or (self.model,)

    def shape(self) -> EngineShape:
        """What the simulator is to be."""
        scale, step = self.time_scale, self.step
        scaled = StepTime(
            fixed_s=step.fixed_s * scale, prefill_s=step.prefill_s * scale, decode_s=step.decode_s * scale,
            context_s=step.context_s * scale, attention_s=step.attention_s * scale, overlap=step.overlap,
        )  # fmt: skip
        base = EngineShape()
        drafted = Speculation(tokens=self.speculative.num_speculative_tokens, acceptance=self.speculative.acceptance)
        return replace(
            base, block_size=self.block_size, num_blocks=self.num_blocks, max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens, max_model_len=self.max_model_len,
            max_loras=self.max_loras, enable_prefix_caching=self.enable_prefix_caching, step=scaled,
            lora_load_s=base.lora_load_s * scale, transfer_s=base.transfer_s * scale, speculation=drafted,
        )  # fmt: skip
