"""Updates of ModelServings: budgets, partitions, surges, skew, and what is remembered of old revisions."""

import pytest

from hekla.api.apps import ControllerRevision
from hekla.api.core import Pod
from hekla.api.kthena import labels
from hekla.api.meta import Document
from hekla.serving.model_serving import reconcile_model_serving
from hekla.serving.serving_rollout import Progress, Unit, Wish, change, most_updates, share
from hekla.testing.reconcilers import assert_heals
from hekla.testing.serving_world import NAMESPACE, NOW, ServingWorld, groups_of, role, serving
from hekla.testing.world import FakeWorld

NEW = role("server", image="engine:2")


def world_of(**spec: object) -> ServingWorld:
    return ServingWorld(serving(**{"roles": [role("server")], **spec})).settle().run_all().settle()  # type: ignore[arg-type]


def rolling(**budget: object) -> Document:
    return {"type": "ServingGroupRollingUpdate", "rollingUpdateConfiguration": budget}


BY_ROLE = {"type": "RoleRollingUpdate"}


def new_ones(world: ServingWorld) -> list[int]:
    """Ordinals of groups that are made with the new image."""
    return groups_of(name for name, image in world.images().items() if image == "engine:2")


def ready(world: ServingWorld) -> int:
    return sum(
        1 for pod in world.pods.values() if pod.status.phase == "Running" and not pod.metadata.deletion_timestamp
    )


# ---- groups


def test_groups_are_replaced_one_by_one_from_the_highest_ordinal() -> None:
    """Kthena: RollingUpdate."""
    world = world_of(replicas=3)
    old = world.status["updateRevision"]
    world.change_roles(NEW).settle()
    assert new_ones(world) == [2]
    assert world.condition() == "UpdateInProgress"
    assert (world.status["currentRevision"], world.status["updatedReplicas"]) == (old, 1)
    world.run_all().settle()
    assert new_ones(world) == [1, 2]
    world.roll()
    assert new_ones(world) == [0, 1, 2]
    assert world.condition() == "Available"
    assert world.status["currentRevision"] == world.status["updateRevision"] != old
    assert world.revisions == [f"llama-{world.status['updateRevision']}"]


@pytest.mark.parametrize(("budget", "floor"), [({"maxUnavailable": 2}, 2), ({"maxUnavailable": "50%"}, 2), ({}, 3)])
def test_no_more_groups_are_down_than_may_be(budget: Document, floor: int) -> None:
    """Kthena: RollingUpdateMaxUnavailable."""
    world = world_of(replicas=4, rolloutStrategy=rolling(**budget))
    seen: list[int] = []
    world.change_roles(NEW).roll(each_round=lambda: seen.append(ready(world)))
    assert min(seen) == floor
    assert new_ones(world) == [0, 1, 2, 3]


def test_a_bad_image_stops_the_update_within_its_budget_and_the_next_one_mends_it() -> None:
    """Kthena: RollingUpdateMaxUnavailableWithBadImage, and its issue 743."""
    world = world_of(replicas=3)
    world.change_roles(role("server", image="engine:bad")).settle()
    assert groups_of(name for name, image in world.images().items() if image == "engine:bad") == [2]
    world.change_roles(NEW).settle()
    assert new_ones(world) == [2]
    assert ready(world) == 2
    world.roll()
    assert new_ones(world) == [0, 1, 2]


def test_the_partition_keeps_the_first_groups_as_they_are() -> None:
    """Kthena: PartitionBoundaryProtection."""
    world = world_of(replicas=4, rolloutStrategy=rolling(partition=2))
    old = world.status["updateRevision"]
    world.change_roles(NEW).roll()
    assert new_ones(world) == [2, 3]
    assert world.status["currentRevision"] == old
    assert (world.status["currentReplicas"], world.status["updatedReplicas"]) == (2, 2)
    assert world.condition() == "Available"
    [said] = [one["message"] for one in world.status["conditions"] if one["status"] == "True"]
    assert said == "All Serving groups are ready; the partition keeps 2 of them at an earlier revision: [0 1]"
    world.change(rolloutStrategy=rolling(partition=None)).roll()
    assert new_ones(world) == [0, 1, 2, 3]
    assert "All Serving groups are ready" in [one["message"] for one in world.status["conditions"]]


