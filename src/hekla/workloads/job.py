"""Reconciles Volcano's Job: a gang of pods that start together, live by policies, and end as one.

    orders (a Command, a policy) -> kill what they name, write the next phase
    else, alive                  -> plug-in objects, claims, PodGroup; pods once the scheduler let the gang in; count
    else                         -> wind up: no pods, no gang

The phases are a table in `job_lifecycle.py`; how a kill survives the controller's death is told in `job_kill.py`.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime

from msgspec.structs import replace

from hekla.api.core import ConfigMap, PersistentVolumeClaim, Pod, Service
from hekla.api.networking import NetworkPolicy
from hekla.api.scheduling import PriorityClass
from hekla.api.volcano import Job, PodGroup, Queue
from hekla.api.volcano.batch import JobPhase as Phase
from hekla.api.volcano.batch import JobStatus
from hekla.api.volcano.bus import Action
from hekla.api.volcano.bus import Command as Order
from hekla.api.volcano.scheduling import PodGroupCondition
from hekla.kube.commands import Command, Delete, Event, RequeueAfter, target_of
from hekla.kube.reconcile import World, reconciler
from hekla.workloads import job_kill as kill
from hekla.workloads.job_lifecycle import ALIVE, FINISHED, after, expects
from hekla.workloads.job_objects import SecretHead, delete_objects, ensure_objects
from hekla.workloads.job_orders import Ordered, announce, ordered
from hekla.workloads.job_outcome import outcome
from hekla.workloads.job_plugins.plugin import JobPlugin
from hekla.workloads.job_plugins.registry import plugins_of
from hekla.workloads.job_pod_group import ensure_group
from hekla.workloads.job_pods import missing_pods, surplus_pods, what_tasks_wait_for
from hekla.workloads.job_status import counted, duration, in_phase, parsed_time, set_status
from hekla.workloads.job_ttl import expire
from hekla.workloads.job_view import JobView, heeded_of_group, heeded_of_pod, view_of
from hekla.workloads.job_volumes import claims, ensure_claims, missing_claim

AT_ONCE = 256
"""With 32 jobs at once, 10,000 small jobs waited for one another's commits while half the processor was idle."""

REST_S = 0.02
"""A job's own writes wake it, four times in its life for nothing; within this time they wake it once."""

_SEE_EVENTS = "where the server refuses them, events FailedCreate of the job say why"

_DIGITS = re.compile(r"\d+")
"""Numbers in a sentence change with every pod; they alone are no news."""

CLAIM_PATIENCE_S = 10.0
"""How often a job looks for a claim that it names and that does not exist yet."""


def _job_of_order(order: Order) -> Iterator[tuple[str, str]]:
    if order.target is not None and order.target.kind == "Job":
        yield order.metadata.namespace, order.target.name


@reconciler(
    Job,
    owns=(Pod, PodGroup, Service, ConfigMap, SecretHead, NetworkPolicy, PersistentVolumeClaim),
    reads=(Queue, PriorityClass),
    wakes={Order: _job_of_order},
    heeds={Pod: heeded_of_pod, PodGroup: heeded_of_group},
    at_once=AT_ONCE,
    rests_s=REST_S,
)
def reconcile_job(job: Job, world: World, now: datetime) -> Iterator[Command]:
    """Bring one job a step closer to its end."""
    if job.metadata.deletion_timestamp is not None:
        return
    view = view_of(job, world, now)
    order = ordered(view)
    yield from order.chores
    if order.trigger is not None and expects(view.phase, order.trigger):
        yield from _carry_out(view, order)
    elif view.phase in ALIVE:
        yield from _keep_going(view)
    else:
        yield from _wind_up(view)


def _carry_out(view: JobView, order: Ordered) -> Iterator[Command]:
    """Kill what the order names: mark the pods, write down the next phase, delete."""
    assert order.trigger is not None
    following = after(view.phase, order.trigger)
    moment = kill.next_moment(
        view, following, is_whole=not order.is_partial, is_resume=order.action is Action.RESUME_JOB
    )
    retained = kill.retained_phases(view, is_restart=order.action is Action.RESTART_JOB)
    doomed = order.targets(view) if order.is_partial else kill.victims(view, retained)

    yield from announce(view, order)
    yield from kill.mark([*doomed, *order.fallen(view)], moment)
    status = replace(counted(view, doomed), version=moment[0], retry_count=moment[1])
    yield from set_status(view, in_phase(status, following, view.now, order.action, order.why))
    yield from (Delete(target_of(pod), reason=f"{order.action}: {order.why}") for pod in doomed)
    if not order.is_partial:
        yield from kill.delete_group(view, order.action)


