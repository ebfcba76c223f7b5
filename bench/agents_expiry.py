"""How late sessions end: asked through the real gateway until they are not there any more, beside the moment that was promised.

Their ends are half a second apart, and each is asked after every 5 ms from shortly before its end, so what is found is up to
5 ms and one request too late. In virtual time the same is a test: tests/sandbox/sessions/test_desk.py.
"""

import asyncio
import json
import time

import uvloop

from bench.agents import Door, doors, platform
from bench.report import Report, percentile, run_alone
from hekla.testing.platform import PlatformProcess

SESSIONS, FIRST_S, APART_S = 50, 20.0, 0.5
EARLY_S, LOOK_S = 0.1, 0.005
PROMISED_MS = 200.0


async def lateness_ms(door: Door, number: int) -> float:
    """One session's end, in milliseconds behind the promised one."""
    body = {"name": "base", "timeout": FIRST_S + number * APART_S}
    session = json.loads(await door.ask("POST", "sessions", body, owner=number))
    await asyncio.sleep(session["expires"] - EARLY_S - time.time())
    while True:
        asked = time.time()
        try:
            there = json.loads(await door.ask("GET", f"sessions/{session['id']}", owner=number))
        except RuntimeError as gone:
            if " 404 " not in str(gone):
                raise
            break
        if there["state"] == "expiring":
            break
        await asyncio.sleep(LOOK_S)
    return (asked - session["expires"]) * 1e3


async def whole(report: Report, process: PlatformProcess) -> None:
    async with doors(process) as door:
        count = report.scaled(SESSIONS)
        late = await asyncio.gather(*(lateness_ms(door, number) for number in range(count)))
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            report.add(f"{count} sessions end late by, {name}", percentile(late, share), "ms", baseline=PROMISED_MS)
        report.add("earliest, behind its time", min(late), "ms")


def run(report: Report) -> None:
    """How late sessions end whose time is over."""
    with report.folder() as folder, platform(folder) as process:
        uvloop.run(whole(report, process))


if __name__ == "__main__":
    run_alone("agents_expiry", run)
