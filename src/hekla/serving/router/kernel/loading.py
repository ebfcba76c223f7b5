"""Gets the compiled decision without making anybody wait: a child compiles it, this process loads the object code.

numba stays in the child: it takes 108 MB of memory and seven seconds, of which the code needs nothing. What loads is kept
for the user by what it was made from (`keeping.py`), so that it is compiled once for a user, at best. Where numba is missing, or
anything fails, everything is decided as before, only slower, and the log says why.
"""

import asyncio
import contextlib
import importlib.util
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import structlog

from hekla.serving.router.kernel.functions import Kernel
from hekla.serving.router.kernel.keeping import keep, kept_at, read, take_turn
from hekla.serving.router.kernel.object_code import made_for
from hekla.wire.spent_code import let_go

MODULE: Final = "hekla.serving.router.kernel.compiling"
_CHILD: Final = "import os; os.nice({niceness}); out = os.dup(1); os.dup2(2, 1); from {module} import main; main(out)"
"""The code goes to what is standard output before the imports; what a library prints, to the complaints."""
COMPILING_LIMIT_S: Final = 600.0
"""Seven seconds of one core, which can take minutes at low priority where all cores are busy; after this it hangs."""
TURN_S: Final = 0.2
"""How often one who waits looks whether another process has compiled."""
_TOLD: Final = 500
"""Bytes of a compiler's complaint that are logged, the last."""

_BROKEN: Final = (RuntimeError, OSError, ImportError, ValueError, KeyError)
"""What files, packages, children and LLVM raise. Nothing of it may leave here: the router's work would begin anew each second,
with a compilation each time."""

log = structlog.get_logger(__name__)


async def load(*, niceness: int = 10) -> Kernel | None:
    """The compiled decision; None, with a reason in the log, where it cannot be had. Compiling gives way to all else."""
    try:
        if importlib.util.find_spec("numba") is None:
            log.info("choosing stays plain", why="numba is not installed")
            return None
        kernel = await _kept_or_compiled(niceness)
    except _BROKEN as error:
        log.warning("choosing stays plain", why=str(error) or type(error).__name__)
        return None
    let_go("libllvmlite")  # 50 MB of what loaded the code, and is not run again
    log.info("choosing compiled")
    return kernel


async def _kept_or_compiled(niceness: int) -> Kernel:
    kept = await asyncio.to_thread(kept_at)
    if kept is None:
        return await asyncio.to_thread(kernel_of, await compiled_in_child(niceness))
    if (kernel := await asyncio.to_thread(_kernel_kept, kept)) is not None:
        return kernel
    async with _turn(kept):
        if (kernel := await asyncio.to_thread(_kernel_kept, kept)) is not None:
            return kernel
        code = await compiled_in_child(niceness)
        kernel = await asyncio.to_thread(kernel_of, code)
        await asyncio.to_thread(keep, kept, code)  # only now, as a file that does not load would be read at each start
        return kernel


def machine() -> Any:
    """The processor that is compiled for: this one."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    features = binding.get_host_cpu_features().flatten()
    target = binding.Target.from_default_triple()
    return target.create_target_machine(
        cpu=binding.get_host_cpu_name(), features=features, opt=3, reloc="pic", codemodel="jitdefault", jit=True
    )


def kernel_of(code: bytes) -> Kernel:
    """The functions of object code, as the child wrote it; raises RuntimeError or ValueError for what is none."""
    from llvmlite import binding

    names, _, object_code = code.partition(b"\n\n")
    if not (file := binding.ObjectFileRef.from_data(object_code)):  # llvmlite would go on with it, and end the process
        raise ValueError(f"{len(code)} bytes are no object code with its names")
    nothing, target = binding.parse_assembly(""), machine()
    if made_for(object_code) != made_for(target.emit_object(nothing)):  # LLVM would end the process
        raise ValueError("the object code is for another machine")
    engine = binding.create_mcjit_compiler(nothing, target)
    engine.add_object_file(file)
    engine.finalize_object()
    symbols = dict(line.split(" ", 1) for line in names.decode().splitlines())
    addresses = {name: engine.get_function_address(symbol) for name, symbol in symbols.items()}
    if missing := [name for name, address in addresses.items() if not address]:
        raise ValueError(f"object code lacks the functions {', '.join(missing)}")
    return Kernel(addresses, engine)


def _kernel_kept(kept: Path) -> Kernel | None:
    """What was kept, if it is there and loads; what does not is removed."""
    if (code := read(kept)) is None:
        return None
    try:
        return kernel_of(code)
    except _BROKEN as error:
        log.warning("compiled choosing refused", file=str(kept), why=str(error) or type(error).__name__)
        with contextlib.suppress(OSError):
            kept.unlink()
        return None


@contextlib.asynccontextmanager
async def _turn(kept: Path) -> AsyncIterator[None]:
    """One process of a user compiles at a time, as the others can load what it made; who waited too long goes on all the same."""
    with contextlib.ExitStack() as stack:
        for _ in range(int(COMPILING_LIMIT_S / TURN_S)):
            if await asyncio.to_thread(take_turn, kept, stack):
                break
            await asyncio.sleep(TURN_S)  # not in a thread that waits: a router that ends would wait for that
        yield


async def compiled_in_child(niceness: int) -> bytes:
    """What `compiling.main` writes; raises ChildProcessError with what the child complained of."""
    child = await asyncio.create_subprocess_exec(
        # -P: without it the child would import what happens to lie in the current directory
        sys.executable, "-P", "-c", _CHILD.format(niceness=niceness, module=MODULE),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        # NUMBA_OPT: all is optimized once more when it is one module (`compiling.close`), and each part before took 7 s of 27
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "NUMBA_OPT": "0"},
    )  # fmt: skip
    try:
        async with asyncio.timeout(COMPILING_LIMIT_S):
            code, complaint = await child.communicate()
    except TimeoutError:
        raise ChildProcessError(f"the compiler did not end within {COMPILING_LIMIT_S:.0f} s") from None
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended just now
                child.kill()
            await child.wait()
    if child.returncode:
        told = complaint.decode(errors="replace")[-_TOLD:].strip()
        raise ChildProcessError(told or f"the compiler ended with {child.returncode}")
    return code
