"""Engines that come and go: set aside for longer each time, waited for no longer than they are good for, and forgiven when they stay."""

import pytest

from hekla.serving.router.endpoints import BENCH_S, CALM_S, MOST_LEFT, Fleet
from hekla.serving.router.local_plan import LocalPlan
from hekla.serving.router.patience import REGAINED, RESTART_S, Patience
from hekla.serving.router.plan import Attempt, Destination, Fault, Refusal, Waiting
from serving.router.poolkit import endpoint, pool_of, question
from serving.router.test_restarts import engine_goes, engine_is_back, restarting
from serving.router.worldkit import pod, server, world

STEP_S = 0.25


def failures(until_s, *, is_there, fault=Fault.CONNECT, count=2, pool=None, tell=lambda now: None):
    """Of four requests a second over two engines, by outage: how many met the first while it was not there. `tell` has the cluster say more."""
    pool = pool or pool_of(count)
    flapping = pool.members[0].name
    met = []
    for step in range(int(until_s / STEP_S)):
        now = step * STEP_S
        if is_there(now - STEP_S) and not is_there(now):
            met.append(0)
        tell(now)
        plan = LocalPlan(pool, question(f"{step}"), Destination("m"))
        attempt = plan.next(now)
        if isinstance(attempt, Attempt) and attempt.target.name == flapping and not is_there(now):
            plan.failed(attempt, fault, now)
            met[-1] += 1
            attempt = plan.next(now)
        if isinstance(attempt, Attempt):
            plan.first_byte(now)
        plan.ended(None, now)
    return met, pool


def by_turns(up_s, down_s):
    return lambda now: now % (up_s + down_s) < up_s


def test_an_engine_that_flaps_is_asked_less_each_time_it_is_out():
    met, _ = failures(300.0, is_there=by_turns(7.0, 5.0))
    assert met[0] >= 3
    assert max(met[2:]) <= 1


class Kubelet:
    """Tells of a pod that flaps, a second late: it is not ready, and then it is, its container begun once more."""

    def __init__(self, is_there):
        self.is_there, self.labels, self.restarts = is_there, {"app": "m"}, 0
        self.told = self.pod(is_ready=True)
        self.world = world(server("m"), self.told, pod("e1", self.labels, ip="10.0.0.2"))

    @property
    def pool(self):
        return self.world.servers["ml/m"].decode

    def pod(self, *, is_ready, uid="first"):
        return pod("e0", self.labels, ready=is_ready, restarts=self.restarts, uid=uid)

    def tell(self, now):
        is_ready, was_ready = self.is_there(now - 1.0), self.is_there(now - 1.0 - STEP_S)
        if is_ready != was_ready:
            self.restarts += is_ready
            self.note(self.pod(is_ready=is_ready))

    def note(self, new):
        self.world.note(self.told, new)
        self.told = new


def test_an_engine_whose_pod_is_unready_each_time_it_flaps_is_asked_less_all_the_same():
    """Each time the pod was ready again all was forgotten, and each outage met as many requests as the first."""
    kubelet = Kubelet(by_turns(7.0, 5.0))
    met, _ = failures(300.0, is_there=kubelet.is_there, pool=kubelet.pool, tell=kubelet.tell)
    assert kubelet.restarts > 20
    assert met[0] >= 2
    assert max(met[2:]) <= 1


def test_an_engine_whose_pod_is_ready_again_sits_out_to_the_end_unless_nobody_else_is_left():
    kubelet = Kubelet(None)
    one, other = sorted(kubelet.pool.members, key=lambda each: each.name)
    kubelet.pool.fault(one, 10.0)
    kubelet.note(kubelet.pod(is_ready=False))
    assert kubelet.pool.candidates(10.1) == [other]
    kubelet.note(kubelet.pod(is_ready=True))
    assert kubelet.pool.candidates(10.2) == [other]
    assert {each.name for each in kubelet.pool.candidates(10.2, without=[other])} == {"e0"}
    assert {each.name for each in kubelet.pool.candidates(10.0 + BENCH_S[0])} == {"e0", "e1"}


def test_a_request_that_fails_after_its_engine_left_is_held_against_it_when_it_is_back():
    kubelet = Kubelet(None)
    one, other = sorted(kubelet.pool.members, key=lambda each: each.name)
    kubelet.note(kubelet.pod(is_ready=False))
    kubelet.pool.fault(one, 10.0)
    kubelet.note(kubelet.pod(is_ready=True))
    assert kubelet.pool.candidates(10.1) == [other]


def test_another_pod_of_the_same_name_begins_anew():
    kubelet = Kubelet(None)
    one = next(each for each in kubelet.pool.members if each.name == "e0")
    kubelet.pool.fault(one, 10.0)
    kubelet.note(None)
    kubelet.note(kubelet.pod(is_ready=True, uid="second"))
    assert {each.name for each in kubelet.pool.candidates(10.1)} == {"e0", "e1"}


