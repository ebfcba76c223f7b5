"""A gateway in a thread of its own over real daemons, for clients that know only HTTP and their environment."""

import asyncio
import threading

import pytest

from hekla.sandbox.sessions.records import SessionKind
from hekla.sandbox.sessions.stock import Blueprint
from hekla.testing.sandboxes import KEY, ChildSandboxes, gateway, scratch

NAMES = ("base", "code-interpreter-v1", "my-interpreter")


class Running:
    """Where it listens."""

    def __init__(self):
        self.url = ""
        self._up, self._loop, self._stop = threading.Event(), None, None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def start(self):
        self._thread.start()
        assert self._up.wait(60), "the gateway did not come up"

    def stop(self):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    async def _serve(self):
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        with scratch() as root:
            blueprints = [Blueprint(kind=SessionKind.INTERPRETER, namespace="default", name=name) for name in NAMES]
            sandboxes = ChildSandboxes(root, blueprints)
            async with gateway(sandboxes) as running:
                self.url = f"http://127.0.0.1:{running.port}"
                self._up.set()
                await self._stop.wait()
                await sandboxes.close()


@pytest.fixture(scope="module")
def served():
    running = Running()
    running.start()
    yield running
    running.stop()


@pytest.fixture
def e2b_environment(served, monkeypatch):
    for name, value in {"E2B_API_URL": served.url, "E2B_SANDBOX_URL": served.url, "E2B_API_KEY": KEY}.items():
        monkeypatch.setenv(name, value)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return served
