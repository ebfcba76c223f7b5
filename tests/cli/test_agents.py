"""What `hekla agent exec -i` and `shell` do with their input, against a gateway that answers as it is told."""

import asyncio
import contextlib
import json
import struct
from types import SimpleNamespace

import pytest

from hekla.cli import agents
from hekla.cli.commands.agent import _end_of
from hekla.cli.main import CommandError
from hekla.wire.errors import TimedOutError


class Client:
    """A command that ends with 7 a few turns after its first input was answered; `answer` is a status and a code, or what is raised."""

    def __init__(self, answer):
        self.answer, self.asked, self.patience_s = answer, asyncio.Event(), 0.0

    async def request(self, method, url, *, headers, body, timeout_s):
        self.patience_s = max(self.patience_s, timeout_s)
        self.asked.set()
        if isinstance(self.answer, Exception):
            raise self.answer
        status, code = self.answer
        return SimpleNamespace(status=status, body=json.dumps({"code": code, "message": f"it is {code}"}).encode())

    @contextlib.asynccontextmanager
    async def stream(self, method, url, *, headers, body, timeout_s):
        async def pieces():
            yield framed({"event": {"start": {"pid": 1}}})
            await self.asked.wait()
            for _ in range(20):
                await asyncio.sleep(0)
            yield framed({"event": {"end": {"exitCode": 7}}})

        yield Answer(pieces())


class Answer:
    status = 200

    def __init__(self, pieces):
        self.pieces = pieces

    def __aiter__(self):
        return self.pieces


def framed(message):
    data = json.dumps(message).encode()
    return struct.pack(">BI", 0, len(data)) + data


@pytest.fixture
def typed(monkeypatch):
    pieces = [b"a line\n"]

    async def next_piece(_descriptor):
        return pieces.pop() if pieces else b""

    monkeypatch.setattr(agents, "_typed", next_piece)
    monkeypatch.setattr(agents.sys, "stdin", SimpleNamespace(fileno=lambda: 0))


def fed(client):
    return asyncio.run(agents.feed(agents.Gateway(client, "http://g", "k"), "s", ["sort"], envs={}))


@pytest.mark.parametrize("code", ["not_found", "failed_precondition"])
def test_input_for_a_command_that_has_ended_or_reads_no_more_is_dropped(typed, code):
    assert fed(Client((404, code))) == 7


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (TimedOutError("g did not answer within 9 s"), "the gateway at http://g does not answer"),
        ((503, "unavailable"), "it is unavailable"),
    ],
)
def test_input_that_is_lost_is_told(typed, answer, sentence):
    with pytest.raises(CommandError, match=sentence):
        fed(Client(answer))


def test_a_command_may_compute_for_hours_before_it_reads(typed):
    client = Client((200, ""))
    fed(client)
    assert client.patience_s > 3600


def test_a_list_tells_the_end_that_comes_first_if_nobody_uses_a_session():
    """It told of eight hours, and the session was gone after fifteen minutes in which nobody used it."""
    ends = {"expires": 0.0, "ends": 28800.0, "idle": 900.0, "used": 100.0}
    assert _end_of(ends) == 1000.0
    assert _end_of({**ends, "idle": 0.0}) == 28800.0
    assert _end_of({**ends, "expires": 300.0}) == 300.0
    assert _end_of({"expires": 0.0, "ends": 0.0, "idle": 0.0, "used": 100.0}) == 0.0
