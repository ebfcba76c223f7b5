"""The programs that run OCI bundles, the strongest first, and how each is called."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from hekla.api.agents.names import ISOLATION_STRENGTHS

SEARCHED = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where distributions put them; an ordinary user's PATH lacks half of it."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One OCI runtime."""

    name: str
    isolation: str
    global_options: tuple[str, ...] = ()
    run_options: tuple[str, ...] = ()
    hands_descriptors: bool = True
    """Whether a container can be given an open directory; without one it cannot tell which files are its own, and packs none."""

    is_own_kernel: bool = False
    """Its processes are not the host's: they have no seccomp or Landlock of the host's, and the host cannot look at them."""

    hides_groups: bool = False
    """It is not to see control groups: the launcher has joined them already."""

    def command(self, program: str, *, state: str, bundle: str, name: str) -> list[str]:
        """Run a bundle in the foreground."""
        keep = ["--preserve-fds", "1"] if self.hands_descriptors else []
        return [
            program, "--root", state, *self.global_options, "run", *self.run_options, *keep, "--bundle", bundle, name,
        ]  # fmt: skip


RUNSC = Engine(
    name="runsc",
    isolation=ISOLATION_STRENGTHS[1],
    global_options=("--network=none", "--ignore-cgroups", "--platform=ptrace", "--file-access=exclusive"),
    hands_descriptors=False,
    is_own_kernel=True,
)
CRUN = Engine(
    name="crun",
    isolation=ISOLATION_STRENGTHS[0],
    global_options=("--cgroup-manager=disabled",),
    run_options=("--no-new-keyring",),
    hides_groups=True,  # crun 1.8 refuses a host that has both versions of them
)
RUNC = Engine(name="runc", isolation=ISOLATION_STRENGTHS[0], run_options=("--no-new-keyring",))

ENGINES = (CRUN, RUNC)
"""crun first: it starts in a third of runc's time."""


def program_of(engine: Engine) -> str:
    """Where it is; empty: it is not installed."""
    return shutil.which(engine.name, path=f"{os.environ.get('PATH', os.defpath)}:{SEARCHED}") or ""


def installed(engines: Sequence[Engine]) -> tuple[Engine, str] | None:
    """The first of some that is installed, and where."""
    return next(((engine, program) for engine in engines if (program := program_of(engine))), None)
