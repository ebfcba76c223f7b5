"""What the garbage collector looks at while a platform serves: little at a time, and everything only when nobody waits."""

import subprocess
import sys

import pytest

from hekla.app.collecting import ENOUGH, LOOK_EVERY_S, LOOKS, MOST, Housekeeping

OLD = (700, 10, 10)


class PaperCollector:
    """Counts what is asked of it."""

    def __init__(self):
        self.callbacks, self.threshold, self.asked = [], OLD, []

    def collect(self):
        self.asked.append("collect")
        return 0

    def freeze(self):
        self.asked.append("freeze")

    def unfreeze(self):
        self.asked.append("unfreeze")

    def get_threshold(self):
        return self.threshold

    def set_threshold(self, *threshold):
        self.threshold = threshold

    def looks(self, count, generation=0):
        for _ in range(count):
            for callback in self.callbacks:
                callback("start", {"generation": generation, "collected": 0, "uncollectable": 0})
                callback("stop", {"generation": generation, "collected": 0, "uncollectable": 0})


@pytest.fixture
def paper():
    return PaperCollector()


def test_what_outlived_a_few_looks_is_set_aside(paper):
    with Housekeeping(paper).kept():
        assert paper.asked == ["collect", "freeze"], "what start-up made"
        paper.looks(LOOKS - 1)
        assert paper.asked == ["collect", "freeze"]
        paper.looks(1)
        assert paper.asked == ["collect", "freeze", "freeze"]
        paper.looks(LOOKS, generation=1)
        assert len(paper.asked) == 3, "others are none of its looks"


@pytest.mark.parametrize(
    ("aside", "share", "is_whole"),
    [(ENOUGH, 0.01, True), (ENOUGH - 1, 0.0, False), (ENOUGH, 0.5, False), (MOST, 0.5, True)],
    ids=["enough, and idle", "not worth it", "somebody waits", "worth it to anybody"],
)
def test_everything_is_looked_at_when_it_is_worth_it(paper, aside, share, is_whole):
    keeping = Housekeeping(paper)
    with keeping.kept():
        paper.looks(LOOKS * aside)
        paper.asked.clear()
        keeping.look(share * LOOK_EVERY_S)
        assert paper.asked == (["unfreeze", "collect", "freeze"] if is_whole else [])
        keeping.look(0.0)
        assert len(paper.asked) == 3 or aside < ENOUGH or not is_whole, "and then not again"


def test_the_collector_is_as_it_was_when_the_process_serves_no_more(paper):
    with Housekeeping(paper).kept():
        assert paper.threshold != OLD
    assert (paper.threshold, paper.callbacks) == (OLD, [])
    assert paper.asked[-1] == "unfreeze"


REAL = """
import gc
from hekla.app.collecting import ENOUGH, LOOKS, YOUNG, Housekeeping

class Cycle:
    alive = 0
    def __init__(self):
        self.me = self
        Cycle.alive += 1
    def __del__(self):
        Cycle.alive -= 1

keeping, seen = Housekeeping(), []
gc.callbacks.append(lambda phase, info: seen.append(info["generation"]))
with keeping.kept():
    seen.clear()
    kept = [Cycle()]
    while keeping._aside < ENOUGH:
        kept.append([])
    assert set(seen) == {0}, "never those that are old"
    assert len(kept) >= ENOUGH * LOOKS * YOUNG
    Cycle()
    del kept[0]
    spare = [[] for _ in range(2 * YOUNG)]
    assert Cycle.alive == 1, "the one that came and went is found; the one that is aside is not"
    keeping.look(0.0)
    assert Cycle.alive == 0, "until everything is looked at"
"""


def test_pythons_own_collector_does_what_is_meant():
    told = subprocess.run([sys.executable, "-c", REAL], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
