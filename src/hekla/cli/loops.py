"""Runs what a command awaits: asyncio's `run`, without a word about streams that are left before their end.

A reader that goes (`hekla logs -f ... | head -1`) ends a command amid streams that feed each other. asyncio closes all of
them at once, and printed a traceback about each that another was closing already.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Told = TypeVar("Told")


def run(work: Coroutine[Any, Any, Told]) -> Told:
    """What `work` returns or raises."""

    async def whole() -> Told:
        asyncio.get_running_loop().set_exception_handler(_tell_unless_left)
        return await work

    return asyncio.run(whole())


def _tell_unless_left(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if "asyncgen" not in context:
        loop.default_exception_handler(context)