def test_a_partition_by_percentage_is_rounded_up() -> None:
    world = world_of(replicas=3, rolloutStrategy=rolling(partition="50%"))
    world.change_roles(NEW).roll()
    assert new_ones(world) == [2]


@pytest.mark.parametrize("with_gang", [True, False])
def test_a_protected_group_that_is_lost_comes_back_as_it_was(with_gang: bool) -> None:
    """Kthena: PartitionDeletedGroupHistoricalRevision, TestScaleUpServingGroups_TemplateRecovery."""
    world = world_of(replicas=2, rolloutStrategy=rolling(partition=1))
    world.change_roles(NEW).roll()
    world.vanish("llama-0-server-0-0")
    if not with_gang:
        world.world.remove(type(world.pod_groups["llama-0"]), NAMESPACE, "llama-0")
    world.roll()
    assert world.images() == {"llama-0-server-0-0": "engine:1", "llama-1-server-0-0": "engine:2"}


def test_a_protected_group_comes_back_in_the_size_it_had_though_its_revision_never_changes() -> None:
    """Kubernetes refuses other data in a ControllerRevision: roles that were scaled were never grown, whatever the autoscaler said."""
    world = world_of(replicas=2, roles=[role("server", replicas=1)], rolloutStrategy=rolling(partition=1))
    (kept,) = world.world.list(ControllerRevision, NAMESPACE)
    world.change_roles(role("server", replicas=3)).roll()
    assert [one.data for one in world.world.list(ControllerRevision, NAMESPACE)] == [kept.data]
    world.change_roles(role("server", replicas=3, image="engine:2")).roll()
    for number in range(3):
        world.vanish(f"llama-0-server-{number}-0")
    world.roll()
    assert {name: image for name, image in world.images().items() if name.startswith("llama-0")} == {
        f"llama-0-server-{number}-0": "engine:1" for number in range(3)
    }


def test_an_outdated_group_is_not_resized_only_to_be_deleted() -> None:
    """Kthena's issue 1795."""
    world = world_of(replicas=2, roles=[role("server", replicas=1)])
    world.change_roles(role("server", replicas=3, image="engine:2")).settle()
    assert [name for name in world.pods if name.startswith("llama-0")] == ["llama-0-server-0-0"]
    assert [name for name in world.pods if name.startswith("llama-1")] == [f"llama-1-server-{n}-0" for n in range(3)]
    assert world.pod_groups["llama-0"].spec.min_member == 1
    world.roll()
    assert len(world.pods) == 6


def test_a_pod_that_fails_in_an_outdated_group_comes_back_as_it_was() -> None:
    world = world_of(replicas=3, roles=[role("server", replicas=2)])
    world.change_roles(role("server", replicas=2, image="engine:2")).settle()
    assert new_ones(world) == [2]
    world.vanish("llama-0-server-0-0").settle()
    # it is broken, so it goes first once the budget allows; until then the group is what it was
    assert world.images()["llama-0-server-0-0"] == "engine:1"


def test_going_back_finds_the_old_revision_by_its_content() -> None:
    world = world_of(replicas=3)
    old = world.status["updateRevision"]
    world.change_roles(NEW).settle()
    world.change_roles(role("server")).roll()
    assert world.status["updateRevision"] == old
    assert set(world.images().values()) == {"engine:1"}


def test_other_words_for_the_same_pods_are_no_new_revision() -> None:
    world = world_of(replicas=2)
    before = world.images(), world.status["updateRevision"]
    same = role("server")
    same["entryTemplate"]["spec"]["containers"][0]["resources"] = {
        "requests": {"cpu": "1000m"},
        "limits": {"nvidia.com/gpu": 1},
    }
    same["entryTemplate"]["spec"] |= {"hostNetwork": False, "securityContext": {}, "imagePullSecrets": []}
    world.change_roles(same).settle()
    assert (world.images(), world.status["updateRevision"]) == before
    assert new_ones(world) == []


# ---- surge


def test_a_surge_keeps_everything_up() -> None:
    world = world_of(replicas=3, rolloutStrategy=rolling(maxSurge=1, maxUnavailable=0))
    seen: list[tuple[int, int]] = []
    world.change_roles(NEW).roll(each_round=lambda: seen.append((ready(world), len(world.pod_groups))))
    assert min(ready for ready, _ in seen) == 3
    assert max(groups for _, groups in seen) == 4
    assert new_ones(world) == [0, 1, 2]
    assert world.condition() == "Available"


