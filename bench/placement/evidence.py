"""Do the benches' worlds ask every plug-in, and every term? How many decisions would be others without each.

    python -m bench.placement.evidence [nodes]

Terms of scores and filters: of the nodes that were chosen, in the same history, how many would be others without the term.
Plug-ins of the default configuration: how many decisions of a contended cycle come out otherwise without it.
"""

import sys
from collections import Counter
from collections.abc import Sequence

from bench.placement import CASES, Case, worlds
from bench.placement.measure import USUAL, Fill, decisions, warmed
from bench.placement.oracle import verdict_on

PODS = 600


def terms(nodes: int, cases: Sequence[Case] = CASES) -> dict[str, Counter[str]]:
    """By case, how many choices each term and filter decides; under "compared" how many there were."""
    found = {}
    for case in cases:
        made = warmed(nodes, **case.details)
        case.fill(made, case.number(PODS, nodes))
        verdict = verdict_on(made, tells_terms=True)
        found[case.name] = Counter(compared=verdict.compared, **verdict.changed)
    return found


def plug_ins(nodes: int) -> dict[str, tuple[int, int]]:
    """By plug-in, how many decisions differ without it, of how many."""
    found = {}
    for name in (name for tier in worlds.PLUGINS for name in tier):
        fill, count, actions = _asks(name, nodes)
        whole, without = (_decided(nodes, left_out, fill, count, actions) for left_out in ("", name))
        found[name] = len(whole ^ without), len(whole)
    return found


def _asks(name: str, nodes: int) -> tuple[Fill, int, Sequence[str]]:
    """The work that asks a plug-in."""
    return (
        (worlds.guarded, nodes * 6 // 10, (*USUAL, "preempt"))
        if name == "conformance"
        else (worlds.contended, 4 * nodes, USUAL)
    )


def _decided(nodes: int, without: str, fill: Fill, count: int, actions: Sequence[str]) -> set[tuple[str, str]]:
    made = warmed(nodes, plugins=[[name for name in tier if name != without] for tier in worlds.PLUGINS])
    fill(made, count)
    return set(decisions(made, actions))


def main() -> int:
    """Print both tables."""
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    for case, counts in terms(nodes).items():
        told = ", ".join(f"{name} {number}" for name, number in counts.most_common() if name != "compared")
        print(f"  {case:<32} of {counts['compared']:,} nodes chosen others without: {told}")
    for name, (differ, of) in plug_ins(nodes).items():
        print(f"  without {name:<24} {differ:,} decisions differ, of {of:,}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
