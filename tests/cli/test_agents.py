"""What `hekla agent exec -i` and `shell` do with their input, against a gateway that answers as it is told."""

import asyncio
import contextlib
import json
import struct
from types import SimpleNamespace

import pytest

from hekla.cli import agents
from hekla.cli.commands import agent
from hekla.cli.commands.agent import _end_of
from hekla.cli.main import CommandError, main
from hekla.wire.errors import TimedOutError


class Client:
    """A command that ends with 7 a few turns after its first input was answered; `answer` is a status and a code, or what is raised."""

    def __init__(self, answer, end=None):
        self.answer, self.asked, self.patience_s, self.end = answer, asyncio.Event(), 0.0, end or {"exitCode": 7}

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
            yield framed({"event": {"end": self.end}})

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


@pytest.mark.parametrize("session", ["", "..", "../x", "a/b?c", "a b", "?usage=true"])
@pytest.mark.parametrize("words", [["logs"], ["delete", "fine"], ["pause"], ["shell"], ["resume"]])
def test_what_is_no_id_of_a_session_is_not_sent(words, session, monkeypatch, capsys):
    """An empty variable was another path: `logs ""` was the list, and ended in a traceback."""
    asked = []
    monkeypatch.setattr(agent, "_ask", lambda *said: asked.append(said))
    if words[0] == "delete":
        with pytest.raises(CommandError, match="is no id of a session"):
            run_delete([*words[1:], session])
    else:
        assert main(["agent", *words, session]) == 2
        assert capsys.readouterr().err == f'hekla: "{session}" is no id of a session; `hekla agent list` shows them\n'
        assert not asked


def run_delete(sessions):
    """What `delete` does, against a gateway that ends all it is asked to."""

    class Ending:
        async def ask(self, method, path):
            assert path == "sessions/fine"

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(agent, "_ask", lambda data_dir, work: asyncio.run(work(Ending())))
        agent.delete(sessions)


@pytest.mark.parametrize("path", ["", "/", "/home/user/"])
def test_a_copy_of_no_file_is_refused(path, capsys):
    """`Path.with_name` raised through to a traceback."""
    source = "a" * 26 + ":" + path
    assert main(["agent", "cp", source, "."]) == 2
    assert capsys.readouterr().err == f'hekla: "{source}" names no file of the session; say which one\n'


@pytest.mark.parametrize("seconds", ["nan", "inf"])
@pytest.mark.parametrize("option", ["--timeout", "--freeze-after"])
def test_seconds_are_a_number(option, seconds, capsys):
    """They were sent as they are, which is no JSON."""
    assert main(["agent", "create", option, seconds]) == 2
    assert f"{seconds} is no number of seconds" in capsys.readouterr().err


def test_a_template_may_be_named_as_the_list_shows_it(monkeypatch):
    asked = []

    class Made:
        async def ask(self, method, path, body):
            asked.append((body["namespace"], body["name"]))
            return {"id": "x"}

    monkeypatch.setattr(agent, "_ask", lambda data_dir, work: asyncio.run(work(Made())))
    assert main(["agent", "create", "research/base"]) == main(["agent", "create", "base"]) == 0
    assert asked == [("research", "base"), ("default", "base")]


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:8090", "nonsense", "ftp://x", "http://", "http://h:99999", "http://h:0", "http://[::1", "http://me@h", "http://h?x=1"],
)  # fmt: skip
def test_an_address_that_is_none_is_told(url, monkeypatch, capsys):
    """Each was a traceback."""
    monkeypatch.setenv("HEKLA_AGENTS_URL", url)
    monkeypatch.setenv("HEKLA_AGENTS_KEY", "k")
    assert main(["agent", "list"]) == 2
    assert capsys.readouterr().err.startswith(f'hekla: HEKLA_AGENTS_URL is "{url}", which is no address of a gateway')


def test_an_argument_that_is_no_text_is_named(monkeypatch, capsys):
    """The sandbox answered that the message had half a surrogate pair in it."""
    client = Client((200, ""))
    monkeypatch.setattr(
        agent, "_ask", lambda data_dir, work: asyncio.run(work(agents.Gateway(client, "http://g", "k")))
    )
    client.asked.set()
    assert main(["agent", "exec", "s", "--", "echo", "\udcff"]) == 1
    assert capsys.readouterr().err == "hekla: '\\udcff' is not text in UTF-8\n"


def test_a_command_that_a_signal_ended_ends_as_it_would_in_a_shell(typed):
    """All were 255: nobody saw that it was the memory's end (137) and not the command's own word."""
    killed = {"exitCode": -1, "exited": False, "status": "signal: killed", "error": "signal: 9"}
    assert fed(Client((404, "not_found"), killed)) == 137
