"""The demo's agents: sessions open in milliseconds while gangs train and a model answers, keep their variables, sleep, and wake when asked.

`demo.py` tells the rest. Everything goes through the platform's own gateway, as `hekla agent` and the E2B packages go.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any, Final

from hekla.api.agents import CodeInterpreter, Sandbox
from hekla.api.agents.names import ISOLATION_STRENGTHS
from hekla.api.agents.node_contract import NODE_ISOLATION_LABEL
from hekla.api.core import Node
from hekla.app.data_directory import DataDirectory
from hekla.app.demo_errors import DemoError
from hekla.app.demo_stage import Stage
from hekla.wire.client import HttpClient

TEMPLATE: Final = "demo"
SESSIONS: Final = 4


class DemoAgents:
    """Who opens sessions and runs code in them."""

    def __init__(self, stage: Stage, directory: DataDirectory) -> None:
        self._stage = stage
        self._directory = directory
        self._http = HttpClient()

    async def visit(self) -> None:
        """Open sessions, count in each, put all to sleep, and ask one again; a host that isolates nothing is told of, and is no failure."""
        stage = self._stage
        if not _isolates(stage.nodes.cache.list()):
            stage.say(
                "agents: this host lets nobody set a sandbox apart, so none is run here (kubectl describe node says why)"
            )
            return
        stage.say(
            f"meanwhile agents: one CodeInterpreter, two sandboxes of it kept warm, {SESSIONS} sessions asked for"
        )
        spec = {"template": {}, "warmPoolSize": 2}
        await stage.client.create(CodeInterpreter, {"metadata": {"name": TEMPLATE}, "spec": spec}, "default")
        await self._until_warm()
        opened = [await self._open() for _ in range(SESSIONS)]
        stage.say(
            "  opened and answered in "
            + ", ".join(f"{ms:.0f}" for _, ms in opened)
            + " ms; each is isolated and has no network"
        )
        sessions = [session for session, _ in opened]
        for number, session in enumerate(sessions):
            await self._run(session, f"notes = [{number}]")
        await asyncio.gather(*(self._ask("POST", f"sessions/{one}/freeze") for one in sessions))
        stage.say(f"  all {SESSIONS} are put to sleep: they use no processor, and forget nothing")
        began = time.perf_counter()
        said = await self._run(sessions[-1], "notes.append('awake'); notes")
        stage.say(f"  the last one is asked again, wakes by itself and answers {said} after {_since_ms(began):.0f} ms")
        forked = await self._ask("POST", f"sessions/{sessions[-1]}/fork", {"count": 2})
        answers = [await self._run(one["id"], "notes") for one in forked["sessions"] if "id" in one]
        if len(answers) == 2:
            stage.say(f"  forked in two while it runs: both know {answers[0]}")
        for one in [*sessions, *(one["id"] for one in forked["sessions"] if "id" in one)]:
            await self._ask("DELETE", f"sessions/{one}")

    async def close(self) -> None:
        """Hang up."""
        await self._http.close()

    async def _until_warm(self) -> None:
        """The first sandbox of a platform takes its time: what all others are forked from has to be there."""
        stage = self._stage
        await stage.until(stage.sandboxes, lambda all_: sum(map(_is_warm, all_)) >= 2, "two sandboxes wait warm")

    async def _open(self) -> tuple[str, float]:
        """A session, and how long it took until it had run its first line."""
        began = time.perf_counter()
        made = await self._ask("POST", "sessions", {"kind": "code-interpreters", "name": TEMPLATE})
        await self._run(made["id"], "1 + 1")
        return made["id"], _since_ms(began)

    async def _run(self, session: str, code: str) -> str:
        """Run code in a session's interpreter; the text of its result."""
        answer = await self._send("POST", f"sessions/{session}/daemon/execute", {"code": code, "language": "python"})
        text = ""
        for line in answer.splitlines():
            event = json.loads(line)
            if event["type"] == "error":
                raise DemoError(f"session {session} could not run {code!r}: {event['value']}")
            if event["type"] == "result":
                text = event.get("text") or ""
        return text

    async def _ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self._send(method, path, body)
        return json.loads(answer) if answer else {}

    async def _send(self, method: str, path: str, body: Any = None) -> bytes:
        directory = self._directory
        key = directory.agents_key.read_text().splitlines()[0].partition(":")[2].strip()
        headers = (("x-api-key", key), ("content-type", "application/json"))
        url = f"{directory.agents_url.read_text().strip()}/hekla/v1/{path}"
        data = b"" if body is None else json.dumps(body).encode()
        answer = await self._http.request(method, url, headers, data)
        assert isinstance(answer.body, bytes), "a whole answer was asked for"
        if answer.status >= 300:
            raise DemoError(
                f"the gateway of sandboxes answered {answer.status}: {answer.body.decode(errors='replace')}"
            )
        return answer.body


def _isolates(nodes: Sequence[Node]) -> bool:
    label = f"{NODE_ISOLATION_LABEL}{ISOLATION_STRENGTHS[0]}"
    return any(node.metadata.labels.get(label) == "true" for node in nodes)


def _is_warm(sandbox: Sandbox) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in sandbox.status.conditions)


def _since_ms(began: float) -> float:
    return 1000 * (time.perf_counter() - began)
