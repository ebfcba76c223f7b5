"""Whatever happens to a ModelServing, in whatever order: once it is left alone, it is what its spec says, and nothing else is left."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.api.meta import Document
from hekla.testing.serving_world import ServingWorld, role, serving

STRATEGIES: dict[str, Document] = {
    "groups": {"type": "ServingGroupRollingUpdate"},
    "surge": {
        "type": "ServingGroupRollingUpdate",
        "rollingUpdateConfiguration": {"maxSurge": 2, "maxUnavailable": 0},
    },
    "roles": {"type": "RoleRollingUpdate"},
}
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("scale"), st.integers(0, 3)),
        st.tuples(st.just("decode"), st.integers(0, 3)),
        st.tuples(st.just("image"), st.integers(1, 3)),
        st.tuples(st.sampled_from(["fail", "delete", "vanish", "restart"]), st.integers(0, 20)),
        st.tuples(st.just("step"), st.integers(1, 6)),
        st.tuples(st.sampled_from(["run", "let go"]), st.just(0)),
    ),
    max_size=14,
)


def roles_of(decode: int, image: int) -> list[Document]:
    return [
        role("prefill", workers=1, image=f"engine:{image}"),
        role("decode", replicas=decode, image=f"engine:{image}"),
    ]


def carry_out(world: ServingWorld, state: dict[str, int], event: tuple[str, int]) -> None:
    what, number = event
    names = list(world.pods)
    if what in ("scale", "decode", "image"):
        state[what] = number
        world.change(replicas=state["scale"], template={"roles": roles_of(state["decode"], state["image"])})
    elif what == "step":
        world.step(upto=number)  # and dies
    elif what == "run":
        world.run_all()
    elif what == "let go":
        world.let_go()
    elif names:
        name = names[number % len(names)]
        phase = world.pods[name].status.phase
        if what == "vanish":
            world.vanish(name)
        elif what == "delete":
            world.delete(name)
        elif phase == "Running":
            {"fail": world.fail, "restart": world.restart}[what](name)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("recovery", ["RoleRecreate", "ServingGroupRecreate", "None"])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(events=EVENTS)
def test_left_alone_it_is_what_its_spec_says(strategy: str, recovery: str, events: list[tuple[str, int]]) -> None:
    state: dict[str, Any] = {"scale": 2, "decode": 1, "image": 1}
    spec = {"rolloutStrategy": STRATEGIES[strategy], "recoveryPolicy": recovery}
    world = ServingWorld(serving(roles=roles_of(1, 1), replicas=2, **spec)).roll()
    for event in events:
        carry_out(world, state, event)
    world.roll(200)
    groups = {name.split("-")[1] for name in world.pods} if state["scale"] else set()
    assert len(groups) == state["scale"]
    wanted = {f"llama-{group}-prefill-0-{index}" for group in groups for index in (0, 1)}
    for group in groups:
        assert wanted & set(world.pods) >= {f"llama-{group}-prefill-0-{index}" for index in (0, 1)}
        assert sum(1 for name in world.pods if name.startswith(f"llama-{group}-decode-")) == state["decode"]
    assert len(world.pods) == len(groups) * (2 + state["decode"])
    assert set(world.images().values()) <= {f"engine:{state['image']}"}
    assert set(world.pod_groups) == {f"llama-{group}" for group in groups}
    assert set(world.services) == {f"llama-{group}-prefill-0-0" for group in groups}
    assert world.condition() == "Available"
    assert len(world.revisions) <= 1 or strategy == "roles"
