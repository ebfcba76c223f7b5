# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# numba types what it compiles; annotations would be ignored.
"""The fast lane: reads a plain request, decides, asks the engine, passes the answer on; Python is called where it is not plain.

One thread calls all of it. It never waits: a socket that has nothing, or takes nothing, is left until epoll tells of it. Events are told
once for each change, so what is not read at once is noted (`Client.MORE`), or asked for anew (`may_read_on`: an engine that always has more
to say is not to keep the others waiting). A read that fills less than its buffer has read all.
`compiled_asking.py` and `compiled_passing.py` have the two halves of a request.
"""

from numba import cfunc, float64, int64, njit

from hekla.serving.router.kernel.compiled_words import (
    OPTIONS,
    double,
    half,
    set_word,
    word,
)
from hekla.serving.router.lane.compiled_asking import (
    close_client,
    hand_over,
    read_client,
    read_last,
    send_more,
    send_request,
    take_over,
)
from hekla.serving.router.lane.compiled_calls import DATA_AT, EPOLL_WAIT, EVENT_BYTES, call
from hekla.serving.router.lane.compiled_counts import keep_up
from hekla.serving.router.lane.compiled_ending import client_left, send_rest
from hekla.serving.router.lane.compiled_resting import read_on, rested, rests
from hekla.serving.router.lane.compiled_rows import (
    ENGINE_BIT,
    client_at,
    close_engine,
    endpoint_at,
    engine_at,
    free_client,
    free_engine,
    keep_engine,
    new_client,
    new_engine,
    unwatch,
    wait_no_more,
    way_at,
)
from hekla.serving.router.lane.layout import (
    EVENTS,
    RECORDS,
    Call,
    Client,
    Command,
    Endpoint,
    Engine,
    EnginePhase,
    Phase,
    Reason,
    State,
    Way,
)

_IN, _OUT, _HURT, _GONE = 1, 4, 8 | 16, 0x2000
_ENDED = _HURT | _GONE
_MOST_BATCHES = 4


# ---- what epoll tells


@njit(**OPTIONS)
def _is_under_way(phase):
    """Whether a request of the client's counts on an engine."""
    return phase == Phase.WAITING or phase == Phase.ASKED or phase == Phase.STREAMING


@njit(**OPTIONS)
def _client_told(state, number, mask, now):
    """A client's connection changed."""
    client = client_at(state, number)
    phase = word(client, Client.PHASE)
    if _is_under_way(phase):
        if mask & _ENDED:
            return client_left(state, number, now)
        if mask & _IN:
            set_word(client, Client.MORE, 1)
        return Command.NOTHING
    if phase == Phase.SENDING:
        if mask & _HURT:
            return close_client(state, number)
        if mask & _GONE:
            set_word(client, Client.ENDS, 1)
        if mask & _IN:
            set_word(client, Client.MORE, 1)
        return send_rest(state, number, now) if mask & _OUT else Command.NOTHING
    if mask & _HURT:
        return close_client(state, number)
    if mask & _GONE:
        return read_last(state, number)
    return read_client(state, number, now) if mask & _IN else Command.NOTHING


@njit(**OPTIONS)
def _engine_told(state, number, mask, now):
    """A connection to an engine changed."""
    engine, command = engine_at(state, number), Command.NOTHING
    if mask & (_IN | _ENDED):
        if word(engine, Engine.PHASE) != EnginePhase.BUSY or word(engine, Engine.CLIENT) < 0:
            close_engine(state, number)  # it speaks without being asked, or is gone
            return Command.NOTHING
        if mask & _ENDED == 0 and rests(state, number, now):
            return Command.NOTHING
        command = read_on(state, number, now)
    if mask & _OUT and command == Command.NOTHING and word(engine, Engine.CLIENT) >= 0:
        return send_more(state, number)
    return command


@njit(**OPTIONS)
def _one_event(state, event, now):
    """What one event is about, if it is still about that."""
    mask, told = half(event, 0), word(event + DATA_AT, 0)
    number, generation = told & (ENGINE_BIT - 1), told >> 32
    if told & ENGINE_BIT:
        engine = engine_at(state, number)
        if word(engine, Engine.PHASE) == EnginePhase.FREE or word(engine, Engine.GENERATION) != generation:
            return Command.NOTHING
        return _engine_told(state, number, mask, now)
    client = client_at(state, number)
    if word(client, Client.PHASE) == Phase.FREE or word(client, Client.GENERATION) != generation:
        return Command.NOTHING
    return _client_told(state, number, mask, now)


# ---- what Python asks for


@njit(**OPTIONS)
def _pump(state, have_rested, now):
    """Go on with everything that can go on; comes back with what Python has to do, or when nothing is left."""
    set_word(state, State.READS_LEFT, word(state, State.MOST_READS))
    keep_up(state, now)
    command = rested(state, have_rested, now)
    if command != Command.NOTHING:
        return command
    for _ in range(_MOST_BATCHES):
        while word(state, State.EVENT_AT) < word(state, State.EVENT_COUNT):
            if word(state, State.RECORD_COUNT) >= RECORDS - 1:
                return Command.FOLD
            at = word(state, State.EVENT_AT)
            set_word(state, State.EVENT_AT, at + 1)
            command = _one_event(state, word(state, State.EVENTS) + at * EVENT_BYTES, now)
            if command != Command.NOTHING:
                return command
        count = word(state, State.EVENT_COUNT)
        if count > 0 and count < EVENTS:  # it was all there was
            set_word(state, State.EVENT_COUNT, 0)
            return Command.NOTHING
        found = call(EPOLL_WAIT, word(state, State.EPOLL), word(state, State.EVENTS), EVENTS, 0, 0, 0)
        set_word(state, State.EVENT_AT, 0)
        set_word(state, State.EVENT_COUNT, max(found, 0))
        if found <= 0:
            return Command.NOTHING
    return Command.NOTHING


