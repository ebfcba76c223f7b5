"""One ModelServing and everything that belongs to it, as the caches show it: groups, instances of roles, pods.

Nothing is remembered elsewhere: a group is what carries its name, so a controller that has just started knows what the
last one knew.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TypeVar

from hekla.api.apps import ControllerRevision
from hekla.api.core import Pod, Service
from hekla.api.kthena import ModelServing, labels
from hekla.api.kthena.serving import RecoveryPolicy, RolloutType
from hekla.api.meta import Resource
from hekla.api.volcano import PodGroup
from hekla.kube.reconcile import World
from hekla.lib.digits import whole_number
from hekla.serving.serving_names import ordinal_of, starts_leaders_first
from hekla.serving.serving_placement import placed
from hekla.serving.serving_revision import Revisions, Roles, revisions_of, roles_of

T = TypeVar("T", bound=Resource)


@dataclass(frozen=True)
class Instance:
    """One instance of a role in a group: an entry pod and its workers, those that there are."""

    role: str
    id: str
    pods: Sequence[Pod]

    @cached_property
    def ordinal(self) -> int:
        """Which of its role."""
        return ordinal_of(self.id)

    @property
    def revision(self) -> str:
        """The revision that its pods were made from."""
        return label_of(self.pods, labels.REVISION)

    @property
    def template_hash(self) -> str:
        """The hash of the role that its pods were made from."""
        return label_of(self.pods, labels.ROLE_TEMPLATE_HASH)

    @property
    def has_leaving(self) -> bool:
        """Whether any pod is on its way out."""
        return any(map(is_leaving, self.pods))

    @property
    def cost(self) -> int:
        """How dear it is to delete."""
        return sum(map(deletion_cost, self.pods))

    @property
    def has_begun(self) -> bool:
        """Whether its entry pod was ready once: it is now, or there are workers."""
        return any(labels.ENTRY not in pod.metadata.labels or is_ready(pod) for pod in self.pods)

    def is_ready(self, size: int) -> bool:
        """Whether it serves: as many pods as it should have, all ready."""
        return len(self.pods) == size and all(is_ready(pod) and not is_leaving(pod) for pod in self.pods)


@dataclass(frozen=True)
class Group:
    """One serving group."""

    name: str
    pods: Sequence[Pod] = ()
    services: Sequence[Service] = ()
    pod_group: PodGroup | None = None

    @cached_property
    def ordinal(self) -> int:
        """Which of the ModelServing."""
        return ordinal_of(self.name)

    @cached_property
    def instances(self) -> Mapping[str, Sequence[Instance]]:
        """By role, in order of ordinal."""
        found: dict[tuple[str, str], list[Pod]] = {}
        for pod in self.pods:
            found.setdefault(
                (pod.metadata.labels.get(labels.ROLE, ""), pod.metadata.labels.get(labels.ROLE_ID, "")), []
            ).append(pod)
        by_role: dict[str, list[Instance]] = {}
        for (role, name), pods in found.items():
            by_role.setdefault(role, []).append(Instance(role, name, pods))
        return {role: sorted(some, key=lambda one: one.ordinal) for role, some in by_role.items()}

    @cached_property
    def revision(self) -> str:
        """The revision that most of its pods were made from; empty without pods."""
        found = Counter(pod.metadata.labels.get(labels.REVISION, "") for pod in self.pods)
        return max(found, key=lambda name: (found[name], name)) if found else ""

    @property
    def has_leaving(self) -> bool:
        """Whether any pod is on its way out."""
        return any(map(is_leaving, self.pods))

    @property
    def is_leaving(self) -> bool:
        """Whether nothing of it stays."""
        return bool(self.pods) and all(map(is_leaving, self.pods))

    def is_ready(self, roles: Roles) -> bool:
        """Whether every role has its instances, and all of them serve."""
        for role in roles:
            instances = self.instances.get(role.name, ())
            if len(instances) != role.replicas or not all(one.is_ready(role.size) for one in instances):
                return False
        return True


@dataclass(frozen=True)
class ServingView:
    """A ModelServing, its groups and its revisions, at one moment."""

    serving: ModelServing
    roles: Roles
    """What the spec asks for."""
    pods: Sequence[Pod]
    groups: Sequence[Group]
    """In order of ordinal."""
    kept: Sequence[ControllerRevision]
    revisions: Revisions
    now: datetime
    problems: Sequence[str] = field(default=())
    """What of our own annotations cannot be read."""

    @property
    def replicas(self) -> int:
        """Groups that there should be."""
        found = self.serving.spec.replicas
        return 1 if found is None else found

    @property
    def is_by_role(self) -> bool:
        """Whether an update replaces instances of roles, not whole groups."""
        strategy = self.serving.spec.rollout_strategy
        return strategy is not None and strategy.type == RolloutType.ROLE

    @property
    def recovery(self) -> RecoveryPolicy:
        """What is made anew when a pod fails."""
        return RecoveryPolicy(self.serving.spec.recovery_policy)

    @property
    def is_gang(self) -> bool:
        """Whether groups are placed as gangs."""
        return self.serving.spec.scheduler_name == "volcano"

    @property
    def is_entry_first(self) -> bool:
        """Whether workers are made when their entry pod is ready."""
        return starts_leaders_first(self.serving)

    @property
    def is_rolling(self) -> bool:
        """Whether an update is under way, as the status has it; what was never looked at has nothing to update."""
        status = self.serving.status
        return bool(status.current_revision) and status.current_revision != self.revisions.update

    def is_current(self, group: Group) -> bool:
        """Whether a group is as the spec wants it. One without pods will be."""
        instances = [one for some in group.instances.values() for one in some]
        if self.is_by_role:
            return all(self.is_current_instance(one) for one in instances)
        if all(self.revisions.is_update(pod.metadata.labels.get(labels.REVISION, "")) for pod in group.pods):
            return True
        # a role that an update by role had no need to touch keeps the label of an earlier revision, and is what the spec wants
        return self._has_all_roles(group) and all(
            self.revisions.is_update(one.revision) or self.revisions.has_same(one.role, one.revision)
            for one in instances
        )

    def _has_all_roles(self, group: Group) -> bool:
        """Whether a group has the spec's roles. During an update one that lacks a role may be of a revision without it."""
        return not self.is_rolling or all(group.instances.get(role.name) for role in self.roles if role.replicas)

    def is_current_instance(self, one: Instance) -> bool:
        """Whether an instance is as the spec wants its role."""
        return self.revisions.is_current(one.role, one.revision, one.template_hash)


