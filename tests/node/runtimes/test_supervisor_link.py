"""Notes on their way to the supervisor: those of one turn go together, and who waits for them waits until they are there."""

import asyncio
import json
import os
import socket

import pytest

from hekla.node.runtimes.sandbox import supervisor_link
from hekla.node.runtimes.sandbox.supervisor_link import SupervisorLink
from hekla.node.shim.sandbox import packets
from hekla.node.shim.sandbox.notebook import entries
from hekla.node.shim.sandbox.supervisor import PROTOCOL, SOCKET

PATIENCE_S = 60.0
WELCOME = {"event": "welcome", "protocol": PROTOCOL, "takes": ["notes"], "zygote": 0}


class PaperSupervisor:
    """Its end of the socket, which reads when it is told to."""

    def __init__(self, listener, welcome):
        self._listener, self._welcome = listener, welcome

    async def greet(self):
        loop = asyncio.get_running_loop()
        self.node, _ = await loop.sock_accept(self._listener)
        self.node.setblocking(False)
        hello = await loop.sock_recv(self.node, packets.LONGEST)
        assert b"hello" in hello
        packets.send(self.node, self._welcome)

    def orders(self):
        """All that is in the socket now."""
        return self.given()[0]

    def given(self):
        """The same, with the descriptors that came."""
        found, descriptors = [], []
        while True:
            try:
                order, more = packets.receive(self.node)
            except BlockingIOError:
                return found, descriptors
            found.append(order)
            descriptors += more


@pytest.fixture
def live(tmp_path):
    """Live a story with a link and who is at its other end."""

    def live(story, welcome=WELCOME):
        async def whole():
            directory = os.open(tmp_path, os.O_RDONLY)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.setblocking(False)
                listener.bind(f"/proc/self/fd/{directory}/{SOCKET}")
                listener.listen(1)
                lost = []
                link = SupervisorLink(tmp_path, lambda report: None, lambda: lost.append(1), arguments=(), grace_s=1.0)
                supervisor = PaperSupervisor(listener, welcome)
                await asyncio.gather(link.find(), supervisor.greet())
                async with asyncio.timeout(PATIENCE_S):
                    await story(link, supervisor)
                supervisor.node.close()
                while not lost:
                    await asyncio.sleep(0)
                await link.close()
            os.close(directory)

        asyncio.run(whole())

    return live


TAKES_NOTEBOOKS = {**WELCOME, "takes": ["notes", "notebook"]}


def notes_of(orders):
    return [order.get("notes") or {order["id"]: order["note"]} for order in orders]


def test_notes_of_one_turn_go_in_one_packet(live):
    async def story(link, supervisor):
        async def note(number):
            link.note(f"s{number}", {"slot": number})
            await link.delivered()
            return supervisor.orders() if number == 0 else []

        first, *others = await asyncio.gather(*(note(number) for number in range(50)))
        assert notes_of(first) == [{f"s{number}": {"slot": number} for number in range(50)}]
        assert not any(others)
        assert not supervisor.orders()

    live(story)


def test_the_later_of_two_notes_in_one_turn_holds(live):
    async def story(link, supervisor):
        link.note("s1", {"slot": 1})
        link.note("s1", {"slot": 1, "session": "mine"})
        await link.delivered()
        assert notes_of(supervisor.orders()) == [{"s1": {"slot": 1, "session": "mine"}}]

    live(story)


def test_an_order_comes_after_the_notes_that_were_given_before_it(live):
    async def story(link, supervisor):
        link.note("s1", {"slot": 1})
        link.post({"order": "kill", "id": "s1"})
        assert [order["order"] for order in supervisor.orders()] == ["note", "kill"]
        await link.delivered()
        assert not supervisor.orders()

    live(story)


def test_a_supervisor_of_an_earlier_release_gets_one_at_a_time(live):
    async def story(link, supervisor):
        link.note("s1", {"slot": 1})
        link.note("s2", {"slot": 2})
        await link.delivered()
        assert [order["order"] for order in supervisor.orders()] == ["note", "note"]

    live(story, {name: said for name, said in WELCOME.items() if name != "takes"})


def test_notes_that_are_too_long_together_go_apart_and_one_that_is_too_long_alone_costs_no_other(live):
    async def story(link, supervisor):
        link.note("s1", {"text": "x" * (packets.LONGEST - 3000)})
        link.note("s2", {"slot": 2})
        link.note("s3", {"text": "x" * packets.LONGEST})
        link.note("s4", {"slot": 4})
        got = []
        going = asyncio.create_task(link.delivered())
        while not going.done():
            got += supervisor.orders()
            await asyncio.sleep(0)
        got += supervisor.orders()
        told = {name: note for notes in notes_of(got) for name, note in notes.items()}
        assert set(told) == {"s1", "s2", "s3", "s4"}
        assert [name for name, note in told.items() if not note] == ["s3"], "nobody knows what it is for, so it may go"

    live(story)


