"""Keeps the compiled decision for the user: one file, named by all that the code was made from, so that no other is ever loaded.

A cache of machine code is a way into the process: only whole files are read that nobody else could write. `loading.py` fills it.
"""

import contextlib
import fcntl
import hashlib
import importlib.metadata
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Final

import structlog

from hekla.serving.router.endpoints import Counts
from hekla.serving.router.policies.soonest import MOST_LOAD
from hekla.serving.router.pool import ANSWER_WEIGHT

_SOURCES: Final = (
    "compiled",
    "compiled_hash",
    "compiled_words",
    "compiling",
    "layout",
    "functions",
    "loading",
    "object_code",
)
_LANE: Final = Path(__file__).parent.with_name("lane")
_BUILT_IN: Final = (Counts._fields_, MOST_LOAD, ANSWER_WEIGHT)
"""What the code is made from: modules beside this one, and facts of others."""

_DIGEST: Final = hashlib.sha256().digest_size
_MOST_KEPT: Final = 4
"""Files: of this version, of those before it that may run still, of what was cut off while it was written."""
_OTHERS_MAY_WRITE: Final = 0o022

log = structlog.get_logger(__name__)


def kept_at() -> Path | None:
    """Where the code is kept: named by the sources, the compiler and the processor; None where the user has no home."""
    own = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    if not own.is_absolute():  # it would be one for each current directory
        return None
    from llvmlite import binding

    made_of = hashlib.sha256(repr(_BUILT_IN).encode())
    for one in _SOURCES:
        made_of.update(Path(__file__).with_name(f"{one}.py").read_bytes())
    for file in (_LANE / "layout.py", *sorted(_LANE.glob("compiled_*.py"))):
        made_of.update(file.read_bytes())
    for package in ("numba", "llvmlite"):
        made_of.update(importlib.metadata.version(package).encode())
    made_of.update(
        f"{sys.platform} {platform.machine()} {sys.version} {binding.get_host_cpu_name()} {binding.get_host_cpu_features().flatten()}".encode()
    )
    return own / "hekla" / f"router-{made_of.hexdigest()[:32]}.o"


def read(kept: Path) -> bytes | None:
    """What was kept, if all of it is there and only this user can have written it."""
    try:
        with kept.open("rb") as file:
            told = os.fstat(file.fileno())
            if told.st_uid != os.geteuid() or told.st_mode & _OTHERS_MAY_WRITE:
                log.warning("compiled choosing not read", file=str(kept), why="others may have written it")
                return None
            whole = file.read()
    except OSError:
        return None
    digest, code = whole[:_DIGEST], whole[_DIGEST:]
    return code if hashlib.sha256(code).digest() == digest else None


def keep(kept: Path, code: bytes) -> None:
    """Whole or not at all, as other processes may be at it; a cache that cannot be written is done without."""
    try:
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(kept, hashlib.sha256(code).digest() + code)
        _forget_the_oldest(kept.parent)
    except OSError as error:
        log.info("compiled choosing not kept", file=str(kept), why=os.strerror(error.errno or 0))


def take_turn(kept: Path, stack: contextlib.ExitStack) -> bool:
    """Try to be the one who compiles, until the stack is left; where that cannot be agreed upon, everybody is."""
    with contextlib.ExitStack() as attempt:
        try:
            kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = attempt.enter_context(kept.with_name("router.lock").open("wb"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
        stack.push(attempt.pop_all())
    return True


def _write(kept: Path, whole: bytes) -> None:
    descriptor, name = tempfile.mkstemp(dir=kept.parent, prefix="router-", suffix=".new")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(whole)
        os.replace(name, kept)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def _forget_the_oldest(directory: Path) -> None:
    with contextlib.suppress(OSError):  # another process is at it
        for one in sorted(directory.glob("router-*"), key=lambda one: one.stat().st_mtime)[:-_MOST_KEPT]:
            one.unlink()