def test_a_surge_whose_new_group_is_not_ready_counts_it_among_all_there_are() -> None:
    """It was said that 3 of 3 groups are ready, and that it is not available for that."""
    world = world_of(replicas=3, rolloutStrategy=rolling(maxSurge=1, maxUnavailable=0))
    world.change_roles(NEW).settle()
    [available] = [one for one in world.status["conditions"] if one["type"] == "Available"]
    assert (available["status"], available["message"]) == ("False", "3 of 4 serving groups are ready")


def test_a_group_that_leaves_is_not_counted_among_those_that_should_be_ready() -> None:
    """Of three groups that became two it was said that 2 of 3 are ready, as if one more should be."""
    world = world_of(replicas=3).settle()
    world.run_all().settle()
    world.fail(min(world.pods))
    world.change(replicas=2).step()
    [available] = [one for one in world.status["conditions"] if one["type"] == "Available"]
    assert (available["status"], available["message"]) == (
        "False",
        "2 of 2 serving groups are ready; 1 more still to leave",
    )


def test_a_surge_ends_with_the_ordinals_of_the_beginning_where_engines_take_their_time_to_start() -> None:
    world = world_of(replicas=3, rolloutStrategy=rolling(maxSurge=1, maxUnavailable=0))
    assert min(rolled_slowly(world.change_roles(NEW))) == 3
    assert new_ones(world) == groups_of(world.pods) == [0, 1, 2]
    assert world.condition() == "Available"


def test_a_roles_surge_ends_with_the_ordinals_of_the_beginning_likewise() -> None:
    budget = {"replicas": 2, "maxUnavailable": 0, "maxSurge": 1}
    world = world_of(roles=[role("decode", **budget)], rolloutStrategy=BY_ROLE)
    assert min(rolled_slowly(world.change_roles(role("decode", image="engine:2", **budget)))) == 2
    assert world.images() == {"llama-0-decode-0-0": "engine:2", "llama-0-decode-1-0": "engine:2"}


def rolled_slowly(world: ServingWorld) -> list[int]:
    """How many pods are ready, round by round, where nodes run each pod a round after it was made."""
    seen: list[int] = []
    for _ in range(60):
        made_before = set(world.pods)
        world.step()
        world.let_go()
        world.start(*(made_before & set(world.waiting())))
        seen.append(ready(world))
    return seen


def test_a_surge_with_a_partition_ends() -> None:
    """Kthena's issue 1743: a dead-lock, and ordinals with gaps."""
    world = world_of(replicas=3, rolloutStrategy=rolling(maxSurge=2, maxUnavailable=0, partition=1))
    world.change_roles(NEW).roll()
    assert groups_of(world.pods) == [0, 1, 2]
    assert new_ones(world) == [1, 2]


# ---- roles


def test_only_the_role_that_changed_is_made_anew() -> None:
    """Kthena: RoleBasedRollingUpdate."""
    world = world_of(replicas=2, roles=[role("prefill"), role("decode")], rolloutStrategy=BY_ROLE)
    prefill = {name: pod.metadata.labels[labels.REVISION] for name, pod in world.pods.items() if "prefill" in name}
    world.change_roles(role("prefill"), role("decode", image="engine:2")).roll()
    assert [name for name, image in world.images().items() if image == "engine:2"] == [
        "llama-0-decode-0-0", "llama-1-decode-0-0",
    ]  # fmt: skip
    assert {
        name: pod.metadata.labels[labels.REVISION] for name, pod in world.pods.items() if "prefill" in name
    } == prefill
    assert world.status["updatedReplicas"] == 2
    assert world.condition() == "Available"


def test_a_role_has_its_own_budget() -> None:
    old = role("decode", replicas=4, maxUnavailable="50%")
    world = world_of(roles=[old], rolloutStrategy=BY_ROLE)
    seen: list[int] = []
    new = role("decode", replicas=4, maxUnavailable="50%", image="engine:2")
    world.change_roles(new).roll(each_round=lambda: seen.append(ready(world)))
    assert min(seen) == 2
    assert set(world.images().values()) == {"engine:2"}


def test_the_partition_of_a_role_keeps_its_first_instances_even_if_they_are_lost() -> None:
    """Kthena: RoleRollingUpdatePartition."""
    world = world_of(roles=[role("decode", replicas=3, partition=1)], rolloutStrategy=BY_ROLE)
    world.change_roles(role("decode", replicas=3, partition=1, image="engine:2")).roll()
    wanted = {"llama-0-decode-0-0": "engine:1", "llama-0-decode-1-0": "engine:2", "llama-0-decode-2-0": "engine:2"}
    assert world.images() == wanted
    world.vanish("llama-0-decode-0-0").roll()
    assert world.images() == wanted


