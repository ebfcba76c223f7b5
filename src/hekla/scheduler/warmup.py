"""Gets the compiled kernels ready without making anybody wait: a child compiles them, then this process loads them.

Until then, and where numba is missing, the NumPy twin decides the same, only slower. A small cluster never asks for
them: numba takes 108 MB of memory, and a twin that decides 10,000 pods per second is enough for a laptop.
"""

import asyncio
import importlib.util
import os
import sys

import structlog

from hekla.placement import kernels
from hekla.wire.spent_code import let_go

log = structlog.get_logger()

WORTH_IT_NODES = 256
"""From so many nodes on the compiled kernels are worth their memory."""

MODULE = "hekla.placement.kernels.compiled"


async def warm_up() -> bool:
    """Load the compiled kernels, compiled by a child first if need be; whether they are in use now."""
    if importlib.util.find_spec("numba") is None:
        log.info("kernels stay plain", why="numba is not installed")
        return False
    if not await _compile_in_child():
        return False
    # Loading takes a third of a second and holds the interpreter's lock only in pieces: a thread keeps the loop alive.
    is_ready = await asyncio.to_thread(kernels.use_compiled)
    let_go("libllvmlite")  # 50 MB of what loaded them, and is not run again
    log.info("kernels ready", compiled=is_ready)
    return is_ready


async def _compile_in_child() -> bool:
    """Fill numba's cache in a process of its own, at low priority; whether that went well."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", f"import os; os.nice(10); import {MODULE}",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )  # fmt: skip
    try:
        _, complaint = await child.communicate()
    except asyncio.CancelledError:
        child.kill()
        await child.wait()
        raise
    if child.returncode:
        log.warning("kernels not compiled", why=complaint.decode(errors="replace")[-500:])
    return child.returncode == 0
