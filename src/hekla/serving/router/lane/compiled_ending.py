# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# numba types what it compiles; annotations would be ignored.
"""How a request's way through the fast lane ends: its answer was taken, its client takes the rest of it, or its client leaves."""

from numba import njit

from hekla.serving.router.kernel.compiled_words import OPTIONS, double, set_double, set_word, word
from hekla.serving.router.lane.compiled_asking import close_client, read_client
from hekla.serving.router.lane.compiled_calls import SEND, call
from hekla.serving.router.lane.compiled_counts import end_request
from hekla.serving.router.lane.compiled_rows import buffer_at, client_at, close_engine, drop_request
from hekla.serving.router.lane.layout import Client, Command, Outcome, Phase, State

_AGAIN = -11
_AT_ONCE = 0x40 | 0x4000
"""Do not wait, and no signal."""
_LEFT = 499


@njit(**OPTIONS)
def go_on(state, number, now):
    """An answer was taken: on to the next request, or good-bye."""
    client = client_at(state, number)
    set_word(client, Client.PHASE, Phase.IDLE)
    set_double(client, Client.SINCE, now)
    if word(client, Client.ENDS) != 0:
        return close_client(state, number)
    if word(client, Client.MORE) != 0:
        set_word(client, Client.MORE, 0)
        return read_client(state, number, now)
    return Command.NOTHING


@njit(**OPTIONS)
def send_rest(state, number, now):
    """The client takes again."""
    client = client_at(state, number)
    offset, length = word(client, Client.OFFSET), word(client, Client.LENGTH)
    begin = buffer_at(state, word(client, Client.BUFFER)) + offset
    sent = call(SEND, word(client, Client.FD), begin, length - offset, _AT_ONCE, 0, 0)
    if sent == _AGAIN:
        return Command.NOTHING
    if sent < 0:
        return close_client(state, number)
    set_double(client, Client.SINCE, now)
    set_word(client, Client.OFFSET, offset + sent)
    if offset + sent < length:
        return Command.NOTHING
    drop_request(state, client)
    return go_on(state, number, now)


@njit(**OPTIONS)
def recall_usage(state, client):
    """Whether a stream has told its usage so far; it stands in the state."""
    set_word(state, State.USAGE_INPUT, word(client, Client.USAGE_INPUT))
    set_word(state, State.USAGE_OUTPUT, word(client, Client.USAGE_OUTPUT))
    set_word(state, State.USAGE_CACHED, word(client, Client.USAGE_CACHED))
    return word(client, Client.HAS_USAGE) != 0


@njit(**OPTIONS)
def client_left(state, number, now):
    """Whatever runs for it ends: the engine stops at once."""
    client = client_at(state, number)
    engine = word(client, Client.ENGINE)
    if engine >= 0:
        close_engine(state, engine)
    has_begun = double(client, Client.FIRST_BYTE) > 0.0
    status = word(client, Client.STATUS) if has_begun else _LEFT
    end_request(state, client, now, Outcome.LEFT, status, has_begun and recall_usage(state, client))
    return close_client(state, number)
