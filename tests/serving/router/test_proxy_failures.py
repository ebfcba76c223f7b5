"""Engines that fail: another is asked while nothing was said to the client, and never after."""

import asyncio
import json
import os
import socket
from collections.abc import Callable

import pytest

from hekla.serving.router.lane import layout
from hekla.serving.router.plan import Attempt, Destination, Fault, Refusal, Waiting
from hekla.serving.router.proxy.bounds import Bounds
from hekla.testing.desk import Engine, PlainDesk
from serving.router import proxykit as kit

pytestmark = pytest.mark.usefixtures("lane")


def raw(answer: bytes) -> kit.Script:
    return kit.says_and_closes(answer)


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (raw(b""), Fault.CLOSED),
        (raw(b"HTTP/1.1 200 OK\r\ncontent-le"), Fault.CLOSED),
        (raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), Fault.GARBAGE),
        (raw(b"\x00\x01\x02\x03garbage without an end" * 10), Fault.GARBAGE),
        (raw(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n"), Fault.GARBAGE),
        (raw(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n"), Fault.GARBAGE),
        (raw(b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n"), Fault.GARBAGE),
        (raw(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n"), Fault.GARBAGE),
        (raw(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000), Fault.GARBAGE),
        (kit.says(b"HTTP/1.1 200 OK\ncontent-length: 2\n\n{}"), Fault.GARBAGE),
        (kit.says(b"HTTP/1.1 102 Processing\r\n\r\n" * 2_000 + kit.whole()), Fault.GARBAGE),
        (kit.says(kit.whole(b"")), Fault.GARBAGE),
        (kit.says(kit.STREAM_HEAD + kit.LAST), Fault.GARBAGE),
        (raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"), Fault.GARBAGE),
        (raw(kit.STREAM_HEAD), Fault.CLOSED),
        (raw(kit.STREAM_HEAD + b"zz\r\n"), Fault.GARBAGE),
        (raw(kit.whole(b"busy", 503)), Fault.BUSY),
        (raw(kit.whole(b"busy", 429)), Fault.BUSY),
        (raw(kit.whole(b"busy", 502)), Fault.BUSY),
        (raw(kit.whole(b"busy", 504)), Fault.BUSY),
    ],
)
def test_another_engine_is_asked_when_one_fails_before_its_answer_began(broken: kit.Script, fault: Fault) -> None:
    async def story() -> None:
        async with kit.plane(broken, kit.says(kit.whole())) as plane:
            answer = await plane.ask(kit.chat())
            assert (answer.status, answer.body) == (200, kit.DOCUMENT)
            assert plane.desk.plans[0].faults == [fault]
            assert [len(one.asked) for one in plane.engines] == [1, 1]
            assert plane.engines[0].asked[0].body == plane.engines[1].asked[0].body

    kit.run(story())


def test_an_engine_that_is_not_there_is_passed_over() -> None:
    async def story() -> None:
        async with kit.plane(kit.says(kit.whole())) as plane:
            nobody = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
            port = nobody.sockets[0].getsockname()[1]
            nobody.close()
            await nobody.wait_closed()
            plane.desk.engines["m"] = [plane.engines[0].engine, Engine("nobody", "127.0.0.1", port)]
            assert (await plane.ask(kit.chat())).status == 200
            assert plane.desk.plans[0].faults == [Fault.CONNECT]

    kit.run(story())


def test_a_busy_engines_own_words_reach_the_client_when_nobody_else_is_left() -> None:
    async def story() -> None:
        busy = kit.whole(b'{"error":"sleeping"}', 503, "retry-after: 3\r\n")
        async with kit.plane(kit.says(busy)) as plane:
            answer = await plane.ask(kit.chat())
            assert (answer.status, answer.headers["retry-after"], answer.body) == (503, "3", b'{"error":"sleeping"}')

    kit.run(story())


def test_the_client_is_told_when_all_engines_failed() -> None:
    async def story() -> None:
        async with kit.plane(raw(b""), raw(b"")) as plane:
            client = await plane.client()
            answer = await client.ask(kit.chat())
            assert answer.status == 503
            assert answer.error["message"] == "request to all pods failed"
            assert answer.error["code"] == "proxy"
            assert plane.desk.plans[0].usages == [None]
            assert (await client.ask(kit.chat())).status == 503, "the connection goes on"

    kit.run(story())


def test_a_request_is_tried_so_often_and_no_more() -> None:
    async def story() -> None:
        async with kit.plane(*[raw(b"")] * 9, bounds=Bounds(attempts=3)) as plane:
            assert (await plane.ask(kit.chat())).status == 503
            assert sum(len(one.asked) for one in plane.engines) == 3

    kit.run(story())


class Patient(PlainDesk):
    """Has a request wait for engines that take no connection, and try again when it has waited so often."""

    waits = 0

    def hold(self, destination: Destination) -> Waiting | None:
        self.waits += 1
        if self.waits == 4:
            self.engines["m"] = self.engines["back"]
        return Ready()


class Ready(Waiting):
    def when_ready(self, resume: Callable[[Refusal | None], None]) -> None:
        asyncio.get_running_loop().call_soon(resume, None)

    def abandon(self) -> None: ...


def test_a_request_waits_for_engines_that_take_no_connection_however_many_there_are() -> None:
    """Three that restarted were six attempts within half a second, and its end."""

    async def story() -> None:
        dead = [Engine(f"dead-{number}", "127.0.0.1", 1) for number in range(3)]
        async with kit.plane(kit.says(kit.whole()), desk=lambda alive: Patient({"m": dead, "back": alive})) as plane:
            assert (await plane.ask(kit.chat())).status == 200
            assert plane.desk.waits == 4

    kit.run(story())


def test_a_stream_that_breaks_says_so_and_is_never_begun_again() -> None:
    async def story() -> None:
        broken = raw(kit.STREAM_HEAD + kit.chunk(kit.event("a")))
        async with kit.plane(broken, kit.says(kit.whole())) as plane:
            client = await plane.client()
            await client.send(kit.chat(stream=True))
            head = await client.head()
            assert head.status == 200
            assert await client.chunk() == kit.event("a")
            told = await client.chunk()
            assert told is not None
            error = json.loads(told.removeprefix(b"data: "))["error"]
            assert error["code"] == "response_forwarding"
            assert await client.closed() == b"", "no last chunk: a client that ignores events sees it, too"
            assert not plane.engines[1].asked
            assert plane.over[0].refusal.reason == "response_forwarding"
            assert plane.desk.plans[0].usages == [None]

    kit.run(story())


def test_a_stream_that_breaks_inside_an_event_is_closed() -> None:
    async def story() -> None:
        broken = raw(kit.STREAM_HEAD + kit.chunk(kit.event("a")) + kit.chunk(kit.event("b"))[:20])
        async with kit.plane(broken) as plane:
            client = await plane.client()
            await client.send(kit.chat(stream=True, stream_options={"include_usage": True}))
            got = await client.closed()
            assert got.endswith(kit.chunk(kit.event("b"))[:20])

    kit.run(story())


def test_a_body_that_is_cut_short_is_cut_short_for_the_client() -> None:
    async def story() -> None:
        async with kit.plane(raw(kit.whole()[:-10]), kit.says(kit.whole())) as plane:
            client = await plane.client()
            await client.send(kit.chat())
            got = await client.closed()
            assert kit.unnamed(got) == kit.whole()[:-10]
            assert not plane.engines[1].asked

    kit.run(story())


def test_an_engine_that_says_more_than_it_announced_is_cut_off_there() -> None:
    async def story() -> None:
        poison = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison"
        async with kit.plane(kit.says(kit.whole() + poison, kit.whole())) as plane:
            client = await plane.client()
            assert (await client.ask(kit.chat())).body == kit.DOCUMENT
            assert (await client.ask(kit.chat())).body == kit.DOCUMENT
            assert plane.engines[0].connections == 2

    kit.run(story())


def test_a_kept_connection_that_went_stale_costs_no_attempt() -> None:
    async def story() -> None:
        async with kit.plane(kit.says(kit.whole())) as plane:
            client = await plane.client()
            await client.ask(kit.chat())
            engine, answered = plane.engines[0], 0

            async def once_dead(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
                nonlocal answered
                answered += 1
                if answered == 1:
                    writer.close()  # as if it had been closed before the request came
                else:
                    writer.write(kit.whole())

            engine.script = once_dead
            assert (await client.ask(kit.chat())).status == 200
            assert plane.desk.plans[1].faults == []
            assert engine.connections == 2

    kit.run(story())


def test_an_engine_that_never_answers_is_given_up_when_its_time_is_over() -> None:
    async def story() -> None:
        async with kit.plane(kit.says_nothing, kit.says(kit.whole()), head_timeout_s=5.0) as plane:
            client = await plane.client()
            await client.send(kit.chat())
            await kit.until(lambda: bool(plane.engines[0].asked))
            plane.later(4.0)
            assert not plane.desk.plans[0].faults
            plane.later(2.0)
            assert plane.desk.plans[0].faults == [Fault.TIMEOUT]
            assert (await client.answer()).body == kit.DOCUMENT
            await plane.engines[0].gone.wait()

    kit.run(story())


def test_a_stream_that_falls_silent_is_ended() -> None:
    async def story() -> None:
        release = asyncio.Event()

        async def stalls(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
            writer.write(kit.STREAM_HEAD + kit.chunk(kit.event("a")))
            await release.wait()

        async with kit.plane(stalls, bounds=Bounds(silence_timeout_s=100.0)) as plane:
            client = await plane.client()
            await client.send(kit.chat(stream=True))
            await client.head()
            assert await client.chunk() == kit.event("a")
            plane.later(90.0)
            await kit.until(lambda: bool(plane.house.under_way))  # the lane gives it to Python, which keeps the time
            plane.later(90.0)
            assert b"said nothing" not in bytes(client.reader._buffer)
            plane.later(90.0)
            rest = await client.closed()
            assert b"said nothing for 100 s" in rest
            assert plane.over[0].refusal.status == 504
            release.set()
            await plane.engines[0].gone.wait()

    kit.run(story())


def test_a_request_has_a_last_moment() -> None:
    async def story() -> None:
        async with kit.plane(kit.says_nothing, bounds=Bounds(total_timeout_s=1000.0)) as plane:
            client = await plane.client()
            await client.send(kit.chat())
            await kit.until(lambda: bool(plane.engines[0].asked))
            plane.later(1001.0)
            assert (await client.answer()).status == 504
            await plane.engines[0].gone.wait()

    kit.run(story())


@pytest.mark.parametrize("begins", [False, True])
def test_the_engine_stops_at_once_when_the_client_leaves(begins: bool) -> None:
    async def story() -> None:
        forever = asyncio.Event()

        async def goes_on(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
            if begins:
                writer.write(kit.STREAM_HEAD + kit.chunk(kit.event("a")))
            await forever.wait()

        async with kit.plane(goes_on) as plane:
            client = await plane.client()
            await client.send(kit.chat(stream=True))
            await kit.until(lambda: bool(plane.engines[0].asked))
            if begins:
                await client.head()
            client.leave()
            await kit.until(lambda: bool(plane.over))
            assert plane.over[0].refusal.reason == "client_disconnected"
            assert plane.desk.plans[0].usages == [None]
            assert not plane.house.under_way
            await kit.until(lambda: not any(pool.open.count for pool in plane.pools._pools.values()))
            forever.set()
            await plane.engines[0].gone.wait()

    kit.run(story())


def test_a_slow_client_slows_its_engine_and_fills_no_memory() -> None:
    async def story() -> None:
        piece = b"data: " + b"x" * 60_000 + b"\n\n"
        sent = 0

        async def pours(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            writer.write(kit.STREAM_HEAD)
            for _ in range(2_000):  # 120 MB
                writer.write(kit.chunk(piece))
                await writer.drain()
                sent += 1
            writer.write(kit.LAST)

        async with kit.plane(pours) as plane:
            client = await plane.client()
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(kit.chat(stream=True, stream_options={"include_usage": True}))
            await kit.until(lambda: bool(plane.house.under_way))
            [exchange] = plane.house.under_way
            await kit.until(lambda: exchange._is_paused)
            assert exchange.transport.get_write_buffer_size() < 2_000_000
            assert sent < 2_000
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            await client.head()
            got = 0
            while (one := await client.chunk()) is not None:
                got += len(one)
            assert got == 2_000 * len(piece)

    kit.run(story())


def _narrow(plane: kit.Plane, client: kit.Client) -> None:
    """Have the kernel take little of what is written to a client."""
    [connection] = plane.listener.doorway.connections
    descriptor = (
        connection.transport.get_extra_info("socket").fileno()
        if plane.lane is None
        else int(plane.lane.slabs.clients[0, layout.Client.FD])
    )
    with socket.socket(fileno=os.dup(descriptor)) as its:
        its.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
    client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)


def test_an_engine_that_says_much_at_once_is_slowed_from_then_on() -> None:
    """In the lane its first bytes are read before Python has the connection."""

    async def story() -> None:
        piece = kit.chunk(b"data: " + b"x" * 600_000 + b"\n\n")
        sent = 0

        async def pours(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n" + piece)
            for _ in range(40):  # 24 MB
                await writer.drain()
                writer.write(piece)
                sent += 1
            writer.write(kit.LAST)

        async with kit.plane(pours, bounds=Bounds(write_ahead_bytes=1_000)) as plane:
            client = await plane.client()
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            _narrow(plane, client)
            await client.send(kit.chat())
            await kit.until(lambda: bool(plane.house.under_way))
            [exchange] = plane.house.under_way
            await kit.until(lambda: exchange._is_paused)
            assert exchange.engine is not None
            await kit.until(lambda: not exchange.engine.transport.is_reading())
            assert exchange.transport.get_write_buffer_size() < 4_000_000
            assert sent < 40

    kit.run(story())


def test_a_client_that_takes_nothing_is_cut_off() -> None:
    async def story() -> None:
        async def pours(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
            writer.write(kit.STREAM_HEAD)
            while not writer.is_closing():
                writer.write(kit.chunk(b"data: " + b"x" * 60_000 + b"\n\n"))
                await writer.drain()

        async with kit.plane(pours) as plane:
            client = await plane.client()
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(kit.chat(stream=True))
            await kit.until(lambda: any(one._is_paused for one in plane.house.under_way))
            plane.later(59.0)
            assert plane.house.under_way
            plane.later(2.0)
            await kit.until(lambda: not plane.house.under_way)
            await plane.engines[0].gone.wait()

    kit.run(story())


@kit.plain
def test_a_mistake_in_a_decision_is_this_requests_trouble_alone() -> None:
    async def story() -> None:
        async with kit.plane(kit.says(kit.whole())) as plane:
            client = await plane.client()
            plan, calls = plane.desk.plan, 0

            def wrong_once(question: object, now: float) -> object:
                nonlocal calls
                calls += 1
                if calls == 1:
                    raise ZeroDivisionError
                return plan(question, now)  # type: ignore[arg-type]

            plane.desk.plan = wrong_once  # type: ignore[assignment, method-assign]
            answer = await client.ask(kit.chat())
            assert (answer.status, answer.error["code"]) == (500, "proxy")
            assert (await client.ask(kit.chat())).status == 200

    kit.run(story())


class Legs:
    """A plan of a prefill leg and the answer, or of both at once."""

    def __init__(self, desk: "LegDesk") -> None:
        self.desk = desk
        self.destination = desk.destination
        self.got: list[bytes] = []
        self.step = 0

    def next(self, now: float) -> Attempt | Refusal:
        prefill, decode = self.desk.targets[:2]
        if self.desk.is_concurrent:
            if self.step:
                return Refusal(503, "proxy", "nobody left")
            self.step = 1
            return Attempt(decode, b'{"d":1}', beside=Attempt(prefill, b'{"p":1}'))
        self.step += 1
        if self.step == 1:
            return Attempt(prefill, b'{"p":1}', on_answer=lambda body, now: self.got.append(body))
        if self.step == 2 and self.got:
            return Attempt(decode, b'{"d":1}')
        return Refusal(503, "proxy", "nobody left")

    def failed(self, attempt: Attempt, fault: Fault, now: float) -> None:
        self.desk.faults.append(fault)

    def first_byte(self, now: float) -> None: ...

    def ended(self, usage: object, now: float) -> None:
        self.desk.ended += 1


class LegDesk:
    def __init__(self, targets: list[Engine], *, is_concurrent: bool) -> None:
        from hekla.serving.router.plan import Destination

        self.targets = targets
        self.is_concurrent = is_concurrent
        self.destination = Destination("m")
        self.faults: list[Fault] = []
        self.ended = 0
        self.plans: list[Legs] = []

    def plan(self, question: object, now: float) -> Legs:
        self.plans.append(Legs(self))
        return self.plans[-1]

    def models(self) -> list[str]:
        return ["m"]


def test_a_prefill_is_read_by_the_plan_and_the_decode_answers_the_client() -> None:
    async def story() -> None:
        scripts = kit.says(kit.whole(b'{"kv_transfer_params":{"a":1}}')), kit.says(kit.whole())
        async with kit.plane(*scripts, desk=lambda t: LegDesk(t, is_concurrent=False)) as plane:
            assert (await plane.ask(kit.chat())).body == kit.DOCUMENT
            assert plane.desk.plans[0].got == [b'{"kv_transfer_params":{"a":1}}']
            assert [one.asked[0].body for one in plane.engines] == [b'{"p":1}', b'{"d":1}']
            assert (
                plane.engines[0].asked[0].headers["x-request-id"] == plane.engines[1].asked[0].headers["x-request-id"]
            )

    kit.run(story())


@pytest.mark.parametrize("is_concurrent", [False, True])
def test_a_prefills_refusal_of_the_request_is_the_clients_answer(is_concurrent: bool) -> None:
    async def story() -> None:
        scripts = kit.says(kit.whole(b'{"error":"too long"}', 400)), kit.says_nothing
        async with kit.plane(*scripts, desk=lambda t: LegDesk(t, is_concurrent=is_concurrent)) as plane:
            answer = await plane.ask(kit.chat())
            assert (answer.status, answer.body) == (400, b'{"error":"too long"}')
            assert plane.desk.faults == []
            await kit.until(lambda: plane.desk.ended == 1)

    kit.run(story())


@pytest.mark.parametrize("is_concurrent", [False, True])
def test_a_prefill_that_fails_fails_the_pair(is_concurrent: bool) -> None:
    async def story() -> None:
        scripts = kit.says(kit.whole(b"oops", 500)), kit.says_nothing
        async with kit.plane(*scripts, desk=lambda t: LegDesk(t, is_concurrent=is_concurrent)) as plane:
            assert (await plane.ask(kit.chat())).status == 503
            assert plane.desk.faults == [Fault.BUSY]
            if is_concurrent:
                await plane.engines[1].gone.wait()

    kit.run(story())


def test_both_legs_are_sent_at_once_and_the_decode_answers() -> None:
    async def story() -> None:
        both = asyncio.Barrier(2)

        async def prefill(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
            await both.wait()
            writer.write(kit.whole(b"{}"))

        async def decode(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
            await both.wait()
            writer.write(kit.whole())

        async with kit.plane(prefill, decode, desk=lambda t: LegDesk(t, is_concurrent=True)) as plane:
            assert (await plane.ask(kit.chat())).body == kit.DOCUMENT
            assert plane.desk.ended == 1

    kit.run(story())


@kit.plain
def test_a_mistake_while_another_engine_is_looked_for_is_answered_once() -> None:
    async def story() -> None:
        async with kit.plane(kit.says(kit.whole(b"busy", 503))) as plane:
            client = await plane.client()
            make = plane.desk.plan

            def wrong(question: object, now: float) -> object:
                plan = make(question, now)  # type: ignore[arg-type]
                plan.failed = None  # type: ignore[method-assign, union-attr, assignment]
                return plan

            plane.desk.plan = wrong  # type: ignore[assignment, method-assign]
            answer = await client.ask(kit.chat())
            assert (answer.status, answer.error["message"]) == (500, "the router made a mistake; its log says more")
            assert (await client.ask(kit.chat())).status == 500

    kit.run(story())
