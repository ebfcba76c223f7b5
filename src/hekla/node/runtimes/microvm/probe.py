"""Finds out, once for each start of the host and each QEMU and guest kernel, whether its processor runs virtual machines, with a limit on time.

A device that is there proves nothing: in many clouds /dev/kvm opens, and guests stand still. So first a machine has to end whose
only program ends it, and then the guests' own kernel has to say its first words: there are hosts that can do the one and not the other.
"""

import asyncio
import contextlib
import os
import signal
import tempfile
from pathlib import Path

PATIENCE_S = 3.0
"""It takes 50 ms where it works."""
KERNEL_PATIENCE_S = 5.0
"""A kernel says who it is after 100 ms where it works."""
HELLO = b"Linux version"
GOOD = 33
"""What QEMU's exit device makes of 0x10."""
FIRMWARE_BYTES = 64 * 1024
PROGRAM = b"\xb0\x10\xe6\xf4\xf4\xeb\xfd"
"""mov al, 0x10; out 0xf4, al; hlt; and again: at the address where a processor begins."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
DEVICE = Path("/dev/kvm")
MACHINE = ("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot")


async def has_kvm(qemu: str, kernel: Path, state: Path, *, has_own_users: bool) -> str:
    """Empty: it works. Else why not. `has_own_users`: machines run as users that only the device's group lets in."""
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        return f"{DEVICE} may not be opened by this user" if DEVICE.exists() else f"the host has no {DEVICE}"
    if has_own_users and not _lets_its_group_in():
        return (
            f"{DEVICE} is root's alone, and machines run as users of their own: "
            f"give it to a group with `chgrp kvm {DEVICE}` and `chmod 660 {DEVICE}`"
        )
    known = _notes()
    tried = f"{BOOT_ID.read_text().strip()} {_state_of(qemu)} {_state_of(kernel)}"
    with contextlib.suppress(OSError, ValueError):
        told, why = known.read_text().split("\n", 1)
        if told == tried and known.stat().st_uid == os.geteuid():
            return why
    why = await _try(qemu, state) or await greets(qemu, kernel, "kvm")
    with contextlib.suppress(OSError):
        known.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = known.with_name(f".{known.name}.{os.getpid()}")
        part.write_text(f"{tried}\n{why}")
        os.replace(part, known)
    return why


async def _try(qemu: str, state: Path) -> str:
    with tempfile.NamedTemporaryFile(dir=state, prefix="probe-") as firmware:
        firmware.write(bytes(FIRMWARE_BYTES - 16) + PROGRAM + bytes(16 - len(PROGRAM)))
        firmware.flush()
        process = await asyncio.create_subprocess_exec(
            qemu, "-machine", "microvm,accel=kvm", "-cpu", "host", "-m", "16M", *MACHINE, "-bios", firmware.name, "-device", "isa-debug-exit,iobase=0xf4,iosize=4",
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


async def greets(qemu: str, kernel: Path, accelerator: str, patience_s: float = KERNEL_PATIENCE_S) -> str:
    """Empty: the guests' kernel says who it is. Else why it is not to be had."""
    process = await asyncio.create_subprocess_exec(
        qemu, "-machine", f"microvm,isa-serial=on,accel={accelerator}", "-cpu", "host" if accelerator == "kvm" else "max", "-m", "128M",
        *MACHINE, "-kernel", str(kernel), "-append", "earlyprintk=ttyS0 panic=-1", "-serial", "stdio",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(patience_s):
            await process.stdout.readuntil(HELLO)
    except TimeoutError:
        return f"{DEVICE} opens, but the guests' kernel said nothing for {patience_s:g} s"
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return f"{DEVICE} opens, but the guests' kernel did not start"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()
    return ""


def _lets_its_group_in() -> bool:
    state = DEVICE.stat()
    return state.st_gid != 0 and state.st_mode & 0o060 == 0o060


def _state_of(file: str | Path) -> str:
    """What is another once the file is: whoever mends a guest image is not told for as long as the host runs that it is broken."""
    with contextlib.suppress(OSError):  # what is not there fails when it is tried, in words
        state = os.stat(file)
        return f"{state.st_ino}-{state.st_size}-{state.st_mtime_ns}"
    return "none"


def _notes() -> Path:
    """Where the answer is kept until the host starts again: a place that only this user writes."""
    place = "/run/hekla" if os.geteuid() == 0 else os.environ.get("XDG_RUNTIME_DIR", "/nonexistent")
    return Path(place) / "kvm-guests"
