"""Which devices there are for claims, and who has them.

A claim holds devices from when a pod that uses it is placed (they are chosen then, and taken back with the placement), or
from when its status says so, until no pod uses it and its status says so no more. Several pods may use one claim: it holds
its devices once, and pods that come later go where these are reached.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hekla.placement.columns import BoolArray, Nodes
from hekla.placement.constraint import NodeTerm, Operator, Requirement
from hekla.placement.devices.choosing import choose, tolerates
from hekla.placement.devices.claimed import Above, Accounts, Claimed
from hekla.placement.devices.claims import (
    Choice,
    CounterId,
    Device,
    DeviceClaim,
    DeviceId,
    DevicePool,
    Grant,
    SelectorError,
)
from hekla.placement.devices.parts import Parts
from hekla.placement.model import Task
from hekla.placement.node_masks import any_term

MOST_REMEMBERED = 256
"""Kinds of claims for which it is remembered where they fit."""

MOST_CHANGED = 100_000
"""Claims of which it is remembered that they changed; of more all are counted anew, should anybody ask."""

Grants = tuple[Grant, ...]
PoolId = tuple[str, str]


class Hold:
    """The devices that one claim has."""

    __slots__ = ("grants", "is_counted", "is_written", "terms", "users")

    def __init__(self, grants: Grants) -> None:
        self.grants = grants
        self.users: set[str] = set()
        """Uids of placed tasks that use it."""

        self.is_written = False
        """Whether the claim's status says so."""

        self.terms: tuple[NodeTerm, ...] | None = None
        """Nodes on which it may be used, as its status says; None: wherever its devices are reached."""

        self.is_counted = False
        """Whether its devices are taken by it."""


