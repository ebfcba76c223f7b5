"""Reads from the fast lane's rows what is known of a request that goes on in Python (`resuming.py`)."""

import numpy as np

from hekla.serving.router.lane.layout import Client, Engine, Phase, Reason, State
from hekla.serving.router.lane.resuming import Stopped
from hekla.serving.router.lane.slabs import Slabs
from hekla.serving.router.lane.ways import Ways
from hekla.serving.router.proxy.relay import Begun

_USAGE = b'"usage":{"prompt_tokens":%d,"completion_tokens":%d,"cached_tokens":%d}'
_EVENT_END = b"\n\n"


def engine_of(slabs: Slabs, number: int) -> tuple[int, bytes, bool]:
    """The descriptor of the engine's connection, what it said that did not go on, and whether it had been kept; -1: there is none."""
    words, engine = slabs.words, int(slabs.clients[number, Client.ENGINE])
    if engine < 0:
        return -1, b"", False
    row = slabs.engines[engine]
    said = slabs.buffer(int(row[Engine.BUFFER]), int(row[Engine.LENGTH]))
    said += slabs.text(int(words[State.ENGINE_DATA]), int(words[State.ENGINE_LENGTH]))
    return int(row[Engine.FD]), said, bool(row[Engine.REUSED])


def stopped(slabs: Slabs, ways: Ways, id_prefix: bytes, number: int, said: bytes, *, is_reused: bool) -> Stopped:
    """All that is known of a client's request under way."""
    row = slabs.clients[number]
    doubles = row.view(np.float64)
    way = ways.by_number[int(row[Client.WAY])]
    facts = ways.facts.get(int(row[Client.FACTS])) or way.facts
    assert facts is not None, "it was plain when it was decided"
    reason = Reason(int(slabs.words[State.REASON]))
    return Stopped(
        template=way.template,
        facts=facts,
        model=way.model,
        endpoint=ways.engines[int(row[Client.SERIAL])],
        address=ways.addresses[int(row[Client.SERIAL])],
        data=slabs.buffer(int(row[Client.BUFFER]), int(row[Client.LENGTH])),
        request_id=b"%b-%x" % (id_prefix, int(row[Client.ID])),
        is_stream=bool(row[Client.IS_STREAM]),
        tokens=int(row[Client.TOKENS]),
        prompt_length=int(row[Client.PROMPT_LENGTH]),
        most_output=int(row[Client.MOST_OUTPUT]),
        uncached=int(row[Client.UNCACHED]),
        context=int(row[Client.TOKENS]) + int(row[Client.ANSWER]),
        answer=int(row[Client.ANSWER]),
        held=int(row[Client.HELD]),
        ahead=int(row[Client.AHEAD]),
        is_prefilled=bool(row[Client.PREFILLED]),
        started_at=float(doubles[Client.STARTED]),
        sent_at=float(doubles[Client.SINCE]),
        reason=reason,
        said=said,
        unsent=int(row[Client.UNSENT]),
        is_reused=is_reused,
        begun=_begun(slabs, number, reason) if row[Client.PHASE] == Phase.STREAMING else None,
    )


def _begun(slabs: Slabs, number: int, reason: Reason) -> Begun:
    """What went on to the client of a stream: whole events, so that an end of one was seen last."""
    row = slabs.clients[number]
    usage = (Client.USAGE_INPUT, Client.USAGE_OUTPUT, Client.USAGE_CACHED)
    seen = _USAGE % tuple(int(row[one]) for one in usage) if row[Client.HAS_USAGE] else b""
    return Begun(
        status=int(row[Client.STATUS]),
        first_byte_at=float(row.view(np.float64)[Client.FIRST_BYTE]),
        events=int(row[Client.EVENTS]),
        seen=seen + _EVENT_END,
        leaves_usage_out=bool(row[Client.ASKS_USAGE]),
        unwritten=slabs.pieces()[int(slabs.words[State.LENGTH]) :] if reason is Reason.LAGS else b"",
    )
