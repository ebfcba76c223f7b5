"""`hekla agent mcp`: carries messages of the Model Context Protocol, one a line, between standard input and output and the gateway."""

import asyncio
import json
import sys

from hekla.cli.agents import Gateway
from hekla.cli.main import CommandError

TIMEOUT_S = 3600.0 + 150.0
"""The longest call, and the making of its session."""
UNREACHABLE = -32000


async def carry(gateway: Gateway, template: str) -> None:
    """Until standard input ends and all is answered. Answers come as they are ready, each with its question's id."""
    async with asyncio.TaskGroup() as tasks:
        while line := await asyncio.to_thread(sys.stdin.buffer.readline):
            if line.strip():
                tasks.create_task(_carry_one(gateway, template, line))


async def _carry_one(gateway: Gateway, template: str, line: bytes) -> None:
    try:
        answer = await gateway.message(line, template, TIMEOUT_S)
    except CommandError as error:
        answer = _refusal(line, str(error))
    if answer:
        sys.stdout.buffer.write(answer.strip() + b"\n")
        sys.stdout.buffer.flush()


def _refusal(line: bytes, sentence: str) -> bytes:
    """What a question is told that could not be carried; a notification is told nothing."""
    try:
        message = json.loads(line)
    except ValueError:
        return b""
    if not isinstance(message, dict) or "id" not in message:
        return b""
    told = {"jsonrpc": "2.0", "id": message["id"], "error": {"code": UNREACHABLE, "message": sentence}}
    return json.dumps(told).encode()
