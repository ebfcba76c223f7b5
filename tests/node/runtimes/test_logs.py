import asyncio
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.node.runtimes import LogOptions, logs
from hekla.node.runtimes.logs import last_text, read_log
from hekla.node.shim.logfile import LogFile


def read(path, **options):
    async def told():
        return b"".join([piece async for piece in read_log(path, LogOptions(**options), lambda: False)])

    return asyncio.run(told())


def write(directory, *pieces, max_bytes=10**6, files=4):
    log = LogFile(str(directory), "0.log", max_bytes=max_bytes, files=files)
    for stream, data in pieces:
        log.write(stream, data)
    log.close()
    return directory / "0.log"


TEXT = st.lists(st.binary(max_size=40).map(lambda data: data.replace(b"\r", b"")), max_size=30)


@settings(max_examples=60, deadline=None)
@given(pieces=TEXT, tail=st.integers(0, 10))
def test_what_was_written_is_read_and_its_tail_is_its_end(tmp_path_factory, pieces, tail):
    path = write(tmp_path_factory.mktemp("log"), *(("stdout", piece) for piece in pieces))
    whole = b"".join(pieces)
    assert read(path) == whole
    by_newline = whole.split(b"\n")
    ends = [line + b"\n" for line in by_newline[:-1]] + ([by_newline[-1]] if by_newline[-1] else [])
    assert read(path, tail_lines=tail) == b"".join(ends[len(ends) - min(tail, len(ends)) :])


def test_a_tail_reaches_back_over_rotated_parts(tmp_path):
    pieces = [("stdout", b"line %03d\n" % number) for number in range(100)]
    path = write(tmp_path, *pieces, max_bytes=1500)
    assert len(os.listdir(tmp_path)) == 4
    assert read(path, tail_lines=40).splitlines()[0] == b"line 060"
    assert read(path, tail_lines=1) == b"line 099\n"


def test_lines_since_a_moment_are_told_from_older_ones(tmp_path):
    path = tmp_path / "0.log"
    path.write_bytes(b"2026-01-01T00:00:00.5Z stdout F old\n2026-01-01T00:00:01.250000001Z stderr F new\n")
    assert read(path, since=1767225601.0) == b"new\n"
    assert read(path, timestamps=True, stream="stdout") == b"2026-01-01T00:00:00.5Z old\n"


def test_a_limit_cuts_to_the_byte(tmp_path):
    path = write(tmp_path, ("stdout", b"0123456789\n" * 10))
    assert read(path, limit_bytes=15) == b"0123456789\n0123"


def test_following_goes_on_over_a_rotation(tmp_path):
    async def told():
        log = LogFile(str(tmp_path), "0.log", max_bytes=400, files=4)
        log.write("stdout", b"first\n")
        running = ["writer"]
        seen = b""
        options = LogOptions(follow=True, tail_lines=1)
        async for piece in read_log(tmp_path / "0.log", options, lambda: bool(running)):
            seen += piece
            if running:
                for number in range(20):
                    log.write("stdout", b"%d\n" % number)
                    if number % 5 == 0:
                        await asyncio.sleep(0)
                log.close()
                running.clear()
        return seen

    seen = asyncio.run(told())
    assert seen.startswith(b"first\n")
    assert seen.endswith(b"19\n")


def test_an_absent_or_empty_log_is_empty(tmp_path):
    assert read(tmp_path / "none.log") == b""
    (tmp_path / "0.log").touch()
    assert read(tmp_path / "0.log", tail_lines=5) == b""
    assert last_text(tmp_path / "none.log", max_bytes=10, max_lines=1) == ""


@pytest.mark.parametrize("size", [16 * 1024 - 1, 16 * 1024, 16 * 1024 + 1, 100_000])
def test_a_line_of_any_length_comes_back_whole(tmp_path, size):
    path = write(tmp_path, ("stdout", b"before\n"), ("stdout", b"x" * size), ("stdout", b"\nafter\n"))
    assert read(path, tail_lines=2) == b"x" * size + b"\nafter\n"


def test_reading_begins_where_the_log_ended_at_the_call(tmp_path):
    """A client that attaches and types at once must see the answer that came before the first read."""

    async def told():
        log = LogFile(str(tmp_path), "0.log", max_bytes=10**6, files=4)
        log.write("stdout", b"before\n")
        lines = read_log(tmp_path / "0.log", LogOptions(follow=True, tail_lines=0), lambda: False)
        log.write("stdout", b"answer\n")
        log.close()
        return [piece async for piece in lines]

    assert asyncio.run(told()) == [b"answer\n"]


@pytest.mark.parametrize("begin", ["kept", "followed"])
def test_a_container_that_writes_faster_than_it_is_read_is_read_piece_by_piece(tmp_path, monkeypatch, begin):
    """All that was there was read before any was sent, and more was there each time: the loop stood still and memory grew."""
    path = write(tmp_path, ("stdout", b"first\n"))
    read_before_a_turn = 0

    def flood(self):
        nonlocal read_before_a_turn
        while True:
            read_before_a_turn += 1
            assert read_before_a_turn < 10_000
            yield b"2026-01-01T00:00:00Z stdout F x"

    async def told():
        nonlocal read_before_a_turn
        options = LogOptions(follow=True, **({"tail_lines": 1} if begin == "followed" else {"limit_bytes": 20}))
        lines = read_log(path, options, lambda: True)
        if begin == "kept":
            assert b"".join([piece async for piece in lines]) == b"x\n" * 10
            return
        assert await anext(lines) == b"first\n"
        for _ in range(20):
            assert set((await anext(lines)).splitlines()) == {b"x"}
            read_before_a_turn = 0
        await lines.aclose()

    monkeypatch.setattr(logs._Follower, "news", flood)
    monkeypatch.setattr(logs._Follower, "backlog", flood)
    asyncio.run(told())


def test_in_a_conversation_a_prompt_is_read_before_its_newline_and_has_one_time(tmp_path):
    log = LogFile(str(tmp_path), "0.log", max_bytes=10**6, files=4, is_conversation=True)
    log.write("stdout", b"one\nname? ")
    assert read(tmp_path / "0.log") == b"one\nname? "
    for key in b"ab\n":
        log.write("stdout", bytes([key]))
    log.close()
    assert read(tmp_path / "0.log") == b"one\nname? ab\n"
    assert read(tmp_path / "0.log", tail_lines=1) == b"name? ab\n"
    [first, second] = read(tmp_path / "0.log", timestamps=True).splitlines()
    assert (first.split(b" ", 1)[1], second.split(b" ", 1)[1]) == (b"one", b"name? ab")
    assert second.count(b"Z ") == 1
