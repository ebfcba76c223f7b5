"""What a node writes down of a container for its own next life, in its spawner's memory: enough to go on, and nothing secret."""

import dataclasses
from typing import Any

import msgspec

from hekla.node.runtimes import ContainerKey, ContainerSpec


class Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt."""

    spec: ContainerSpec
    """As far as it matters once it runs: without command, variables and mounts."""
    groups: tuple[str, ...] = ()
    rewritten: tuple[tuple[str, str], ...] = ()
    has_terminals: bool = False


def spec_to_keep(container: ContainerSpec) -> ContainerSpec:
    """Without what is secret, long, or of no use to a container that runs."""
    return dataclasses.replace(
        container, argv=(), env={}, mounts=(), hosts_file=None, rootfs=None, annotations={}
    )  # fmt: skip


def write(note: Note) -> dict[str, Any]:
    """As it goes to the spawner."""
    told: dict[str, Any] = msgspec.to_builtins(note)
    return told


def read(message: dict[str, Any], key: ContainerKey) -> Note:
    """As it comes back, of this attempt; raises ValueError."""
    note = msgspec.convert(message, Note, strict=False)
    if note.spec.key != key:
        raise ValueError(f"it is noted of {note.spec.key}")
    return note
