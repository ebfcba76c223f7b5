"""Pages of several processes as one: counters never fall, gauges are summed, what all read from one engine is told once."""

from hypothesis import given
from hypothesis import strategies as st

from hekla.serving.router.metrics_pages import Pages, read_page, text_of


def page(requests: int, active: int, usage: float, bucket: int = 0) -> str:
    return (
        "# HELP r_total Requests that are over\n# TYPE r_total counter\n"
        f'r_total{{model="a b",status_code="200"}} {requests}\n'
        f"# TYPE active gauge\nactive {active}\n"
        f'# TYPE hekla_router_engine_kv_usage gauge\nhekla_router_engine_kv_usage{{pod="p"}} {usage}\n'
        f'# TYPE d_seconds histogram\nd_seconds_bucket{{le="+Inf"}} {bucket}\nd_seconds_sum{{}} 0.5\n'
    )


def samples(pages: Pages) -> dict[str, float]:
    return {name: value for family in read_page(pages.text()).values() for name, value in family.samples.items()}


def test_counts_are_summed_and_what_one_engine_told_all_is_not() -> None:
    pages = Pages()
    pages.heard("a", page(3, 1, 0.5, bucket=2))
    pages.heard("b", page(4, 2, 0.7, bucket=5))
    told = samples(pages)
    assert told['r_total{model="a b",status_code="200"}'] == 7
    assert told["active"] == 3
    assert told['hekla_router_engine_kv_usage{pod="p"}'] == 0.6
    assert told['d_seconds_bucket{le="+Inf"}'] == 7
    assert told["d_seconds_sum{}"] == 1.0


def test_a_process_that_ended_leaves_its_counts_and_takes_its_gauges() -> None:
    pages = Pages()
    pages.heard("a", page(3, 1, 0.5, bucket=2))
    pages.heard("b", page(4, 2, 0.7))
    pages.ended("a")
    pages.ended("never heard of")
    told = samples(pages)
    assert told['r_total{model="a b",status_code="200"}'] == 7
    assert told["active"] == 2
    assert told['d_seconds_bucket{le="+Inf"}'] == 2
    assert told['hekla_router_engine_kv_usage{pod="p"}'] == 0.7


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50), st.booleans()), max_size=30))
def test_a_counter_never_falls_whoever_dies(story: list[tuple[str, int, bool]]) -> None:
    pages, counts, most = Pages(), dict.fromkeys("abc", 0), 0.0
    for name, more, dies in story:
        counts[name] += more
        pages.heard(name, page(counts[name], 0, 0.0))
        if dies:
            pages.ended(name)
            counts[name] = 0
        now = samples(pages)['r_total{model="a b",status_code="200"}']
        assert now >= most
        most = now
    assert most == sum(more for _, more, _ in story)


def test_a_page_comes_back_as_it_was() -> None:
    assert text_of(read_page(page(3, 1, 0.5))) == page(3, 1, 0.5)
