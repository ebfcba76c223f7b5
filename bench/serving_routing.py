"""Routing policies on four traces of LLM requests: ours and its rivals', by the router's own code, in virtual time.

    python -m bench serving_routing                 8 replicas, all four traces
    python -m bench.serving_routing --whole         4, 8 and 32 replicas; --write puts tables and pictures into docs
    python -m bench.serving_routing --jitter 1      the same with arrivals moved by dice: how much of a lead is chance

Engines are Qwen3-32B on two H100 with a cache of a million tokens, simulated (`docs/explanation/engine-simulator.md`).
Each trace runs so fast that perfect caches would leave the replicas 30 % of their prefill rate to do. Rivals have the
defaults that their own documents give. Nothing here is timed: a busy machine gives the same figures.
"""

import argparse
import gzip
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isinf
from pathlib import Path
from typing import Any

from bench.plots import bars
from bench.report import Report, machine_lines
from hekla.serving.router.recipes import LLM_D_SIGHT, RECIPES, Recipe
from hekla.simulation.llm_traces import Turn, ideal_hits, read_trace
from hekla.simulation.routing import QWEN3_32B, Replay, Replayed, Slo, speed_for

DATA = Path(__file__).parent / "data" / "llm"
DOCS = Path(__file__).parents[1] / "docs" / "explanation"
TRACES = ("mooncake-conversation.jsonl", "mooncake-synthetic.jsonl", "azure-2023-code.csv", "azure-2023-conv.csv")
SIZED = replace(RECIPES["llm-d"], name="llm-d, sized", sight=replace(LLM_D_SIGHT, follows_cache=True))
"""llm-d's rule with a memory as large as the engines' caches, which its operator would have to work out."""
POLICIES = (
    RECIPES["soonest"],
    RECIPES["llm-d"],
    SIZED,
    *(RECIPES[name] for name in ("kthena", "longest-prefix", "round-robin")),
)
REPLICAS = (4, 8, 32)
LOAD = 0.3
JITTER_S = 2.0
"""By how much a jittered arrival is moved, on average: enough for other neighbours, too little for another hour."""


def trace(name: str) -> list[Turn]:
    return read_trace(gzip.decompress((DATA / f"{name}.gz").read_bytes()).decode().splitlines())


def jittered(turns: Sequence[Turn], seed: int) -> list[Turn]:
    """The same requests, each a little later than it came."""
    dice = random.Random(seed)
    moved = sorted(
        (replace(one, at_s=one.at_s + dice.expovariate(1 / JITTER_S)) for one in turns), key=lambda one: one.at_s
    )
    return [replace(one, at_s=one.at_s - moved[0].at_s) for one in moved]


def facts(one: Replayed) -> dict[str, Any]:
    return {
        "p50": one.first_token_s(50), "p90": one.first_token_s(90), "p99": one.first_token_s(99), "hits": one.hit_rate,
        "goodput": one.goodput(Slo()), "load": one.imbalance, "prefill": one.prefill_imbalance, "refused": one.refused,
        "between": one.between_s(50),
    }  # fmt: skip


def compared(
    report: Report,
    names: Sequence[str],
    replicas: Sequence[int],
    policies: Sequence[Recipe],
    load: float,
    blocks: int,
    jitter: int | None = None,
) -> list[dict[str, Any]]:
    """Every policy on every trace; rows as they come."""
    shape, rows = replace(QWEN3_32B, num_blocks=blocks), []
    for name in names:
        turns = trace(name)
        turns = turns[: report.scaled(len(turns))]
        turns = turns if jitter is None else jittered(turns, jitter)
        for count in replicas:
            speed = speed_for(turns, count, load, shape)
            told = {one.name: facts(Replay(one, count, shape=shape).run(turns, speed)) for one in policies}
            best = min(one["p90"] for policy, one in told.items() if policy != "soonest")
            for policy, one in told.items():
                row = {"trace": name.rpartition(".")[0], "replicas": count, "policy": policy, "speed": speed, **one}
                rows.append(row | {"ideal": ideal_hits(turns)})
            ours, title = told["soonest"], f"{name.rpartition('.')[0]}, {count} replicas"
            report.add(f"{title}: TTFT p90", ours["p90"], "s", baseline=best, note="the best rival's")
            note = f"ideal {100 * ideal_hits(turns):.1f}, busiest/mean {ours['load']:.2f}, goodput {100 * ours['goodput']:.1f} %"
            report.add(f"{title}: prefix hits", 100 * ours["hits"], "%", note=note)
    return rows


