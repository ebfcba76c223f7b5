"""See where the router sends requests, and why: replay a trace under several policies, explain one decision.

`hekla route COMMAND --help` tells more about each.

Examples:

  hekla route replay mooncake-conversation.jsonl --replicas 8 --load 0.3

  hekla route explain mooncake-conversation.jsonl --request 5000

  hekla route explain --router http://127.0.0.1:15000 --body request.json
"""

from collections.abc import Sequence
from http import HTTPStatus
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from hekla.serving.router.recipes import Recipe
    from hekla.simulation.llm_traces import Turn
    from hekla.simulation.routing import Replayed

MOST_REPLICAS = 1024
BAR = "▁▂▃▄▅▆▇█"

Trace = Annotated[str, typer.Argument(metavar="TRACE", show_default=False)]
Replicas = Annotated[int, typer.Option("--replicas", min=1, max=MOST_REPLICAS, help="Engines behind the router.")]
Load = Annotated[
    float,
    typer.Option("--load", min=0.01, help="How much of their prefill rate the engines would need with perfect caches."),
]
Speed = Annotated[float, typer.Option("--speed", min=0, help="Requests come so many times as fast; 0: as --load says.")]
CacheTokens = Annotated[int, typer.Option("--cache-tokens", min=1024, help="KV cache of each engine, in tokens.")]
Config = Annotated[
    str, typer.Option("--config", help="A routerConfiguration.yaml: what it says decides.", show_default=False)
]
Form = Annotated[str, typer.Option("-o", "--output", help="json or yaml.", show_default=False)]


def replay(
    trace: Trace,
    replicas: Replicas = 8,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", help="A policy; may be repeated. All of them by default.", show_default=False),
    ] = None,
    config: Config = "",
    load: Load = 0.3,
    speed: Speed = 0.0,
    cache_tokens: CacheTokens = 1_024_000,
    requests: Annotated[int, typer.Option("--requests", min=0, help="Only the first so many; 0: all.")] = 0,
    output: Form = "",
) -> None:
    """Send a trace of LLM requests through simulated engines under several policies, by the router's own code.

    TRACE is a file of Mooncake (JSON lines with hash_ids) or Azure (CSV), plain or compressed with gzip. Time is virtual;
    engines are Qwen3-32B on two H100 each.

    Examples:

      hekla route replay mooncake-conversation.jsonl

      hekla route replay azure-2023-conv.csv --replicas 32 --policy soonest --policy llm-d
    """
    from hekla.cli.main import EXIT_USAGE, CommandError
    from hekla.cli.output import print_document
    from hekla.simulation.llm_traces import ideal_hits
    from hekla.simulation.routing import Replay

    recipes = _recipes(policy or [], config)
    if output not in ("", "json", "yaml"):
        raise CommandError(f'-o "{output}" is not known; use json or yaml', EXIT_USAGE)
    turns = _turns(trace, requests)
    pace, shape = speed or _speed(turns, replicas, load), _shape(cache_tokens)
    told = []
    for recipe in recipes:
        told.append(Replay(recipe, replicas, shape=shape).run(turns, pace))
        if not output:
            _print_one(told[-1], is_first=len(told) == 1, turns=turns, pace=pace)
    if output:
        facts = {"requests": len(turns), "replicas": replicas, "speed": pace, "idealHitRate": ideal_hits(turns)}
        print_document({**facts, "policies": [_facts(one) for one in told]}, output)


