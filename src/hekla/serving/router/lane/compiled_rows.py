# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# numba types what it compiles; annotations would be ignored.
"""The fast lane's rows and lists: connections, kept connections, buffers, and who is waited for."""

from numba import njit

from hekla.serving.router.kernel.compiled_words import OPTIONS, double, half, set_double, set_half, set_word, word
from hekla.serving.router.lane.compiled_calls import CLOSE, DATA_AT, EPOLL_CTL, call, copy
from hekla.serving.router.lane.layout import (
    HUGE_BYTES,
    IOV_WORDS,
    LARGE_BYTES,
    LARGE_COUNT,
    SMALL_BYTES,
    SMALL_COUNT,
    TICKS_PER_S,
    WHEEL_TICKS,
    Client,
    Endpoint,
    Engine,
    EnginePhase,
    Phase,
    State,
    Template,
    Way,
)

_ADD, _REMOVE, _CHANGE = 1, 2, 3
_WATCHED = 1 | 4 | 0x2000 | (1 << 31)
"""IN, OUT, RDHUP, and told once for each change."""
_OUT = 4
UNHEARD, HEARD = 1 << 31, 1 | 0x2000 | (1 << 31)
"""That it broke, which is always told, and nothing else; all but that it takes more."""
ENGINE_BIT = 1 << 31
"""In what is given with a descriptor: whether it is an engine's. Below it the row, above it its generation."""
_BEHIND_PIECES = (IOV_WORDS - 2) * 8
_CLIENT_BYTES, _ENGINE_BYTES = len(Client) * 8, len(Engine) * 8
_ENDPOINT_BYTES, _TEMPLATE_BYTES, _WAY_BYTES = len(Endpoint) * 8, len(Template) * 8, len(Way) * 8


@njit(**OPTIONS)
def client_at(state, number):
    """A row's address."""
    return word(state, State.CLIENTS) + number * _CLIENT_BYTES


@njit(**OPTIONS)
def engine_at(state, number):
    """A row's address."""
    return word(state, State.ENGINES) + number * _ENGINE_BYTES


@njit(**OPTIONS)
def endpoint_at(state, number):
    """A row's address."""
    return word(state, State.ENDPOINTS) + number * _ENDPOINT_BYTES


@njit(**OPTIONS)
def template_at(state, number):
    """A row's address."""
    return word(state, State.TEMPLATES) + number * _TEMPLATE_BYTES


@njit(**OPTIONS)
def way_at(state, number):
    """A row's address."""
    return word(state, State.WAYS) + number * _WAY_BYTES


# ---- what is watched


@njit(**OPTIONS)
def watch(state, fd, told):
    """Be told of a descriptor's changes; below 0 where that cannot be."""
    event = word(state, State.IOV)
    set_half(event, 0, _WATCHED)
    set_word(event + DATA_AT, 0, told)
    return call(EPOLL_CTL, word(state, State.EPOLL), _ADD, fd, event, 0, 0)


@njit(**OPTIONS)
def change_watch(state, number, mask):
    """Be told of these changes of an engine's connection from now on, and at once of those that are there.

    Said from behind what may be going to a client meanwhile: Python reads that if he lags.
    """
    engine, event = engine_at(state, number), word(state, State.IOV) + _BEHIND_PIECES
    set_half(event, 0, mask)
    set_word(event + DATA_AT, 0, (word(engine, Engine.GENERATION) << 32) | ENGINE_BIT | number)
    set_word(engine, Engine.IS_DEAF, 1 if mask & _OUT == 0 else 0)
    call(EPOLL_CTL, word(state, State.EPOLL), _CHANGE, word(engine, Engine.FD), event, 0, 0)


@njit(**OPTIONS)
def hear_all(state, number):
    """Be told of all of them again."""
    if word(engine_at(state, number), Engine.IS_DEAF) != 0:
        change_watch(state, number, _WATCHED)


@njit(**OPTIONS)
def may_read_on(state, number):
    """Whether an engine's connection may be read once more in this turn; if not, epoll tells of what is left there at its next look."""
    left = word(state, State.READS_LEFT)
    if left > 0:
        set_word(state, State.READS_LEFT, left - 1)
        return True
    change_watch(state, number, HEARD if word(engine_at(state, number), Engine.IS_DEAF) != 0 else _WATCHED)
    return False


