"""What a kernel with control groups of version 2 makes of what we write there, in a machine that QEMU emulates; skipped where there is none.

Most machines that run these tests have but one version. The guest image of the runtime `microvm` has Debian's kernel, and a Python that takes
our sources as they are.
"""

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import hekla
from hekla.node.runtimes.cpu_weight import shares_of_tree, weight_of
from hekla.node.runtimes.microvm.image import INSTALLED
from hekla.node.runtimes.microvm.monitor import COMMAND_LINE
from hekla.node.runtimes.microvm.qemu import SLOW_CLOCKS
from hekla.node.shim.guest.cpio import archive_of

QEMU = shutil.which("qemu-system-x86_64") or ""
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
GUEST = Path(__file__).parent / "cgroup_v2_guest.py"
PARTS = ("api", "node")
"""Of the package: what groups are made with, and all that imports."""
OTHERS = ("msgspec", "structlog", "typing_extensions")
MARK = "found: "
PATIENCE_S = 240

pytestmark = pytest.mark.slow


def why_not() -> str:
    """Why no such machine can be had here; empty: it can."""
    if not QEMU or not (INSTALLED / "manifest.json").exists():
        return "no QEMU or no guest image here"
    if f"{PYTHON}-minimal" not in json.loads((INSTALLED / "manifest.json").read_text())["packages"]:
        return f"the guest image has another Python than {PYTHON}, for which msgspec is compiled here"
    return ""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What one machine has found."""
    if why := why_not():
        pytest.skip(why)
    directory = tmp_path_factory.mktemp("machine")
    initrd = directory / "initrd"
    initrd.write_bytes((INSTALLED / "initrd").read_bytes() + archive_of(world(directory / "tree").parent))
    line = f"{COMMAND_LINE}{SLOW_CLOCKS} rdinit=/usr/bin/python3 -- -E -S /world/{GUEST.name}"
    done = subprocess.run(
        [
            QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-m", "512M", "-cpu", "max", "-smp", "1",
            "-machine", "microvm,acpi=on,pit=on,pic=on,rtc=on,isa-serial=on,accel=tcg",
            # its clock counts what it has done, so that a host with other work to do takes nothing from anybody in there
            "-icount", "shift=3,sleep=off",
            "-kernel", str(INSTALLED / "vmlinuz"), "-initrd", str(initrd), "-append", line, "-serial", "stdio",
        ],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    _, mark, told = done.stdout.partition(MARK)
    assert mark, done.stdout + done.stderr
    return json.loads(told.partition("\n")[0])


def world(tree):
    """Our sources and what they import, compiled: an emulated processor takes seconds to read them."""
    made = tree / "world"
    made.mkdir(parents=True)
    shutil.copy(GUEST, made)
    package = Path(hekla.__file__).parent
    for part in PARTS:
        shutil.copytree(package / part, made / "hekla" / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(package / "__init__.py", made / "hekla")
    for other in OTHERS:
        origin = Path(find_spec(other).origin)
        if origin.name == "__init__.py":
            shutil.copytree(origin.parent, made / other, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(origin, made)
    subprocess.run(
        [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", str(made)], check=True
    )
    return made


@pytest.mark.timeout(300)  # a machine boots, emulated
def test_a_kernel_takes_the_weights_of_a_tree_and_of_its_containers(found):
    assert found["tree"] == "CPU and memory limits by cgroup v2 below /sys/fs/cgroup/hekla-plain"
    assert found["tree's weight"] == weight_of(shares_of_tree(1))
    assert found["weights"] == {"0": 1, "100": 17, "1000": 100, "4000": 303, "256000": 10_000}


def test_a_kernel_takes_the_weights_of_sandboxes(found):
    assert (found["sandboxes' tree"], found["sandbox's weight"]) == (weight_of(shares_of_tree(1)), 303)
    assert found["sandboxes' refusals"] == ""


def test_who_weighs_four_times_as_much_has_about_four_times_the_processor(found):
    (light, light_us), (heavy, heavy_us) = found["usage"]
    assert heavy == 4 * light
    assert 2.5 < heavy_us / light_us < 6, found["usage"]


def test_a_kernel_that_takes_no_weight_is_told_of(found):
    bare, tree = "/sys/fs/cgroup/bare/c/cpu.weight", "/sys/fs/cgroup/hekla-plain/c1000/cpu.weight"
    told = "; CPU is not shared by requests: "
    assert found["without the controller"].endswith(f"{told}{bare} does not take 100 (No such file or directory)")
    assert found["read-only"].endswith(f"{told}{tree} does not take 303 (Read-only file system)")
    assert found["weight then"] == 100
