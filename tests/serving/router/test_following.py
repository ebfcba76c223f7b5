"""Numbered messages with gaps, replays, restarts: what is applied must be what was sent, in order, or nothing is known."""

import random

from hekla.serving.router.prefix import following as following_module
from hekla.serving.router.prefix.following import MOST_WAITING, Apply, Ask, Following, Forget


def message(number):
    return f"m{number}".encode()


def live(following, *numbers):
    return [step for number in numbers for step in following.received(number, message(number))]


def replay(following, *numbers):
    steps = [step for number in numbers for step in following.replayed(number, message(number))]
    return steps + following.replay_ended()


def applied(*numbers):
    return [Apply(message(number)) for number in numbers]


def test_messages_in_turn_are_applied():
    assert live(Following(), 0, 1, 2) == applied(0, 1, 2)


def test_who_comes_late_asks_for_all_that_there_was():
    following = Following()
    assert live(following, 5, 6) == [Ask(0)]
    assert replay(following, 0, 1, 2, 3, 4) == applied(0, 1, 2, 3, 4, 5, 6)
    assert live(following, 7) == applied(7)


def test_a_gap_is_asked_for_once_and_what_follows_waits():
    following = Following()
    live(following, 0, 1)
    assert live(following, 4) == [Ask(2)]
    assert live(following, 5) == []
    assert replay(following, 2, 3, 4, 5) == applied(2, 3, 4, 5)
    assert live(following, 6) == applied(6)
    assert following.lost == 0


def test_a_gap_that_nobody_can_fill_makes_all_doubtful():
    following = Following()
    live(following, 0, 1)
    live(following, 7, 8)
    assert replay(following, 5, 6) == [Forget("3 messages are lost"), *applied(5, 6, 7, 8)]
    assert following.lost == 3


def test_a_replay_that_brings_nothing_gives_up():
    following = Following()
    live(following, 0)
    live(following, 3)
    assert following.replay_ended() == [Forget("2 messages are lost"), *applied(3)]
    assert live(following, 4) == applied(4)


def test_numbers_that_go_back_are_another_process():
    following = Following()
    live(following, 0, 1, 2)
    assert live(following, 0) == [Forget("message numbers went back to 0"), *applied(0)]
    assert live(following, 1) == applied(1)


def test_a_process_that_restarted_while_we_waited_is_noticed():
    following = Following()
    live(following, 0, 5)
    assert live(following, 0)[0] == Forget("message numbers went back to 0")
    assert live(following, 1) == applied(1)


def test_a_disconnected_publisher_is_forgotten_once():
    following = Following()
    assert following.disconnected() == []
    live(following, 0)
    assert following.disconnected() == [Forget("the publisher is gone")]
    assert following.disconnected() == []
    assert live(following, 0) == applied(0)


def test_what_waits_is_bounded():
    following = Following()
    live(following, 0)
    steps = live(following, *range(2, MOST_WAITING + 3))
    assert steps[0] == Ask(1)
    assert steps[1] == Forget("1 messages are lost")
    assert steps[2:] == applied(*range(2, MOST_WAITING + 3))


def test_what_waits_is_bounded_by_its_bytes_too(monkeypatch):
    monkeypatch.setattr(following_module, "MOST_WAITING_BYTES", 10)
    following = Following()
    live(following, 0)
    assert live(following, *range(2, 7)) == [Ask(1)], "ten bytes wait"
    assert live(following, 7) == [Forget("1 messages are lost"), *applied(*range(2, 8))]
    assert live(following, 9) == [Ask(8)], "what was taken in waits no more"


def test_whatever_is_lost_and_replayed_what_is_applied_is_in_order():
    dice = random.Random(7)
    for _ in range(200):
        following, known, kept = Following(), [], 20
        for number in range(100):
            steps = live(following, number) if dice.random() < 0.8 else []
            while steps:
                step = steps.pop(0)
                if isinstance(step, Apply):
                    known.append(int(step.payload[1:]))
                elif isinstance(step, Forget):
                    known.clear()
                else:
                    steps += replay(following, *range(max(step.start, number - kept), number + 1))
        assert known == list(range(known[0], known[-1] + 1))
