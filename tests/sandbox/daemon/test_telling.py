"""What a cell prints comes whole and in order, in few messages where it prints much, and an interrupt leaves no half message."""

import itertools
import json
import socket
import threading

from tests.sandbox.daemon.test_contexts import run, tell, texts

from hekla.sandbox.daemon import telling as telling_module
from hekla.sandbox.daemon.telling import AT_ONCE, Telling


def heard(told):
    """What a channel carried, message by message."""
    ours, theirs = socket.socketpair()
    with theirs:
        told(Telling(ours))
        ours.shutdown(socket.SHUT_WR)
        data = b"".join(iter(lambda: theirs.recv(65_536), b""))
    ours.close()
    return [json.loads(line) for line in data.splitlines()]


def test_a_burst_is_few_messages_and_each_line_of_a_slow_cell_is_one(monkeypatch):
    now = itertools.count(0.0, telling_module.GATHERS_S)
    monkeypatch.setattr(telling_module.time, "monotonic", lambda: next(now))

    def slowly(telling):
        for number in range(2 * AT_ONCE):
            telling.say("stdout", f"{number}\n")

    assert len(heard(slowly)) == 2 * AT_ONCE
    monkeypatch.setattr(telling_module.time, "monotonic", lambda: 0.0)
    monkeypatch.setattr(telling_module.Telling, "_flush_later", lambda self: None)

    def at_once(telling):
        for number in range(10_000):
            telling.say("stdout", f"{number}\n")
        telling.tell({"type": "end"})

    found = heard(at_once)
    assert len(found) < AT_ONCE + 10
    assert "".join(one.get("text", "") for one in found) == "".join(f"{number}\n" for number in range(10_000))
    assert found[-1] == {"type": "end"}


def test_streams_and_results_keep_their_order(monkeypatch):
    monkeypatch.setattr(telling_module, "AT_ONCE", 0)
    monkeypatch.setattr(telling_module.Telling, "_flush_later", lambda self: None)

    def told(telling):
        telling._left = 0.0
        telling.say("stdout", "a")
        telling.say("stdout", "b")
        telling.say("stderr", "c")
        telling.tell({"type": "result"})
        telling.say("stdout", "d")
        telling.flush()

    assert [(one["type"], one.get("text")) for one in heard(told)] == [
        ("stdout", "ab"), ("stderr", "c"), ("result", None), ("stdout", "d"),
    ]  # fmt: skip


def test_what_is_gathered_comes_though_the_cell_prints_no_more():
    def told(telling):
        telling._left = 0.0
        telling._since = float("inf")
        telling.say("stdout", "late")
        while telling._pieces:
            threading.Event().wait(0.001)

    assert heard(told) == [{"type": "stdout", "text": "late"}]


def test_an_interrupt_within_a_long_message_leaves_the_interpreter_whole():
    """The signal's exception cut the message in two: the next could not be read, and the variables were gone."""

    async def story(one):
        context = one.default()
        await run(one, "kept = 1", context)
        cell = one.run(context, "import sys\nprint('on')\nwhile True: sys.stdout.write('x' * 900_000)")
        async for message in cell:
            if len(message["text"]) > 1000:
                break
        one.interrupt(context.id)
        rest = [message["type"] async for message in cell]
        assert rest[-1] == "error"
        assert texts(await run(one, "kept", context), "result") == "1"

    for _ in range(3):
        tell(story)


def test_a_process_that_a_cell_forks_tells_at_once():
    async def story(one):
        code = "import os\nfor n in range(500): print(n)\npid = os.fork()\nif not pid:\n    print('child')\n    os._exit(0)\ndone = os.waitpid(pid, 0)"
        said = texts(await run(one, code), "stdout")
        assert said == "".join(f"{n}\n" for n in range(500)) + "child\n"

    tell(story)


def test_a_copy_of_an_interpreter_gathers_for_itself():
    async def story(one):
        await run(one, "for n in range(500): print(n)")
        copy = await one.fork(one.default().id)
        said = [await run(one, "for n in range(500): print(n)", context) for context in (copy, one.default())]
        assert [texts(each, "stdout") for each in said] == ["".join(f"{n}\n" for n in range(500))] * 2

    tell(story)
