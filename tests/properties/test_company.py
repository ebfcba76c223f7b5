"""Whom pods like near them, in generated worlds: both sides' wishes count, as plain arithmetic over all pods says."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.placement.constraint import Constraints, Operator, PodSelector, PodTerm, PreferredPodTerm, Requirement
from hekla.testing.cluster import World, check

APPS, KEYS = ("a", "b", "c"), ("host", "zone")
ONLY_COMPANY = {
    f"{part}.weight": 0
    for part in (
        "leastrequested",
        "nodeaffinity",
        "balancedresource",
        "tainttoleration",
        "imagelocality",
        "podtopologyspread",
    )
}


@dataclass(frozen=True)
class Drawn:
    """A pod: its app, its likes as (weight, key, app), and whom it must be near, if anybody, as (key, app)."""

    app: str
    likes: tuple[tuple[int, str, str], ...]
    needs: tuple[str, str] | None


term = st.tuples(st.sampled_from(KEYS), st.sampled_from(APPS))
like = st.tuples(st.integers(-5, 5).filter(bool), st.sampled_from(KEYS), st.sampled_from(APPS))
pods = st.builds(Drawn, st.sampled_from(APPS), st.lists(like, max_size=2, unique=True).map(tuple), st.none() | term)
worlds = st.tuples(
    st.lists(st.sampled_from(["x", "y", ""]), min_size=1, max_size=5), st.lists(pods, min_size=1, max_size=8)
)


def about(key: str, app: str) -> PodTerm:
    return PodTerm(key, PodSelector((Requirement("app", Operator.IN, (app,)),), frozenset({"default"})))


def constraints_of(pod: Drawn) -> Constraints:
    return Constraints(
        affinity=(about(*pod.needs),) if pod.needs is not None else (),
        preferred_pods=tuple(PreferredPodTerm(weight, about(key, app)) for weight, key, app in pod.likes),
    )


def domain(zones: list[str], key: str, row: int) -> str:
    return f"n{row}" if key == "host" else zones[row]


def liking(zones: list[str], placed: list[tuple[Drawn, int]], pod: Drawn, row: int) -> int:
    """How much a pod is liked on a node, by itself and by those who run: pod by pod, term by term."""

    def is_near(key: str, other: int) -> bool:
        here = domain(zones, key, row)
        return bool(here) and here == domain(zones, key, other)

    total = 0
    for other, at in placed:
        total += sum(weight for weight, key, app in pod.likes if other.app == app and is_near(key, at))
        total += sum(weight for weight, key, app in other.likes if pod.app == app and is_near(key, at))
        if other.needs is not None and other.needs[1] == pod.app and is_near(other.needs[0], at):
            total += 1
    return total


@given(worlds, st.integers(0, 7))
@settings(max_examples=80, deadline=None)
def test_a_pod_goes_where_it_likes_to_be_and_is_liked_most(plan: tuple[list[str], list[Drawn]], leaves: int) -> None:
    zones, drawn = plan
    world = World(plugins=[["gang"], ["predicates", ("nodeorder", ONLY_COMPANY)]])
    for number, zone in enumerate(zones):
        labels = {"host": f"n{number}", **({"zone": zone} if zone else {})}
        world.node(f"n{number}", cpu=100, labels=labels)
    placed: dict[str, tuple[Drawn, int]] = {}
    for number, pod in enumerate(drawn):
        job = world.job(f"p{number}", cpu=1, labels={"app": pod.app}, constraints=constraints_of(pod))
        (task,) = job.tasks.values()
        before = list(placed.values())
        world.schedule()
        may = allowed(zones, before, pod)
        assert (task.row >= 0) == bool(may)
        if may:
            assert liking(zones, before, pod, task.row) == max(liking(zones, before, pod, row) for row in may)
            placed[job.uid] = pod, task.row
        else:
            world.cluster.remove_job(job.uid)
        if number == leaves and placed:
            first = next(iter(placed))
            world.cluster.remove_job(first)
            del placed[first]
        check(world.cluster)


def allowed(zones: list[str], placed: list[tuple[Drawn, int]], pod: Drawn) -> list[int]:
    """The nodes that a pod may use: near whom it must be near; the first of its kind wherever the key is."""
    rows = range(len(zones))
    if pod.needs is None:
        return list(rows)
    key, app = pod.needs
    near = {domain(zones, key, at) for other, at in placed if other.app == app} - {""}
    if not near and pod.app == app:
        return [row for row in rows if domain(zones, key, row)]
    return [row for row in rows if domain(zones, key, row) in near]