@njit(**OPTIONS)
def _adopt(state, fd, template, now):
    """A client's connection comes into the lane; its row, -1: there is no room."""
    return new_client(state, fd, template, now)


@njit(**OPTIONS)
def _release(state, number):
    """A connection goes to Python with what is under way on it, and its engine's connection, too."""
    client = client_at(state, number)
    if _is_under_way(word(client, Client.PHASE)):
        way = way_at(state, word(client, Client.WAY))
        set_word(way, Way.UNDER_WAY, word(way, Way.UNDER_WAY) - 1)
        wait_no_more(state, client)
    engine = word(client, Client.ENGINE)
    if engine >= 0:
        unwatch(state, word(engine_at(state, engine), Engine.FD))
        free_engine(state, engine)
    unwatch(state, word(client, Client.FD))
    free_client(state, number)
    return 0


@njit(**OPTIONS)
def _attach(state, fd, endpoint, number, generation, now):
    """A connection to an engine is there: for who waits for it, or to be kept. -1: there is no room, and nothing was changed."""
    engine = new_engine(state, fd, endpoint, now)
    if engine < 0:
        return -1
    client = client_at(state, number)
    if word(client, Client.GENERATION) == generation and word(client, Client.PHASE) == Phase.WAITING:
        return send_request(state, number, engine, now)
    keep_engine(state, engine, now)
    return Command.NOTHING


@njit(**OPTIONS)
def _leave(state, number, now):
    """A client's connection is to end: now, or when what is under way on it has ended."""
    client = client_at(state, number)
    if word(client, Client.PHASE) == Phase.IDLE:
        return close_client(state, number)
    set_word(client, Client.ENDS, 1)
    return Command.NOTHING


@njit(**OPTIONS)
def _cut(state, number, now):
    """It ends at once."""
    phase = word(client_at(state, number), Client.PHASE)
    if phase == Phase.FREE:
        return Command.NOTHING
    if _is_under_way(phase):
        return client_left(state, number, now)
    return close_client(state, number)


@njit(**OPTIONS)
def _drop(state, endpoint):
    """Connections that are kept to an engine are closed."""
    place = endpoint_at(state, endpoint)
    while word(place, Endpoint.IDLE) >= 0:
        close_engine(state, word(place, Endpoint.IDLE))
    return 0


@njit(**OPTIONS)
def _reckon(state, now):
    """Whose prefill is reckoned to be over by now, is over."""
    keep_up(state, now)
    return 0


@njit(**OPTIONS)
def _sweep_client(state, number, now):
    """Whether a client takes too long."""
    client = client_at(state, number)
    phase, waited_s = word(client, Client.PHASE), now - double(client, Client.SINCE)
    if phase == Phase.IDLE and waited_s > double(state, State.IDLE_S):
        return close_client(state, number)
    if phase == Phase.PARTIAL and waited_s > double(state, State.PARTIAL_S):
        return hand_over(state, number, Reason.SLOW, 0, 0)
    if phase == Phase.SENDING and waited_s > double(state, State.SEND_S):
        return close_client(state, number)
    if phase == Phase.ASKED and waited_s > double(way_at(state, word(client, Client.WAY)), Way.PATIENCE):
        return take_over(state, number, Reason.SLOW, 0, 0)
    if phase == Phase.WAITING and waited_s > double(way_at(state, word(client, Client.WAY)), Way.PATIENCE):
        return take_over(state, number, Reason.UNCONNECTED, 0, 0)
    if phase == Phase.STREAMING and (
        waited_s > double(state, State.SILENCE_S) or now - double(client, Client.STARTED) > double(state, State.TOTAL_S)
    ):
        return take_over(state, number, Reason.SLOW, 0, 0)
    return Command.NOTHING


@njit(**OPTIONS)
def _sweep(state, now):
    """End what takes too long, as `pump` does with what came; begins anew when it has come back with nothing."""
    while word(state, State.SWEEP_AT) < word(state, State.CLIENT_HIGH):
        if word(state, State.RECORD_COUNT) >= RECORDS - 1:
            return Command.FOLD
        number = word(state, State.SWEEP_AT)
        set_word(state, State.SWEEP_AT, number + 1)
        command = _sweep_client(state, number, now)
        if command != Command.NOTHING:
            return command
    set_word(state, State.SWEEP_AT, 0)
    for number in range(word(state, State.ENGINE_HIGH)):
        engine = engine_at(state, number)
        is_idle = word(engine, Engine.PHASE) == EnginePhase.IDLE
        if is_idle and now - double(engine, Engine.SINCE) > double(state, State.ENGINE_IDLE_S):
            close_engine(state, number)
    return Command.NOTHING


@cfunc(int64(int64, int64, int64, int64, int64, int64, float64), **OPTIONS)
def enter(state, which, a, b, c, d, now):
    """All of the above by number, in one function that is compiled once: each by itself took as long as all."""
    if which == Call.PUMP:
        return _pump(state, a, now)
    if which == Call.ADOPT:
        return _adopt(state, a, b, now)
    if which == Call.RELEASE:
        return _release(state, a)
    if which == Call.ATTACH:
        return _attach(state, a, b, c, d, now)
    if which == Call.LEAVE:
        return _leave(state, a, now)
    if which == Call.CUT:
        return _cut(state, a, now)
    if which == Call.DROP:
        return _drop(state, a)
    if which == Call.RECKON:
        return _reckon(state, now)
    return _sweep(state, now)


LANE = (enter,)
"""In the order of `functions.LANE_SHAPES`."""