def test_a_role_that_is_no_more_goes_and_a_new_one_comes() -> None:
    world = world_of(roles=[role("prefill"), role("decode")], rolloutStrategy=BY_ROLE)
    world.change_roles(role("prefill"), role("both")).roll()
    assert list(world.pods) == ["llama-0-both-0-0", "llama-0-prefill-0-0"]


def mark(world: ServingWorld) -> None:
    """Pods made anew have the names and uids of those before, so those that are there are marked."""
    for name in world.pods:
        world.world.change(Pod, NAMESPACE, name, {"metadata": {"annotations": {"was": "there"}}})


def anew(world: ServingWorld) -> list[str]:
    return [name for name, pod in world.pods.items() if "was" not in pod.metadata.annotations]


def test_groups_that_were_updated_by_role_are_not_made_anew_where_updates_are_by_group_from_then_on() -> None:
    """The role that no update had to touch still has the first revision's label."""
    world = world_of(replicas=2, roles=[role("prefill"), role("decode")], rolloutStrategy=BY_ROLE)
    world.change_roles(role("prefill"), role("decode", image="engine:2")).roll()
    mark(world)
    world.change(rolloutStrategy=rolling()).roll()
    assert anew(world) == []
    assert world.condition() == "Available"
    world.fail("llama-0-decode-0-0").roll()
    assert anew(world) == ["llama-0-decode-0-0"]
    mark(world)
    world.change_roles(role("prefill"), role("decode", image="engine:3")).roll()
    assert len(anew(world)) == 4


def test_a_role_that_comes_makes_groups_anew_where_updates_are_by_group() -> None:
    world = world_of(replicas=1, roles=[role("prefill"), role("decode")])
    mark(world)
    world.change_roles(role("prefill"), role("decode"), role("router")).roll()
    assert anew(world) == list(world.pods)
    assert len(world.pods) == 3


def test_a_role_surges_by_itself() -> None:
    old = role("decode", replicas=2, maxUnavailable=0, maxSurge=1)
    world = world_of(roles=[old], rolloutStrategy=BY_ROLE)
    seen: list[tuple[int, int]] = []
    new = role("decode", replicas=2, maxUnavailable=0, maxSurge=1, image="engine:2")
    world.change_roles(new).roll(each_round=lambda: seen.append((ready(world), len(world.pods))))
    assert (min(one for one, _ in seen), max(many for _, many in seen)) == (2, 3)
    assert world.images() == {"llama-0-decode-0-0": "engine:2", "llama-0-decode-1-0": "engine:2"}


# ---- prefill and decode together


def parts(world: ServingWorld) -> tuple[float, float]:
    """By role, the part of its instances that is new and ready."""
    found = {"prefill": [0, 2], "decode": [0, 8]}
    for pod in world.pods.values():
        if pod.spec.containers[0].image == "engine:2" and pod.status.phase == "Running":
            found[pod.metadata.labels[labels.ROLE]][0] += 1
    return found["prefill"][0] / 2, found["decode"][0] / 8


@pytest.mark.parametrize("bound", ["25%", "50%"])
def test_prefill_and_decode_are_updated_hand_in_hand(bound: str) -> None:
    fast = {"maxUnavailable": "100%"}
    old = [role("prefill", replicas=2, **fast), role("decode", replicas=8, **fast)]
    metadata = {"annotations": {"serving.hekla.dev/max-skew": bound}}
    world = ServingWorld(serving(roles=old, rolloutStrategy=BY_ROLE, metadata=metadata)).roll()
    seen: list[float] = []

    def note() -> None:
        prefill, decode = parts(world)
        seen.append(abs(prefill - decode))

    new = [role("prefill", replicas=2, image="engine:2", **fast), role("decode", replicas=8, image="engine:2", **fast)]
    world.change_roles(*new).roll(each_round=note)
    # one instance of prefill is half of them: no bound can be kept closer than that
    assert max(seen) <= 0.5
    assert len(seen) > 4
    assert set(world.images().values()) == {"engine:2"}