@njit(**OPTIONS)
def unwatch(state, fd):
    """Be told no more: it goes to somebody else."""
    return call(EPOLL_CTL, word(state, State.EPOLL), _REMOVE, fd, word(state, State.IOV), 0, 0)


# ---- buffers: numbers below `SMALL_COUNT` are small ones, then come the large, then the huge

_FIRST_HUGE = SMALL_COUNT + LARGE_COUNT


@njit(**OPTIONS)
def buffer_at(state, number):
    """A buffer's address."""
    if number < SMALL_COUNT:
        return word(state, State.SMALL) + number * SMALL_BYTES
    if number < _FIRST_HUGE:
        return word(state, State.LARGE) + (number - SMALL_COUNT) * LARGE_BYTES
    return word(state, State.HUGE) + (number - _FIRST_HUGE) * HUGE_BYTES


@njit(**OPTIONS)
def room_of(number):
    """How much a buffer holds."""
    if number < SMALL_COUNT:
        return SMALL_BYTES
    return LARGE_BYTES if number < _FIRST_HUGE else HUGE_BYTES


@njit(**OPTIONS)
def may_take(state, size):
    """Whether there is a free buffer for so much."""
    if size <= SMALL_BYTES and word(state, State.SMALL_COUNT) > 0:
        return True
    if size <= LARGE_BYTES and word(state, State.LARGE_COUNT) > 0:
        return True
    return size <= HUGE_BYTES and word(state, State.HUGE_COUNT) > 0


@njit(**OPTIONS)
def _taken(state, free, count):
    """The buffer that was freed last."""
    left = word(state, count) - 1
    set_word(state, count, left)
    return half(word(state, free), left)


@njit(**OPTIONS)
def take_buffer(state, size):
    """A buffer for so much; -1: there is none."""
    if size <= SMALL_BYTES and word(state, State.SMALL_COUNT) > 0:
        return _taken(state, State.SMALL_FREE, State.SMALL_COUNT)
    if size <= LARGE_BYTES and word(state, State.LARGE_COUNT) > 0:
        return _taken(state, State.LARGE_FREE, State.LARGE_COUNT)
    if size <= HUGE_BYTES and word(state, State.HUGE_COUNT) > 0:
        return _taken(state, State.HUGE_FREE, State.HUGE_COUNT)
    return -1


@njit(**OPTIONS)
def _given(state, free, count, number):
    left = word(state, count)
    set_half(word(state, free), left, number)
    set_word(state, count, left + 1)


@njit(**OPTIONS)
def give_buffer(state, number):
    """It is free again."""
    if number >= _FIRST_HUGE:
        _given(state, State.HUGE_FREE, State.HUGE_COUNT, number)
    elif number >= SMALL_COUNT:
        _given(state, State.LARGE_FREE, State.LARGE_COUNT, number)
    elif number >= 0:
        _given(state, State.SMALL_FREE, State.SMALL_COUNT, number)


@njit(**OPTIONS)
def widened(state, number, before, size):
    """A buffer for so much that holds what this one held; -1: there is none, and this one stays."""
    if number >= 0 and size <= room_of(number):
        return number
    wider = take_buffer(state, size)
    if wider >= 0 and number >= 0:
        copy(buffer_at(state, wider), buffer_at(state, number), before)
        give_buffer(state, number)
    return wider


@njit(**OPTIONS)
def appended(state, number, before, source, count):
    """The buffer that holds what this one held and so much more; -1: none can, and this one stays."""
    wider = widened(state, number, before, before + count)
    if wider >= 0:
        copy(buffer_at(state, wider) + before, source, count)
    return wider


@njit(**OPTIONS)
def drop_request(state, client):
    """What a client's buffer holds is of no more use."""
    give_buffer(state, word(client, Client.BUFFER))
    set_word(client, Client.BUFFER, -1)
    set_word(client, Client.LENGTH, 0)
    set_word(client, Client.OFFSET, 0)
    set_word(client, Client.NEEDED, 0)


# ---- clients


@njit(**OPTIONS)
def use_template(state, client, number):
    """From now on this head is the connection's."""
    template = template_at(state, number)
    set_word(template, Template.USERS, word(template, Template.USERS) + 1)
    set_word(client, Client.TEMPLATE, number)


@njit(**OPTIONS)
def leave_template(state, client):
    """Its head is its no more."""
    template = template_at(state, word(client, Client.TEMPLATE))
    set_word(template, Template.USERS, word(template, Template.USERS) - 1)


