"""Decides what an OCI runtime is told of a sandbox: its config.json. The file system is laid out by the launcher (`shim/oci.py`)."""

import json
from collections.abc import Sequence
from typing import Any

from hekla.node.runtimes.oci.engines import Engine
from hekla.node.runtimes.sandbox.plan import Spec
from hekla.node.shim.sandbox.inside import KEPT_BY_DAEMON

CARRIED_AT = "/run/hekla/guest.pyz"
CAPABILITIES = {
    0: "CHOWN", 1: "DAC_OVERRIDE", 3: "FOWNER", 4: "FSETID", 5: "KILL", 6: "SETGID", 7: "SETUID", 10: "NET_BIND_SERVICE",
    19: "SYS_PTRACE", 21: "SYS_ADMIN",
}  # fmt: skip
NAMESPACES = ("pid", "network", "ipc", "uts", "mount", "cgroup")
MASKED = (
    "/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
    "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/proc/kmsg", "/proc/vmallocinfo", "/proc/driver",
)  # fmt: skip
UNKNOWN_TO_OWN_KERNELS = ("RLIMIT_MSGQUEUE",)
"""Limits that gVisor refuses to set."""
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


def config_of(spec: Spec, engine: Engine, python: str, root: str) -> dict[str, Any]:
    """The bundle's config.json; `python` is the interpreter as the container sees it."""
    # SETPCAP is given up with the others, by the first process inside once it has locked itself
    kept = [f"CAP_{CAPABILITIES[number]}" for number in KEPT_BY_DAEMON] + ["CAP_SETPCAP"]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": [python, "-I", "-S", CARRIED_AT, "container", json.dumps(told_of(spec, engine))],
            "env": [f"{name}={value}" for name, value in spec["env"].items()],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), kept),
            "noNewPrivileges": True,
        },
        "root": {"path": root, "readonly": False},
        "hostname": spec["hostname"],
        "mounts": _mounts(engine),
        "linux": {
            "namespaces": [{"type": kind} for kind in _namespaces(engine)],
            "maskedPaths": list(MASKED),
            "readonlyPaths": list(READ_ONLY),
        },
    }


def told_of(spec: Spec, engine: Engine) -> dict[str, Any]:
    """What the first process inside needs to know (`shim/guest/entry.py`)."""
    names = ("workspace", "default_user", "preload", "env")
    unknown = UNKNOWN_TO_OWN_KERNELS if engine.is_own_kernel else ()
    return {name: spec[name] for name in names} | {
        "rlimits": {name: value for name, value in spec["rlimits"].items() if name not in unknown},
        "has_own": engine.hands_descriptors,
        "has_image": bool(spec["rootfs"]),
        "landlock": spec["landlock"] and not engine.is_own_kernel,
    }


def _namespaces(engine: Engine) -> Sequence[str]:
    return [kind for kind in NAMESPACES if kind != "cgroup" or not engine.is_own_kernel]


def _mounts(engine: Engine) -> list[dict[str, Any]]:
    nothing = ["nosuid", "noexec", "nodev"]
    return [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": nothing},
        {
            "destination": "/dev/pts", "type": "devpts", "source": "devpts",
            "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"],
        },
        {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": [*nothing, "mode=1777", "size=65536k"]},
    ]  # fmt: skip
