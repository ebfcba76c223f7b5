"""Whether machines run under /dev/kvm is found out and told, never assumed."""

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest

from hekla.node.runtimes.microvm import probe

QEMU = shutil.which("qemu-system-x86_64") or ""
KERNEL = Path("/usr/share/hekla/microvm/vmlinuz")
needs_machine = pytest.mark.skipif(not QEMU or not KERNEL.exists(), reason="no QEMU or no guest image here")


def found(monkeypatch: pytest.MonkeyPatch, device: Path, *, has_own_users: bool = True) -> str:
    monkeypatch.setattr(probe, "DEVICE", device)
    return asyncio.run(probe.has_kvm("/nowhere/qemu", KERNEL, device.parent, has_own_users=has_own_users))


def test_a_host_without_the_device_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert found(monkeypatch, tmp_path / "kvm") == f"the host has no {tmp_path}/kvm"


@pytest.mark.parametrize(("mode", "group"), [(0o600, 1), (0o640, 1), (0o660, 0)])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to groups")
def test_a_device_that_the_machines_users_may_not_open_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: int, group: int
) -> None:
    """QEMU ended at once: the device was tried as root, and each machine runs as somebody else."""
    device = tmp_path / "kvm"
    device.touch()
    os.chown(device, 0, group)
    device.chmod(mode)
    assert "is root's alone, and machines run as users of their own" in found(monkeypatch, device)


def test_what_was_found_out_is_kept_until_the_kernel_is_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A guest image that was mended was told to be broken until the host started again."""
    device, kernel, tried = tmp_path / "kvm", tmp_path / "vmlinuz", list[bytes]()
    device.touch()

    async def works(*_: object) -> str:
        return ""

    async def greets(_: str, kernel: Path, accelerator: str) -> str:
        tried.append(kernel.read_bytes())
        return "" if tried[-1] == b"mended" else "the guests' kernel did not start"

    monkeypatch.setattr(probe, "DEVICE", device)
    monkeypatch.setattr(probe, "_notes", lambda: tmp_path / "notes" / "kvm-guests")
    monkeypatch.setattr(probe, "_try", works)
    monkeypatch.setattr(probe, "greets", greets)

    def told() -> str:
        return asyncio.run(probe.has_kvm(sys.executable, kernel, tmp_path, has_own_users=False))

    kernel.write_bytes(b"broken")
    assert [told(), told()] == ["the guests' kernel did not start"] * 2
    kernel.write_bytes(b"mended")
    assert [told(), told()] == [""] * 2
    assert tried == [b"broken", b"mended"]


@needs_machine
def test_the_guests_kernel_says_who_it_is() -> None:
    assert not asyncio.run(probe.greets(QEMU, KERNEL, "tcg", patience_s=60))


@needs_machine
def test_a_kernel_that_stands_still_is_told(tmp_path: Path) -> None:
    """As under a KVM of clouds that runs one instruction and no kernel: here it has no time to speak."""
    assert asyncio.run(probe.greets(QEMU, KERNEL, "tcg", patience_s=0.001)).endswith("said nothing for 0.001 s")


@needs_machine
def test_what_is_no_kernel_did_not_start(tmp_path: Path) -> None:
    (tmp_path / "vmlinuz").write_bytes(b"no kernel")
    assert asyncio.run(probe.greets(QEMU, tmp_path / "vmlinuz", "tcg")).endswith("the guests' kernel did not start")
