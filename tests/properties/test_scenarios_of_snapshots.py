"""What a snapshot decides, its scenario finds: a bug report that was turned into a test passes before it is mended."""

from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.api.meta import Document
from hekla.scheduler.as_scenario import scenario_text
from hekla.scheduler.pseudonyms import anonymous
from hekla.scheduler.replay import Replay
from hekla.scheduler.snapshot import Snapshot, typed
from hekla.testing.scenarios import expectations, run_scenario

CONFIGURATION = """\
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
- plugins:
  - name: predicates
  - name: nodeorder
  - name: binpack
    arguments:
      binpack.weight: 2
"""
SCHEDULING = "scheduling.volcano.sh/v1beta1"
NODES, GROUPS = ("n1", "n2", "n10"), ("red", "green", "blue")


def obj(api_version: str, kind: str, name: str, namespace: str = "", age: int = 0, **rest: Any) -> Document:
    metadata = {"name": name, "uid": f"{kind}-{name}", "creationTimestamp": f"2026-01-01T00:00:{age:02}Z"}
    metadata |= {"namespace": namespace} if namespace else {}
    return {"apiVersion": api_version, "kind": kind, "metadata": {**metadata, **rest.pop("more", {})}, **rest}


@st.composite
def worlds(draw: st.DrawFn) -> list[Document]:
    world = [obj(SCHEDULING, "Queue", "default")]
    for name in NODES:
        amounts = {"cpu": str(draw(st.integers(1, 4))), "memory": f"{draw(st.integers(1, 9))}Gi", "pods": "9"}
        taints = [{"key": "a", "effect": "NoSchedule"}] if draw(st.integers(0, 3)) == 0 else []
        labels = {"zone": draw(st.sampled_from(["x", "y"])), "kubernetes.io/hostname": name}
        more = {"labels": labels}
        world.append(obj("v1", "Node", name, more=more, spec={"taints": taints}, status={"allocatable": amounts}))
    for age, name in enumerate(GROUPS):
        spec = {"minMember": draw(st.integers(1, 3))}
        world.append(obj(SCHEDULING, "PodGroup", name, "ns", age, spec=spec, status={"phase": "Inqueue"}))
    for number in range(draw(st.integers(1, 8))):
        group = draw(st.sampled_from(GROUPS))
        requests = {"cpu": f"{draw(st.integers(0, 8)) * 250}m", "memory": f"{draw(st.integers(0, 3))}Gi"}
        spec = {
            "schedulerName": "volcano", "containers": [{"image": "trainer", "resources": {"requests": requests}}],
            "tolerations": draw(st.sampled_from([[], [{"operator": "Exists"}]])),
            "nodeSelector": draw(st.sampled_from([{}, {}, {"zone": "x"}])),
        }  # fmt: skip
        phase = "Pending"
        if draw(st.integers(0, 3)) == 0:
            spec["nodeName"], phase = draw(st.sampled_from(NODES)), "Running"
        more = {"annotations": {"scheduling.k8s.io/group-name": group}}
        world.append(obj("v1", "Pod", f"p-{number}", "ns", more=more, spec=spec, status={"phase": phase}))
    return world


def snapshot(world: list[Document]) -> Snapshot:
    return Snapshot(objects=tuple(typed(one) for one in world), configuration=CONFIGURATION, wall_s=100.0)


@given(worlds())
@settings(max_examples=20, deadline=None)
def test_a_scenario_of_a_snapshot_passes(world: list[Document]) -> None:
    document = yaml.safe_load(scenario_text(snapshot(world)))
    (outcome,) = run_scenario(document)
    (expected,) = expectations(document)
    assert {key: outcome.get(key, {}) for key in expected} == expected


@given(worlds(), st.binary(min_size=1, max_size=32))
@settings(max_examples=30, deadline=None)
def test_pseudonyms_change_no_decision(world: list[Document], key: bytes) -> None:
    taken = snapshot(world)
    before, after = Replay(taken).cycle(), Replay(anonymous(taken, key)).cycle()
    assert len(after.started) == len(before.started)
    assert len(after.waiting) == len(before.waiting)
