"""What the runtime asks of a hypervisor, whichever it is: boot a machine, copy it as it stands, let a copy go on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hekla.node.runtimes import NodeError

COMMAND_LINE = "console=ttyS0 quiet loglevel=4 panic=-1 reboot=t"
LAUNCHER = "import sys; sys.path.insert(0, sys.argv.pop(1)); from hekla.node.shim.microvm import main; main()"
"""Python's argument that becomes a monitor; the source's directory and the spec follow."""
MIB = 1 << 20


class MachineError(NodeError):
    """A virtual machine could not be made, or does not do what it is told."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One machine to be."""

    name: str
    memory_mib: int
    user: int = 0
    """Whom its monitor runs as; 0: as we do."""
    groups: Sequence[Path] = ()
    """Control groups of its monitor."""


class Snapshot(Protocol):
    """A machine as it stood: what another continues from."""

    memory_mib: int

    def close(self) -> None:
        """Nobody continues from it any more."""


class Machine(Protocol):
    """A virtual machine and the process that is its monitor."""

    pid: int
    link: int
    """Our end of the stream to the bridge inside; whoever takes it closes it."""

    async def pause(self) -> None:
        """Its processors stand still."""

    async def resume(self) -> None:
        """They go on."""

    async def write_down(self, output: int) -> None:
        """Memory and devices of a paused machine into an open file, behind what is there."""

    async def last_words(self) -> str:
        """What its console printed last, for whoever looks for a reason."""

    async def wait(self) -> None:
        """Until its monitor has ended."""

    async def end(self) -> None:
        """At once, and for good."""


class Hypervisor(Protocol):
    """Makes machines."""

    name: str

    async def boot(self, plan: Plan) -> Machine:
        """From the image, until its processors run. Raises MachineError."""

    async def kept(self, plan: Plan) -> Snapshot | None:
        """What an earlier life of this node made golden of the same parts; None: nothing."""

    async def golden(self, plan: Plan, machine: Machine) -> Snapshot:
        """A paused machine becomes what others are copied from, and ends."""

    async def copy(self, plan: Plan, golden: Snapshot) -> Machine:
        """A machine that goes on from there, paused. Raises MachineError."""

    async def read_back(self, plan: Plan, source: int) -> Machine:
        """A machine that goes on from what `write_down` wrote, paused; `source` is read from where it stands."""
