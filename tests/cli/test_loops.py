import asyncio

from hekla.cli import loops


async def told_of(**context):
    asyncio.get_running_loop().call_exception_handler({"message": "of a loop", **context})
    return 7


async def pieces():
    yield b"a"


def test_streams_left_by_a_reader_that_goes_say_nothing(caplog):
    """`hekla logs -f ... | head -1` printed tracebacks: asyncio closes all streams at once, each with those that feed it."""
    assert loops.run(told_of(asyncgen=pieces())) == 7
    assert caplog.text == ""


def test_other_trouble_of_a_loop_is_still_told(caplog):
    loops.run(told_of())
    assert "of a loop" in caplog.text
