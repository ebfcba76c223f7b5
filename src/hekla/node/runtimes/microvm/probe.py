"""Finds out, once for each start of the host, whether its processor runs virtual machines: a machine whose only program ends it, with a limit on time.

A device that is there proves nothing: in many clouds /dev/kvm opens, and guests stand still.
"""

import asyncio
import contextlib
import os
import signal
import tempfile
from pathlib import Path

PATIENCE_S = 3.0
"""It takes 50 ms where it works."""
GOOD = 33
"""What QEMU's exit device makes of 0x10."""
FIRMWARE_BYTES = 64 * 1024
PROGRAM = b"\xb0\x10\xe6\xf4\xf4\xeb\xfd"
"""mov al, 0x10; out 0xf4, al; hlt; and again: at the address where a processor begins."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


async def has_kvm(qemu: str, state: Path) -> str:
    """Empty: it works. Else why not."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        there = os.path.exists("/dev/kvm")
        return "/dev/kvm may not be opened by this user" if there else "the host has no /dev/kvm"
    known = _notes()
    boot = BOOT_ID.read_text().strip()
    with contextlib.suppress(OSError, ValueError):
        told, why = known.read_text().split("\n", 1)
        if told == boot and known.stat().st_uid == os.geteuid():
            return why
    why = await _try(qemu, state)
    with contextlib.suppress(OSError):
        known.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = known.with_name(f".{known.name}.{os.getpid()}")
        part.write_text(f"{boot}\n{why}")
        os.replace(part, known)
    return why


async def _try(qemu: str, state: Path) -> str:
    with tempfile.NamedTemporaryFile(dir=state, prefix="probe-") as firmware:
        firmware.write(bytes(FIRMWARE_BYTES - 16) + PROGRAM + bytes(16 - len(PROGRAM)))
        firmware.flush()
        process = await asyncio.create_subprocess_exec(
            qemu, "-machine", "microvm,accel=kvm", "-cpu", "host", "-m", "16M", "-nodefaults", "-display", "none", "-no-reboot",
            "-bios", firmware.name, "-device", "isa-debug-exit,iobase=0xf4,iosize=4",
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(PATIENCE_S):
                _, words = await process.communicate()
        except TimeoutError:
            process.send_signal(signal.SIGKILL)
            await process.wait()
            return f"/dev/kvm opens, but a machine of one instruction did not end within {PATIENCE_S:g} s"
    if process.returncode == GOOD:
        return ""
    last = words.decode("utf-8", "replace").strip().splitlines()
    return f"a machine under /dev/kvm failed: {last[-1] if last else f'QEMU ended with {process.returncode}'}"


def _notes() -> Path:
    """Where the answer is kept until the host starts again: a place that only this user writes."""
    place = "/run/hekla" if os.geteuid() == 0 else os.environ.get("XDG_RUNTIME_DIR", "/nonexistent")
    return Path(place) / "kvm-probe"
