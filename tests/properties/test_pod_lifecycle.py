"""Any pod, any order of events: phases are legal, orders are never repeated, restarts are bounded, a deletion ends."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.api.pods import Pod
from hekla.node.pod_lifecycle import (
    AskProbe,
    DeletePod,
    PreparePlace,
    RemovePlace,
    RunPostStart,
    RunPreStop,
    StartContainer,
    StopContainer,
    decide,
)
from hekla.node.pod_record import (
    Exit,
    Exited,
    NotPrepared,
    PlaceFailed,
    PlaceReady,
    PlaceRemoved,
    PodRecord,
    PostStartEnded,
    PreStopEnded,
    Probed,
    Stage,
    Started,
    after,
)
from hekla.node.pod_status import status_of

LEGAL = {
    "Pending": {"Pending", "Running", "Succeeded", "Failed"},
    "Running": {"Running", "Succeeded", "Failed"},
    "Succeeded": {"Succeeded"},
    "Failed": {"Failed"},
}

PROBE = st.sampled_from([None, {"exec": {"command": ["x"]}, "failureThreshold": 1, "periodSeconds": 1}])
HOOK = st.sampled_from([None, {"postStart": {"exec": {"command": ["x"]}}}])


def without_none(document):
    return {key: value for key, value in document.items() if value is not None}


def container(name):
    return st.builds(
        lambda startup, live, ready, hook: without_none(
            {"name": name, "startupProbe": startup, "livenessProbe": live, "readinessProbe": ready, "lifecycle": hook}
        ),
        PROBE, PROBE, PROBE, HOOK,
    )  # fmt: skip


def init_container(name):
    plain = st.just({"name": name})
    return st.one_of(plain, container(name).map(lambda each: {**each, "restartPolicy": "Always"}))


PODS = st.builds(
    lambda inits, mains, policy: {
        "metadata": {"name": "p", "namespace": "d", "uid": "u", "generation": 1},
        "spec": {"initContainers": inits, "containers": mains, "restartPolicy": policy},
    },
    st.one_of(st.just([]), st.tuples(init_container("i0"), init_container("i1")).map(list)),
    st.one_of(container("m0").map(lambda one: [one]), st.tuples(container("m0"), container("m1")).map(list)),
    st.sampled_from(["Always", "OnFailure", "Never"]),
)


class Node:
    """Answers a plan's actions in an order, and with outcomes, that the data choose."""

    def __init__(self, document, data):
        self.document, self.data = document, data
        self.pod = msgspec.convert(document, Pod)
        self.now = 1000.0
        self.record = PodRecord(accepted_at=self.now)
        self.waiting = []
        self.running = {}
        self.starts = []
        self.phases = ["Pending"]
        self.is_gone = False

    def decide(self):
        plan = decide(self.pod, self.record, self.now)
        again = decide(self.pod, plan.record, self.now)
        assert again.actions == ()
        assert again.record == plan.record
        self.record = plan.record
        for action in plan.actions:
            self.order(action)
        self.wake_at = plan.wake_at
        phase = status_of(self.pod, self.record, self.now)["phase"]
        assert phase in LEGAL[self.phases[-1]], (self.phases[-1], phase)
        self.phases.append(phase)

    def order(self, action):
        assert not self.is_gone
        if isinstance(action, StartContainer):
            assert action.name not in self.running
            assert action.name not in [each.name for each in self.waiting if isinstance(each, StartContainer)]
            self.starts.append((action.name, self.now))
        if isinstance(action, StopContainer | RunPreStop | RunPostStart | AskProbe):
            assert action.name in self.running
        if isinstance(action, RemovePlace):
            assert not self.running
        if isinstance(action, DeletePod):
            assert not self.running
            self.is_gone = True
        else:
            self.waiting.append(action)

    def happens(self, event):
        self.record = after(self.pod, self.record, event, self.now)
        self.decide()

    def step(self):
        """One thing happens: an order is answered, a container ends by itself, or time passes."""
        choices = list(range(len(self.waiting)))
        ended = sorted(self.running)
        pick = self.data.draw(st.integers(0, len(choices) + len(ended)))
        self.now += self.data.draw(st.sampled_from([0.0, 0.5, 20.0]))
        if pick < len(choices):
            self.answer(self.waiting.pop(pick))
        elif pick < len(choices) + len(ended):
            self.end(ended[pick - len(choices)], self.data.draw(st.sampled_from([0, 1, 137])))
        elif self.wake_at is not None:
            self.now = max(self.now, self.wake_at)
            self.decide()

    def answer(self, action, *, kindly=False):
        well = kindly or self.data.draw(st.booleans())
        match action:
            case PreparePlace():
                self.happens(PlaceReady("127.64.0.1") if well else PlaceFailed("no"))
            case RemovePlace():
                self.happens(PlaceRemoved())
            case StartContainer(name, _):
                if well:
                    self.running[name] = self.now
                    self.happens(Started(name, "id"))
                elif self.data.draw(st.booleans()):
                    self.happens(NotPrepared(name, "CreateContainerConfigError", "no"))
                else:
                    self.happens(Exited(name, Exit(code=128, reason="StartError", finished_at=self.now)))
            case StopContainer(name, _, _):
                if name in self.running:
                    self.end(name, 143)
            case RunPreStop(name, _, _):
                if name in self.running:
                    self.happens(PreStopEnded(name))
            case RunPostStart(name):
                if name in self.running:
                    self.happens(PostStartEnded(name, well))
            case AskProbe(name, kind):
                self.happens(Probed(name, kind, well))

    def end(self, name, code):
        started = self.running.pop(name)
        self.happens(Exited(name, Exit(code=code, reason="x", started_at=started, finished_at=self.now)))

    def delete(self, grace_s):
        meta = {**self.document["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z",
                "deletionGracePeriodSeconds": grace_s}  # fmt: skip
        self.pod = msgspec.convert({**self.document, "metadata": meta}, Pod)
        self.decide()


@settings(max_examples=150, deadline=None)
@given(document=PODS, data=st.data())
def test_any_life_is_legal_and_a_deletion_ends_it(document, data):
    node = Node(document, data)
    node.decide()
    for _ in range(data.draw(st.integers(0, 40))):
        node.step()
        if node.is_gone:
            break
    node.delete(data.draw(st.sampled_from([0, 5])))
    for _ in range(100):
        if node.is_gone:
            break
        if node.waiting:
            node.answer(node.waiting.pop(0), kindly=True)
        else:
            assert node.wake_at is not None, "nothing is under way, and nothing will ever wake the pod"
            node.now = max(node.now, node.wake_at)
            node.decide()
    assert node.is_gone
    assert not node.running
    assert node.phases[-1] in ("Succeeded", "Failed") or not any(
        each.stage is Stage.EXITED for each in node.record.containers.values()
    )


@settings(max_examples=60, deadline=None)
@given(document=PODS, data=st.data())
def test_a_container_that_keeps_failing_starts_ever_less_often(document, data):
    node = Node(document, data)
    node.decide()
    horizon = node.now + 3600
    while node.now < horizon:
        if node.waiting:
            action = node.waiting.pop(0)
            node.answer(action, kindly=not isinstance(action, AskProbe))
        elif node.running:
            node.now += 0.1
            node.end(sorted(node.running)[0], 1)
        elif node.wake_at is not None:
            node.now = max(node.now, node.wake_at)
            node.decide()
        else:
            break
    for name in {name for name, _ in node.starts}:
        moments = [moment for each, moment in node.starts if each == name]
        assert len(moments) <= 20, f"{name} was started {len(moments)} times in an hour"
