"""Calls of the plug-in extender over a real socket: answers, statuses, silence, and the bound on an answer."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

import pytest

from hekla.placement.plugins.extender import Address, SilenceError
from hekla.scheduler.extender_calls import ExtenderCalls


class Handler(BaseHTTPRequestHandler):
    release = Event()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/api/silent":
            self.release.wait(30)
        status = 500 if self.path == "/api/broken" else 200
        answer = b" " * 4096 if self.path == "/api/large" else body
        self.send_response(status)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *arguments: object) -> None:
        """Silence on stderr."""


@pytest.fixture
def url() -> Iterator[str]:
    Handler.release.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/api"
    Handler.release.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def calls() -> Iterator[ExtenderCalls]:
    made = ExtenderCalls()
    yield made
    made.close()


def test_answers_come_in_the_order_of_the_questions(url: str, calls: ExtenderCalls) -> None:
    bodies = [json.dumps({"number": number}).encode() for number in range(40)]
    assert list(calls.call(Address(url, 10.0), "echo", bodies)) == bodies


def test_another_status_than_200_is_a_failure_in_volcanos_words(url: str, calls: ExtenderCalls) -> None:
    (answer,) = calls.call(Address(url, 10.0), "broken", [b"{}"])
    assert str(answer) == f"failed broken with extender at URL {url}/broken, code 500"
    assert not isinstance(answer, SilenceError)


def test_silence_ends_the_questions(url: str, calls: ExtenderCalls) -> None:
    answers = calls.call(Address(url, 0.05), "silent", [b"{}"] * 40)
    assert len(answers) == 40
    assert str(answers[-1]) == f"extender at {url}/silent did not answer within 0.05 s"


def test_nobody_there_is_silence(calls: ExtenderCalls) -> None:
    (answer,) = calls.call(Address("http://127.0.0.1:1", 5.0), "predicate", [b"{}"])
    assert isinstance(answer, SilenceError)


def test_an_answer_beyond_the_bound_is_refused(url: str, calls: ExtenderCalls) -> None:
    (answer,) = calls.call(Address(url, 10.0, most_bytes=1024), "large", [b"{}"])
    assert "answered wrongly" in str(answer)
