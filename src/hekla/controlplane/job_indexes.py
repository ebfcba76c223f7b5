"""Sets of completion indexes as a Job's status writes them: `0,2-4,7`."""

from collections.abc import Iterable

from hekla.api.pods import Pod

INDEX = "batch.kubernetes.io/job-completion-index"


def parse_indexes(text: str) -> set[int]:
    """The indexes that a text names; what is unreadable names none."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            found.update(range(int(first), int(last or first) + 1))
    return found


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
    text = pod.metadata.annotations.get(INDEX, "")
    return int(text) if text.isdigit() else None
