"""`hekla-sdk` against a whole platform: what forks and sleepers keep of files and variables."""

import pytest
from tests.e2e.test_agents import agents as platform  # noqa: F401 - a fixture

import hekla_sdk

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def data_dir(platform, monkeypatch):  # noqa: F811 - the fixture itself
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy", "HEKLA_AGENTS_URL")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    return platform.data_dir


def test_forks_have_files_and_variables_and_go_their_own_ways(data_dir):
    with hekla_sdk.Session.create(timeout=300, data_dir=data_dir) as session:
        session.run_code("x = 41\nopen('a.txt', 'w').write('before')")
        for one in session.fork(2):
            with one:
                assert one.run_code("x += 1; x, open('a.txt').read()").text == "(42, 'before')"
                one.run_code("open('a.txt', 'w').write('of the fork')")
        assert session.run_code("x, open('a.txt').read()").text == "(41, 'before')"


async def test_a_session_that_was_frozen_or_paused_goes_on_where_it_was(data_dir):
    async with hekla_sdk.AsyncSession.create(timeout=300, data_dir=data_dir) as session:
        await session.run_code("x = 41\nopen('a.txt', 'w').write('kept')")
        assert (await session.freeze()).state == "frozen"
        assert (await session.run_code("x + 1")).text == "42"
        assert (await session.pause()).state == "paused"
        assert (await session.run_code("x + 1")).text == "42"
        await session.pause(memory=False)  # files alone, in another sandbox from then on
        assert (await session.run_code("open('a.txt').read()")).text == "'kept'"
        assert (await session.usage()).cpu_s > 0


def test_a_snapshot_is_where_another_session_begins(data_dir):
    with hekla_sdk.Session.create(timeout=300, data_dir=data_dir) as session:
        session.files.write("a.txt", "kept")
        kept = session.snapshot()
        session.files.write("a.txt", "after")
        with hekla_sdk.Session.create(snapshot=kept.id, timeout=300, data_dir=data_dir) as other:
            assert other.files.read_text("a.txt") == "kept"
        hekla_sdk.Session.delete_snapshot(kept.id, data_dir=data_dir)
