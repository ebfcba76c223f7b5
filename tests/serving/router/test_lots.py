"""Many requests that are over, in columns: the books tell of them what they tell of each by itself."""

import asyncio
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hekla.serving.router.access_log import AccessLog
from hekla.serving.router.exchange import CLIENT_LEFT
from hekla.serving.router.lots import Lot, RequestKind, joined
from hekla.serving.router.metrics import Metrics
from hekla.serving.router.plan import Destination
from serving.router import proxykit as kit

HEAD: Any = SimpleNamespace(method=b"POST", is_http_1_0=False)
PATHS = ("/v1/chat/completions", "/v1/completions")


def kind(dice: random.Random) -> RequestKind:
    model = f"m{dice.randrange(3)}"
    left, status = dice.random() < 0.2, dice.choice((200, 200, 400, 499))
    return RequestKind(
        Destination(model, f"ml/{model}", "model_server", "ml/s", "up"), dice.choice(PATHS), model, status,
        CLIENT_LEFT if left else None, dice.choice((0, status)), HEAD, f"pod-{dice.randrange(3)}",
    )  # fmt: skip


def lot(dice: random.Random) -> Lot:
    """Of every sort: told and not, streamed and not, that never began, that took no time, that end on a full second."""
    count, kinds = dice.randint(1, 40), [kind(dice) for _ in range(dice.randint(1, 6))]

    def ints(top: int) -> Any:
        return np.array([dice.randrange(top) for _ in range(count)])

    started = 1000.0 + np.array([dice.choice((0.0, 0.5, dice.random() * 4)) for _ in range(count)])
    first = np.array([dice.choice((0.0, one, one + dice.random())) for one in started])
    ended = np.maximum(started, first) + np.array([dice.choice((0.0, 0.0005, dice.random() * 9)) for _ in range(count)])
    is_counted = ints(2) > 0
    here, numbers = np.unique(ints(len(kinds)), return_inverse=True)
    return Lot(
        [kinds[one] for one in here], numbers, ints(1 << 40), b"0123456789ab", ints(10**6), ints(10**4) * is_counted, is_counted, ints(30),
        started, first, ended,
    )  # fmt: skip


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("seed", range(20))
def test_a_lot_is_counted_and_logged_as_each_of_it_would_be(tmp_path: Path, form: str, seed: int) -> None:
    dice = random.Random(seed)
    lots = [lot(dice) for _ in range(dice.randint(1, 3))]
    house: Any = SimpleNamespace(under_way=(), refused_early=0, beside=tuple)

    async def written(name: str, whole: bool) -> tuple[list[str], str]:
        books, log = Metrics(), AccessLog(form, str(tmp_path / name))
        if whole:
            one = joined(lots)
            log.add_lot(one, [books.rows[row] for row in books.fold_lot(one)], 5e8)
        else:
            batch = [one for each in lots for one in kit.singly(each)]
            log.add(batch, [books.rows[row] for row in books.fold(batch, list)], 5e8)
        await log.flushed()
        return sorted(books.text(house).decode().splitlines()), (tmp_path / name).read_text()

    together, apart = asyncio.run(written("lots", True)), asyncio.run(written("singly", False))
    assert without_sums(together[0]) == without_sums(apart[0])
    assert sums(together[0]) == pytest.approx(sums(apart[0]))
    assert together[1] == apart[1]


def without_sums(page: list[str]) -> list[str]:
    return [line for line in page if "_sum{" not in line]


def sums(page: list[str]) -> dict[str, float]:
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in page if "_sum{" in line}
