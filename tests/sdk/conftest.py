"""`hekla-sdk` against a gateway over real daemons, in its two shells: each test is written once, with awaits, and runs with both."""

import asyncio
import inspect

import pytest
from tests.sandbox.clients.conftest import Running

import hekla_sdk
from hekla.testing.sandboxes import KEY, OTHER_KEY


@pytest.fixture(scope="module")
def served():
    running = Running()
    running.start()
    yield running
    running.stop()


@pytest.fixture
def environment(served, monkeypatch):
    monkeypatch.setenv("HEKLA_AGENTS_URL", served.url)
    monkeypatch.setenv("HEKLA_AGENTS_KEY", KEY)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    return served


@pytest.fixture
def stranger(environment):
    return hekla_sdk.Gateway(environment.url, OTHER_KEY)


class Awaited:
    """An object of the plain shell with the manners of the other: its methods, loops and blocks are awaited."""

    def __init__(self, plain):
        self._plain = plain

    def __getattr__(self, name):
        found = getattr(self._plain, name)
        if isinstance(found, hekla_sdk.Files):
            return Awaited(found)
        return found if not callable(found) or name == "url" else self._later(found)

    @staticmethod
    def _later(method):
        def call(*args, **named):
            return Later(lambda: wrapped(method(*args, **named)))

        return call

    async def __aenter__(self):
        self._plain.__enter__()
        return self

    async def __aexit__(self, *failure):
        self._plain.__exit__(*failure)

    async def __aiter__(self):
        for one in self._plain:
            yield one


class Later:
    """What a method returns: awaited, or entered."""

    def __init__(self, work):
        self._work, self._entered = work, None

    def __await__(self):
        return asyncio.to_thread(self._work).__await__()

    async def __aenter__(self):
        self._entered = await self
        return await self._entered.__aenter__()

    async def __aexit__(self, *failure):
        await self._entered.__aexit__(*failure)


def wrapped(told):
    if isinstance(told, list):
        return [wrapped(one) for one in told]
    return Awaited(told) if isinstance(told, hekla_sdk.Session | hekla_sdk.Process) else told


@pytest.fixture(params=["plain", "async"])
def sessions(request, environment):
    return Awaited(hekla_sdk.Session) if request.param == "plain" else hekla_sdk.AsyncSession


def pytest_pyfunc_call(pyfuncitem):
    """Tests that are coroutines are run."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    told = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**told), 60))
    return True