def _keep_going(view: JobView) -> Iterator[Command]:
    """Give the job what it lacks, and write down how far it is."""
    yield from kill.reap(view)
    plugins, problems = plugins_of(view.job)
    if not view.job.status.state.phase:
        yield from (Event(target_of(view.job), "PluginError", problem, "Warning") for problem in problems)
    status = _progressed(view, counted(view))
    if status.state.phase in FINISHED:
        status = _with_duration(view, status)  # with the phase, or it would be another write
    yield from _tell_of_wait(view, status)
    made = {f"plugin-{plugin.name}": plugin.name for plugin in plugins}
    # before what may be refused: a quota that keeps pods from being made must not keep the job from saying how it is
    yield from set_status(view, replace(status, controlled_resources={**made, **claims(view)}))
    if status.state.phase in FINISHED:
        if not kill.victims(view, kill.SOFT):
            yield from kill.delete_group(view, f"the job is {status.state.phase}")
    elif view.phase is not Phase.RESTARTING:
        yield from _provide(view, plugins)
    elif not view.has_current_group:
        yield from kill.delete_group(view, "it belongs to an earlier version of the job")


def _provide(view: JobView, plugins: Sequence[JobPlugin]) -> Iterator[Command]:
    """Objects first, then the gang, then, once the scheduler has let it in, the pods."""
    yield from ensure_objects(view, plugins)
    yield from ensure_claims(view)
    if missing := missing_claim(view):
        if view.job.status.state.reason != "PVCError":
            yield Event(target_of(view.job), "PVCError", f"Failed to create PVC, err: {missing}", "Warning")
        yield RequeueAfter(CLAIM_PATIENCE_S)
        return
    yield from ensure_group(view)
    if view.may_create_pods:
        yield from missing_pods(view, plugins)
        yield from kill.kill_now(view, surplus_pods(view))


def _progressed(view: JobView, status: JobStatus) -> JobStatus:
    """The status in the phase that the pods' numbers lead to, and why it waits if it does."""
    if not view.job.status.state.phase:
        status = in_phase(status, Phase.PENDING, _made_at(view))
    found = outcome(view.phase, view.job.spec, status)
    if found is not None:
        return in_phase(status, after(view.phase, found.trigger), view.now, found.reason, found.message)
    if view.phase is Phase.PENDING:
        return in_phase(status, Phase.PENDING, view.now, *_why_it_waits(view))
    return status


def _made_at(view: JobView) -> datetime:
    created = view.job.metadata.creation_timestamp
    return parsed_time(created) if created else view.now


def _why_it_waits(view: JobView) -> tuple[str, str]:
    """Reason and sentence of a job that is pending: its queue, its claims, or what the scheduler says of its gang."""
    if view.queue is None:
        return "QueueNotFound", f"queue {view.job.spec.queue!r} does not exist; create it or name another in spec.queue"
    missing = missing_claim(view)
    if missing:
        return "PVCError", missing
    latest = _latest_of_group(view)
    if (
        view.may_create_pods and not view.pods
    ):  # what is told of the group is why it was not let in before, if it is anything
        return "PodsMissing", f"its queue has let it in, and none of its {view.replicas} pods exists yet; {_SEE_EVENTS}"
    if latest is None or latest.type == "Scheduled":
        waits = what_tasks_wait_for(view)
        return ("TasksWaiting", waits) if waits else ("", "")
    return latest.reason or latest.type, latest.message


def _latest_of_group(view: JobView) -> PodGroupCondition | None:
    """What the scheduler last found about the gang."""
    told = [one for one in view.group.status.conditions if one.status == "True"] if view.group else []
    return max(told, key=lambda one: one.last_transition_time or "", default=None)


def _tell_of_wait(view: JobView, status: JobStatus) -> Iterator[Command]:
    """Volcano's event on a job whose gang waits, once for each new reason."""
    latest, said = _latest_of_group(view), status.state
    if latest is None or latest.type == "Scheduled" or (said.phase, said.message) != (Phase.PENDING, latest.message):
        return
    if _DIGITS.sub("", said.message) != _DIGITS.sub("", view.job.status.state.message):
        meta = view.job.metadata
        told = f"PodGroup {meta.namespace}:{meta.name} {latest.type.lower()}, reason: {latest.message}"
        yield Event(target_of(view.job), "PodGroupPending", told, "Warning")


def _wind_up(view: JobView) -> Iterator[Command]:
    """Remove pods that still run, and the gang; a finished job keeps the pods that ended, for their logs."""
    is_finished = view.phase in FINISHED
    doomed = kill.victims(view, kill.SOFT)
    yield from kill.reap(view)
    yield from kill.kill_now(view, doomed)
    status = counted(view, doomed)
    if found := outcome(view.phase, view.job.spec, status):
        status = in_phase(status, after(view.phase, found.trigger), view.now)
    if is_finished:
        status = replace(status, controlled_resources=claims(view))
    yield from set_status(view, _with_duration(view, status))
    yield from kill.delete_group(view, f"the job is {view.phase}")
    if is_finished:
        yield from delete_objects(view, plugins_of(view.job)[0])
        yield from expire(view)


def _with_duration(view: JobView, status: JobStatus) -> JobStatus:
    created, since = view.job.metadata.creation_timestamp, status.state.last_transition_time
    if created is None or since is None:
        return status
    return replace(status, running_duration=duration(parsed_time(created), parsed_time(since)))
