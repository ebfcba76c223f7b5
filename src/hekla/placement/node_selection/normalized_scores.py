"""How long what pods like holds while others are placed, where a node is liked beside those that the pod could go to.

Kubernetes scales its dislike of soft taints by the worst node that can still be had. That changes only when the last such
node fills up, and a pod that is placed fills one node at most: so while more of them are left than pods are placed, each
shape has one base of its scores, and `stream.py` places many shapes in one pass as if nothing were compared.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from hekla.placement.columns import BoolArray, Nodes
from hekla.placement.framework import ComparingScorer
from hekla.placement.model import Task, TaskSpec
from hekla.placement.node_selection.stream import Profile, Program
from hekla.placement.shape import Shape

MOST_KNOWN = 512
"""Shapes of which it is known; the one unused for longest makes room, and is asked about again when it comes."""


@dataclass(slots=True)
class _Standing:
    """What a shape's scores go by, and how many pods of any shape may be placed before that can change."""

    version: int
    goes_by: Sequence[Hashable]
    found: int
    left: int
    program: Program


class NormalizedScores:
    """Programs of shapes that compare nodes, right for so many pods to come."""

    def __init__(
        self, nodes: Nodes, comparing: Sequence[ComparingScorer], profile: Callable[[Shape], Profile],
        program: Callable[[Shape], Program], compared: Callable[[Program, Task], Program],
    ) -> None:  # fmt: skip
        self._nodes, self._comparing = nodes, comparing
        self._profile_of, self._program, self._compared = profile, program, compared
        self._known: OrderedDict[Shape, _Standing] = OrderedDict()
        self._profiles: dict[Hashable, Profile] = {}
        """By kind of shape and what it goes by: shapes of a kind share a row of the kernel's tables."""

        self._profiles_of = -1
        self._right_at = (-1, -1, -1)
        """The nodes' facts and the place in the log of changes up to which pods were counted."""

        self.voided: Callable[[Shape], None] = lambda shape: None
        """Told of each shape whose program is not what it was."""

    def compares(self, shape: Shape) -> bool:
        """Whether a shape's scores go by the nodes that it can go to."""
        return self._profile_of(shape).compares

    def program(self, shape: Shape) -> Program:
        """What a kernel reads of a shape, as nodes compare now or did when it was last asked how many are certain."""
        program = self._program(shape)
        if not program.profile.compares:
            return program
        known = self._known.get(shape)
        if known is None or known.version != self._nodes.version:
            known = self._look(shape, program)
        return known.program

    def certain(self, shape: Shape) -> int:
        """How many pods, of any shape, may be placed at least before this shape likes nodes otherwise; brings it up to date."""
        if self._right_at != self._now():
            for one in self._known.values():
                one.left = 0  # others came or went, and who left may have made room on a worse node
            self._right_at = self._now()
        known = self._known.get(shape)
        # Asked again when half is used up: that is a pass for many pods, and none of them is placed for want of a few.
        if known is None or known.version != self._nodes.version or 2 * known.left < max(known.found, 1):
            known = self._look(shape, self._program(shape))
            self._right_at = self._now()
        self._known.move_to_end(shape)
        return known.left

    def placed(self, number: int) -> None:
        """So many pods were placed, and nothing else has happened since it was last asked what is certain."""
        for one in self._known.values():
            one.left -= number
        self._right_at = self._now()

    def goes_by(self, shape: Shape, can: BoolArray) -> tuple[Sequence[Hashable], int]:
        """What a shape's scores go by if it can go to these nodes, and on how many of them that rests."""
        nodes = self._nodes
        ours = can & ~nodes.is_beside
        among = ours if ours.any() else can
        told = [one.goes_by(nodes, shape, among) for one in self._comparing if one.compares(nodes, shape)]
        return [by for by, _ in told], min((number for _, number in told), default=0)

    def _now(self) -> tuple[int, int, int]:
        return self._nodes.version, self._nodes.log_epoch, self._nodes.log_length

    def _look(self, shape: Shape, program: Program) -> _Standing:
        can = program.profile.ok.copy()
        for resource, amount in zip(shape.resources.tolist(), shape.amounts.tolist(), strict=True):
            can &= self._nodes.idle[resource] >= amount
        goes_by, number = self.goes_by(shape, can)
        before, version = self._known.get(shape), self._nodes.version
        if before is None or before.version != version or before.goes_by != goes_by:
            profile = self._profile(shape, program, goes_by)
            program = Program(profile, program.adding, program.balance)
            self.voided(shape)
        else:
            program = before.program
        known = self._known[shape] = _Standing(version, goes_by, number, number, program)
        while len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return known

    def _profile(self, shape: Shape, program: Program, goes_by: Sequence[Hashable]) -> Profile:
        if self._profiles_of != self._nodes.version or len(self._profiles) >= MOST_KNOWN:
            self._profiles.clear()
            self._profiles_of = self._nodes.version
        key = shape.kind, tuple(goes_by)
        known = self._profiles.get(key)
        if known is None:
            # nothing is said of it but how nodes compare, so any pod of this shape will do
            anyone = Task(TaskSpec(uid="", name="", namespace="", request=shape.request), shape)
            known = self._profiles[key] = self._compared(program, anyone).profile
        return known
