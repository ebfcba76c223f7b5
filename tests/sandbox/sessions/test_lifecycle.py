"""The table of a session's life: every sequence of events leads somewhere, and everything ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hekla.sandbox.sessions.lifecycle import LIVE, SERVING, TABLE, Event, IllegalEventError, State, after, takes


def test_every_state_but_gone_can_be_ended():
    for state in set(State) - {State.GONE}:
        assert after(state, Event.END) is State.EXPIRING


def test_gone_is_the_end():
    assert not [event for event in Event if takes(State.GONE, event)]
    assert [state for (state, event), target in TABLE.items() if target is State.GONE] == [State.EXPIRING]


def test_what_expires_never_serves_again():
    assert {target for (state, _), target in TABLE.items() if state is State.EXPIRING} == {State.EXPIRING, State.GONE}


def test_a_session_serves_only_after_it_was_bound_or_thawed():
    for (state, event), target in TABLE.items():
        if target is State.RUNNING:
            assert (state, event) in {
                (State.CLAIMED, Event.BOUND),
                (State.FROZEN, Event.THAW),
                (State.PAUSED, Event.THAW),
            }
    assert SERVING < LIVE


@given(st.lists(st.sampled_from(Event), max_size=40))
def test_any_sequence_of_events_is_taken_or_refused_and_never_leads_back_from_an_end(events):
    state, has_ended = State.CREATING, False
    for event in events:
        if takes(state, event):
            state = after(state, event)
        else:
            with pytest.raises(IllegalEventError):
                after(state, event)
        has_ended = has_ended or state in (State.EXPIRING, State.GONE)
        assert not has_ended or state in (State.EXPIRING, State.GONE)


@given(st.sampled_from(State))
def test_everything_can_be_gone_in_two_steps(state):
    if state is not State.GONE:
        assert after(after(state, Event.END), Event.REMOVED) is State.GONE


def test_an_illegal_event_says_what_and_when():
    with pytest.raises(IllegalEventError, match='a session that is paused cannot take "freeze"'):
        after(State.PAUSED, Event.FREEZE)