def explain(
    trace: Annotated[str, typer.Argument(metavar="[TRACE]", show_default=False)] = "",
    request: Annotated[int, typer.Option("--request", min=0, help="Which request of the trace, from 0.")] = 0,
    policy: Annotated[
        str, typer.Option("--policy", help="Who decides in the replay; ours by default.", show_default=False)
    ] = "",
    config: Config = "",
    replicas: Replicas = 8,
    load: Load = 0.3,
    speed: Speed = 0.0,
    cache_tokens: CacheTokens = 1_024_000,
    router: Annotated[
        str,
        typer.Option(
            "--router",
            help="Ask this router, at the URL of its debug port; else the one of `hekla up`.",
            show_default=False,
        ),
    ] = "",
    body: Annotated[
        str, typer.Option("--body", help="A file with the request's body; - reads stdin.", show_default=False)
    ] = "",
    path: Annotated[str, typer.Option("--path", help="Where the request would go.")] = "/v1/chat/completions",
    header: Annotated[
        list[str] | None,
        typer.Option("-H", "--header", help="A header of the request, NAME: VALUE.", show_default=False),
    ] = None,
    output: Form = "",
) -> None:
    """Show how an endpoint is chosen for one request: candidates, scores, the choice, the estimated time to first token.

    Either a request of a trace, after all before it were replayed, or a body that a running router is asked about; the
    router decides nothing by it.

    Examples:

      hekla route explain mooncake-synthetic.jsonl --request 1200 --policy llm-d

      hekla route explain --body request.json

      hekla route explain --router http://127.0.0.1:15000 --body request.json -H "x-user: ada"
    """
    from hekla.cli.main import EXIT_USAGE, CommandError
    from hekla.cli.output import print_document

    asks = bool(router or body)
    if bool(trace) == asks:
        raise CommandError("name a TRACE, or a request with --body (and a router with --router)", EXIT_USAGE)
    if asks:
        at, own = (router, []) if router else _own_router()
        told = _asked(at, path, _body(body), [*own, *(header or [])])
    else:
        told = _replayed(
            _turns(trace, 0),
            request,
            _recipes([policy] if policy else [], config)[0],
            replicas,
            load,
            speed,
            cache_tokens,
        )
    if output:
        print_document(told, output)
    else:
        _print_decision(told)


COMMANDS = {"replay": replay, "explain": explain}


def _recipes(names: "Sequence[str]", config: str) -> "list[Recipe]":
    """The policies that were named, and the one of a configuration; all that there are where none is."""
    from dataclasses import replace

    from hekla.cli.main import EXIT_USAGE, CommandError
    from hekla.serving.router.configuration import ConfigurationError, read_configuration
    from hekla.serving.router.recipes import RECIPES

    if unknown := [name for name in names if name not in RECIPES]:
        raise CommandError(f'--policy "{unknown[0]}" is not known; choose from {", ".join(RECIPES)}', EXIT_USAGE)
    found = [RECIPES[name] for name in names]
    if config:
        try:
            found.append(replace(read_configuration(Path(config).read_text(), config).recipe, name=Path(config).name))
        except OSError as error:
            raise CommandError(f"--config {config} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise CommandError(f"--config {config} cannot be read: it is no text in UTF-8") from None
        except ConfigurationError as error:
            raise CommandError(f"--config {error}") from None
    return found or list(RECIPES.values())


def _turns(file: str, most: int) -> "list[Turn]":
    import gzip
    import zlib

    from hekla.cli.main import CommandError
    from hekla.simulation.llm_traces import TraceError, read_trace

    try:
        data = Path(file).read_bytes()
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
        turns = read_trace(text.splitlines())
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror or error}") from None
    except (EOFError, zlib.error):
        raise CommandError(f"{file} is not whole: it begins as a gzip file and does not end as one") from None
    except UnicodeDecodeError:
        raise CommandError(f"{file} is no trace of LLM requests: it is no text") from None
    except TraceError as error:
        raise CommandError(f"{file} is no trace of LLM requests: {error}") from None
    return turns[:most] if most else turns


def _speed(turns: "Sequence[Turn]", replicas: int, load: float) -> float:
    from hekla.simulation.routing import speed_for

    return speed_for(turns, replicas, load)


