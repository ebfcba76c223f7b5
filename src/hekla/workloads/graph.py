"""Whether things that wait for one another can ever start: tasks of a job, jobs of a flow."""

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter


def has_cycle(waits_for: Mapping[str, Iterable[str]]) -> bool:
    """Whether something waits, by whatever way round, for itself."""
    try:
        TopologicalSorter(waits_for).prepare()
    except CycleError:
        return True
    return False
