"""Where an answer ends before its length: at a text or a token that the request names.

Answers are known beforehand, since the same prompt has the same answer; so is where they stop.
"""

from typing import NamedTuple

from hekla.app.engine.bodies import Sampling
from hekla.simulation.engine.sequence import Ask
from hekla.simulation.engine.tokens import Scribe, detokenize


class Stop(NamedTuple):
    """What ends an answer."""

    tokens: int
    """How many tokens it has then."""

    characters: int
    """How much of their text is shown."""

    reason: str | int
    """The text, or the token."""


def first_stop(body: Sampling, ask: Ask) -> Stop | None:
    """The first stop of an answer, if it has one."""
    if not body.stops and not body.stop_token_ids:
        return None
    scribe, text = Scribe(), ""
    for number in range(ask.output_tokens):
        token = scribe.token(ask, number)
        before, text = len(text), text + detokenize([token])
        if number + 1 < body.min_tokens:
            continue
        if token in body.stop_token_ids:
            return Stop(number + 1, before, token)
        found = _earliest(body.stops, text, before)
        if found is not None:
            at, stop = found
            return Stop(number + 1, at + len(stop) * body.include_stop_str_in_output, stop)
    return None


def _earliest(stops: list[str], text: str, before: int) -> tuple[int, str] | None:
    """The stop that stands first in what was just written, or reaches into it."""
    found = [(at, stop) for stop in stops if (at := text.find(stop, max(0, before - len(stop) + 1))) >= 0]
    return min(found, default=None)
