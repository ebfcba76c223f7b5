"""Lines before the desk: whose turn it is, what is never lost, and what happens at every bound. All in virtual time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hekla.serving.router import queues
from hekla.serving.router.fair_queue import Fairness, FairOrder, read_fairness
from hekla.serving.router.holding import HOLD_S
from hekla.serving.router.plan import NOT_ASKED, Usage
from hekla.serving.router.question import Question
from hekla.serving.router.queues import Lines
from hekla.serving.router.session_boost import BoostOrder, SessionBoost, read_session_boost
from hekla.serving.router.settings import from_environment
from hekla.serving.router.variables import VariableError


class Engines:
    """Room for so many requests of every model in `models`."""

    def __init__(self, room, models=("llama",)):
        self.room = room
        self.models = set(models)
        self.sleeps = False

    def knows(self, model):
        return model in self.models

    def may_start(self, model, in_flight, now):
        return in_flight < self.room

    def has_engines(self, model):
        return not self.sleeps


def ask(user="", tokens=10, session="", model="llama"):
    headers = {"x-session-id": session} if session else {}
    return Question(path="/v1/x", model=model, prompt=b"", input_tokens=tokens, user=user, headers=headers)


class Door:
    """Sends requests into lines and writes down what became of them."""

    def __init__(self, order, room=1):
        self.engines = Engines(room)
        self.lines = Lines(order, self.engines)
        self.running = []
        self.refused = {}

    def send(self, name, question, now=0.0):
        found = self.lines.admit(question, now)
        if found is None:
            self.running.append(name)
        elif isinstance(found, queues.Place):
            found.when_ready(lambda refusal: self._told(name, refusal))
        else:
            self.refused[name] = found
        return found

    def _told(self, name, refusal):
        if refusal is None:
            self.running.append(name)
        else:
            self.refused[name] = refusal

    def end(self, question, output=0, now=0.0):
        self.lines.ended(question, Usage(question.input_tokens, output), now)


def test_who_used_least_goes_first():
    door = Door(FairOrder(Fairness()))
    greedy = ask("greedy", tokens=1000)
    door.send("g1", greedy)
    door.send("g2", greedy)
    door.send("m1", ask("modest"))
    door.end(greedy)
    assert door.running == ["g1", "m1"]
    door.end(ask("modest"))
    assert door.running == ["g1", "m1", "g2"]


def test_requests_of_one_user_keep_their_order():
    door = Door(FairOrder(Fairness()))
    for number in range(4):
        door.send(number, ask("ann", tokens=100 - number))
    for _ in range(3):
        door.end(ask("ann"))
    assert door.running == [0, 1, 2, 3]


def test_who_gives_no_name_comes_last():
    door = Door(FairOrder(Fairness()))
    door.send("first", ask("ann", tokens=1000))
    door.send("nameless", ask(""))
    door.send("ann", ask("ann"))
    door.end(ask("ann"))
    assert door.running == ["first", "ann"]


def test_answers_count_double_and_fall_out_of_the_window():
    order = FairOrder(Fairness(window_s=60.0))
    order.started(ask("ann", tokens=10), 0.0)
    order.ended(ask("ann", tokens=10), Usage(10, 20), 1.0)
    assert order.used("llama", "ann", 1.0) == 50
    assert order.used("llama", "ann", 63.0) == 0


def test_a_hundred_requests_at_once_do_not_pass_as_no_use():
    door = Door(FairOrder(Fairness()), room=2)
    for number in range(6):
        door.send(f"g{number}", ask("greedy"))
    door.send("m", ask("modest"))
    door.end(ask("greedy"))
    assert door.running == ["g0", "g1", "m"]


def test_a_prompt_that_no_engine_was_asked_is_no_use():
    order = FairOrder(Fairness())
    door = Door(order)
    door.send("a", ask("ann"))
    assert order.used("llama", "ann", 0.0) > 0
    door.lines.ended(ask("ann"), NOT_ASKED, 0.0)
    assert order.used("llama", "ann", 0.0) == 0


def test_a_limit_of_concurrency_holds_whatever_the_engines_could():
    door = Door(FairOrder(Fairness(max_concurrent=2)), room=100)
    for number in range(5):
        door.send(number, ask("ann"))
    assert door.running == [0, 1]


def test_a_pace_lets_in_so_many_a_second():
    door = Door(FairOrder(Fairness(max_qps=10)), room=100)
    for number in range(5):
        door.send(number, ask("ann"), now=0.0)
    assert door.running == [0]
    door.lines.tick(0.1)
    assert door.running == [0, 1]
    door.lines.tick(0.15)
    assert door.running == [0, 1]
    door.lines.tick(0.2)
    assert door.running == [0, 1, 2]


def test_who_waits_too_long_is_told():
    door = Door(FairOrder(Fairness(timeout_s=60.0)))
    door.send("a", ask("ann"), now=0.0)
    door.send("b", ask("ann"), now=1.0)
    door.lines.tick(60.9)
    assert not door.refused
    door.lines.tick(61.0)
    assert (door.refused["b"].status, door.refused["b"].message) == (504, "Request processing timed out in queue")


def test_who_waits_for_a_model_that_sleeps_is_as_patient_as_who_is_held_and_then_as_ever():
    door = Door(FairOrder(Fairness(timeout_s=60.0)))
    door.engines.sleeps = True
    for name in ("held", "a", "b"):
        door.send(name, ask("ann"))
    door.lines.tick(200.0)
    assert not door.refused
    door.engines.sleeps = False
    door.lines.tick(200.1)
    door.end(ask("ann"), now=210.0)
    assert door.running == ["held", "a"]
    door.lines.tick(261.0)
    assert list(door.refused) == ["b"]


def test_who_waits_for_a_model_that_never_wakes_is_told_in_the_end():
    door = Door(FairOrder(Fairness(timeout_s=60.0)))
    door.engines.sleeps = True
    door.send("held", ask("ann"))
    door.send("a", ask("ann"))
    door.lines.tick(HOLD_S)
    assert door.refused["a"].status == 504


def test_who_leaves_takes_no_turn():
    door = Door(FairOrder(Fairness()))
    door.send("a", ask("ann"))
    place = door.send("b", ask("ann"))
    door.send("c", ask("ann"))
    place.abandon()
    door.end(ask("ann"))
    assert door.running == ["a", "c"]
    page = list(door.lines.waits.metrics())
    assert 'kthena_router_fairness_queue_cancelled_total{model="llama",user_id="_all"} 1' in page
    assert 'kthena_router_fairness_queue_dequeue_total{model="llama",user_id="_all"} 2' in page


def test_waits_are_told_in_kthenas_metrics_and_kept_nowhere_else():
    door = Door(BoostOrder(SessionBoost()))
    for number in range(100):
        door.send(number, ask(), now=float(number))
        door.end(ask(), now=number + 0.5)
    door.send("a", ask(), now=200.0)
    door.send("b", ask(), now=200.0)
    door.end(ask(), now=202.0)
    page = list(door.lines.waits.metrics())
    assert 'kthena_router_session_boost_queue_duration_seconds_bucket{model="llama",le="0.001"} 101' in page
    assert 'kthena_router_session_boost_queue_duration_seconds_bucket{model="llama",le="2.5"} 102' in page
    assert 'kthena_router_session_boost_queue_duration_seconds_sum{model="llama"} 2' in page
    assert 'kthena_router_session_boost_queue_dequeue_total{model="llama"} 102' in page


def test_a_model_without_a_route_is_refused_before_it_has_a_line():
    door = Door(FairOrder(Fairness()))
    refusal = door.send("x", ask(model="made-up"))
    assert (refusal.status, refusal.message) == (404, "route not found")
    assert not list(door.lines.lines())


def test_a_line_ends_with_its_route():
    door = Door(FairOrder(Fairness()))
    door.send("a", ask("ann"))
    door.send("b", ask("ann"))
    door.engines.models.clear()
    door.lines.tick(1.0)
    assert door.refused["b"].message == "route not found"
    door.end(ask("ann"), now=2.0)
    door.lines.tick(3.0)
    assert not list(door.lines.lines())


def test_a_line_has_an_end(monkeypatch):
    monkeypatch.setattr(queues, "MOST_WAITING", 2)
    door = Door(FairOrder(Fairness()))
    for name in "abcd":
        door.send(name, ask("ann"))
    assert door.refused["d"].status == 429


def test_follow_ups_go_first_the_latest_at_the_front():
    door = Door(BoostOrder(SessionBoost()), room=2)
    for session in ("s1", "s2"):
        door.send(session, ask(session=session))
    door.send("new", ask(session="s3"))
    door.end(ask(session="s1"), now=1.0)
    door.send("other", ask())
    door.send("s1 again", ask(session="s1"), now=2.0)
    door.send("s2 again", ask(session="s2"), now=2.0)
    door.end(ask(session="s2"), now=3.0)
    door.end(ask(session="s3"), now=4.0)
    assert door.running == ["s1", "s2", "new", "s2 again", "s1 again"]


def test_a_place_is_kept_for_a_follow_up_for_a_while():
    door = Door(BoostOrder(SessionBoost(grace_s=1.0)))
    door.send("a", ask(session="s"), now=0.0)
    door.send("stranger", ask(), now=0.1)
    door.end(ask(session="s"), now=1.0)
    assert door.running == ["a"]
    door.send("a again", ask(session="s"), now=1.5)
    assert door.running == ["a", "a again"]


def test_a_place_that_nobody_takes_is_given_away():
    door = Door(BoostOrder(SessionBoost(grace_s=1.0)))
    door.send("a", ask(session="s"), now=0.0)
    door.send("stranger", ask(), now=0.1)
    door.end(ask(session="s"), now=1.0)
    door.lines.tick(1.9)
    assert door.running == ["a"]
    door.lines.tick(2.0)
    assert door.running == ["a", "stranger"]


def test_sessions_beyond_the_bound_are_forgotten():
    order = BoostOrder(SessionBoost(max_sessions=1, grace_s=1.0))
    for session in ("s1", "s2"):
        order.ended(ask(session=session), None, 0.0)
    assert order.kept_from(ask(session="s2"), 0.5) == 0
    assert order.kept_from(ask(session="s1"), 0.5) == 2


@given(st.lists(st.tuples(st.sampled_from(["send", "end", "leave", "tick"]), st.integers(0, 5)), max_size=80))
def test_nobody_is_lost_and_the_engines_are_never_overfull(steps):
    for order in (FairOrder(Fairness(timeout_s=20.0)), BoostOrder(SessionBoost(timeout_s=20.0, grace_s=2.0))):
        door, places, sent, left, ended = Door(order, room=3), {}, 0, set(), 0
        for now, (step, who) in enumerate(steps):
            if step == "send":
                places[sent] = door.send(sent, ask(f"u{who}", session=f"s{who}"), float(now))
                sent += 1
            elif step == "end" and len(door.running) > ended:
                door.end(ask(f"u{who}", session=f"s{who}"), 7, float(now))
                ended += 1
            elif step == "leave":
                waiting = [n for n in places if n not in door.running and n not in door.refused and n not in left]
                if waiting:
                    left.add(waiting[who % len(waiting)])
                    places[waiting[who % len(waiting)]].abandon()
            else:
                door.lines.tick(float(now))
            assert len(door.running) - ended <= 3
        door.lines.tick(1e6)
        assert len(door.running) == len(set(door.running))
        assert {*door.running, *door.refused, *left} == set(range(sent))


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("FAIRNESS_WINDOW_SIZE", "5 minutes", read_fairness),
        ("FAIRNESS_WINDOW_SIZE", "2h", read_fairness),
        ("FAIRNESS_MAX_QPS", "-1", read_fairness),
        ("FAIRNESS_INPUT_TOKEN_WEIGHT", "nan", read_fairness),
        ("SESSION_BOOST_MAX_SESSIONS", "many", read_session_boost),
        ("SESSION_BOOST_HEADER", "session id", read_session_boost),
        ("REDIS_HOST", "redis cache", from_environment),
        ("REDIS_HOST", "redis:6379", from_environment),
    ],
)
def test_a_variable_that_cannot_be_read_is_named(name, value, read):
    with pytest.raises(VariableError, match=name):
        read({name: value})


def test_kthenas_variables_are_read():
    assert read_fairness({}) == Fairness()
    assert read_fairness({"FAIRNESS_WINDOW_SIZE": "1h", "FAIRNESS_MAX_CONCURRENT": "8"}) == Fairness(
        window_s=3600.0, max_concurrent=8
    )
    assert read_session_boost(
        {"SESSION_BOOST_HEADER": "X-Chat", "SESSION_BOOST_GRACE_PERIOD": "500ms"}
    ) == SessionBoost(header="x-chat", grace_s=0.5)
