"""Equal pods that keep to nodes of their own: the best nodes, each once.

Where every pod of a run repels the others, and they all ask of no company but that, a pod that is placed changes nothing for
the next one except that its node is out. So the nodes that one pass over all of them finds best, in order, are what placing
the pods one after the other would find (`tests/properties/test_apart.py`), for a thousandth of the work.
"""

from collections.abc import Sequence

import numpy as np

from hekla.placement.bookkeeping.tallies import Selected, Tallies
from hekla.placement.columns import IdArray, Nodes
from hekla.placement.model import Task


def keep_apart(nodes: Nodes, tallies: Tallies, tasks: Sequence[Task]) -> bool:
    """Whether these tasks, of one shape and with the same pods against them, each close their node to the others."""
    first = tasks[0]
    wishes = first.shape.constraints
    if wishes.is_single or wishes.affinity or wishes.preferred_pods or wishes.spreads or wishes.ports:
        return False
    if wishes.exclusive_claims or wishes.unbound_claims or wishes.attaches or wishes.disks:
        return False
    if any(task.matched != first.matched for task in tasks):
        return False
    asked = {tallies.find(Selected(term.topology_key, term.selector)) for term in wishes.anti_affinity}
    closing = (asked | set(tallies.repelling(first))) & set(first.matched)
    return bool(closing) and all(_is_by_node(nodes, tallies, tally) for tally in closing if tally is not None)


def best_rows(quantised: IdArray, rank: IdArray, count: int) -> list[int]:
    """The rows with the best scores, ties by rank, best first; those that are not feasible are left out."""
    rows = np.flatnonzero(quantised >= 0)
    keys = (quantised[rows].astype(np.int64) << 32) | rank[rows]
    if len(rows) > count:
        some = np.argpartition(keys, len(rows) - count)[len(rows) - count :]
        rows, keys = rows[some], keys[some]
    ordered: list[int] = rows[np.argsort(keys)[::-1]].tolist()
    return ordered


def _is_by_node(nodes: Nodes, tallies: Tallies, tally: int) -> bool:
    """Whether every node is a domain of its own, or of none; found once per cycle while nodes stay what they are."""
    domains, _ = tallies.counts(tally)
    key = ("by node", nodes.version, id(domains))
    known: bool | None = nodes.notes.get(key)
    if known is None:
        named = domains[nodes.is_live & (domains >= 0)]
        # a node without the key repels nobody, so all must have it
        known = nodes.notes[key] = len(np.unique(named)) == len(named) == int(nodes.is_live.sum())
    return known
