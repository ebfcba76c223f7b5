"""Whether pools keep their size and claims take what they chose: all the claims of a world at once, from caches as stale as they come."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hekla.api.agents import Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, names
from hekla.api.meta import Document
from hekla.api.networking import NetworkPolicy
from hekla.kube.commands import Command
from hekla.sandbox.sandbox_claim import reconcile_sandbox_claim
from hekla.sandbox.sandbox_template import reconcile_sandbox_template
from hekla.sandbox.sandbox_warm_pool import QUIET_S, reconcile_sandbox_warm_pool
from hekla.testing.reconcilers import assert_converges, assert_heals, converge, decide
from hekla.testing.world import CommandRefusedError, FakeWorld

NOW = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
EXTENSIONS = "extensions.agents.x-k8s.io/v1beta1"
IMAGE = {"containers": [{"name": "main", "image": "python", "env": [{"name": "MODE", "value": "safe"}]}]}


def template(**spec: Any) -> Document:
    """The template `python`."""
    return {
        "apiVersion": EXTENSIONS,
        "kind": "SandboxTemplate",
        "metadata": {"name": "python", "namespace": "ns", "uid": "template-uid"},
        "spec": {"podTemplate": {"spec": IMAGE}, **spec},
    }


def pool(replicas: int = 2, **spec: Any) -> Document:
    """The pool `pool` of template `python`."""
    return {
        "apiVersion": EXTENSIONS,
        "kind": "SandboxWarmPool",
        "metadata": {"name": "pool", "namespace": "ns", "uid": "pool-uid"},
        "spec": {"replicas": replicas, "sandboxTemplateRef": {"name": "python"}, **spec},
    }


def claim(name: str = "c0", **spec: Any) -> Document:
    """A claim on `pool`."""
    return {
        "apiVersion": EXTENSIONS,
        "kind": "SandboxClaim",
        "metadata": {"name": name, "namespace": "ns", "uid": f"{name}-uid"},
        "spec": {"warmPoolRef": {"name": "pool"}, **spec},
    }


def filled(world: FakeWorld, ready: int | None = None) -> FakeWorld:
    """The pool made what it wants, and so many members are ready, on nodes in turn."""
    converge(reconcile_sandbox_warm_pool, world, "ns", "pool", now=NOW)
    members = world.list(Sandbox, "ns")
    for number, one in enumerate(members[: len(members) if ready is None else ready]):
        make_ready(world, one.metadata.name, node=f"n{number % 2}")
    converge(reconcile_sandbox_warm_pool, world, "ns", "pool", now=NOW)
    return world


def make_ready(world: FakeWorld, name: str, node: str = "n0") -> None:
    """A Sandbox's pod runs."""
    ready = {"type": "Ready", "status": "True", "reason": "DependenciesReady", "message": "Pod is Ready",
             "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip
    status = {"conditions": [ready], "podIPs": ["10.0.0.1"], "nodeName": node}
    world.change(Sandbox, "ns", name, {"status": status})


def settle(world: FakeWorld, name: str = "c0", now: datetime = NOW) -> None:
    """One claim does all that it can."""
    converge(reconcile_sandbox_claim, world, "ns", name, now=now)


def ready_of(world: FakeWorld, name: str = "c0") -> tuple[str, str]:
    """Status and reason of a claim's Ready."""
    for one in world.document(SandboxClaim, "ns", name).get("status", {}).get("conditions", ()):
        if one["type"] == "Ready":
            return one["status"], one["reason"]
    return "", ""


def sandbox_of(world: FakeWorld, name: str = "c0") -> Document:
    """The Sandbox that is a claim's."""
    taken = world.document(SandboxClaim, "ns", name)["status"]["sandbox"]["name"]
    return world.document(Sandbox, "ns", taken)


# ---- pools


def test_a_pool_makes_what_is_missing_and_says_how_many_are_ready() -> None:
    world = filled(FakeWorld(template(), pool(3)), ready=2)
    status = world.document(SandboxWarmPool, "ns", "pool")["status"]
    assert (status["replicas"], status["readyReplicas"]) == (3, 2)
    for one in world.list(Sandbox, "ns"):
        assert one.metadata.annotations[names.TEMPLATE_REF] == "python"
        assert one.spec.pod_template.spec["automountServiceAccountToken"] is False
        assert one.spec.pod_template.spec["dnsPolicy"] == "None"


@pytest.mark.parametrize(
    ("size", "ready", "quiet_s"),
    [(8, 8, QUIET_S), (8, 6, QUIET_S), (8, 5, 0.0), (4, 3, QUIET_S), (1, 0, 0.0), (0, 0, QUIET_S)],
)
def test_a_pool_of_which_most_waits_is_filled_once_nobody_comes_and_one_that_runs_out_meanwhile(
    size: int, ready: int, quiet_s: float
) -> None:
    """A birth takes both of two processors for 12 ms; whoever came next had it beside his claim."""
    world = filled(FakeWorld(template(), pool(size)), ready=ready)
    asked = reconcile_sandbox_warm_pool.quiet_s
    assert callable(asked)
    assert asked(world.get(SandboxWarmPool, "ns", "pool"), world) == quiet_s
    for one in world.list(Sandbox, "ns")[:1]:
        world.change(
            Sandbox,
            "ns",
            one.metadata.name,
            {"metadata": {"deletionTimestamp": "2026-01-01T00:00:30Z", "finalizers": ["x"]}},
        )
        assert asked(world.get(SandboxWarmPool, "ns", "pool"), world) == (
            QUIET_S if ready - 1 >= size * 0.75 else 0.0
        ), "it leaves"


def test_what_leaves_counts_until_it_is_gone() -> None:
    world = filled(FakeWorld(template(), pool(2)))
    first = world.list(Sandbox, "ns")[0].metadata.name
    world.change(Sandbox, "ns", first, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:30Z", "finalizers": ["x"]}})
    converge(reconcile_sandbox_warm_pool, world, "ns", "pool", now=NOW)
    assert len(world.list(Sandbox, "ns")) == 2
    world.remove(Sandbox, "ns", first)
    converge(reconcile_sandbox_warm_pool, world, "ns", "pool", now=NOW)
    assert len(world.list(Sandbox, "ns")) == 2


def test_surplus_goes_from_the_unready_and_the_newest() -> None:
    world = filled(FakeWorld(template(), pool(3)), ready=2)
    ready = {one.metadata.name for one in world.list(Sandbox, "ns") if one.status.pod_ips}
    world.change(SandboxWarmPool, "ns", "pool", {"spec": {"replicas": 2}})
    converge(reconcile_sandbox_warm_pool, world, "ns", "pool", now=NOW)
    assert {one.metadata.name for one in world.list(Sandbox, "ns")} == ready


@pytest.mark.parametrize(("strategy", "is_replaced"), [("Recreate", True), ("OnReplenish", False), (None, False)])
def test_a_changed_template_replaces_members_as_the_strategy_says(strategy: str | None, is_replaced: bool) -> None:
    spec = {} if strategy is None else {"updateStrategy": {"type": strategy}}
    world = filled(FakeWorld(template(), pool(2, **spec)))
    before = {one.metadata.uid for one in world.list(Sandbox, "ns")}
    newer = {"containers": [{"name": "main", "image": "python:new"}]}
    world.change(SandboxTemplate, "ns", "python", {"spec": {"podTemplate": {"spec": newer}}})
    converge(reconcile_sandbox_warm_pool, world, "ns", "pool", now=NOW)
    after = {one.metadata.uid for one in world.list(Sandbox, "ns")}
    assert (not before & after) is is_replaced


@pytest.mark.parametrize(
    ("before", "after"), [("example.com", None), ("example.com", "example.com:443"), (None, "example.com")]
)
def test_a_member_that_may_reach_what_its_template_says_no_more_is_given_to_nobody(
    before: str | None, after: str | None
) -> None:
    """Whoever came next after an operator had taken a host away could reach it still."""
    world = FakeWorld(template(), pool(2))
    world.change(SandboxTemplate, "ns", "python", {"metadata": {"annotations": {names.EGRESS: before}}})
    filled(world)
    was = {one.metadata.uid for one in world.list(Sandbox, "ns")}
    world.change(SandboxTemplate, "ns", "python", {"metadata": {"annotations": {names.EGRESS: after}}})
    converge(reconcile_sandbox_warm_pool, world, "ns", "pool", now=NOW)
    now = world.list(Sandbox, "ns")
    assert len(now) == 2
    assert not was & {one.metadata.uid for one in now}


def test_members_that_another_controller_made_stay() -> None:
    world = filled(FakeWorld(template(), pool(2)))
    before = {one.metadata.uid for one in world.list(Sandbox, "ns")}
    for one in world.list(Sandbox, "ns"):
        world.change(Sandbox, "ns", one.metadata.name, {"metadata": {"annotations": {names.EGRESS: None}}})
    converge(reconcile_sandbox_warm_pool, world, "ns", "pool", now=NOW)
    assert {one.metadata.uid for one in world.list(Sandbox, "ns")} == before


def test_labels_of_a_template_replace_nobody() -> None:
    world = filled(FakeWorld(template(), pool(2, updateStrategy={"type": "Recreate"})))
    before = {one.metadata.uid for one in world.list(Sandbox, "ns")}
    world.change(SandboxTemplate, "ns", "python", {"spec": {"podTemplate": {"metadata": {"labels": {"a": "b"}}}}})
    converge(reconcile_sandbox_warm_pool, world, "ns", "pool", now=NOW)
    assert {one.metadata.uid for one in world.list(Sandbox, "ns")} == before


def test_a_member_that_never_gets_ready_is_replaced_and_one_without_room_is_kept() -> None:
    world = filled(FakeWorld(template(), pool(2)), ready=0)
    roomless, stuck = (one.metadata.name for one in world.list(Sandbox, "ns"))
    no_room = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "",
               "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip
    world.change(Sandbox, "ns", roomless, {"status": {"conditions": [no_room]}})
    later = NOW + timedelta(minutes=6)
    world.execute(decide(reconcile_sandbox_warm_pool, world, "ns", "pool", now=later))
    left = {one.metadata.name for one in world.list(Sandbox, "ns")}
    assert roomless in left
    assert stuck not in left
    assert world.events[-1].reason == "WarmPoolNotProgressing"


def test_a_pool_without_its_template_says_so_and_deletes_nothing() -> None:
    world = filled(FakeWorld(template(), pool(2)))
    world.remove(SandboxTemplate, "ns", "python")
    world.execute(decide(reconcile_sandbox_warm_pool, world, "ns", "pool", now=NOW))
    assert len(world.list(Sandbox, "ns")) == 2
    assert 'SandboxTemplate "python" not found' in world.events[-1].message


# ---- claims


def test_a_claim_takes_a_ready_member_and_the_pool_refills() -> None:
    world = filled(FakeWorld(template(), pool(2), claim()))
    members = {one.metadata.name for one in world.list(Sandbox, "ns")}
    settle(world)
    assert ready_of(world) == ("True", "DependenciesReady")
    taken = sandbox_of(world)
    assert taken["metadata"]["name"] in members
    assert taken["metadata"]["labels"][names.CLAIM_UID] == "c0-uid"
    assert names.WARM_POOL not in taken["metadata"]["labels"]
    assert [owner["uid"] for owner in taken["metadata"]["ownerReferences"]] == ["c0-uid"]
    converge(reconcile_sandbox_warm_pool, world, "ns", "pool", now=NOW)
    assert len(world.list(Sandbox, "ns")) == 3


def test_an_empty_pool_means_a_cold_start_under_the_claims_name() -> None:
    world = FakeWorld(template(), pool(0), claim())
    world.execute(decide(reconcile_sandbox_claim, world, "ns", "c0", now=NOW))
    settle(world)
    made = sandbox_of(world)
    assert made["metadata"]["name"] == "c0"
    assert made["metadata"]["labels"][names.LAUNCH_TYPE] == "cold"
    make_ready(world, "c0")
    settle(world)
    assert ready_of(world) == ("True", "DependenciesReady")


def test_a_member_that_is_about_to_have_an_address_is_waited_for_and_not_for_ever() -> None:
    world = filled(FakeWorld(template(), pool(1), claim()), ready=0)
    world.execute(decide(reconcile_sandbox_claim, world, "ns", "c0", now=datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)))
    assert len(world.list(Sandbox, "ns")) == 1
    world.execute(decide(reconcile_sandbox_claim, world, "ns", "c0", now=datetime(2026, 1, 1, 0, 0, 3, tzinfo=UTC)))
    assert {one.metadata.name for one in world.list(Sandbox, "ns")} > {"c0"}


@pytest.mark.parametrize(
    ("objects", "reason"),
    [
        ([], "WarmPoolNotFound"),
        ([pool()], "TemplateNotFound"),
        ([template(), pool(0), claim(env=[{"name": "A", "value": "1"}])], "EnvVarsInjectionRejected"),
        (
            [template(envVarsInjectionPolicy="Allowed"), pool(0), claim(env=[{"name": "MODE", "value": "1"}])],
            "EnvVarsInjectionRejected",
        ),
        (
            [template(envVarsInjectionPolicy="Overrides"), pool(0),
             claim(env=[{"name": "A", "value": "1", "containerName": "none"}])],
            "EnvVarsInjectionRejected",
        ),
        (
            [template(), pool(0), claim(volumeClaimTemplates=[{"metadata": {"name": "v"}, "spec": {}}])],
            "VolumeClaimTemplatesError",
        ),
        ([template(), pool(), claim(additionalPodMetadata={"labels": {"app": "sandbox-router"}})], "InvalidMetadata"),
        ([template(), pool(), claim(additionalPodMetadata={"labels": {"team": "a"}})], "InvalidMetadata"),
        ([template(), pool(), claim(additionalPodMetadata={"labels": {"evil.io/a": "a"}})], "InvalidMetadata"),
        (
            [template(), pool(), claim(additionalPodMetadata={"labels": {"sandbox.users.io/a": "no spaces"}})],
            "InvalidMetadata",
        ),
        (
            [template(), pool(), claim(additionalPodMetadata={"annotations": {"hekla.dev/egress": "*"}})],
            "InvalidMetadata",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_had_is_said_and_nothing_is_made(objects: list[Document], reason: str) -> None:
    world = (
        FakeWorld(*objects) if any(one["kind"] == "SandboxClaim" for one in objects) else FakeWorld(*objects, claim())
    )
    settle(world)
    assert ready_of(world) == ("False", reason)
    assert not world.list(Sandbox, "ns")


def test_a_claim_wakes_when_its_template_comes() -> None:
    world = FakeWorld(pool(0), claim())
    settle(world)
    world.put(template())
    woken = reconcile_sandbox_claim.finds[SandboxTemplate](world.get(SandboxTemplate, "ns", "python"), world)
    assert list(woken) == [("ns", "c0")]
    settle(world)
    assert world.get(Sandbox, "ns", "c0") is not None


@pytest.mark.parametrize(("policy", "value"), [("Overrides", "fast"), ("Allowed", "safe")])
def test_environment_that_is_allowed_gets_in(policy: str, value: str) -> None:
    wanted = {"Overrides": "MODE", "Allowed": "OTHER"}[policy]
    env = [{"name": wanted, "value": "fast"}]
    world = FakeWorld(template(envVarsInjectionPolicy=policy), pool(1), claim(env=env))
    filled(world)
    settle(world)
    containers = sandbox_of(world)["spec"]["podTemplate"]["spec"]["containers"]
    given = {one["name"]: one["value"] for one in containers[0]["env"]}
    assert given["MODE"] == value
    assert given[wanted] == "fast"


def test_somebody_elses_sandbox_of_the_claims_name_is_left_alone() -> None:
    stranger = {
        "apiVersion": "agents.x-k8s.io/v1beta1",
        "kind": "Sandbox",
        "metadata": {"name": "c0", "namespace": "ns", "uid": "s"},
    }
    world = FakeWorld(template(), pool(0), claim(), stranger)
    settle(world)
    assert ready_of(world) == ("False", "AdoptionConflict")


def test_an_assignment_is_kept_through_a_conflict_and_dropped_only_when_the_sandbox_is_anothers() -> None:
    world = filled(FakeWorld(template(), pool(2), claim(), claim("c1")))
    first = decide(reconcile_sandbox_claim, world, "ns", "c0", now=NOW)
    world.execute(first[:1])  # the claim knows what it chose; its second write is lost
    chosen = world.document(SandboxClaim, "ns", "c0")["metadata"]["annotations"][names.ASSIGNED_SANDBOX]
    settle(world, "c1")
    assert sandbox_of(world, "c1")["metadata"]["name"] != chosen
    settle(world)
    assert sandbox_of(world)["metadata"]["name"] == chosen


@given(
    members=st.integers(0, 5),
    claims=st.integers(1, 7),
    order=st.randoms(use_true_random=False),
    steps=st.integers(0, 12),
)
def test_no_member_serves_two_claims_however_their_writes_mix(
    members: int, claims: int, order: Any, steps: int
) -> None:
    world = FakeWorld(template(), pool(members), *[claim(f"c{number}") for number in range(claims)])
    filled(world)
    # everybody decides on the same stale caches, then their writes come in any order; a refused one is a conflict
    wanted: list[list[Command]] = [
        decide(reconcile_sandbox_claim, world, "ns", f"c{number}", now=NOW) for number in range(claims)
    ]
    for _ in range(steps):
        one = order.choice(wanted)
        if one:
            try:
                world.execute_one(one.pop(0))
            except CommandRefusedError:
                one.clear()
    for _ in range(2):
        for number in order.sample(range(claims), claims):
            settle(world, f"c{number}")
    taken = [sandbox_of(world, f"c{number}")["metadata"]["uid"] for number in range(claims)]
    assert len(set(taken)) == claims
    warm = [one for one in world.list(Sandbox, "ns") if one.metadata.labels.get(names.LAUNCH_TYPE) == "warm"]
    assert len(warm) == members


@pytest.mark.parametrize("policy", ["Retain", "Delete", "DeleteForeground"])
def test_the_end_of_a_claim_is_told_first(policy: str) -> None:
    lifecycle = {"shutdownTime": "2026-01-01T01:00:00Z", "shutdownPolicy": policy}
    world = filled(FakeWorld(template(), pool(1), claim(lifecycle=lifecycle)))
    settle(world)
    then = datetime(2026, 1, 1, 1, tzinfo=UTC)
    world.execute(decide(reconcile_sandbox_claim, world, "ns", "c0", now=then))
    assert ready_of(world) == ("False", "ClaimExpired")
    wanted = decide(reconcile_sandbox_claim, world, "ns", "c0", now=then)
    deleted = [(one.target.kind.__name__, one.propagation) for one in wanted]  # type: ignore[union-attr]
    assert deleted == {
        "Retain": [("Sandbox", "")],
        "Delete": [("SandboxClaim", "")],
        "DeleteForeground": [("SandboxClaim", "Foreground")],
    }[policy]  # fmt: skip


def test_a_finished_claim_goes_after_its_time() -> None:
    world = filled(FakeWorld(template(), pool(1), claim(lifecycle={"ttlSecondsAfterFinished": 60})))
    settle(world)
    done = {"type": "Finished", "status": "True", "reason": "PodSucceeded", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:30Z"}  # fmt: skip
    name = sandbox_of(world)["metadata"]["name"]
    world.change(Sandbox, "ns", name, {"status": {"conditions": [done]}})
    settle(world)
    finished = world.document(SandboxClaim, "ns", "c0")["status"]["conditions"][1]
    assert (finished["type"], finished["status"]) == ("Finished", "True")
    later = NOW + timedelta(seconds=61)
    world.execute(decide(reconcile_sandbox_claim, world, "ns", "c0", now=later))
    assert ready_of(world) == ("False", "ClaimExpired")


# ---- templates


def test_a_template_has_one_policy_that_lets_in_the_router_and_out_to_the_internet() -> None:
    world = FakeWorld(template())
    converge(reconcile_sandbox_template, world, "ns", "python", now=NOW)
    policy = world.get(NetworkPolicy, "ns", "python-network-policy")
    assert policy is not None
    spec = msgspec.to_builtins(policy.spec)
    assert spec["egress"][0]["to"][0]["ipBlock"]["except"] == [
        "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16",
    ]  # fmt: skip
    world.change(SandboxTemplate, "ns", "python", {"spec": {"networkPolicyManagement": "Unmanaged"}})
    converge(reconcile_sandbox_template, world, "ns", "python", now=NOW)
    assert world.get(NetworkPolicy, "ns", "python-network-policy") is None


@pytest.mark.parametrize(
    ("spec", "reach"),
    [
        ({}, "*"),
        ({"networkPolicyManagement": "Unmanaged"}, "*"),
        ({"networkPolicy": {}}, None),
        (
            {"networkPolicy": {"egress": [{"to": [{"ipBlock": {"cidr": "9.9.9.9/32"}}], "ports": [{"port": 53}]}]}},
            "9.9.9.9:53",
        ),
    ],
)
def test_where_a_template_lets_its_sandboxes_go_is_told_to_the_node(spec: Document, reach: str | None) -> None:
    world = filled(FakeWorld(template(**spec), pool(1)))
    assert world.list(Sandbox, "ns")[0].metadata.annotations.get(names.EGRESS) == reach


def test_reconcilers_keep_their_rules() -> None:
    def make() -> FakeWorld:
        return filled(FakeWorld(template(), pool(2), claim()))

    assert_converges(reconcile_sandbox_claim, make(), "ns", "c0", now=NOW)
    assert_heals(reconcile_sandbox_claim, make, "ns", "c0", now=NOW)
    assert_heals(reconcile_sandbox_warm_pool, lambda: FakeWorld(template(), pool(2)), "ns", "pool", now=NOW)
    assert_heals(reconcile_sandbox_template, lambda: FakeWorld(template()), "ns", "python", now=NOW)
