"""Orders that take as long as a sandbox has files."""

import asyncio
import os

import pytest

from hekla.node.runtimes.sandbox import channel as channels
from hekla.node.runtimes.sandbox.going_on import while_it_goes_on
from hekla.testing import virtual_time


@pytest.mark.parametrize("reads", [False, True])
def test_what_goes_on_is_waited_for_and_what_stands_still_is_not(tmp_path, reads):
    """A snapshot of a hundred thousand files was given up after thirty seconds, under way as it was."""

    async def story():
        path = tmp_path / "files"
        path.write_bytes(b"x" * 1000 if reads else b"")
        file = os.open(path, os.O_RDWR)
        answered = asyncio.get_running_loop().create_future()

        async def works():
            for _ in range(10):
                await asyncio.sleep(20.0)
                _ = os.read(file, 10) if reads else os.write(file, b"x" * 10)

        loop = asyncio.get_running_loop()
        working = loop.create_task(works())
        began_s = loop.time()
        loop.call_at(began_s + 150.0, answered.set_result, "done")
        await while_it_goes_on(answered, (file,), 30.0)
        assert loop.time() - began_s == 150.0
        with pytest.raises(TimeoutError):
            await while_it_goes_on(loop.create_future(), (file,), 30.0)
        assert 200.0 <= loop.time() - began_s <= 260.0
        assert working.done()
        os.close(file)

    virtual_time.run(story())


def test_it_is_said_that_nothing_went_on():
    assert channels.not_answered("pack", 30.0) == (
        "the sandbox did not go on with pack: nothing was written or read for 30 s"
    )
    assert channels.not_answered("claim", 30.0) == "the sandbox did not answer claim within 30 s"