def _shape(cache_tokens: int) -> Any:
    from dataclasses import replace

    from hekla.simulation.routing import QWEN3_32B

    return replace(QWEN3_32B, num_blocks=cache_tokens // QWEN3_32B.block_size)


def _print_one(one: "Replayed", *, is_first: bool, turns: "Sequence[Turn]", pace: float) -> None:
    from hekla.simulation.llm_traces import ideal_hits
    from hekla.simulation.routing import Slo

    slo = Slo()
    if is_first:
        typer.echo(
            f"{len(turns)} requests in {turns[-1].at_s / pace:.0f} s ({pace:.2f} times as fast as they came), "
            f"{one.replicas} replicas; the best that any cache could have: {ideal_hits(turns):.1%} hits"
        )
        typer.echo(
            f"goodput: first token within {slo.first_token_s:g} s and {slo.between_s * 1000:g} ms a token after it; "
            "load: the busiest replica over the mean"
        )
        typer.echo(
            f"{'POLICY':<16}{'TTFT P50':>10}{'P90':>9}{'P99':>9}{'HITS':>8}{'GOODPUT':>9}{'LOAD':>7}  BY REPLICA"
        )
    seconds = "".join(_seconds(one.first_token_s(p)).rjust(width) for p, width in ((50, 10), (90, 9), (99, 9)))
    typer.echo(
        f"{one.policy:<16}{seconds}{one.hit_rate:>8.1%}{one.goodput(slo):>9.1%}"
        f"{one.imbalance:>7.2f}  {_bars(one.busy_s)}{f'  {one.refused} refused' if one.refused else ''}"
    )


def _seconds(value: float) -> str:
    return f"{value:.2f}s" if isfinite(value) else "never"


def _rounded(value: float) -> float | None:
    """Null in JSON, which has no infinity, where so many were refused that it is never."""
    return round(value, 4) if isfinite(value) else None


def _bars(values: "Sequence[float]") -> str:
    """A bar for each, the tallest the largest."""
    most = max(values) or 1.0
    return "".join(BAR[round(value / most * (len(BAR) - 1))] for value in values[:64])


def _facts(one: "Replayed") -> dict[str, Any]:
    from hekla.simulation.routing import Slo

    return {
        "policy": one.policy,
        "ttftSeconds": {f"p{p}": _rounded(one.first_token_s(p)) for p in (50, 90, 99)},
        "interTokenSeconds": {f"p{p}": round(one.between_s(p), 5) for p in (50, 90, 99)},
        "hitRate": round(one.hit_rate, 4),
        "goodput": round(one.goodput(Slo()), 4),
        "refused": one.refused,
        "preemptions": one.preemptions,
        "busiestOverMean": round(one.imbalance, 4),
        "prefillBusiestOverMean": round(one.prefill_imbalance, 4),
        "busySeconds": [round(value, 2) for value in one.busy_s],
    }


def _replayed(
    turns: "Sequence[Turn]", number: int, recipe: "Recipe", replicas: int, load: float, speed: float, cache_tokens: int
) -> dict[str, Any]:
    from hekla.cli.main import EXIT_USAGE, CommandError
    from hekla.simulation.routing import Replay

    if number >= len(turns):
        raise CommandError(f"--request {number} is not in the trace: it has {len(turns)} requests, from 0", EXIT_USAGE)
    replay = Replay(recipe, replicas, shape=_shape(cache_tokens))
    return replay.explain(turns, number, speed or _speed(turns, replicas, load))


def _body(file: str) -> bytes:
    import sys

    from hekla.cli.main import EXIT_USAGE, CommandError

    if not file:
        raise CommandError("--router needs --body FILE, the request to ask about", EXIT_USAGE)
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise CommandError(f"--body {file} cannot be read: {error.strerror}") from None


def _own_router() -> tuple[str, list[str]]:
    """Where the router of the platform that the kubeconfig is of, or that runs here, tells what it knows, and the header that opens it."""
    import os

    from hekla.app.data_directory import DataDirectory
    from hekla.app.settings import default_data_dir
    from hekla.cli.main import EXIT_UNREACHABLE, CommandError

    directory = DataDirectory(Path(os.environ.get("KUBECONFIG", "")).absolute().parent)
    if not directory.router_debug.exists():
        directory = DataDirectory(default_data_dir().absolute())
    try:
        url = directory.router_debug.read_text().strip()
        key = directory.router_keys.read_text().splitlines()[0].partition(":")[2].strip()
    except (OSError, IndexError):
        where = f"no router runs on {directory.root}; start one with `hekla up --detach`, or name one with --router"
        raise CommandError(where, EXIT_UNREACHABLE) from None
    return url, [f"authorization: Bearer {key}"]


def _asked(router: str, path: str, body: bytes, headers: "Sequence[str]") -> dict[str, Any]:
    """Ask a running router; it answers what `explaining.explain` says."""
    import json
    import urllib.error
    import urllib.request
    from urllib.parse import quote

    from hekla.cli.main import EXIT_UNREACHABLE, EXIT_USAGE, CommandError

    if not router.startswith(("http://", "https://")):
        raise CommandError(f"--router {router} is no URL; give http://HOST:PORT of its debug port", EXIT_USAGE)
    url = f"{router.rstrip('/')}/debug/explain?path={quote(path, safe='')}"
    named = dict(line.partition(":")[::2] for line in headers)
    asked = urllib.request.Request(url, body, {name.strip(): value.strip() for name, value in named.items()})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=30) as answer:
            return dict(json.load(answer))
    except urllib.error.HTTPError as error:
        raise CommandError(
            f"the router refuses the request: {_said(error.read())}{_hint(error.code, router)}"
        ) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or error
        said = f"no router answers at {router}: {getattr(why, 'strerror', None) or why}; give the URL of its debug port"
        raise CommandError(said, EXIT_UNREACHABLE) from None


