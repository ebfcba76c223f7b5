"""Starts a platform that outlives this command, and stops one."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys

from hekla.app.child import pack_settings
from hekla.app.data_directory import DataDirectory, Running
from hekla.app.serving import PlatformError
from hekla.app.settings import Settings

START_TIMEOUT_S = 60.0


def start_detached(settings: Settings, *, lives_while: int | None = None) -> str:
    """Start a platform in a session of its own; returns its URL once it is ready, raises PlatformError otherwise.

    `lives_while` is the reading end of a pipe: the platform ends when nobody holds the writing end any more, so that
    it does not outlive its starter however that ends.
    """
    directory = DataDirectory(settings.data_dir)
    with directory.claimed():  # the sentence for a directory that cannot be used comes from here, at once
        pass
    reader, writer = os.pipe()
    tie = -1 if lives_while is None else lives_while
    with directory.log.open("ab") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "hekla.app.child", pack_settings(settings), str(writer), str(tie)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(writer,) if lives_while is None else (writer, lives_while),
            start_new_session=True,
            cwd="/",
        )
    os.close(writer)
    with os.fdopen(reader, "rb") as ready:
        answer = _wait_for_line(ready.fileno())
    if answer is None or "error" in answer:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        child.wait()
        why = answer["error"] if answer else "it ended, or said nothing for a minute"
        raise PlatformError(f"the platform did not start: {why}; its log is {directory.log}")
    return answer["url"]


def stop(running: Running, *, timeout_s: float) -> bool:
    """End a platform: asked first, killed when the time is up. Returns whether it ended when asked."""
    try:
        handle = os.pidfd_open(running.pid)
    except ProcessLookupError:
        return True
    try:
        if not running.is_alive:
            return True
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        if _has_ended(handle, timeout_s):
            return True
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        _has_ended(handle, timeout_s)
        return False
    except ProcessLookupError:
        return True
    except PermissionError:
        raise PlatformError(f"process {running.pid} is not yours to stop; ask its owner, or use sudo") from None
    finally:
        os.close(handle)


def _has_ended(handle: int, timeout_s: float) -> bool:
    readable, _, _ = select.select([handle], [], [], timeout_s)
    return bool(readable)


def _wait_for_line(descriptor: int) -> dict[str, str] | None:
    line = b""
    while not line.endswith(b"\n"):
        readable, _, _ = select.select([descriptor], [], [], START_TIMEOUT_S)
        piece = os.read(descriptor, 4096) if readable else b""
        if not piece:
            return None
        line += piece
    found: dict[str, str] = json.loads(line)
    return found
