"""Reconciles ModelServings: groups of pods that serve a model, each a gang, each made of roles.

    remember the revision            so that it can be made again when the spec has moved on
    look at every group              what failed, what is too much, what is outdated, what is missing (serving_plan.py)
    remove, then say how it fares    a quota that is full must not keep the rest from being told
    make                             first the gang, then services, then pods

Everything is told from what there is: names, labels, ControllerRevisions. A ModelServing that ran under Kthena goes on as it
is, because revisions are compared by content (serving_revision.py).
"""

from collections.abc import Iterator, Sequence
from datetime import datetime

from hekla.api.apps import ControllerRevision
from hekla.api.core import Pod, Service
from hekla.api.kthena import ModelServing, labels
from hekla.api.volcano import PodGroup
from hekla.kube.commands import Command, Create, Delete, Event, RequeueAfter, target_of
from hekla.kube.quota_waiting import is_of_quota
from hekla.kube.reconcile import World, reconciler
from hekla.serving.serving_plan import GroupPlan, next_pods, plans_of
from hekla.serving.serving_plugins.plugin import PluginError
from hekla.serving.serving_plugins.registry import plugins_of
from hekla.serving.serving_pod_group import ensure_group, group_spec
from hekla.serving.serving_pods import Blueprint, has_service, new_pod, new_service
from hekla.serving.serving_recovery import marks
from hekla.serving.serving_revision import forget, remember
from hekla.serving.serving_status import lacks_pods, refusal_told, set_status, status_of
from hekla.serving.serving_troubles import POD_FAILED, troubles
from hekla.serving.serving_view import Group, Instance, ServingView, is_leaving, view_of


def tell_refusal(serving: ModelServing, refused: Command, why: str, world: World, now: datetime) -> Iterator[Command]:
    """Say why its pods are missing. Of a full quota once: its numbers change with each pod that comes and goes."""
    view = view_of(serving, world, now)
    plans = plans_of(view)
    is_told = is_of_quota(why) and is_of_quota(refusal_told(view))
    if lacks_pods(plans) and not is_told:
        yield from set_status(view, status_of(view, plans, why))


@reconciler(ModelServing, owns=(Pod, PodGroup, Service, ControllerRevision), when_refused=tell_refusal)
def reconcile_model_serving(serving: ModelServing, world: World, now: datetime) -> Iterator[Command]:
    """Bring one ModelServing a step closer to its spec."""
    if serving.metadata.deletion_timestamp is not None:
        return
    view = view_of(serving, world, now)
    plans = plans_of(view)
    yield from remember(serving, view.revisions, view.kept)
    yield from _warn(view)
    for plan in plans:
        yield from _removals(view, plan)
    status = status_of(view, plans)
    yield from set_status(view, status)
    yield from forget(view.kept, view.revisions, status.current_revision, view.pods)
    yield from _make(view, plans)
    yield from (RequeueAfter(plan.wait_s) for plan in plans if plan.wait_s is not None)


def _warn(view: ServingView) -> Iterator[Command]:
    is_new_to_us = view.serving.status.observed_generation != view.serving.metadata.generation
    for problem in view.problems if is_new_to_us else ():
        yield Event(target_of(view.serving), "AnnotationIgnored", problem, "Warning")


def _removals(view: ServingView, plan: GroupPlan) -> Iterator[Command]:
    """What goes of a group: all of it, instances, or single pods."""
    yield from _failures(view, plan)
    if plan.removed and plan.found is not None:
        yield from _remove_group(view, plan.found, plan.removed)
        return
    for one, why in plan.doomed:
        yield from _remove_instance(view, plan, one, why)
    for pod, why in plan.dropped:
        yield Delete(target_of(pod), reason=why)


def _failures(view: ServingView, plan: GroupPlan) -> Iterator[Event]:
    """How the containers ended of pods that go: with the pod its status and its log are gone, and nobody would know why."""
    going = plan.found.pods if plan.removed and plan.found is not None else ()
    doomed = (pod for one, _ in plan.doomed for pod in one.pods)
    for pod in (*going, *doomed, *(pod for pod, _ in plan.dropped)):
        for one, how in troubles(pod):
            said = f"pod {pod.metadata.name}: container {one.name} {how}"
            yield Event(target_of(view.serving), POD_FAILED, said, "Warning")


