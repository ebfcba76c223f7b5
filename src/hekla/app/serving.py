"""Runs a platform in the foreground of this process: event loop, signals, log, and the word that it is ready."""

import asyncio
import contextlib
import gc
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog
import uvloop

from hekla.app.data_directory import DataDirectoryError, file_trouble
from hekla.app.logging import configure_logging
from hekla.app.settings import Settings
from hekla.wire.open_files import raise_open_files

if TYPE_CHECKING:
    from hekla.app.embedded import Platform

log = structlog.get_logger(__name__)

COLLECT_AFTER = (2_000, 2, 8_000)
"""Python's 700 new objects are those of a few requests, and every request would pay for looking at all pods anew. What is
young is looked at in pieces of 0.3 and 0.8 ms: with 10,000 and 4 it was 1.2 and 8 to 12 ms, twice a second, which made the
slowest hundredth of 2,000 pods a second. Everything at once is looked at as seldom as then, after 50 million. Next to nothing
here goes by a collection: see `wire.parted`."""

SWITCH_AFTER_S = 0.0005
"""Python's 5 ms are how long a commit waits for a busy event loop each time it comes back from SQLite: create to bound
went from 414 to 930 pods/s."""


class PlatformError(Exception):
    """The platform could not start, or a part of it died; the sentence is for the user."""


def serve_platform(
    settings: Settings, ready: "Callable[[Platform], None]", *, ready_fd: int = -1, lives_while: int = -1
) -> None:
    """Serve until SIGINT or SIGTERM. `ready_fd` is where a parent that detached us waits for one line of JSON;
    `lives_while` is a pipe whose end is the end of the platform, too.
    """
    configure_logging(settings.log_level)
    raise_open_files()
    try:
        uvloop.run(_serve(settings, ready, ready_fd, lives_while))
    except PlatformError as error:
        _tell_parent(ready_fd, {"error": str(error)})
        raise


async def _serve(settings: Settings, ready: "Callable[[Platform], None]", ready_fd: int, lives_while: int) -> None:
    from hekla.apiserver.auth.pki import PkiError
    from hekla.apiserver.store import StoreError
    from hekla.app.embedded import FirstObjectsError, platform

    stop = asyncio.Event()
    _listen_for_signals(stop)
    if lives_while >= 0:
        # nothing is ever written to it: readable means that its other end is gone
        asyncio.get_running_loop().add_reader(lives_while, _let_go, lives_while, stop)
    try:
        async with platform(settings) as running:
            # what start-up made stays for good: the collector need never look at it again
            gc.collect()
            gc.freeze()
            gc.set_threshold(*COLLECT_AFTER)
            sys.setswitchinterval(SWITCH_AFTER_S)
            _tell_parent(ready_fd, {"url": running.url})
            ready(running)
            await _until(stop, running)
    except (DataDirectoryError, StoreError, PkiError, FirstObjectsError) as error:
        raise PlatformError(str(error)) from error
    except OSError as error:
        raise PlatformError(file_trouble(error)) from error


async def _until(stop: asyncio.Event, running: "Platform") -> None:
    told, ended = asyncio.create_task(stop.wait()), asyncio.create_task(running.ended())
    await asyncio.wait({told, ended}, return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    if ended.done() and not ended.cancelled() and (error := ended.exception()):
        log.error("a feature died", exc_info=error)
        raise PlatformError(f"a part of the platform died ({_first(error)}); its log says more")
    ended.cancel()


def _first(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def _listen_for_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def heard() -> None:
        if stop.is_set():
            os._exit(130)  # asked twice: what is durable is durable, and the node's shims end their processes
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, heard)


def _let_go(descriptor: int, stop: asyncio.Event) -> None:
    asyncio.get_running_loop().remove_reader(descriptor)
    stop.set()


def _tell_parent(descriptor: int, message: dict[str, str]) -> None:
    if descriptor < 0:
        return
    with contextlib.suppress(OSError):  # told already, or nobody waits any more
        os.write(descriptor, json.dumps(message).encode() + b"\n")
        os.close(descriptor)
