import asyncio
import contextlib
import json
import os
import random
import subprocess
from dataclasses import dataclass, field

import pytest

from hekla.testing.platform import PlatformProcess
from hekla.wire.client import HttpClient
from hekla.wire.errors import WireError
from hekla.wire.limits import ClientLimits

MAPS = "/api/v1/namespaces/default/configmaps"
JSON = (("content-type", "application/json"),)
MERGE = (("content-type", "application/merge-patch+json"),)
WRITERS = 24


@dataclass
class Witness:
    """What the platform has acknowledged, over all of its lives."""

    revisions: dict[str, int] = field(default_factory=dict)
    unsure: set[str] = field(default_factory=set)
    """Names whose last write was cut off: it may have happened or not."""

    newest: int = 0

    def acknowledged(self, name: str, revision: int) -> None:
        self.unsure.discard(name)
        self.revisions[name] = revision
        self.newest = max(self.newest, revision)


async def storm(platform: PlatformProcess, witness: Witness, count: int, life: int) -> None:
    """Write from many connections until `count` writes were acknowledged; then pull the plug, while writes are under way."""
    done, plug = 0, asyncio.Event()
    limits = ClientLimits(connections_per_origin=WRITERS + 1)
    async with HttpClient(ssl_context=platform.tls(), limits=limits) as client:
        url = platform.url + MAPS

        async def writer(number: int) -> None:
            nonlocal done
            dice = random.Random(f"{life}.{number}")
            while not plug.is_set():
                name = f"w{number}-{dice.randrange(40)}"
                body = {"metadata": {"name": name}, "data": {"text": "x" * dice.randrange(3000)}}
                exists = name in witness.revisions
                witness.unsure.add(name)
                answer = await client.request(
                    "PATCH" if exists else "POST", f"{url}/{name}" if exists else url, MERGE if exists else JSON,
                    json.dumps(body).encode(),
                )  # fmt: skip
                if answer.status == 409:  # made by a write that was cut off in an earlier life
                    answer = await client.request("GET", f"{url}/{name}")
                assert answer.status in (200, 201), answer.body
                witness.acknowledged(name, int(json.loads(bytes(answer.body))["metadata"]["resourceVersion"]))
                done += 1
                if done == count:
                    plug.set()

        async def cut() -> None:
            await plug.wait()
            platform.kill()

        async def quietly(number: int) -> None:
            with contextlib.suppress(WireError):
                await writer(number)

        await asyncio.gather(cut(), *(quietly(number) for number in range(WRITERS)))


def check(platform: PlatformProcess, witness: Witness) -> None:
    """Every acknowledged write is there, and the newest revision is no older than any that was told."""
    listed = platform.ask("GET", MAPS).document
    found = {one["metadata"]["name"]: int(one["metadata"]["resourceVersion"]) for one in listed["items"]}
    for name, revision in witness.revisions.items():
        assert name in found, f"{name} of revision {revision} is lost"
        assert found[name] >= revision, f"{name} went back from {revision} to {found[name]}"
        assert found[name] == revision or name in witness.unsure, f"{name} was written by nobody"
    assert int(listed["metadata"]["resourceVersion"]) >= witness.newest
    body = {"metadata": {"name": f"after-{witness.newest}"}}
    made = platform.ask("POST", MAPS, body).document["metadata"]
    assert int(made["resourceVersion"]) > witness.newest


def resumes_or_is_told(platform: PlatformProcess, since: int) -> None:
    """A watcher of an earlier life goes on after what it saw, without a gap, or is told 410."""
    answer = platform.ask("GET", f"{MAPS}?watch=true&resourceVersion={since}&timeoutSeconds=1")
    events = [json.loads(line) for line in answer.body.splitlines()]
    if answer.status == 410 or any(event["type"] == "ERROR" and event["object"]["code"] == 410 for event in events):
        return
    listed = platform.ask("GET", MAPS).document["items"]
    newer = {one["metadata"]["name"] for one in listed if int(one["metadata"]["resourceVersion"]) > since}
    revisions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert revisions == sorted(revisions)
    assert newer <= {event["object"]["metadata"]["name"] for event in events}


def lives(tmp_path, rounds, seed):
    dice, witness, platform = random.Random(seed), Witness(), PlatformProcess(tmp_path / "data")
    platform.start()
    try:
        for life in range(rounds):
            since = witness.newest
            asyncio.run(storm(platform, witness, dice.randrange(50, 800), life))
            platform.start()
            check(platform, witness)
            if since:
                resumes_or_is_told(platform, since)
            witness.unsure.clear()
            listed = platform.ask("GET", MAPS).document["items"]
            witness.revisions = {one["metadata"]["name"]: int(one["metadata"]["resourceVersion"]) for one in listed}
    finally:
        platform.stop()


def test_a_power_cut_in_a_storm_of_writes_loses_nothing_that_was_acknowledged(tmp_path):
    lives(tmp_path, rounds=2, seed=1)


@pytest.mark.storm
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3))
def test_many_power_cuts_lose_nothing(tmp_path, seed):
    lives(tmp_path, rounds=20, seed=seed)


# ---- a full disk


@pytest.fixture
def small_disk(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs may be mounted here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_is_told_and_survived(small_disk):
    with PlatformProcess(small_disk / "data") as platform:
        written, answer = 0, None
        for number in range(400):
            body = {"metadata": {"name": f"c{number}"}, "data": {"text": "x" * 100_000}}
            answer = platform.ask("POST", MAPS, body)
            if answer.status != 201:
                break
            written += 1
        assert answer.status in (500, 503, 507), answer.body
        assert "full" in answer.document["message"] or "space" in answer.document["message"], answer.document
        # reads go on, what was acknowledged is there, and nothing of what was refused
        names = {one["metadata"]["name"] for one in platform.ask("GET", MAPS).document["items"]}
        assert {name for name in names if name.startswith("c")} == {f"c{number}" for number in range(written)}
        assert platform.ask("GET", "/livez").status == 200
        # room is made; writing goes on without a restart
        subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
        answers = (platform.ask("POST", MAPS, {"metadata": {"name": f"again-{n}"}}).status for n in range(100))
        assert 201 in answers
    with PlatformProcess(small_disk / "data") as platform:
        names = {one["metadata"]["name"] for one in platform.ask("GET", MAPS).document["items"]}
        assert names >= {f"c{number}" for number in range(written)}
