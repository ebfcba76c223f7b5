# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# numba types what it compiles; annotations would be ignored.
"""Streams whose pieces come one right after the other: what comes within a millisecond of the last piece is read and written together.

A first piece never waits, nor does one that comes later than that, as an engine's tokens do. Who rests is read at the next look after
`State.REST_UNTIL`, for which Python has a timer; an engine that is gone meanwhile has another generation.
"""

from numba import njit

from hekla.serving.router.kernel.compiled_words import OPTIONS, double, set_double, set_word, word
from hekla.serving.router.lane.compiled_passing import read_engine
from hekla.serving.router.lane.compiled_rows import ENGINE_BIT, HEARD, UNHEARD, change_watch, client_at, engine_at
from hekla.serving.router.lane.compiled_streaming import is_streaming
from hekla.serving.router.lane.layout import GATHER_S, GATHERED, RECORDS, Client, Command, Engine, EnginePhase, State


@njit(**OPTIONS)
def rests(state, number, now):
    """Whether what came of an engine's answer is left for a moment."""
    engine, count = engine_at(state, number), word(state, State.REST_COUNT)
    if word(engine, Engine.RESTS) != 0:
        return True
    client = word(engine, Engine.CLIENT)
    if count >= GATHERED or not is_streaming(state, number, client):
        return False
    if now - double(client_at(state, client), Client.SINCE) >= GATHER_S:
        return False
    if count == 0:
        set_double(state, State.REST_UNTIL, now + GATHER_S)
    set_word(engine, Engine.RESTS, 1)
    change_watch(state, number, UNHEARD)
    set_word(word(state, State.RESTS), count, (word(engine, Engine.GENERATION) << 32) | number)
    set_word(state, State.REST_COUNT, count + 1)
    return True


@njit(**OPTIONS)
def read_on(state, number, now):
    """Read what came of an engine that was asked, and be told of its changes again, had it rested: of those since the reading, too."""
    engine = engine_at(state, number)
    had_rested, generation = word(engine, Engine.RESTS), word(engine, Engine.GENERATION)
    set_word(engine, Engine.RESTS, 0)
    command = read_engine(state, number, now)
    is_there = word(engine, Engine.PHASE) != EnginePhase.FREE and word(engine, Engine.GENERATION) == generation
    # one that has been asked more than it took meanwhile hears all since
    if had_rested != 0 and is_there and word(engine, Engine.IS_DEAF) != 0:
        change_watch(state, number, HEARD)
    return command


@njit(**OPTIONS)
def rested(state, is_over, now):
    """Read those that have rested; comes back in the middle of them when Python has to do something, and goes on from there."""
    count, at = word(state, State.REST_COUNT), word(state, State.REST_AT)
    if count == 0 or (at == 0 and is_over == 0 and now < double(state, State.REST_UNTIL)):
        return Command.NOTHING
    while at < count:
        if word(state, State.RECORD_COUNT) >= RECORDS - 1:
            return Command.FOLD
        told = word(word(state, State.RESTS), at)
        at += 1
        set_word(state, State.REST_AT, at)
        number, generation = told & (ENGINE_BIT - 1), told >> 32
        engine = engine_at(state, number)
        if word(engine, Engine.GENERATION) != generation or word(engine, Engine.RESTS) == 0:
            continue
        is_busy = word(engine, Engine.PHASE) == EnginePhase.BUSY and word(engine, Engine.CLIENT) >= 0
        if not is_busy:  # it ended, or goes to Python
            continue
        command = read_on(state, number, now)
        if command != Command.NOTHING:
            return command
    set_word(state, State.REST_COUNT, 0)
    set_word(state, State.REST_AT, 0)
    return Command.NOTHING