def _remove_group(view: ServingView, group: Group, why: str) -> Iterator[Command]:
    for role, some in group.instances.items():
        for one in some:
            if not all(map(is_leaving, one.pods)):
                yield _role_event(view, "RoleDeleting", role, one.id, group.name, "Deleting")
    yield from (Delete(target_of(pod), reason=why) for pod in group.pods if not is_leaving(pod))
    yield from (Delete(target_of(service), reason=why) for service in group.services)
    if group.pod_group is not None:
        yield Delete(target_of(group.pod_group), reason=why)


def _remove_instance(view: ServingView, plan: GroupPlan, one: Instance, why: str) -> Iterator[Command]:
    yield _role_event(view, "RoleDeleting", one.role, one.id, plan.name, "Deleting")
    yield from (Delete(target_of(pod), reason=why) for pod in one.pods if not is_leaving(pod))
    for service in plan.found.services if plan.found is not None else ():
        if service.metadata.labels.get(labels.ROLE_ID) == one.id:
            yield Delete(target_of(service), reason=why)


def _make(view: ServingView, plans: Sequence[GroupPlan]) -> Iterator[Command]:
    """Gangs before pods: a pod without its gang would be placed alone."""
    try:
        plugins = plugins_of(view.serving.spec.plugins)
        pods = [
            (plan, missing, [new_pod(view.serving, missing.plan, index, plugins, missing.entry) for index in indices])
            for plan, missing, indices in next_pods(plans)
        ]
    except PluginError as error:
        yield Event(target_of(view.serving), "PluginError", f"{error}; no pod is made", "Warning")
        return
    staying = [plan for plan in plans if not plan.removed and _has_members(plan)]
    if view.is_gang:
        specs = {
            id(plan.roles): group_spec(view.serving, plan.roles) for plan in staying
        }  # groups of a revision share one
        for plan in staying:
            yield from ensure_group(view.serving, plan.name, plan.found, specs[id(plan.roles)])
    for plan in staying:
        yield from _services(view, plan)
    for plan, missing, documents in pods:
        if missing.is_new:
            made = missing.plan
            yield _role_event(view, "RoleCreating", made.role.name, made.instance, plan.name, "Creating")
        yield from (Create(Pod, document, is_told_of_when_refused=True) for document in documents)
    for plan in staying:
        if plan.is_complete and plan.found is not None:
            yield from marks(plan.found, plan.roles, view)


def _has_members(plan: GroupPlan) -> bool:
    """Whether the group has pods that stay, or gets some."""
    return bool(plan.missing) or (plan.found is not None and any(not is_leaving(pod) for pod in plan.found.pods))


def _services(view: ServingView, plan: GroupPlan) -> Iterator[Command]:
    there = {one.metadata.name for one in plan.found.services} if plan.found is not None else set()
    for blueprint in _instances(view, plan):
        if has_service(blueprint.role) and blueprint.pod_name(0) not in there:
            yield Create(Service, new_service(view.serving, blueprint), is_told_of_when_refused=True)


def _instances(view: ServingView, plan: GroupPlan) -> Iterator[Blueprint]:
    """The instances that stay or come."""
    yield from (one.plan for one in plan.missing)
    named = {one.plan.instance for one in plan.missing}
    doomed = {one.id for one, _ in plan.doomed}
    roles = {role.name: role for role in plan.roles}
    for some in plan.found.instances.values() if plan.found is not None else ():
        for one in some:
            if one.role in roles and one.id not in named | doomed and not all(map(is_leaving, one.pods)):
                yield Blueprint(
                    group=plan.name, role=roles[one.role], ordinal=one.ordinal,
                    revision=one.revision, template_hash=one.template_hash,
                )  # fmt: skip


def _role_event(view: ServingView, reason: str, role: str, instance: str, group: str, state: str) -> Event:
    message = f"Role {role}/{instance} in ServingGroup {group} is now {state}"
    return Event(target_of(view.serving), reason, message)
