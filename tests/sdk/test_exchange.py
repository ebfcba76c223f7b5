"""What the core makes of bytes in any pieces, and when it asks again."""

import itertools
import json
import socket
import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hekla_sdk
from hekla_sdk.answers import Output
from hekla_sdk.exchange import MOST_TRIES, Answer, wait_refused_s, wait_unconnected_s
from hekla_sdk.streams import CellReader, ProcessReader


def framed(message, flags=0):
    data = json.dumps(message).encode()
    return struct.pack(">BI", flags, len(data)) + data


MESSAGES = [
    {"event": {"start": {"pid": 7}}},
    {"event": {"keepalive": {}}},
    {"event": {"data": {"stdout": "aGVsbG8="}}},
    {"event": {"end": {"exitCode": 3, "status": "exit status 3"}}},
]
COMMAND = b"".join(map(framed, MESSAGES)) + framed({}, 2)
CELL = b"".join(
    json.dumps(one).encode() + b"\n"
    for one in (
        {"type": "stdout", "text": "hello"},
        {"type": "result", "is_main_result": True, "text": "42"},
        {"type": "number_of_executions", "execution_count": 2},
        {"type": "end_of_execution"},
    )
)


def pieces(data, cuts):
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@given(st.lists(st.integers(0, 10_000), max_size=20))
def test_a_commands_answer_reads_the_same_in_any_pieces(cuts):
    reader = ProcessReader()
    news = [one for piece in pieces(COMMAND, cuts) for one in reader.feed(piece)]
    done = reader.end()
    assert (reader.pid, news, done.stdout, done.exit_code) == (7, [Output("stdout", b"hello")], "hello", 3)


@given(st.lists(st.integers(0, 10_000), max_size=20))
def test_a_cells_answer_reads_the_same_in_any_pieces(cuts):
    reader = CellReader()
    news = [one for piece in pieces(CELL, cuts) for one in reader.feed(piece)]
    result = reader.end()
    assert (len(news), result.stdout, result.text, result.count) == (2, "hello", "42", 2)


@given(st.integers(0, len(COMMAND) - 8))
def test_an_answer_that_is_cut_off_is_told_unless_the_command_had_ended(cut):
    reader = ProcessReader()
    reader.feed(COMMAND[:cut])
    if not reader.is_over:
        with pytest.raises(hekla_sdk.BadAnswerError):
            reader.end()


@given(st.binary(max_size=200))
def test_what_is_no_answer_is_told_as_one_that_makes_no_sense(data):
    for reader in (ProcessReader(), CellReader()):
        with pytest.raises(hekla_sdk.HeklaError):
            (reader.feed(data), reader.end())


def test_only_busy_servers_are_asked_again_and_not_for_ever():
    assert wait_refused_s(Answer(503, b"", "2"), 1) == 2
    assert wait_refused_s(Answer(429, b"", "1"), MOST_TRIES) is None
    assert wait_refused_s(Answer(429, b"", ""), 1) is None
    assert wait_refused_s(Answer(429, b"", "3600"), 1) is None
    assert wait_refused_s(Answer(500, b"", "1"), 1) is None
    assert wait_unconnected_s(MOST_TRIES) is None


@pytest.fixture
def heads(monkeypatch):
    """A server that answers each connection with the next of some heads; what it was asked."""
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    listening, asked = socket.create_server(("127.0.0.1", 0)), []

    def serve(answers):
        for answer in answers:
            connection, _ = listening.accept()
            with connection:
                asked.append(connection.recv(65_536))
                connection.sendall(answer)

    def start(*answers):
        threading.Thread(target=serve, args=(answers,), daemon=True).start()
        return hekla_sdk.Gateway(f"http://127.0.0.1:{listening.getsockname()[1]}", "key"), asked

    yield start
    listening.close()


BUSY = b"HTTP/1.1 503 Busy\r\nretry-after: 0\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
FINE = b'HTTP/1.1 200 OK\r\ncontent-length: 16\r\nconnection: close\r\n\r\n{"templates":[]}'


def test_a_busy_server_is_asked_again(heads):
    gateway, asked = heads(BUSY, BUSY, FINE)
    assert hekla_sdk.Session.templates(gateway=gateway) == []
    assert len(asked) == 3


def test_a_connection_that_broke_is_not_tried_again(heads):
    gateway, asked = heads(b"", FINE)
    with pytest.raises(hekla_sdk.UnreachableError, match="does not answer"):
        hekla_sdk.Session.create(gateway=gateway)
    assert len(asked) == 1


def test_where_nobody_listens_it_is_told(heads):
    with socket.socket() as deaf:  # held, so that nobody else may listen there
        deaf.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        with pytest.raises(hekla_sdk.UnreachableError, match=f"{url} does not answer"):
            hekla_sdk.Session.templates(gateway=hekla_sdk.Gateway(url, "key"))


@pytest.mark.parametrize(
    ("url", "key", "why"),
    [("127.0.0.1:8090", "key", "must be like"), ("http://127.0.0.1", "", "is empty"), ("http://h", "a\nb", "no line")],
)
def test_an_address_or_a_key_that_cannot_be_is_refused(url, key, why):
    with pytest.raises(hekla_sdk.SettingsError, match=why):
        hekla_sdk.Gateway(url, key)


def test_a_key_is_not_printed():
    assert "secret" not in repr(hekla_sdk.Gateway("http://h", "secret"))


def test_the_gateway_is_found_in_the_environment_or_a_data_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HEKLA_AGENTS_URL", "http://h:1/")
    monkeypatch.delenv("HEKLA_AGENTS_KEY", raising=False)
    with pytest.raises(hekla_sdk.SettingsError, match="set both"):
        hekla_sdk.find_gateway()
    monkeypatch.setenv("HEKLA_AGENTS_KEY", "key")
    assert hekla_sdk.find_gateway() == hekla_sdk.Gateway("http://h:1", "key")
    with pytest.raises(hekla_sdk.SettingsError, match="hekla up"):
        hekla_sdk.find_gateway(tmp_path)
    (tmp_path / "agents.url").write_text("http://h:2\n")
    (tmp_path / "agents.key").write_text("# who may\nalice: key of alice\n")
    assert hekla_sdk.find_gateway(tmp_path) == hekla_sdk.Gateway("http://h:2", "key of alice")
