"""The engine's figures under vLLM's names, as Prometheus reads them."""

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from hekla.simulation.engine.buckets import BETWEEN_S, FIRST_TOKEN_S
from hekla.simulation.engine.engine import Engine
from hekla.simulation.engine.happenings import Emission, Ending, Happening, Reason

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
WHOLE_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
ITERATION = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)


class Histogram:
    """Counts by bucket."""

    def __init__(self, name: str, help_text: str, bounds: Sequence[float]) -> None:
        self.name = name
        self.help_text = help_text
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, labels: str) -> Iterator[str]:
        """Its text."""
        yield from _titled(self.name, self.help_text, "histogram")
        total = 0
        for bound, count in zip((*map(float, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{self.name}_bucket{{{labels},le="{bound}"}} {float(total)}'
        yield f"{self.name}_count{{{labels}}} {float(total)}"
        yield f"{self.name}_sum{{{labels}}} {self._sum}"


class EngineMetrics:
    """What an engine process counts beside the engine's own totals."""

    def __init__(self, model: str, *, max_loras: int | None) -> None:
        self._labels = f'model_name="{_escaped(model)}",engine="0"'
        self._engine_label = 'engine="0"'
        self._model = _escaped(model)
        self._max_loras = max_loras
        self._first = Histogram("vllm:time_to_first_token_seconds", "Time to first token in seconds.", FIRST_TOKEN_S)
        self._between = Histogram("vllm:inter_token_latency_seconds", "Inter-token latency in seconds.", BETWEEN_S)
        self._whole = Histogram("vllm:e2e_request_latency_seconds", "Request latency in seconds.", WHOLE_S)
        self._queued = Histogram("vllm:request_queue_time_seconds", "Time spent WAITING.", WHOLE_S)
        self._served = Histogram("vllm:request_inference_time_seconds", "Time spent RUNNING.", WHOLE_S)
        self._prefill = Histogram("vllm:request_prefill_time_seconds", "Time spent in PREFILL.", WHOLE_S)
        self._decode = Histogram("vllm:request_decode_time_seconds", "Time spent in DECODE.", WHOLE_S)
        self._prompt = Histogram("vllm:request_prompt_tokens", "Prefill tokens processed.", TOKENS)
        self._output = Histogram("vllm:request_generation_tokens", "Generation tokens processed.", TOKENS)
        self._iteration = Histogram("vllm:iteration_tokens_total", "Tokens of each engine step.", ITERATION)
        self._last_token_s: dict[str, float] = {}
        self._tokens_seen = 0

    def hear(self, happening: Happening) -> None:
        """Count what the engine tells."""
        if isinstance(happening, Emission):
            last = self._last_token_s.get(happening.request)
            if last is not None:
                self._between.observe((happening.at_s - last) / happening.tokens)
            self._last_token_s[happening.request] = happening.at_s
        elif isinstance(happening, Ending):
            self._last_token_s.pop(happening.request, None)
            if happening.reason is not Reason.ABORT:
                self._ended(happening)

    def forget(self, request: str) -> None:
        """A request was aborted."""
        self._last_token_s.pop(request, None)

    def step(self, engine: Engine) -> None:
        """A step has ended."""
        tokens = engine.totals.computed_tokens + engine.totals.generation_tokens
        if tokens > self._tokens_seen:
            self._iteration.observe(tokens - self._tokens_seen)
            self._tokens_seen = tokens

    def _ended(self, ending: Ending) -> None:
        self._first.observe(ending.first_token_s - ending.arrived_s)
        self._whole.observe(ending.at_s - ending.arrived_s)
        self._queued.observe(ending.scheduled_s - ending.arrived_s)
        self._served.observe(ending.at_s - ending.scheduled_s)
        self._prefill.observe(ending.first_token_s - ending.scheduled_s)
        self._decode.observe(ending.at_s - ending.first_token_s)
        self._prompt.observe(ending.prompt_tokens)
        self._output.observe(ending.output_tokens)

    def text(self, engine: Engine) -> bytes:
        """Everything, as /metrics answers it."""
        lines = [*self._gauges(engine), *self._counters(engine)]
        for one in (
            self._first, self._between, self._whole, self._queued, self._served, self._prefill, self._decode,
            self._prompt, self._output, self._iteration,
        ):  # fmt: skip
            lines += one.lines(self._labels)
        return ("\n".join(lines) + "\n").encode()

    def _gauges(self, engine: Engine) -> Iterator[str]:
        shape = engine.shape
        for name, help_text, value in (
            ("num_requests_running", "Number of requests in model execution batches.", len(engine.running)),
            ("num_requests_waiting", "Number of requests waiting to be processed.", len(engine.waiting)),
            ("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", engine.usage),
        ):
            yield from _titled(f"vllm:{name}", help_text, "gauge")
            yield f"vllm:{name}{{{self._labels}}} {float(value)}"
        yield from _titled("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", "gauge")
        yield (
            f'vllm:cache_config_info{{block_size="{shape.block_size}",num_gpu_blocks="{shape.num_blocks}",'
            f'enable_prefix_caching="{shape.enable_prefix_caching}",{self._engine_label}}} 1.0'
        )
        if self._max_loras is not None:
            running, waiting = (",".join(sorted(names)) for names in engine.loras())
            yield from _titled("vllm:lora_requests_info", "Running stats on lora requests.", "gauge")
            yield (
                f'vllm:lora_requests_info{{max_lora="{self._max_loras}",running_lora_adapters="{running}",'
                f'waiting_lora_adapters="{waiting}"}} {time.time()}'
            )

    def _counters(self, engine: Engine) -> Iterator[str]:
        totals = engine.totals
        rows = [
            (
                "prefix_cache_queries",
                "Prefix cache queries, in terms of number of queried tokens.",
                totals.prefix_queries,
            ),
            ("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", totals.prefix_hits),
            ("num_preemptions", "Cumulative number of preemption from the engine.", totals.preemptions),
            ("prompt_tokens", "Number of prefill tokens processed.", totals.prompt_tokens),
            ("generation_tokens", "Number of generation tokens processed.", totals.generation_tokens),
        ]
        if engine.shape.speculation.tokens:
            drafts = totals.drafted // engine.shape.speculation.tokens
            rows += [
                ("spec_decode_num_drafts", "Number of spec decoding drafts.", drafts),
                ("spec_decode_num_draft_tokens", "Number of draft tokens.", totals.drafted),
                ("spec_decode_num_accepted_tokens", "Number of accepted tokens.", totals.accepted),
            ]
        for name, help_text, value in rows:
            yield from _titled(f"vllm:{name}_total", help_text, "counter")
            yield f"vllm:{name}_total{{{self._labels}}} {float(value)}"
        yield from _titled("vllm:request_success_total", "Count of successfully processed requests.", "counter")
        for reason in Reason:
            count = float(totals.endings[reason])
            yield f'vllm:request_success_total{{{self._labels},finished_reason="{reason}"}} {count}'


def _titled(name: str, help_text: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {help_text}"
    yield f"# TYPE {name} {kind}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