def run(report: Report) -> None:
    """B9: TTFT, hits and balance of the router's policies on four real traces."""
    compared(report, TRACES, (8,), POLICIES, LOAD, QWEN3_32B.num_blocks)


def table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Markdown, one table for each trace; the best of each column of its rows in bold."""
    for name in dict.fromkeys(row["trace"] for row in rows):
        own = [row for row in rows if row["trace"] == name]
        yield f"**{name}** (at best {100 * own[0]['ideal']:.1f} % hits)\n"
        yield "| replicas (pace) | policy | TTFT p50, s | p90 | p99 | hits | goodput | busiest/mean time | prefill | refused |"
        yield "|---|---|---|---|---|---|---|---|---|---|"
        for row in own:
            same = [one for one in own if one["replicas"] == row["replicas"]]
            cells = [_best(row, same, key, min) for key in ("p50", "p90", "p99")]
            cells += [f"{_best(row, same, key, max, 100)} %" for key in ("hits", "goodput")]
            cells += [f"{row['load']:.2f}", f"{row['prefill']:.2f}", str(row["refused"])]
            yield f"| {row['replicas']} (x{row['speed']:.1f}) | {row['policy']} | {' | '.join(cells)} |"
        yield ""


def _best(row: dict[str, Any], same: Sequence[dict[str, Any]], key: str, better: Any, scale: float = 1) -> str:
    if isinf(row[key]):
        return "never"
    text = f"{scale * row[key]:.{2 if scale == 1 else 1}f}"
    is_best = row[key] == better(one[key] for one in same) and len({one[key] for one in same}) > 1
    return f"**{text}**" if is_best else text


def draw(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Pictures by file name: the 90th percentile of TTFT at each number of replicas."""
    for count in dict.fromkeys(row["replicas"] for row in rows):
        own = [row for row in rows if row["replicas"] == count]
        names = list(dict.fromkeys(row["trace"] for row in own))
        groups = {
            policy: [
                next(row["p90"] for row in own if (row["policy"], row["trace"]) == (policy, name)) for name in names
            ]
            for policy in dict.fromkeys(row["policy"] for row in own)
        }
        short = [name.replace("mooncake-", "").replace("azure-2023-", "azure ") for name in names]
        yield f"routing-{count}.svg", bars(f"Time to first token, p90, {count} replicas", "seconds", short, groups)


def main() -> int:
    """Run this bench alone, and draw."""
    parser = argparse.ArgumentParser(prog="python -m bench.serving_routing", description=__doc__)
    parser.add_argument("--whole", action="store_true", help="4, 8 and 32 replicas")
    parser.add_argument("--replicas", type=int, action="append", default=[], help="so many; may be repeated")
    parser.add_argument("--trace", action="append", default=[], help="one trace by its file's name; may be repeated")
    parser.add_argument("--load", type=float, default=LOAD)
    parser.add_argument("--blocks", type=int, default=QWEN3_32B.num_blocks, help="of 512 tokens, in each cache")
    parser.add_argument("--jitter", type=int, help="move arrivals by dice of this seed, two seconds on average")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--write", action="store_true", help="write pictures into docs, and the tables to stdout")
    parser.add_argument("--rows", type=Path, action="append", default=[], help="take rows of earlier runs; run nothing")
    options = parser.parse_args()
    report = Report(Path.cwd())
    print("\n".join(machine_lines(report.directory)))
    replicas = options.replicas or (REPLICAS if options.whole else (8,))
    rows = [row for file in options.rows for row in json.loads(file.read_text())] or compared(
        report, options.trace or TRACES, replicas, POLICIES, options.load, options.blocks, options.jitter
    )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if options.write:
        print("\n".join(table(rows)))
        for name, picture in draw(rows):
            (DOCS / "pictures" / name).write_text(picture)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