class Inventory:
    """All devices for claims, by pool, and what is taken of them."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._pools: dict[PoolId, DevicePool] = {}
        self._at: dict[str, list[Device]] | None = None
        """Devices by the node that has them; made when it is asked for after a change."""

        self._shared: list[Device] = []
        """Devices that no node has for itself."""

        self._by_id: dict[DeviceId, Device] = {}
        self._left: dict[CounterId, int] = {}
        self._taken: Counter[DeviceId] = Counter()
        self._parts = Parts(self._left, self._taken.__contains__)
        self.holds: dict[str, Hold] = {}
        """By claim, `namespace/name`."""

        self._accounts = Accounts()
        self._uncounted: set[str] | None = None
        """Claims whose users or devices changed since they were counted last; None: nobody knows which, or nobody has ever asked."""

        self.looks_ahead = False
        """Whether who is leaving counts as gone, and what only they use as free."""

        self._spread: set[PoolId] = set()
        """Pools whose devices are not all of one node."""

        self._world = 0
        self._versions: Counter[str] = Counter()
        self._picked: dict[tuple[Choice, DeviceId], bool] = {}
        self._fitting: dict[tuple[DeviceClaim, ...], dict[str, tuple[tuple[int, int, int], bool | str]]] = {}

    # What there is

    def put_pool(self, key: PoolId, pool: DevicePool) -> None:
        """Add a pool, or take over what it offers now."""
        self._pools[key] = pool
        self._start_over()

    def remove_pool(self, key: PoolId) -> None:
        """Forget a pool; who has devices of it keeps them."""
        if self._pools.pop(key, None) is not None:
            self._start_over()

    def _start_over(self) -> None:
        self._at = None
        self._world += 1
        self._picked.clear()

    def _of_nodes(self) -> Mapping[str, Sequence[Device]]:
        if self._at is None:
            self._at, self._shared, self._by_id, self._left, self._spread = {}, [], {}, {}, set()
            self._parts = Parts(self._left, self._taken.__contains__)
            for key, pool in sorted(self._pools.items()):
                self._left.update(pool.counters)
                if len({device.node for device in pool.devices}) > 1:
                    self._spread.add(key)
                for device in pool.devices:
                    self._by_id[device.id] = device
                    self._parts.add(device)
                    (self._at.setdefault(device.node, []) if device.node else self._shared).append(device)
            for taken in self._taken:
                self._spend(taken, -1)
        return self._at

    def reach_of(self, grants: Grants) -> list[tuple[NodeTerm, ...]]:
        """For each of these devices that not all nodes reach, the terms of the nodes that do."""
        self._of_nodes()
        reach = list[tuple[NodeTerm, ...]]()
        for grant in grants:
            device = self._by_id.get(grant.device)
            if device is not None and device.node:
                reach.append((NodeTerm(names=(Requirement("metadata.name", Operator.IN, (device.node,)),)),))
            elif device is not None and device.terms is not None:
                reach.append(device.terms)
        return reach

    # Where claims fit

    def rooms(self, claims: Sequence[DeviceClaim], names: Sequence[str]) -> BoolArray:
        """Nodes on which these claims have their devices, or can be given them; raises SelectorError.  # [node]"""
        nodes = self._nodes
        ok: BoolArray = nodes.is_live.copy()
        fresh = []
        for claim, name in zip(claims, names, strict=True):
            hold = self.holds.get(name)
            if hold is None:
                fresh.append(claim)
            else:
                ok &= self._reach(hold)
        return ok & self._fits(tuple(fresh)) if fresh else ok

    def _fits(self, claims: tuple[DeviceClaim, ...]) -> BoolArray:
        """Nodes on which devices are free for these; what was found is kept for nodes where nothing has changed."""
        at, nodes = self._of_nodes(), self._nodes
        known = self._fitting.get(claims)
        if known is None:
            while len(self._fitting) >= MOST_REMEMBERED:
                del self._fitting[next(iter(self._fitting))]
            known = self._fitting[claims] = {}
        ok = np.zeros(nodes.rows, np.bool_)
        world = (self._world, nodes.version if self._shared else 0)
        for name in nodes.row_of if self._shared else at:
            row = nodes.row_of.get(name)
            if row is None:
                continue
            state = (*world, self._versions[name])
            entry = known.get(name)
            if entry is None or entry[0] != state:
                entry = known[name] = (state, self._is_room(row, claims))
            if isinstance(entry[1], str):
                raise SelectorError(entry[1])
            ok[row] = entry[1]
        return ok

    def _is_room(self, row: int, claims: Sequence[DeviceClaim]) -> bool | str:
        try:
            return self._chosen(row, claims) is not None
        except SelectorError as error:
            return str(error)

    def _chosen(
        self, row: int, claims: Sequence[DeviceClaim], *, is_given: bool = False
    ) -> tuple[Grants, ...] | None:  # fmt: skip
        """What claims can be given on a node; with care for what it leaves to others, if they are given it."""
        own = self._of_nodes().get(self._nodes.name(row), [])
        reached: Sequence[Device] = [*own, *(device for device in self._shared if self._reaches(device)[row])]
        if is_given:
            reached = self._parts.ordered(reached)
        return choose(claims, reached, taken=self._taken.__contains__, left=self._left, picks=self._picks)

    def _picks(self, choice: Choice, device: Device) -> bool:
        known = self._picked.get((choice, device.id))
        if known is None:
            known = tolerates(choice, device) and choice.selector.picks(device)
            known = known and all(_amount(device, name) >= least for name, least in choice.least)
            self._picked[choice, device.id] = known
        return known

    def _reach(self, hold: Hold) -> BoolArray:
        if hold.terms is not None:
            return any_term(self._nodes, hold.terms)
        ok: BoolArray = self._nodes.is_live.copy()
        self._of_nodes()
        for grant in hold.grants:
            device = self._by_id.get(grant.device)
            if device is not None:
                ok &= self._reaches(device)
        return ok

    def _reaches(self, device: Device) -> BoolArray:
        nodes = self._nodes
        if device.node:
            only = np.zeros(nodes.rows, np.bool_)
            if device.node in nodes.row_of:
                only[nodes.row_of[device.node]] = True
            return only
        if device.terms is None:
            return nodes.is_live
        key = ("devices", nodes.version, device.terms)
        known: BoolArray | None = nodes.notes.get(key)
        if known is None:
            known = nodes.notes[key] = any_term(nodes, device.terms)
        return known

    # Who has what

    def claimed(self, tasks: Mapping[str, Task], above: Above) -> Mapping[str, Claimed]:
        """By queue, what pods that are placed have claimed; to be read at once, as it goes on with what changes."""
        changed, self._uncounted = self._uncounted, set()
        return self._accounts.after(changed, self.holds, tasks, above)

    def note(self, names: Iterable[str]) -> None:
        """These claims changed, or the queue of who uses them."""
        if self._uncounted is not None:
            self._uncounted.update(names)
            if len(self._uncounted) > MOST_CHANGED:
                self._uncounted = None

    def grant(
        self, uid: str, row: int, claims: Sequence[DeviceClaim], names: Sequence[str], before: Mapping[str, Grants]
    ) -> dict[str, Grants]:
        """A task comes to a node: what its claims have there, the same as before where that is free."""
        self._of_nodes()
        self.note(names)
        kept = {name: grants for name, grants in before.items() if name not in self.holds and self._are_free(grants)}
        for name, grants in kept.items():
            self.holds[name] = Hold(grants)
        fresh = [(name, claim) for name, claim in zip(names, claims, strict=True) if name not in self.holds]
        try:
            found = self._chosen(row, [claim for _, claim in fresh], is_given=True) if fresh else None
        except SelectorError:
            found = None  # it was placed by somebody else
        for (name, _), grants in zip(fresh, found or (), strict=False):
            self.holds[name] = Hold(grants)
        using = {name: hold for name in names if (hold := self.holds.get(name)) is not None}
        for hold in using.values():
            hold.users.add(uid)
            self._count(hold, True)
        return {name: hold.grants for name, hold in using.items()}

    def release(self, uid: str, names: Sequence[str]) -> None:
        """A task leaves its node."""
        self.note(names)
        for name in names:
            hold = self.holds.get(name)
            if hold is None:
                continue
            hold.users.discard(uid)
            if hold.users or (hold.is_written and not self.looks_ahead):
                continue
            self._count(hold, False)
            if not hold.is_written:
                del self.holds[name]

    def forget_users(self) -> None:
        """Have all who use claims come anew."""
        self._uncounted = None
        for name, hold in list(self.holds.items()):
            hold.users.clear()
            if not hold.is_written:
                self._count(hold, False)
                del self.holds[name]

    def put_allocation(self, name: str, grants: Grants, terms: tuple[NodeTerm, ...] | None) -> bool:
        """A claim's status says what it has; whether that is news."""
        hold = self.holds.get(name)
        if hold is not None and hold.is_written and (hold.grants, hold.terms) == (grants, terms):
            return False
        self.note((name,))
        if hold is None:
            hold = self.holds[name] = Hold(grants)
        elif hold.grants != grants:
            self._count(hold, False)
            hold.grants = grants
        hold.is_written, hold.terms = True, terms
        self._count(hold, True)
        return True

    def remove_allocation(self, name: str) -> bool:
        """A claim's status says that it has nothing; whether that is news."""
        hold = self.holds.get(name)
        if hold is None or not hold.is_written:
            return False
        self.note((name,))
        hold.is_written, hold.terms = False, None
        if not hold.users:
            self._count(hold, False)
            del self.holds[name]
        return True

    def _are_free(self, grants: Grants) -> bool:
        found = [self._by_id.get(grant.device) for grant in grants if not grant.is_admin]
        spent: Counter[CounterId] = Counter()
        for device in found:
            if device is None or device.id in self._taken:
                return False
            spent.update(dict(device.consumes))
        return all(self._left.get(counter, 0) >= amount for counter, amount in spent.items())

    def _count(self, hold: Hold, is_counted: bool) -> None:
        """Have the devices of a claim count as taken, or not."""
        if hold.is_counted is is_counted:
            return
        hold.is_counted = is_counted
        self._of_nodes()
        sign = 1 if is_counted else -1
        for grant in hold.grants:
            if grant.is_admin:
                continue
            before = self._taken[grant.device]
            self._taken[grant.device] = before + sign
            if not self._taken[grant.device]:
                del self._taken[grant.device]
            if (before > 0) != (before + sign > 0):
                self._spend(grant.device, -sign)
                self._changed(grant.device)

    def _spend(self, one: DeviceId, sign: int) -> None:
        device = self._by_id.get(one)
        for counter, amount in device.consumes if device is not None else ():
            self._left[counter] = self._left.get(counter, 0) + sign * amount
        if device is not None:
            self._parts.changed(device)

    def _changed(self, one: DeviceId) -> None:
        device = self._by_id.get(one)
        if device is None or not device.node or (one.driver, one.pool) in self._spread:
            self._world += 1  # others than this node may be concerned
        else:
            self._versions[device.node] += 1


def _amount(device: Device, name: str) -> int:
    """How much of something a device has; a name without a domain is of its driver's."""
    return device.capacity.get(name if "/" in name else f"{device.id.driver}/{name}", 0)
