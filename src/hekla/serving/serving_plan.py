"""What a ModelServing's groups and instances should become: the rules of `serving_rollout.py` applied to what there is.

    1  each group is looked at by itself: what failed, what is too much, what is outdated, what is missing
    2  all groups are looked at together: which are too many, which are replaced, which are missing
    3  what stays is completed, each group from its own revision

An outdated group is completed from the revision that it has, never resized to the new one just to be deleted (Kthena's
issue 1795).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from hekla.api.core import Pod
from hekla.api.kthena.serving import RecoveryPolicy
from hekla.lib.digits import whole_number
from hekla.serving.serving_names import MAX_SKEW, group_name, ordinal_of
from hekla.serving.serving_pods import Blueprint
from hekla.serving.serving_recovery import Health, group_has_lost, health
from hekla.serving.serving_revision import Roles, RoleTemplate
from hekla.serving.serving_rollout import UNBOUNDED, Change, Progress, Unit, Wish, change, most_updates, share
from hekla.serving.serving_view import Group, Instance, ServingView

MOST_PODS = 5_000
"""Pods that one look makes; it goes on at the next, which those wake. A billion replicas, which may be written, are no reason to
stand still: whoever looks after others too would, before the first pod."""


@dataclass(frozen=True)
class Missing:
    """Pods to be made for one instance."""

    plan: Blueprint
    indices: Sequence[int]
    is_new: bool = False
    """Whether nothing of the instance is there yet."""
    entry: Pod | None = None
    """The instance's entry pod, if it is there."""


@dataclass(frozen=True, kw_only=True)
class GroupPlan:
    """What becomes of one group."""

    name: str
    found: Group | None
    """As it is; None: it is to be made."""
    roles: Roles
    """What it consists of, by the revision that it is of."""
    revision: str
    is_frozen: bool = False
    """Whether it stays what it is although the spec wants something else."""
    is_protected: bool = False
    """Whether the partition keeps it from being replaced."""
    removed: str = ""
    """Why all of it goes; empty if it stays."""
    doomed: Sequence[tuple[Instance, str]] = ()
    """Instances that go, and why."""
    dropped: Sequence[tuple[Pod, str]] = ()
    """Single pods that go, and why."""
    missing: Sequence[Missing] = ()
    """Pods to be made."""
    wait_s: float | None = None
    """When a pod's patience is over."""

    @property
    def is_complete(self) -> bool:
        """Whether it is as it should be, ready or not."""
        return self.found is not None and not (self.removed or self.doomed or self.dropped or self.missing)


@dataclass
class _Look:
    """What is found out about a group, role by role."""

    doomed: list[tuple[Instance, str]] = field(default_factory=list)
    dropped: list[tuple[Pod, str]] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    restart: str = ""
    """Why the whole group must be made anew."""


def plans_of(view: ServingView) -> Sequence[GroupPlan]:
    """What becomes of every group, those to be made included, in order of ordinal."""
    partition = share(_group_budget(view, "partition"), view.replicas, round_up=True)
    looked = [_look_at(view, group, partition, is_protected=at < partition) for at, group in enumerate(view.groups)]
    todo = _groups_change(view, looked, partition)
    staying = sum(
        1 for one in looked if one.found and not one.found.is_leaving and one.found.ordinal not in todo.removed
    )
    kept = [_decided(one, todo, is_enough=staying >= view.replicas) for one in looked]
    made = _new_groups(view, todo.create, partition)
    return sorted([*kept, *made], key=lambda one: ordinal_of(one.name))


def next_pods(plans: Sequence[GroupPlan]) -> Iterator[tuple[GroupPlan, Missing, Sequence[int]]]:
    """What is made at this look: of each instance that lacks pods the indices of those, until there are enough of them."""
    left = MOST_PODS
    for plan in plans:
        for one in () if plan.removed else plan.missing:
            if left <= 0:
                return
            yield plan, one, one.indices[:left]
            left -= len(one.indices)


def _groups_change(view: ServingView, looked: Sequence[GroupPlan], partition: int) -> Change:
    units = [
        Unit(
            ordinal=one.found.ordinal,
            is_ready=not one.removed and one.found.is_ready(one.roles),
            is_current=view.is_by_role or view.is_current(one.found),
            is_leaving=bool(one.removed) or one.found.is_leaving,
            cost=sum(instance.cost for some in one.found.instances.values() for instance in some),
        )
        for one in looked
        if one.found is not None
    ]
    wish = Wish(
        replicas=view.replicas,
        partition=partition,
        max_unavailable=_max_unavailable(view),
        max_surge=share(_group_budget(view, "max_surge"), view.replicas, round_up=True),
        is_rolling=view.is_rolling,
    )
    return change(units, wish)


def _max_unavailable(view: ServingView) -> int:
    value = _group_budget(view, "max_unavailable")
    surge = share(_group_budget(view, "max_surge"), view.replicas, round_up=True)
    bound = share(1 if value is None else value, view.replicas, round_up=False)
    return bound if bound or surge else 1  # 1 % of few groups is none, and none would never move


