"""What a queue will hold in many states is weighed as it is weighed in each of them."""

from types import MappingProxyType

from hypothesis import given
from hypothesis import strategies as st

from hekla.placement.queueing.projected_use import MOST, grown
from hekla.placement.shape import Shape
from hekla.quota.fairness import use_of
from hekla.testing.cluster import World

NAMES = ("cpu", "memory", "pods")
AMOUNTS = st.one_of(st.integers(0, 5), st.integers(0, 1 << 40), st.integers((1 << 53) - 3, (1 << 53) + 3))
HOLDINGS = st.dictionaries(st.sampled_from(NAMES), AMOUNTS)


def shape(request: dict[str, int]) -> Shape:
    """Of a pod that asks for so much."""
    world = World()
    world.node("n", cpu=1, memory=1)
    template = next(iter(world.job("j").tasks.values())).shape
    return Shape(
        template.constraints, MappingProxyType(request), template.resources, template.amounts, {}, template.kind
    )


@given(
    HOLDINGS, HOLDINGS, HOLDINGS, st.lists(HOLDINGS, min_size=1, max_size=4), st.lists(st.integers(0, 3), min_size=1)
)
def test_a_share_of_many_states_is_that_of_each(
    held: dict[str, int], deserved: dict[str, int], before: dict[str, int], kinds: list[dict[str, int]], pods: list[int]
) -> None:
    shapes = [shape(kind) for kind in kinds]
    growth = grown(before, [shapes[pod % len(shapes)] for pod in pods])
    assert growth is not None
    uses, more = growth.uses(held, deserved), dict(before)
    for state, pod in enumerate(pods):
        for name, amount in kinds[pod % len(kinds)].items():
            more[name] = more.get(name, 0) + amount
        assert {name: amount for name, amount in growth.at(state).items() if amount} == {
            name: amount for name, amount in more.items() if amount
        }
        now = {name: held.get(name, 0) + more.get(name, 0) for name in held.keys() | more.keys()}
        assert uses[state] == use_of(now, deserved)


def test_what_is_beyond_all_bounds_is_not_told() -> None:
    huge = shape({"cpu": MOST})
    assert grown({}, [huge]) is not None
    assert grown({}, [huge, huge]) is None
    assert grown({"cpu": 1}, [huge]) is None
