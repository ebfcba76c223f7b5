"""Tasks that came to a node of late: what they will use does not show in measurements yet.

Kept only while a plug-in asks for it (`usage` does), for as long as it asks; then a task costs an entry or two until
it has been there for that long.
"""

from collections.abc import Mapping

from hekla.placement.model import Task, TaskStatus

_NOBODY: Mapping[str, Task] = {}


class Arrivals:
    """By row, the tasks that came within a window, in the order in which they came."""

    def __init__(self) -> None:
        self.window_s = 0.0
        """How long an arrival is kept; 0 keeps none."""

        self._at: dict[int, dict[str, Task]] = {}
        self._came: dict[str, tuple[float, int]] = {}
        """When and where by uid, in the order in which they were noted."""

    def came(self, task: Task, row: int, at_s: float) -> None:
        """A task came to a row."""
        self._at.setdefault(row, {})[task.uid] = task
        self._came[task.uid] = (at_s, row)

    def left(self, task: Task, row: int) -> None:
        """A task left a row."""
        if self._came.pop(task.uid, None) is not None:
            self._drop(row, task.uid)

    def at(self, row: int) -> Mapping[str, Task]:
        """The tasks that came to a row of late, by uid, in the order in which they came."""
        return self._at.get(row, _NOBODY)

    def rows(self) -> list[int]:
        """The rows that tasks came to of late."""
        return list(self._at)

    def expire(self, now_s: float) -> list[int]:
        """Forget who has been running for longer than the window; the rows where that changes something."""
        rows = list[int]()
        for uid, (at_s, row) in list(self._came.items()):
            if self._at[row][uid].status < TaskStatus.RUNNING:
                self._came[uid] = (now_s, row)  # it has used nothing yet
            elif at_s + self.window_s <= now_s:
                del self._came[uid]
                self._drop(row, uid)
                rows.append(row)
        return rows

    def clear(self) -> None:
        """Forget everybody."""
        self._at.clear()
        self._came.clear()

    def _drop(self, row: int, uid: str) -> None:
        tasks = self._at[row]
        del tasks[uid]
        if not tasks:
            del self._at[row]
