"""What gateways of sandboxes keep: a list of keys that is followed while they run."""

import asyncio
import os
import time

import structlog

from hekla.app import agents_keeping
from hekla.app.agents_keeping import follow_keys
from hekla.sandbox.gateway.guard import Guard, read_keys

ADMIN, ALICE = "admin: e2b_0123456789abcdef", "alice: key-of-alice-01234"


def test_a_key_that_is_added_opens_and_one_that_is_taken_out_does_not(tmp_path, monkeypatch):
    """The embedded gateway read its list once: an owner who was added was answered 401, and a key that was withdrawn went on opening, until it was started anew."""
    monkeypatch.setattr(agents_keeping, "KEYS_EVERY_S", 0.001)
    path = tmp_path / "agents.key"

    def write(*lines):
        path.with_suffix(".new").write_text("".join(f"{line}\n" for line in lines))
        os.replace(path.with_suffix(".new"), path)

    async def scenario():
        write(ADMIN)
        guard = Guard(read_keys(path.read_text()), wall=time.time)
        following = asyncio.create_task(follow_keys(path, guard))

        async def becomes(key, owner):
            async with asyncio.timeout(30):
                while (guard.by_key(key).owner if guard.by_key(key) else None) != owner:
                    await asyncio.sleep(0.001)

        try:
            write(ADMIN, ALICE)
            await becomes("key-of-alice-01234", "alice")
            with structlog.testing.capture_logs() as told:
                write(ADMIN, "not a line")
                async with asyncio.timeout(30):
                    while not told:
                        await asyncio.sleep(0.001)
                for _ in range(20):
                    await asyncio.sleep(0.001)
            assert [(one["event"], one["why"]) for one in told] == [
                ("API keys were not taken", 'line 2 is not "owner: key"')
            ]
            assert guard.by_key("key-of-alice-01234") is not None, "the last list that could be read holds"
            write(ADMIN)
            await becomes("key-of-alice-01234", None)
            assert guard.by_key("e2b_0123456789abcdef").is_admin
        finally:
            following.cancel()

    asyncio.run(scenario())