def test_of_engines_that_left_a_bounded_number_is_remembered():
    fleet = Fleet()
    for number in range(MOST_LEFT + 10):
        one = fleet.add(endpoint(f"e{number}", incarnation=f"u{number}/0"))
        one.fault(1.0)
        fleet.remove(one)
    first, last = (fleet.add(endpoint(f"e{number}", incarnation=f"u{number}/1")) for number in (0, MOST_LEFT + 9))
    assert (first.faults, last.faults) == (0, 1)


def test_an_engine_that_flapped_and_stays_is_all_right_again_at_its_next_answer():
    def is_there(now):
        return now >= 120.0 or by_turns(7.0, 5.0)(now)

    met, pool = failures(120.0 + BENCH_S[-1] + 7 * CALM_S, is_there=is_there)
    now, one = 120.0 + BENCH_S[-1] + 7 * CALM_S, pool.members[0]
    assert met[0]
    assert (one.faults, one.benched_until) == (0, 0.0)
    pool.fault(one, now)
    assert one.benched_until == now + BENCH_S[0], "all is forgotten"


def test_one_time_is_forgotten_for_each_ten_seconds_of_answering():
    pool = pool_of(2)
    one, now = pool.members[0], 0.0
    for _ in range(4):
        pool.fault(one, now)
        now = one.benched_until
    one.answered(now)
    pool.fault(one, now + CALM_S)
    assert one.benched_until == now + CALM_S + BENCH_S[3]
    now = one.benched_until
    one.answered(now)
    pool.fault(one, now + 2 * CALM_S)
    assert one.benched_until == now + 2 * CALM_S + BENCH_S[2]


def test_nobody_sits_out_longer_than_the_longest():
    pool = pool_of(2)
    one, now = pool.members[0], 0.0
    for _ in range(100):
        pool.fault(one, now)
        assert one.benched_until - now <= BENCH_S[-1]
        now = one.benched_until
        one.answered(now)
    assert one.relapses <= len(BENCH_S), "and that is forgotten in a bounded time"


def test_many_requests_that_an_engine_drops_at_once_are_one_fault():
    pool = pool_of(2)
    for _ in range(100):
        pool.fault(pool.members[0], 1.0)
    assert pool.members[0].benched_until == 1.0 + BENCH_S[0]


def test_a_request_that_fails_while_others_go_well_is_not_held_against_an_engine():
    pool = pool_of(2)
    one = pool.members[0]
    for turn in range(50):
        pool.fault(one, float(turn))
        one.answered(turn + 0.1)
    pool.fault(one, 50.0)
    assert one.benched_until == 50.0 + BENCH_S[0]


@pytest.mark.parametrize(("fault", "count"), [(Fault.BUSY, 2), (Fault.CONNECT, 1)], ids=["busy", "alone"])
def test_who_has_no_room_or_is_alone_sits_out_as_if_nothing_had_been(fault, count):
    _, pool = failures(300.0, is_there=by_turns(7.0, 5.0), fault=fault, count=count)
    one = pool.members[0]
    one.answered(400.0)
    pool.fault(one, 400.0, is_busy=fault is Fault.BUSY)
    assert one.benched_until == 400.0 + BENCH_S[0]


# ---- requests that wait for it


def test_requests_wait_for_an_engine_that_flaps_no_longer_in_all_than_it_is_good_for():
    door, waited, begun = restarting(), 0.0, None
    up, down, turns = 4.0, 40.0, 20
    for turn in range(turns):
        begun = door.now
        found = door.ask()
        if isinstance(found, Waiting):
            while not door.told and door.now - begun < down:
                door.now += STEP_S
                door.holding.tick()
            waited += door.now - begun
            assert door.told.pop().status == 503
        else:
            assert isinstance(found.next(door.now), Refusal)
        door.now = begun + down
        engine_is_back(door)
        door.now += up
        engine_goes(door)
        assert turn == 0 or waited < RESTART_S + (turn + 1) * (up * REGAINED + STEP_S)


def test_a_request_that_an_engine_takes_up_only_to_lose_it_waits_no_longer_than_one_that_meets_nobody():
    door, taken_up = restarting(), 0
    door.ask()
    while door.told in ([], [None]):
        door.now += 1.0
        door.holding.tick()
        if door.now % 5.0 == 0.0 and not door.told:
            engine_is_back(door)
            assert door.told.pop() is None
            taken_up += 1
            engine_goes(door)
            assert isinstance(door.ask(), Waiting)
    assert (door.now, taken_up) == (RESTART_S, 5)
    (refusal,) = door.told
    assert (refusal.status, refusal.retry_after_s) == (503, 5.0)
    assert "come and go" in refusal.message


def test_an_engine_that_is_there_four_fifths_of_the_time_is_always_waited_for():
    patience, now = Patience(), 0.0
    for _ in range(50):
        assert patience.out(now) >= now + 20.0
        now += 20.0
        patience.back(now)
        now += 80.0


def test_what_was_missing_is_forgotten_when_all_of_it_is_back():
    door = restarting()
    door.ask()
    door.now = 10.0
    engine_is_back(door)
    door.holding.tick()
    assert not door.holding.is_empty
    door.now += 10.0 / REGAINED
    door.holding.tick()
    assert door.holding.is_empty
