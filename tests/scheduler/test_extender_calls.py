"""Calls of the plug-in extender over a real socket: answers, statuses, silence, bounds, and cycles that do not wait."""

import asyncio
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import ClassVar

import pytest

from hekla.placement.plugins.extender import Address, LateError, SilenceError
from hekla.scheduler.circuit import MOST_REST_S, REST_S, SILENCES, Circuit
from hekla.scheduler.configuration import DEFAULT_TEXT
from hekla.scheduler.extender_calls import ExtenderCalls
from scheduler.schedulerkit import add_pod, is_bound, is_unschedulable, scheduled_condition, until, world


class Handler(BaseHTTPRequestHandler):
    release = Event()
    heard: ClassVar[list[tuple[str, bytes]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.heard.append((self.path, body))
        if self.path in ("/api/silent", "/api/slow"):
            self.release.wait(30)
        if self.path == "/api/predicate":
            self.release.wait(60)
            body = b"{}"
        status = 500 if self.path == "/api/broken" else 200
        answer = b" " * 4096 if self.path == "/api/large" else body
        self.send_response(status)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *arguments: object) -> None:
        """Silence on stderr."""


class Server(ThreadingHTTPServer):
    request_queue_size = 64
    """Sixteen calls come at once; one that finds no place in the line tries again after seconds."""


@pytest.fixture
def url() -> Iterator[str]:
    Handler.release.clear()
    Handler.heard.clear()
    server = Server(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/api"
    Handler.release.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def calls() -> Iterator[ExtenderCalls]:
    """Calls that a cycle waits for, as long as it takes."""
    made = ExtenderCalls(wait_s=60.0)
    yield made
    made.close()


@pytest.fixture
def hasty() -> Iterator[tuple[ExtenderCalls, Event]]:
    """Calls that no cycle waits for, and the news that there are answers."""
    news = Event()
    made = ExtenderCalls(wait_s=0.0, on_news=news.set)
    yield made, news
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


def test_a_slow_answer_is_late_and_is_there_when_it_is_asked_for_again(
    url: str, hasty: tuple[ExtenderCalls, Event]
) -> None:
    calls, news = hasty
    address = Address(url, 60.0)
    (first,) = calls.call(address, "slow", [b'{"n": 1}'])
    assert isinstance(first, LateError)
    assert str(first) == f"the extender at {url} has not answered slow yet"
    (still,) = calls.call(address, "slow", [b'{"n": 1}'])
    assert isinstance(still, LateError)
    assert not news.is_set()
    Handler.release.set()
    assert news.wait(60)
    assert list(calls.call(address, "slow", [b'{"n": 1}'])) == [b'{"n": 1}']
    assert [body for path, body in Handler.heard] == [b'{"n": 1}'], "it is asked once"
    assert calls.counted == {("slow", "late"): 2, ("slow", "ok"): 1}


def test_what_is_told_goes_out_in_order_and_a_question_follows_it(url: str, calls: ExtenderCalls) -> None:
    address = Address(url, 60.0)
    for number in range(20):
        calls.tell(address, "told", str(number).encode())
    calls.call(address, "echo", [b"asked"])
    assert [body for _, body in Handler.heard] == [*(str(number).encode() for number in range(20)), b"asked"]


def test_a_service_that_is_silent_several_times_is_left_alone_and_says_so(calls: ExtenderCalls) -> None:
    address = Address("http://127.0.0.1:1", 60.0)
    for number in range(SILENCES):
        calls.call(address, "predicate", [str(number).encode()])
    (answer,) = calls.call(address, "predicate", [b"again"])
    assert isinstance(answer, SilenceError)
    assert f"silent {SILENCES} times in a row, it is not asked for" in str(answer)
    assert list(calls.silent) == ["http://127.0.0.1:1"]
    calls.tell(address, "told", b"{}")
    assert calls.counted == {
        ("predicate", "silent"): SILENCES, ("predicate", "unasked"): 1, ("told", "untold"): 1,
    }  # fmt: skip


def test_a_failure_is_told_once_and_asked_again_in_the_next_cycle(url: str, calls: ExtenderCalls) -> None:
    for _ in range(2):
        (answer,) = calls.call(Address(url, 60.0), "broken", [b"{}"])
        assert "code 500" in str(answer)
    assert len(Handler.heard) == 2


def test_a_service_is_left_alone_for_longer_each_time_and_forgiven_at_once() -> None:
    circuit = Circuit()
    rests = [circuit.was_silent(0.0, "is silent") for _ in range(SILENCES + 5)]
    assert rests[: SILENCES - 1] == [0.0] * (SILENCES - 1)
    assert rests[SILENCES - 1 :] == [REST_S, 2 * REST_S, 4 * REST_S, 8 * REST_S, MOST_REST_S, MOST_REST_S]
    assert not circuit.may_ask(MOST_REST_S - 1)
    assert circuit.may_ask(MOST_REST_S)
    circuit.answered()
    assert circuit.may_ask(0.0)


def test_a_slow_service_holds_up_its_own_pods_and_nobody_else(url: str) -> None:
    asyncio.run(others_start_meanwhile(url))


async def others_start_meanwhile(url: str) -> None:
    arguments = {
        "extender.urlPrefix": url, "extender.httpTimeout": "50s", "extender.predicateVerb": "predicate",
        "extender.managedResources": "nvidia.com/gpu",
    }  # fmt: skip
    said = "".join(f'      {name}: "{value}"\n' for name, value in arguments.items())
    text = DEFAULT_TEXT.replace("  - name: gang\n", f"  - name: gang\n  - name: extender\n    arguments:\n{said}", 1)
    async with world(nodes=1, configuration=text) as (client, scheduler):
        await add_pod(client, "asked-about", gpus=1)
        await until(lambda: is_unschedulable(client, "asked-about"))
        _, _, message = await scheduled_condition(client, "asked-about")
        assert f"the extender at {url} has not answered predicate yet" in message
        await add_pod(client, "none-of-its-business")
        await until(lambda: is_bound(client, "none-of-its-business"))
        assert not await is_bound(client, "asked-about")
        Handler.release.set()
        await until(lambda: is_bound(client, "asked-about"))
        assert scheduler.extenders.counted["predicate", "ok"] >= 1