def _group_budget(view: ServingView, name: str) -> int | str | None:
    strategy = view.serving.spec.rollout_strategy
    rolling = strategy.rolling_update_configuration if strategy is not None else None
    found: int | str | None = getattr(rolling, name, None)
    return None if view.is_by_role and name != "partition" else found


def _decided(one: GroupPlan, todo: Change, *, is_enough: bool) -> GroupPlan:
    assert one.found is not None
    if one.removed:
        return one
    if one.found.ordinal in todo.surplus or (one.found.is_leaving and is_enough):
        return replace(one, removed="there are more groups than replicas")
    is_replaced = one.is_frozen and not one.is_protected
    if one.found.ordinal in todo.outdated or (one.found.is_leaving and is_replaced):
        return replace(one, removed="it is of an earlier revision")
    return one


def _new_groups(view: ServingView, ordinals: Sequence[int], partition: int) -> Iterator[GroupPlan]:
    left = MOST_PODS
    for ordinal in ordinals:
        if left <= 0:
            return
        plan = _new_group(view, ordinal, partition)
        yield plan
        left -= sum(len(one.indices) for one in plan.missing)


def _new_group(view: ServingView, ordinal: int, partition: int) -> GroupPlan:
    """A group that is not there yet; below the partition it is of the revision that the others there have."""
    revision, roles = _first_revision(view, ordinal, partition)
    name = group_name(view.serving.metadata.name, ordinal)
    plan = GroupPlan(name=name, found=None, roles=roles, revision=revision)
    ordinals = ((role, range(min(role.replicas, MOST_PODS))) for role in roles)
    return replace(plan, missing=[one for role, some in ordinals for one in _new_instances(view, plan, role, some)])


def _first_revision(view: ServingView, ordinal: int, partition: int) -> tuple[str, Roles]:
    """What a group without pods is made from."""
    current = view.serving.status.current_revision
    if ordinal < partition and current in view.revisions.known:
        return current, view.revisions.known[current]
    return view.revisions.update, view.roles


def _look_at(view: ServingView, group: Group, partition: int, *, is_protected: bool) -> GroupPlan:
    """What one group needs, as if it were the only one."""
    is_frozen = not view.is_current(group) and (is_protected or not view.is_by_role)
    revision, roles = view.revisions.update, view.roles
    if is_frozen:
        revision, roles = group.revision, view.revisions.roles_at(group.revision) or roles
    elif not group.pods:
        revision, roles = _first_revision(view, group.ordinal, partition)
    plan = GroupPlan(
        name=group.name, found=group, roles=roles, revision=revision, is_frozen=is_frozen, is_protected=is_protected
    )
    look = _Look()
    may_update = _may_update(view, group) if not is_frozen else {}
    for role in roles:
        _look_at_role(view, plan, role, may_update.get(role.name, UNBOUNDED), look)
    if view.recovery is RecoveryPolicy.GROUP and not look.restart and not group.has_leaving:
        look.restart = "a pod was lost" if group_has_lost(group, roles) else ""
    _look_at_strangers(view, group, {role.name for role in roles}, look)
    # of an outdated group that is being taken down, nothing is made anew
    is_going = is_frozen and not is_protected and group.has_leaving
    return replace(
        plan,
        removed=look.restart,
        doomed=look.doomed,
        dropped=look.dropped,
        missing=[] if is_going or look.restart else look.missing,
        wait_s=min(look.waits, default=None),
    )


def _look_at_strangers(view: ServingView, group: Group, names: set[str], look: _Look) -> None:
    """Instances of roles that the spec has no more; without updates by role they go with their group."""
    if view.is_by_role:
        strangers = (one for role, some in group.instances.items() if role not in names for one in some)
        look.doomed += [(one, "the role is no more") for one in strangers if not _all_leaving(one)]


def _look_at_role(view: ServingView, plan: GroupPlan, role: RoleTemplate, may_update: int, look: _Look) -> None:
    assert plan.found is not None
    instances = plan.found.instances.get(role.name, ())
    states = {one.ordinal: health(one, role.size, view) for one in instances}
    look.waits += [state.wait_s for state in states.values() if state.wait_s is not None]
    todo = _instances_change(view, plan, role, instances, states, may_update)
    sound = sum(1 for state in states.values() if not state.is_failing)
    for one in instances:
        state = states[one.ordinal]
        if one.ordinal in todo.removed:
            why = "there are too many" if one.ordinal in todo.surplus else "it is of an earlier revision"
            look.doomed.append((one, why))
        elif state.is_failing and view.recovery is RecoveryPolicy.GROUP and sound < role.replicas:
            look.restart = look.restart or state.why
        elif state.is_failing and view.recovery is not RecoveryPolicy.NONE:
            if not _all_leaving(one):
                look.doomed.append((one, state.why))
        else:
            look.dropped += [(pod, f"pod {pod.metadata.name} failed") for pod in state.broken]
            look.missing += _completed(view, plan, role, one)
    look.missing += _new_instances(view, plan, role, todo.create[:MOST_PODS])