def test_without_a_bound_each_role_goes_its_own_pace() -> None:
    old = [role("prefill", replicas=2), role("decode", replicas=8, maxUnavailable="100%")]
    world = ServingWorld(serving(roles=old, rolloutStrategy=BY_ROLE)).roll()
    new = [
        role("prefill", replicas=2, image="engine:2"),
        role("decode", replicas=8, maxUnavailable="100%", image="engine:2"),
    ]
    world.change_roles(*new).settle()
    assert sum(1 for image in world.images().values() if image == "engine:2") == 9


# ---- what heals


def test_an_update_heals_after_any_failed_command() -> None:
    def middle() -> FakeWorld:
        world = world_of(replicas=2, roles=[role("server", workers=1)])
        world.change_roles(role("server", workers=1, image="engine:2"))
        return world.world

    assert_heals(reconcile_model_serving, middle, NAMESPACE, "llama", now=NOW)


@pytest.mark.parametrize("upto", range(1, 9))
def test_a_controller_that_dies_in_the_middle_of_an_update_goes_on_where_it_was(upto: int) -> None:
    world = world_of(replicas=3, roles=[role("prefill"), role("decode")])
    world.change_roles(role("prefill", image="engine:2"), role("decode"))
    world.step(upto=upto)
    seen: list[int] = []
    world.roll(each_round=lambda: seen.append(ready(world)))
    assert new_ones(world) == [0, 1, 2]
    assert min(seen) >= 4


# ---- the arithmetic


def test_a_unit_that_is_leaving_keeps_its_name() -> None:
    units = [Unit(ordinal=0), Unit(ordinal=1, is_ready=False, is_leaving=True)]
    assert change(units, Wish(replicas=2)).create == []
    assert change(units[:1], Wish(replicas=2)).create == [1]


def test_what_is_broken_is_replaced_within_the_budget_and_before_what_works() -> None:
    units = [Unit(ordinal=n, is_current=False, is_ready=n != 1) for n in range(4)]
    assert change(units, Wish(replicas=4)).outdated == [1]
    assert change(units, Wish(replicas=4, max_unavailable=2)).outdated == [1, 3]


def test_a_protected_unit_that_is_not_ready_is_unavailable_as_any_other() -> None:
    units = [Unit(ordinal=n, is_current=False, is_ready=n != 0) for n in range(4)]
    assert change(units, Wish(replicas=4, partition=2)).outdated == []
    assert change(units, Wish(replicas=4, partition=2, max_unavailable=2)).outdated == [3]


def test_what_is_broken_is_mended_by_an_update_though_protected_units_are_broken_too() -> None:
    units = [Unit(ordinal=n, is_current=False, is_ready=n == 2) for n in range(4)]
    assert change(units, Wish(replicas=4, partition=2)).outdated == [3]


def test_protected_units_go_last() -> None:
    units = [Unit(ordinal=n, cost=10 - n) for n in range(4)]
    assert change(units, Wish(replicas=1, partition=2)).surplus == [3, 2, 1]


@pytest.mark.parametrize(
    ("value", "of", "up", "wanted"),
    [(2, 9, True, 2), ("50%", 3, True, 2), ("50%", 3, False, 1), (None, 3, True, 0), ("many", 3, True, 0)],
)
def test_percentages_are_rounded_as_kubernetes_rounds_them(
    value: int | str | None, of: int, up: bool, wanted: int
) -> None:
    assert share(value, of, round_up=up) == wanted


def test_the_role_that_is_furthest_behind_may_always_go_on() -> None:
    progress = {"prefill": Progress(done=0, begun=0, total=2), "decode": Progress(done=4, begun=4, total=8)}
    assert most_updates("prefill", progress, 0.1) == 1
    assert most_updates("decode", progress, 0.1) <= 0
    assert most_updates("decode", {**progress, "prefill": Progress(done=1, begun=1, total=2)}, 0.25) == 2


def test_a_pod_of_an_unknown_revision_is_not_made_anew_on_suspicion() -> None:
    world = world_of(roles=[role("decode")], rolloutStrategy=BY_ROLE)
    patch = {"metadata": {"labels": {labels.REVISION: "gone", labels.ROLE_TEMPLATE_HASH: None}}}
    world.world.change(Pod, NAMESPACE, "llama-0-decode-0-0", patch)
    world.change_roles(role("decode", image="engine:2")).settle()
    assert world.images() == {"llama-0-decode-0-0": "engine:1"}