@njit(**OPTIONS)
def new_client(state, fd, template, now):
    """A row for a connection; -1: there is none, or it cannot be watched."""
    number = word(state, State.CLIENT_FREE)
    if number < 0:
        return -1
    client = client_at(state, number)
    generation = (word(client, Client.GENERATION) + 1) & 0x7FFFFFFF
    if watch(state, fd, (generation << 32) | number) < 0:
        return -1
    set_word(state, State.CLIENT_FREE, word(client, Client.NEXT))
    set_word(state, State.CLIENT_HIGH, max(word(state, State.CLIENT_HIGH), number + 1))
    set_word(state, State.CLIENTS_HERE, word(state, State.CLIENTS_HERE) + 1)
    set_word(client, Client.GENERATION, generation)
    set_word(client, Client.FD, fd)
    set_word(client, Client.PHASE, Phase.IDLE)
    use_template(state, client, template)
    set_word(client, Client.BUFFER, -1)
    set_word(client, Client.LENGTH, 0)
    set_word(client, Client.OFFSET, 0)
    set_word(client, Client.NEEDED, 0)
    set_word(client, Client.MORE, 0)
    set_word(client, Client.UNSENT, 0)
    set_double(client, Client.FIRST_BYTE, 0.0)
    set_word(client, Client.SERVED, 0)
    set_word(client, Client.ENDS, 0)
    set_word(client, Client.ENGINE, -1)
    set_word(client, Client.DUE, -1)
    set_double(client, Client.SINCE, now)
    return number


@njit(**OPTIONS)
def free_client(state, number):
    """The row is free; its descriptor is somebody else's, or closed."""
    client = client_at(state, number)
    drop_request(state, client)
    leave_template(state, client)
    set_word(client, Client.PHASE, Phase.FREE)
    set_word(client, Client.FD, -1)
    set_word(client, Client.NEXT, word(state, State.CLIENT_FREE))
    set_word(state, State.CLIENT_FREE, number)
    set_word(state, State.CLIENTS_HERE, word(state, State.CLIENTS_HERE) - 1)


# ---- connections to engines


@njit(**OPTIONS)
def new_engine(state, fd, endpoint, now):
    """A row for a connection that Python has counted; -1: there is none, or it cannot be watched."""
    number = word(state, State.ENGINE_FREE)
    if number < 0:
        return -1
    engine, place = engine_at(state, number), endpoint_at(state, endpoint)
    generation = (word(engine, Engine.GENERATION) + 1) & 0x7FFFFFFF
    if watch(state, fd, (generation << 32) | ENGINE_BIT | number) < 0:
        return -1
    set_word(state, State.ENGINE_FREE, word(engine, Engine.NEXT))
    set_word(state, State.ENGINE_HIGH, max(word(state, State.ENGINE_HIGH), number + 1))
    set_word(engine, Engine.OPEN, word(place, Endpoint.OPEN))
    set_word(engine, Engine.GENERATION, generation)
    set_word(engine, Engine.FD, fd)
    set_word(engine, Engine.PHASE, EnginePhase.BUSY)
    set_word(engine, Engine.ENDPOINT, endpoint)
    set_word(engine, Engine.SERIAL, word(place, Endpoint.SERIAL))
    set_word(engine, Engine.CLIENT, -1)
    set_word(engine, Engine.REUSED, 0)
    set_word(engine, Engine.BUFFER, -1)
    set_word(engine, Engine.LENGTH, 0)
    set_word(engine, Engine.RESTS, 0)
    set_word(engine, Engine.IS_DEAF, 0)
    set_double(engine, Engine.SINCE, now)
    return number


@njit(**OPTIONS)
def _unchain(state, engine):
    """It is not kept any more."""
    place = endpoint_at(state, word(engine, Engine.ENDPOINT))
    before, behind = word(engine, Engine.PREVIOUS), word(engine, Engine.NEXT)
    if before >= 0:
        set_word(engine_at(state, before), Engine.NEXT, behind)
    else:
        set_word(place, Endpoint.IDLE, behind)
    if behind >= 0:
        set_word(engine_at(state, behind), Engine.PREVIOUS, before)
    set_word(place, Endpoint.IDLE_COUNT, word(place, Endpoint.IDLE_COUNT) - 1)


