"""What a node writes down of a sandbox for its own next life, in its supervisor's memory: enough to go on, and nothing secret."""

import dataclasses
from typing import Any

import msgspec

from hekla.api.agents.names import EGRESS, OWNER
from hekla.api.agents.node_contract import EGRESS_SECRETS
from hekla.node.runtimes import ContainerSpec, Limits
from hekla.node.shim.sandbox.packets import Message

KEPT_ANNOTATIONS = (EGRESS, EGRESS_SECRETS, OWNER)


class Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sandbox."""

    spec: ContainerSpec
    """Its container as far as it matters once that runs: without variables and mounts."""
    started_at: float
    is_running: bool = False
    """What was being started is not known to anybody yet, and is started again from nothing."""
    session: str = ""
    """Whose it is, or was about to be."""
    is_claimed: bool = False
    order: int = 0
    """The latest to freeze or to thaw."""
    meter: dict[str, Any] = {}


def spec_to_keep(container: ContainerSpec) -> ContainerSpec:
    """Without what is secret, long, or of no use to a container that runs."""
    kept = {name: text for name, text in container.annotations.items() if name in KEPT_ANNOTATIONS}
    return dataclasses.replace(
        container, argv=container.argv[:1], env={}, mounts=(), hosts_file=None, rootfs=None, limits=Limits(), annotations=kept
    )  # fmt: skip


def write(note: Note) -> Message:
    """As it goes to the supervisor."""
    told: Message = msgspec.to_builtins(note)
    return told


def read(message: Message) -> Note:
    """As it comes back; raises msgspec.ValidationError."""
    return msgspec.convert(message, Note, strict=False)