def _instances_change(
    view: ServingView,
    plan: GroupPlan,
    role: RoleTemplate,
    instances: Sequence[Instance],
    states: Mapping[int, Health],
    may_update: int,
) -> Change:
    by_pod = view.recovery is RecoveryPolicy.NONE
    is_updated_here = view.is_by_role and not plan.is_frozen
    units = [
        Unit(
            ordinal=one.ordinal,
            is_ready=one.is_ready(role.size),
            is_current=not is_updated_here or view.is_current_instance(one),
            is_leaving=_all_leaving(one) if by_pod else states[one.ordinal].is_failing,
            cost=one.cost,
        )
        for one in instances
    ]
    document, surge = role.document, 0
    unavailable: int = role.replicas
    if is_updated_here:
        surge = share(document.get("maxSurge"), role.replicas, round_up=True)
        unavailable = share(document.get("maxUnavailable", role.replicas), role.replicas, round_up=False)
    wish = Wish(
        replicas=role.replicas,
        partition=_role_partition(view, role),
        max_unavailable=unavailable if unavailable or surge else 1,
        max_surge=surge,
        is_rolling=view.is_rolling,
        most_updates=may_update,
    )
    return change(units, wish)


def _role_partition(view: ServingView, role: RoleTemplate) -> int:
    return share(role.document.get("partition"), role.replicas, round_up=True) if view.is_by_role else 0


def _may_update(view: ServingView, group: Group) -> Mapping[str, int]:
    """By role, how many instances may go down for the update so that no role runs ahead of another."""
    bound = skew(view)
    if not view.is_by_role or bound is None:
        return {}
    progress = {role.name: _progress(view, group, role) for role in view.roles}
    return {role.name: most_updates(role.name, progress, bound) for role in view.roles}


def skew(view: ServingView) -> float | None:
    """The bound that the annotation sets; None if there is none, or none that can be read."""
    text = view.serving.metadata.annotations.get(MAX_SKEW, "").removesuffix("%")
    percent = whole_number(text)
    return percent / 100 if percent is not None else None


def _progress(view: ServingView, group: Group, role: RoleTemplate) -> Progress:
    instances = group.instances.get(role.name, ())
    exposed = instances[_role_partition(view, role) :]
    new = [one for one in exposed if view.is_current_instance(one)]
    going = sum(1 for one in exposed if one.has_leaving and not view.is_current_instance(one))
    gone = max(0, role.replicas - len(instances))
    return Progress(
        done=sum(1 for one in new if one.is_ready(role.size)),
        begun=len(new) + going + gone,
        total=max(0, role.replicas - _role_partition(view, role)),
    )


def _completed(view: ServingView, plan: GroupPlan, role: RoleTemplate, one: Instance) -> Iterator[Missing]:
    """What an instance that stays lacks, made from the revision that the rest of it has."""
    roles = view.revisions.roles_at(one.revision) or plan.roles
    own = next((found for found in roles if found.name == role.name), role)
    blueprint = _blueprint(view, plan, own, one.ordinal, one.revision or plan.revision)
    there = {pod.metadata.name: pod for pod in one.pods}
    size = own.size if one.has_begun or not view.is_entry_first else 1
    lacking = (index for index in range(size) if blueprint.pod_name(index) not in there)
    indices = list(islice(lacking, MOST_PODS))
    if indices:
        yield Missing(blueprint, indices, entry=there.get(blueprint.pod_name(0)))


def _new_instances(
    view: ServingView, plan: GroupPlan, role: RoleTemplate, ordinals: Sequence[int]
) -> Iterator[Missing]:
    """Instances that are not there; those that the role's partition protects are of the revision before."""
    partition = _role_partition(view, role) if not plan.is_frozen else 0
    for ordinal in ordinals:
        revision, made_from = plan.revision, role
        if ordinal < partition and (before := _before(view, role.name)) is not None:
            revision, made_from = before
        size = 1 if view.is_entry_first else made_from.size
        yield Missing(_blueprint(view, plan, made_from, ordinal, revision), range(size), is_new=True)


def _before(view: ServingView, role: str) -> tuple[str, RoleTemplate] | None:
    """A role as the revision before the spec's has it."""
    current = view.serving.status.current_revision
    for name in (current, *view.revisions.known):
        if name in view.revisions.known and not view.revisions.is_update(name):
            found = next((one for one in view.revisions.known[name] if one.name == role), None)
            if found is not None:
                return name, found
    return None


def _blueprint(view: ServingView, plan: GroupPlan, role: RoleTemplate, ordinal: int, revision: str) -> Blueprint:
    template_hash = view.revisions.hash_of(revision, role)
    return Blueprint(group=plan.name, role=role, ordinal=ordinal, revision=revision, template_hash=template_hash)


def _all_leaving(one: Instance) -> bool:
    return all(pod.metadata.deletion_timestamp is not None for pod in one.pods)
