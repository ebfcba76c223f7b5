"""Devices that pods claim (Kubernetes' dynamic resource allocation): what there is, what is wished for, what was granted.

Values only. `choosing.py` finds devices for claims, `inventory.py` knows which are taken; `dialects/pod_devices.py` reads
them from ResourceSlices, ResourceClaims and DeviceClasses.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from hekla.placement.constraint import NodeTerm, Taint, Toleration

AttributeValue = bool | int | str


class DeviceId(NamedTuple):
    """A device is known by its driver, its pool there and its name in the pool."""

    driver: str
    pool: str
    name: str


class CounterId(NamedTuple):
    """Something that devices of a pool share: a slice of a GPU's memory, say."""

    driver: str
    pool: str
    counters: str
    name: str


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Device:
    """One device. Compared by identity: a pool that changes brings new ones."""

    id: DeviceId
    node: str = ""
    """The node that has it; "" where several reach it."""

    terms: tuple[NodeTerm, ...] | None = None
    """Nodes that reach it, where it belongs to none: one of the terms holds. None: all do."""

    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    """By whole name, `gpu.example.com/model`."""

    capacity: Mapping[str, int] = field(default_factory=dict)
    """In thousandths, by whole name."""

    taints: tuple[Taint, ...] = ()
    consumes: tuple[tuple[CounterId, int], ...] = ()
    """What it takes, in thousandths, of what others could have been cut from."""


@dataclass(frozen=True, kw_only=True)
class DevicePool:
    """What a driver offers under one name."""

    devices: tuple[Device, ...] = ()
    counters: Mapping[CounterId, int] = field(default_factory=dict)
    """How much there is, in thousandths, of what its devices share."""


class SelectorError(Exception):
    """A selector cannot be evaluated for a device; the text is a sentence that names both."""


class Selector(Protocol):
    """Which devices are meant; hashable, and equal to one that means the same."""

    def picks(self, device: Device) -> bool:
        """Whether a device is meant; raises SelectorError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One way to answer a request: so many devices of a class."""

    label: str
    """`request`, or `request/subrequest`, as it is called in what was granted."""

    device_class: str
    selector: Selector
    count: int = 1
    takes_all: bool = False
    """Every device that is meant and within reach, of which there must be one."""

    is_admin: bool = False
    """Beside whoever has the device: it takes nothing away."""

    least: tuple[tuple[str, int], ...] = ()
    """Capacity that a device must have, in thousandths."""

    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """What a claim asks for under one name: the first of its choices that can be had."""

    name: str
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Devices of these requests (of all, if none is named) have one value of an attribute, or each another."""

    attribute: str
    requests: frozenset[str] = frozenset()
    is_distinct: bool = False

    def is_about(self, request: str, label: str) -> bool:
        """Whether devices that are granted under this label count."""
        return not self.requests or request in self.requests or label in self.requests


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClaim:
    """What a claim asks for. Which claim it is, a task says: so pods with equal claims of their own are of one shape."""

    requests: tuple[ClaimRequest, ...]
    matches: tuple[Match, ...] = ()


@dataclass(frozen=True, slots=True)
class Grant:
    """A device that a claim was given."""

    label: str
    device: DeviceId
    is_admin: bool = False
