"""Serve a simulated LLM engine that speaks vLLM's HTTP API, metrics and KV events, where no engine is installed.

Batching, chunked prefill, the paged cache, adapters and the time of every step are those of a real engine; its text is
noise. It takes vLLM's own flags: those that change what it simulates are obeyed, others are passed over with a warning.

Examples:

  hekla engine --model Qwen/Qwen3-32B --port 8000

  hekla engine --model m --port 0 --block-size 16 --num-gpu-blocks-override 4096 --max-num-seqs 64

  hekla engine --model m --enable-lora --lora-modules sql=/adapters/sql

  hekla engine --model m --kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557"}'
"""

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from hekla.app.engine.settings import EngineSettings
from hekla.app.settings import docstrings_of

if TYPE_CHECKING:
    from hekla.app.engine.process import Addresses
    from hekla.app.engine.settings import KvEvents, SpeculativeConfig

SEVERAL_WORDS = ("--served-model-name", "--lora-modules")
"""Flags behind which vLLM takes as many words as stand there."""


class VllmCommand(TyperCommand):
    """Takes several words behind one flag, as vLLM's parser does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """With the flag before each of its words."""
        return super().parse_args(ctx, list(_each_with_its_flag(args)))


def _each_with_its_flag(words: Iterable[str]) -> Iterator[str]:
    flag, count = "", 0
    for word in words:
        if word.startswith("--"):
            flag, count = word if word in SEVERAL_WORDS else "", 0
        else:
            if flag and count:
                yield flag
            count += 1
        yield word


OPTIONS = {
    "cls": VllmCommand,
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
}
HELP = docstrings_of(EngineSettings)
DEFAULT = EngineSettings()
Config = TypeVar("Config")


def run(
    context: typer.Context,
    model: Annotated[str, typer.Option("--model", help=HELP["model"])] = DEFAULT.model,
    served_model_name: Annotated[
        list[str] | None, typer.Option("--served-model-name", help=HELP["served_model_names"], show_default=False)
    ] = None,
    host: Annotated[str, typer.Option("--host", help=HELP["host"])] = DEFAULT.host,
    port: Annotated[int, typer.Option("--port", help=HELP["port"])] = DEFAULT.port,
    max_model_len: Annotated[int, typer.Option("--max-model-len", help=HELP["max_model_len"])] = DEFAULT.max_model_len,
    block_size: Annotated[int, typer.Option("--block-size", help=HELP["block_size"])] = DEFAULT.block_size,
    num_blocks: Annotated[int, typer.Option("--num-gpu-blocks-override", help=HELP["num_blocks"])] = DEFAULT.num_blocks,
    max_num_seqs: Annotated[int, typer.Option("--max-num-seqs", help=HELP["max_num_seqs"])] = DEFAULT.max_num_seqs,
    max_num_batched_tokens: Annotated[
        int, typer.Option("--max-num-batched-tokens", help=HELP["max_num_batched_tokens"])
    ] = DEFAULT.max_num_batched_tokens,
    enable_prefix_caching: Annotated[
        bool,
        typer.Option("--enable-prefix-caching/--no-enable-prefix-caching", help=HELP["enable_prefix_caching"]),
    ] = DEFAULT.enable_prefix_caching,
    enable_lora: Annotated[bool, typer.Option("--enable-lora", help=HELP["enable_lora"])] = DEFAULT.enable_lora,
    lora_modules: Annotated[
        list[str] | None, typer.Option("--lora-modules", help=HELP["lora_modules"], show_default=False)
    ] = None,
    max_loras: Annotated[int, typer.Option("--max-loras", help=HELP["max_loras"])] = DEFAULT.max_loras,
    kv_events_config: Annotated[
        str, typer.Option("--kv-events-config", help=HELP["kv_events"], show_default=False)
    ] = "",
    speculative_config: Annotated[
        str, typer.Option("--speculative-config", help=HELP["speculative"], show_default=False)
    ] = "",
    time_scale: Annotated[float, typer.Option("--time-scale", help=HELP["time_scale"])] = DEFAULT.time_scale,
    mean_output_tokens: Annotated[
        int, typer.Option("--mean-output-tokens", help=HELP["mean_output_tokens"])
    ] = DEFAULT.mean_output_tokens,
    seed: Annotated[int, typer.Option("--seed", help=HELP["seed"])] = DEFAULT.seed,
    startup_s: Annotated[float, typer.Option("--startup-s", help=HELP["startup_s"])] = DEFAULT.startup_s,
    grace_s: Annotated[float, typer.Option("--grace-s", help=HELP["grace_s"])] = DEFAULT.grace_s,
    log_level: Annotated[str, typer.Option("--log-level", help=HELP["log_level"])] = DEFAULT.log_level,
) -> None:
    """Run an engine."""
    from hekla.app.engine.settings import EngineSettingsError
    from hekla.cli.main import EXIT_USAGE, CommandError

    model = _model_of(context.args, model)
    try:
        settings = EngineSettings(
            model=model, served_model_names=tuple(served_model_name or ()), host=host, port=port,
            max_model_len=max_model_len, block_size=block_size, num_blocks=num_blocks, max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens, enable_prefix_caching=enable_prefix_caching,
            enable_lora=enable_lora, lora_modules=tuple(map(_adapter, lora_modules or ())), max_loras=max_loras,
            kv_events=_kv_events(kv_events_config), speculative=_speculative(speculative_config),
            time_scale=time_scale, mean_output_tokens=mean_output_tokens, seed=seed, startup_s=startup_s,
            grace_s=grace_s, log_level=log_level,
        )  # fmt: skip
        _serve(settings)
    except EngineSettingsError as error:
        raise CommandError(str(error), EXIT_USAGE) from None


def _serve(settings: EngineSettings) -> None:
    from hekla.app.engine.process import run_engine

    def ready(addresses: "Addresses") -> None:
        typer.echo(f"engine of {settings.names[0]}: http://{settings.host}:{addresses.port}")
        if addresses.kv_events:
            typer.echo(f"KV events: {addresses.kv_events} {addresses.kv_replays}".rstrip())

    run_engine(settings, ready)


def _model_of(words: list[str], model: str) -> str:
    """The model, which may stand first as in `vllm serve MODEL`; flags of vLLM that change nothing here are named."""
    passed_over = [word.partition("=")[0] for word in words if word.startswith("-")]
    if passed_over:
        typer.echo(f"hekla engine: passed over, as they change nothing here: {' '.join(passed_over)}", err=True)
    return words[0] if words and not words[0].startswith("-") and model == DEFAULT.model else model


def _adapter(text: str) -> tuple[str, str]:
    """NAME=PATH, or vLLM's JSON with name and path."""
    from hekla.app.engine.settings import EngineSettingsError

    if text.startswith("{"):
        said = _json("--lora-modules", text)
        name, path = str(said.get("name", "")), str(said.get("path", ""))
    else:
        name, _, path = text.partition("=")
    if not name or not path:
        problem = f"--lora-modules '{text}' is neither NAME=PATH nor an object of JSON with name and path; several are words of their own"
        raise EngineSettingsError(problem)
    return name, path


def _kv_events(text: str) -> "KvEvents":
    from hekla.app.engine.settings import KvEvents

    return _config("--kv-events-config", text, KvEvents)


def _speculative(text: str) -> "SpeculativeConfig":
    from hekla.app.engine.settings import SpeculativeConfig

    return _config("--speculative-config", text, SpeculativeConfig)


def _config(flag: str, text: str, kind: type[Config]) -> Config:
    import msgspec

    from hekla.app.engine.settings import EngineSettingsError

    try:
        return msgspec.convert(_json(flag, text), kind) if text else kind()
    except msgspec.ValidationError as error:
        raise EngineSettingsError(f"{flag}: {error}") from None


def _json(flag: str, text: str) -> dict[str, Any]:
    from hekla.app.engine.settings import EngineSettingsError

    try:
        said = json.loads(text)
    except ValueError as error:
        raise EngineSettingsError(f"{flag} is not JSON: {error}") from None
    if not isinstance(said, dict):
        raise EngineSettingsError(f"{flag} is not an object")
    return said