def view_of(serving: ModelServing, world: World, now: datetime) -> ServingView:
    """Gather what belongs to a ModelServing."""
    uid = serving.metadata.uid
    pods, kept = world.owned(Pod, uid), world.owned(ControllerRevision, uid)
    roles, problems = placed(roles_of(serving), serving.metadata.annotations)
    return ServingView(
        serving=serving,
        roles=roles,
        pods=pods,
        groups=_groups(pods, world.owned(Service, uid), world.owned(PodGroup, uid)),
        kept=kept,
        revisions=revisions_of(serving, roles, kept, pods),
        now=now,
        problems=problems,
    )


def _groups(pods: Sequence[Pod], services: Sequence[Service], pod_groups: Sequence[PodGroup]) -> Sequence[Group]:
    pods_of, services_of = _by_group(pods), _by_group(services)
    gang_of = {_group_of(one): one for one in pod_groups}
    names = (name for name in {*pods_of, *services_of, *gang_of} if ordinal_of(name) >= 0)
    groups = (Group(name, pods_of.get(name, ()), services_of.get(name, ()), gang_of.get(name)) for name in names)
    return sorted(groups, key=lambda group: group.ordinal)


def _by_group(some: Sequence[T]) -> Mapping[str, Sequence[T]]:
    found: dict[str, list[T]] = {}
    for one in some:
        found.setdefault(_group_of(one), []).append(one)
    return found


def _group_of(one: Resource) -> str:
    return one.metadata.labels.get(labels.GROUP_NAME, "")


def label_of(pods: Sequence[Pod], key: str) -> str:
    """A label of pods that share it."""
    return pods[0].metadata.labels.get(key, "") if pods else ""


def is_leaving(pod: Pod) -> bool:
    """Whether somebody has asked for the pod's end."""
    return pod.metadata.deletion_timestamp is not None


def is_ready(pod: Pod) -> bool:
    """Whether a pod serves."""
    return pod.status.phase == "Running" and any(
        one.type == "Ready" and one.status == "True" for one in pod.status.conditions
    )


def deletion_cost(pod: Pod) -> int:
    """What the pod's annotation says; 0 if it says no number."""
    text = pod.metadata.annotations.get(labels.DELETION_COST, "0")
    cost = whole_number(text.removeprefix("-")) or 0
    return -cost if text.startswith("-") else cost
