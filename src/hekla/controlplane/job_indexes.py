"""Sets of completion indexes as a Job's status writes them: `0,2-4,7`."""

from collections.abc import Iterable
from itertools import chain, islice

from hekla.api.pods import Pod
from hekla.lib.digits import whole_number

INDEX = "batch.kubernetes.io/job-completion-index"


MOST_INDEXES = 1_000_000
"""Of completed and of failed indexes, so many are kept apart; a status that names more was written by somebody else."""


def ranges_of(text: str) -> list[range]:
    """The runs that a text names, as they stand there; what is unreadable names none."""
    found = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        start, end = whole_number(first), whole_number(last if dash else first)
        if start is not None and end is not None:
            found.append(range(start, end + 1))
    return found


def parse_indexes(text: str) -> set[int]:
    """The indexes that a text names, up to MOST_INDEXES of them."""
    return set(islice(chain.from_iterable(ranges_of(text)), MOST_INDEXES))


def format_indexes(indexes: Iterable[int]) -> str:
    """The shortest text for a set of indexes; runs of three and more become ranges."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(_run(run) for run in runs)


def _run(run: list[int]) -> str:
    if len(run) == 1:
        return str(run[0])
    return f"{run[0]},{run[1]}" if len(run) == 2 else f"{run[0]}-{run[-1]}"


def index_of(pod: Pod) -> int | None:
    """The completion index of a pod; None if it has none."""
    return whole_number(pod.metadata.annotations.get(INDEX, ""))