@pytest.mark.parametrize("text", ["x" * (packets.LONGEST - 1000), "\N{SNOWMAN}" * (packets.LONGEST // 6)])
@pytest.mark.parametrize("takes", [["notes"], ["notes", "notebook"]])
def test_a_note_that_cannot_be_told_back_leaves_none_that_was_before_it(live, takes, text):
    """The next life would have read that nobody has claimed it, for what it read was the note before; or could not have been told at all."""

    async def story(link, supervisor):
        link.note("s1", {"slot": 1})
        await link.delivered()
        _, descriptors = supervisor.given()
        if descriptors:
            packets.send(supervisor.node, {"event": "notebook", "is_taken": True})
            while link._notebooks._current is None:
                await asyncio.sleep(0)
        link.note("s1", {"slot": 1, "session": "mine", "text": text})
        await link.delivered()
        if descriptors:
            told = [json.loads(entry) for entry in entries(descriptors[0])]
            os.close(descriptors[0])
        else:
            told = supervisor.orders()
        assert told[-1]["note"] == {}

    live(story, {**WELCOME, "takes": takes})


def test_who_waits_for_a_note_waits_until_the_socket_has_it(live):
    async def story(link, supervisor):
        while not link._outbox:
            link.post({"order": "filler", "text": "x" * 10_000})
        link.note("s1", {"slot": 1})
        going = asyncio.create_task(link.delivered())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not going.done()
        got = []
        while not going.done():
            got += supervisor.orders()
            await asyncio.sleep(0)
        got += supervisor.orders()
        assert got[-1] == {"order": "note", "id": "s1", "note": {"slot": 1}}

    live(story)


def test_a_note_for_which_there_is_no_room_waits_until_there_is(live, monkeypatch):
    """It was dropped, and who waited for it was told that the supervisor had it."""
    monkeypatch.setattr(supervisor_link, "MOST_WAITING", 1)

    async def story(link, supervisor):
        while not link._outbox:
            link.post({"order": "filler", "text": "x" * 10_000})
        link.note("s1", {"slot": 1})
        going = asyncio.create_task(link.delivered())
        await asyncio.sleep(0)
        link.note("s1", {"slot": 1, "session": "mine"})
        got = []
        while not going.done():
            got += supervisor.orders()
            await asyncio.sleep(0)
        got += supervisor.orders()
        assert got[-1] == {"order": "note", "id": "s1", "note": {"slot": 1, "session": "mine"}}

    live(story)


def test_who_waits_for_a_note_that_nobody_takes_any_more_does_not_wait_for_ever(live):
    async def story(link, supervisor):
        while not link._outbox:
            link.post({"order": "filler", "text": "x" * 10_000})
        link.note("s1", {"slot": 1})
        going = asyncio.create_task(link.delivered())
        await asyncio.sleep(0)
        supervisor.node.close()
        await going

    live(story)


def test_once_the_supervisor_has_a_notebook_notes_wake_nobody(live):
    async def story(link, supervisor):
        link.note("s1", {"slot": 1})
        await link.delivered()
        offered, copies = supervisor.given()
        assert [order["order"] for order in offered] == ["notebook", "note"]
        packets.send(supervisor.node, {"event": "notebook", "is_taken": True})
        while not link._notebooks.write("s1", b'{"id": "s1", "note": {"slot": 1}}'):
            await asyncio.sleep(0)
        supervisor.orders()
        link.note("s1", {"slot": 1, "session": "mine"})
        going = link.delivered()
        with pytest.raises(StopIteration):  # without a turn of the loop
            going.send(None)
        assert not supervisor.orders()
        assert json.loads([*entries(copies[0])][-1]) == {"id": "s1", "note": {"slot": 1, "session": "mine"}}
        os.close(copies[0])

    live(story, TAKES_NOTEBOOKS)


def test_a_notebook_is_not_offered_past_notes_that_wait(live):
    async def story(link, supervisor):
        while not link._outbox:
            link.post({"order": "filler", "text": "x" * 10_000})
        link.note("s1", {"slot": 1})
        got, copies = [], []
        going = asyncio.create_task(link.delivered())
        while not going.done():
            orders, given = supervisor.given()
            got, copies = got + orders, copies + given
            await asyncio.sleep(0)
        link.note("s2", {"slot": 2})
        await link.delivered()
        orders, given = supervisor.given()
        assert [order["order"] for order in got][-1:] == ["note"]
        assert [order["order"] for order in orders] == ["notebook", "note"]
        assert not copies
        assert [json.loads(entry)["id"] for entry in entries(given[0])] == ["s1", "s2"]
        os.close(given[0])

    live(story, TAKES_NOTEBOOKS)
