"""One request over a unix socket, as Firecracker's and Cloud Hypervisor's APIs want it: JSON both ways, a connection each."""

import asyncio
import json
from pathlib import Path
from typing import Any

from hekla.node.runtimes.microvm.monitor import MachineError

PATIENCE_S = 60.0
LONGEST = 1 << 20


async def request(socket: Path, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """What it answers. Raises MachineError with the API's own words."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            status, content = await _exchange(socket, method, path, body)
    except TimeoutError:
        raise MachineError(f"{method} {path} was not answered within {PATIENCE_S:g} s") from None
    except (OSError, ValueError, asyncio.IncompleteReadError) as problem:
        raise MachineError(f"{method} {path}: the machine's monitor does not answer: {problem}") from None
    if status >= 300:
        raise MachineError(f"{method} {path} is refused ({status}): {content.decode('utf-8', 'replace').strip()[:500]}")
    told = json.loads(content) if content.strip() else {}
    return told if isinstance(told, dict) else {}


async def _exchange(socket: Path, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_unix_connection(str(socket), limit=LONGEST)
    try:
        content = json.dumps(body).encode() if body is not None else b""
        head = [
            f"{method} {path} HTTP/1.1",
            "Host: localhost",
            "Accept: application/json",
            f"Content-Length: {len(content)}",
        ]
        if content:
            head.append("Content-Type: application/json")
        writer.write("\r\n".join([*head, "", ""]).encode() + content)
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        return int(first.split()[1]), await reader.readexactly(int(headers.get("content-length", 0)))
    finally:
        writer.close()