@njit(**OPTIONS)
def free_engine(state, number):
    """The row is free; its descriptor is somebody else's and counts there, or is closed."""
    engine = engine_at(state, number)
    if word(engine, Engine.PHASE) == EnginePhase.IDLE:
        _unchain(state, engine)
    give_buffer(state, word(engine, Engine.BUFFER))
    set_word(engine, Engine.BUFFER, -1)
    set_word(engine, Engine.PHASE, EnginePhase.FREE)
    set_word(engine, Engine.FD, -1)
    set_word(engine, Engine.CLIENT, -1)
    set_word(engine, Engine.NEXT, word(state, State.ENGINE_FREE))
    set_word(state, State.ENGINE_FREE, number)


@njit(**OPTIONS)
def close_engine(state, number):
    """Cut a connection to an engine."""
    engine = engine_at(state, number)
    call(CLOSE, word(engine, Engine.FD), 0, 0, 0, 0, 0)
    count = word(engine, Engine.OPEN)
    set_word(count, 0, word(count, 0) - 1)
    free_engine(state, number)


@njit(**OPTIONS)
def take_engine(state, endpoint):
    """A kept connection, the one used last; -1: none is."""
    number = word(endpoint_at(state, endpoint), Endpoint.IDLE)
    if number >= 0:
        engine = engine_at(state, number)
        _unchain(state, engine)
        set_word(engine, Engine.PHASE, EnginePhase.BUSY)
        set_word(engine, Engine.REUSED, 1)
    return number


@njit(**OPTIONS)
def keep_engine(state, number, now):
    """An answer is whole: keep the connection, up to a bound, unless the endpoint is another by now."""
    engine = engine_at(state, number)
    place = endpoint_at(state, word(engine, Engine.ENDPOINT))
    is_full = word(place, Endpoint.IDLE_COUNT) >= word(place, Endpoint.MOST_IDLE)
    if is_full or word(engine, Engine.SERIAL) != word(place, Endpoint.SERIAL) or word(state, State.IS_CLOSED) != 0:
        close_engine(state, number)
        return
    give_buffer(state, word(engine, Engine.BUFFER))
    set_word(engine, Engine.BUFFER, -1)
    set_word(engine, Engine.LENGTH, 0)
    set_word(engine, Engine.CLIENT, -1)
    set_word(engine, Engine.PHASE, EnginePhase.IDLE)
    set_double(engine, Engine.SINCE, now)
    first = word(place, Endpoint.IDLE)
    set_word(engine, Engine.PREVIOUS, -1)
    set_word(engine, Engine.NEXT, first)
    if first >= 0:
        set_word(engine_at(state, first), Engine.PREVIOUS, number)
    set_word(place, Endpoint.IDLE, number)
    set_word(place, Endpoint.IDLE_COUNT, word(place, Endpoint.IDLE_COUNT) + 1)


# ---- who is waited for: a chain for each hundredth of a second, as `reckoning.Wheel`


@njit(**OPTIONS)
def wait_for(state, number, due_s):
    """Note by when a client's prefill is reckoned to be over."""
    tick = int(due_s * TICKS_PER_S) + 1
    if tick <= word(state, State.TICK):
        tick = word(state, State.TICK) + 1
    wheel, client, place = word(state, State.WHEEL), client_at(state, number), tick % WHEEL_TICKS
    first = word(wheel, place)
    set_word(client, Client.DUE, tick)
    set_word(client, Client.DUE_PREVIOUS, -1)
    set_word(client, Client.DUE_NEXT, first)
    if first >= 0:
        set_word(client_at(state, first), Client.DUE_PREVIOUS, number)
    set_word(wheel, place, number)


@njit(**OPTIONS)
def wait_no_more(state, client):
    """It is over, or known."""
    tick = word(client, Client.DUE)
    if tick < 0:
        return
    before, behind = word(client, Client.DUE_PREVIOUS), word(client, Client.DUE_NEXT)
    if before >= 0:
        set_word(client_at(state, before), Client.DUE_NEXT, behind)
    else:
        set_word(word(state, State.WHEEL), tick % WHEEL_TICKS, behind)
    if behind >= 0:
        set_word(client_at(state, behind), Client.DUE_PREVIOUS, before)
    set_word(client, Client.DUE, -1)


@njit(**OPTIONS)
def is_time(a, b, seconds):
    """Whether more than so many seconds lie between two times."""
    return b - a > seconds


@njit(**OPTIONS)
def since(row, which, now):
    """Seconds since a time in a row."""
    return now - double(row, which)
