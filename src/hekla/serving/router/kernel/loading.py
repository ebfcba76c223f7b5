"""Gets the compiled decision without making anybody wait: a child compiles it, this process loads the object code.

numba stays in the child: it takes 108 MB of memory and seven seconds, of which the code needs nothing. The object code is kept
for the user by what it was made from, so that it is compiled once on a machine. Where numba is missing, or the cache
cannot be written, everything is decided as before, only slower.
"""

import asyncio
import hashlib
import importlib.metadata
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import structlog

from hekla.serving.router.endpoints import Counts
from hekla.serving.router.kernel.functions import Kernel
from hekla.serving.router.policies.soonest import MOST_LOAD
from hekla.serving.router.pool import ANSWER_WEIGHT

MODULE: Final = "hekla.serving.router.kernel.compiled"
_SOURCES: Final = ("compiled", "compiled_hash", "compiled_words", "layout", "functions")
_BUILT_IN: Final = (Counts._fields_, MOST_LOAD, ANSWER_WEIGHT)
"""What the code is made from: modules beside this one, and facts of others."""

_DIGEST: Final = hashlib.sha256().digest_size

log = structlog.get_logger(__name__)


async def load(*, niceness: int = 10) -> Kernel | None:
    """The compiled decision; None, with a reason in the log, where it cannot be had. Compiling gives way to all else."""
    if importlib.util.find_spec("numba") is None:
        log.info("choosing stays plain", why="numba is not installed")
        return None
    kept = cached()
    code = _read(kept) or await _compile_in_child(niceness)
    if code is None:
        return None
    _keep(kept, code)
    try:
        kernel = await asyncio.to_thread(kernel_of, code)
    except RuntimeError as error:  # LLVM's: whatever it does not like about this machine
        log.warning("choosing stays plain", why=str(error))
        return None
    log.info("choosing compiled", code_bytes=len(code))
    return kernel


def cached() -> Path:
    """Where the code is kept: named by the sources, the compiler and the processor, so that no other is ever loaded."""
    from llvmlite import binding

    made_of = hashlib.sha256(repr(_BUILT_IN).encode())
    for one in _SOURCES:
        made_of.update(Path(__file__).with_name(f"{one}.py").read_bytes())
    for package in ("numba", "llvmlite"):
        made_of.update(importlib.metadata.version(package).encode())
    made_of.update(f"{sys.version} {binding.get_host_cpu_name()} {binding.get_host_cpu_features().flatten()}".encode())
    own = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(own) / "hekla" / f"router-{made_of.hexdigest()[:32]}.o"


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
    """The functions of object code, as the child wrote it."""
    from llvmlite import binding

    names, _, object_code = code.partition(b"\n\n")
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine())
    engine.add_object_file(binding.ObjectFileRef.from_data(object_code))
    engine.finalize_object()
    pairs = (line.split(" ", 1) for line in names.decode().splitlines())
    return Kernel({name: engine.get_function_address(symbol) for name, symbol in pairs}, engine)


async def _compile_in_child(niceness: int) -> bytes | None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", f"import os; os.nice({niceness}); from {MODULE} import main; main()",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )  # fmt: skip
    try:
        code, complaint = await child.communicate()
    except asyncio.CancelledError:
        child.kill()
        await child.wait()
        raise
    if child.returncode:
        log.warning("choosing stays plain", why=complaint.decode(errors="replace")[-500:])
        return None
    return code


def _read(kept: Path) -> bytes | None:
    """What was kept, if all of it is there."""
    try:
        digest, code = (whole := kept.read_bytes())[:_DIGEST], whole[_DIGEST:]
    except OSError:
        return None
    return code if hashlib.sha256(code).digest() == digest else None


def _keep(kept: Path, code: bytes) -> None:
    """Whole or not at all, as other processes may be at it; a cache that cannot be written is done without."""
    if _read(kept) is not None:
        return
    try:
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as file:
            file.write(hashlib.sha256(code).digest() + code)
        os.replace(file.name, kept)
    except OSError as error:
        log.info("compiled choosing not kept", file=str(kept), why=os.strerror(error.errno or 0))
