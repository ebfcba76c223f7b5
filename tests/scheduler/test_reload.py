import asyncio
from pathlib import Path

import pytest

from hekla.api.core import ConfigMap
from hekla.kube.commands import Event
from hekla.kube.informer import Informers
from hekla.scheduler.configuration import DEFAULT_TEXT, ConfigurationError
from hekla.scheduler.reload import CONFIG_MAP, KEY, PERIOD_S, LiveConfiguration
from hekla.testing import virtual_time
from hekla.testing.server import api_server, in_process_client

FEW = "actions: allocate\ntiers:\n- plugins:\n  - name: gang\n"
WRONG = "actions: alocate\ntiers:\n- plugins:\n  - name: gang\n"
NAMESPACE = "default"


async def follow(live: LiveConfiguration, steps) -> None:  # type: ignore[no-untyped-def]  # a test's own steps
    async with api_server() as server, in_process_client(server) as client, Informers(client) as informers:
        running = asyncio.create_task(live.run(informers, NAMESPACE))
        await asyncio.sleep(PERIOD_S / 2)
        try:
            await steps(client)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def test_a_changed_file_is_taken_within_a_second(tmp_path: Path) -> None:
    file, changes = tmp_path / "s.conf", list[str]()
    file.write_text(DEFAULT_TEXT)
    live = LiveConfiguration("", file=file, on_change=lambda: changes.append(live.source))

    async def steps(client: object) -> None:
        file.write_text(FEW)
        await asyncio.sleep(PERIOD_S)
        assert live.current.actions == ("allocate",)
        await asyncio.sleep(10 * PERIOD_S)

    virtual_time.run(follow(live, steps))
    assert changes == [str(file)]


@pytest.mark.parametrize("broken", [WRONG, None], ids=["wrong", "gone"])
def test_a_bad_file_keeps_the_last_good_one_and_a_good_one_ends_that(tmp_path: Path, broken: str | None) -> None:
    file = tmp_path / "s.conf"
    file.write_text(FEW)
    live = LiveConfiguration("", file=file)

    async def steps(client: object) -> None:
        file.unlink() if broken is None else file.write_text(broken)
        await asyncio.sleep(2 * PERIOD_S)
        assert live.current.text == FEW
        assert f"{file} stays in use" in live.refusal
        file.write_text(DEFAULT_TEXT)
        await asyncio.sleep(PERIOD_S)
        assert (live.current.text, live.refusal) == (DEFAULT_TEXT, "")

    virtual_time.run(follow(live, steps))


def test_a_config_map_goes_before_the_file_until_it_is_gone(tmp_path: Path) -> None:
    file, events = tmp_path / "s.conf", list[Event]()
    file.write_text(DEFAULT_TEXT)
    live = LiveConfiguration("", file=file, record=events.append)

    async def steps(client) -> None:  # type: ignore[no-untyped-def]  # ApiClient
        await client.create(ConfigMap, {"metadata": {"name": CONFIG_MAP}, "data": {KEY: FEW}}, NAMESPACE)
        await asyncio.sleep(PERIOD_S)
        assert (live.current.text, live.source) == (FEW, f"configmap {NAMESPACE}/{CONFIG_MAP}")
        await client.patch(ConfigMap, CONFIG_MAP, {"data": {KEY: WRONG}}, NAMESPACE)
        await asyncio.sleep(PERIOD_S)
        assert live.current.text == FEW
        await client.delete(ConfigMap, CONFIG_MAP, NAMESPACE)
        await asyncio.sleep(PERIOD_S)
        assert (live.current.text, live.source) == (DEFAULT_TEXT, str(file))

    virtual_time.run(follow(live, steps))
    assert [(event.reason, event.type) for event in events] == [
        ("ConfigurationTaken", "Normal"), ("ConfigurationRefused", "Warning"),
    ]  # fmt: skip
    assert "line 1: failed to find Action alocate; did you mean allocate?" in events[1].message
    assert events[1].target.name == CONFIG_MAP


def test_a_scheduler_does_not_start_by_a_file_that_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "s.conf"
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        LiveConfiguration(DEFAULT_TEXT, file=file)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="not text in UTF-8"):
        LiveConfiguration(DEFAULT_TEXT, file=file)
