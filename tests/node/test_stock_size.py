"""How many sandboxes a node keeps warm: what was missed is there the next time, never more than its memory allows, and not for ever."""

from hypothesis import given
from hypothesis import strategies as st

from hekla.node.runtimes.sandbox.stock_size import EACH_BYTES, KEPT_S, MOST, SHARE_OF_MEMORY, StockSize, most_of


def test_a_hundred_at_once_find_eight_the_first_time_and_a_hundred_the_next():
    stock = StockSize(least=8, most=128)
    for _ in range(100):
        stock.taken(now_s=5.0)
    assert stock.wanted == 100


def test_whoever_takes_one_after_the_other_misses_none():
    stock = StockSize(least=8, most=128)
    for _ in range(20):
        for _ in range(8):
            stock.taken(now_s=5.0)
        stock.filled()
    assert stock.wanted == 8


def test_what_nobody_missed_for_long_goes_by_halves():
    stock = StockSize(least=8, most=128)
    for _ in range(100):
        stock.taken(now_s=0.0)
    now, kept = 0.0, []
    while wait_s := stock.rest(now):
        now += wait_s
        kept.append(stock.wanted)
    assert kept == [100, 54, 31, 19, 13, 10, 9]
    assert (stock.wanted, now) == (8, 7 * KEPT_S)


def test_a_miss_meanwhile_keeps_the_others():
    stock = StockSize(least=8, most=128)
    for _ in range(9):
        stock.taken(now_s=0.0)
    stock.taken(now_s=KEPT_S - 1)
    assert stock.rest(KEPT_S) == KEPT_S - 1
    assert stock.wanted == 10


def test_where_none_are_to_be_kept_none_are():
    stock = StockSize(least=0, most=128)
    stock.taken(now_s=0.0)
    assert stock.wanted == 0


@given(
    least=st.integers(0, 20),
    memory=st.integers(0, 1 << 40),
    acts=st.lists(st.tuples(st.booleans(), st.floats(0, 2 * KEPT_S)), max_size=200),
)
def test_it_is_never_less_than_the_least_nor_more_than_the_memory_allows(least, memory, acts):
    stock, now = StockSize(least, most_of(memory)), 0.0
    for is_taken, later_s in acts:
        now += later_s
        stock.taken(now) if is_taken else stock.rest(now)
        assert least <= stock.wanted <= max(least, MOST)
        assert stock.wanted == least or stock.wanted * EACH_BYTES * SHARE_OF_MEMORY <= memory