def _hint(status: int, router: str) -> str:
    """What to do about a refusal that is not of the question."""
    if status == HTTPStatus.UNAUTHORIZED:
        return "; give it with -H 'Authorization: Bearer KEY'"
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
        return f", unless {router} is a router's port for requests: --router wants its debug port"
    return ""


def _said(answer: bytes) -> str:
    """The message of an error in OpenAI's shape, else the text."""
    import json

    try:
        return str(json.loads(answer)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.decode("utf-8", "replace")[:500]


def _print_decision(told: dict[str, Any]) -> None:
    targets = [told, *told.get("otherTargets", ())]
    if "route" in told:
        shares = ", ".join(f"{one['share']:.0%} to {one['target']}" for one in targets)
        typer.echo(f"{told['route']} sends {told['model']} {shares}")
    for one in targets:
        if len(targets) > 1:
            typer.echo(f"\n{one['target']}, {one['share']:.0%} of the requests:")
        _print_engines(one)


def _print_engines(told: dict[str, Any]) -> None:
    """The engines of one target; of pairs, those of each role and what was paired. First what side-cars recorded of the prompt."""
    if "recorded" in told:
        typer.echo(_recorded_line(told["recorded"]))
    if "pair" not in told:
        _print_candidates(told)
        return
    if told["prefill"] is not None:
        _print_candidates(told["prefill"], "prefill ")
    _print_candidates(told, "decode ")
    pair = told["pair"]
    if pair is not None and pair["decode"]:
        typer.echo(f"the pair: {' or '.join(pair['prefill'])} prefills, {' or '.join(pair['decode'])} decodes")


def _recorded_line(recorded: dict[str, Any]) -> str:
    if "unknown" in recorded:
        return f"recorded in Redis: not known, {recorded['unknown']}"
    held = ", ".join(f"{pod} {blocks}" for pod, blocks in recorded["held"].items()) or "nobody holds the first"
    return f"recorded in Redis, of {recorded['blocks']} blocks: {held}"


def _print_candidates(told: dict[str, Any], role: str = "") -> None:
    from hekla.cli.counting import counted

    if told["candidates"]:
        typer.echo(
            f"{told['model']}: {told['tokens']} tokens, by {told['policy']} over {counted(len(told['candidates']), f'{role}endpoint')} "
            f"that {'prefills' if len(told['candidates']) == 1 else 'prefill'} {told['prefill_rate']:.0f} tokens/s"
            + (f"; answers have about {told['answer_tokens']} tokens" if told.get("answer_tokens") else "")
        )
        _print_table(told)
    typer.echo(told["because"])


ESTIMATES = (("then", "estimated_answer_s", "{:.3f}s"), ("drafts kept", "accepted_speculation", "{:.0%}"))
"""Columns behind the time to the first token: the rest of an answer of the usual length, and how many drafted tokens were right."""


def _print_table(told: dict[str, Any]) -> None:
    from hekla.cli.output import columns_text

    scores = list(dict.fromkeys(name for one in told["candidates"] for name in one["scores"]))
    facts = {"cached": "cached_tokens", "queued": "queued_tokens", "in flight": "in_flight"}
    if "queue" in scores:
        del facts["queued"]  # it is a part of the cost, and stands there
    # engines that do not speculate have no drafts, and a router of another version may not tell of either
    known = [one for one in ESTIMATES if any(engine.get(one[1]) is not None for engine in told["candidates"])]
    rows = [
        [
            ("* " if one["name"] == told["chosen"] or one["name"] in told["tied"] else "  ") + one["name"],
            *(one[name] for name in facts.values()), f"{one['estimated_ttft_s']:.3f}s",
            *("" if one.get(key) is None else form.format(one[key]) for _, key, form in known),
            *(one["scores"].get(name, "") for name in scores),
            one["refused"] or ("" if one["total"] is None else one["total"]),
        ]
        for one in told["candidates"]
    ]  # fmt: skip
    typer.echo(
        columns_text(["  endpoint", *facts, "est. ttft", *(name for name, _, _ in known), *scores, "total"], rows)
    )
