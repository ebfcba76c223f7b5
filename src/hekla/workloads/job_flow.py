"""Reconciles JobFlow: makes the jobs of a flow from their templates, each when the jobs that it waits for are done.

A job waits until its targets are Completed, or, where it has a probe, until the targets' tasks have reached the phases
asked for and their pods answer (`flow_probes.py`). `patch` replaces fields of the template. (Volcano has both fields and
heeds neither.)

    Pending --a job runs or has completed--> Running --all have completed--> Succeed
    Pending, Running --a job has failed or was terminated--> Failed
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from hekla.api.meta import Document
from hekla.api.volcano import Job, JobFlow, JobTemplate
from hekla.api.volcano.batch import JobPhase as Phase
from hekla.api.volcano.flow import Flow, FlowJobStatus, FlowPhase, Probe
from hekla.kube.commands import Command, Create, Delete, Event, SetStatus, target_of
from hekla.kube.reconcile import World, reconciler
from hekla.workloads import keys
from hekla.workloads.flow_probes import answered, knocks_at_doors
from hekla.workloads.job_status import merge_patch, rfc3339
from hekla.workloads.templates import FAILED, SUCCEEDED, job_from, said

LISTS = {
    Phase.PENDING: "pendingJobs", Phase.RUNNING: "runningJobs", Phase.FAILED: "failedJobs",
    Phase.COMPLETED: "completedJobs", Phase.TERMINATED: "terminatedJobs",
}  # fmt: skip
UNKNOWN_LIST = "unKnowJobs"
"""The rest, in Volcano's spelling."""

HISTORIES = 20
"""Stretches of a job's life that a flow remembers; the oldest go."""


def job_name(flow: JobFlow, step: str) -> str:
    """The name of the job that a flow makes from a template."""
    return f"{flow.metadata.name}-{step}"


@dataclass(frozen=True)
class FlowView:
    """A flow and its jobs at one moment."""

    flow: JobFlow
    jobs: Mapping[str, Job]
    """By name of the template; those that the flow controls."""

    now: datetime

    @cached_property
    def phase(self) -> FlowPhase:
        """Where the flow is in its life, as its jobs have it."""
        before = FlowPhase(self.flow.status.state.phase or FlowPhase.PENDING)
        if before in (FlowPhase.SUCCEED, FlowPhase.FAILED, FlowPhase.TERMINATING):
            return before
        phases = {name: job.status.state.phase for name, job in self.jobs.items()}
        if any(phase in FAILED for phase in phases.values()):
            return FlowPhase.FAILED
        if all(phases.get(step.name) in SUCCEEDED for step in self.flow.spec.flows):
            return FlowPhase.SUCCEED
        is_under_way = any(phase in (Phase.RUNNING, Phase.COMPLETED) for phase in phases.values())
        return FlowPhase.RUNNING if is_under_way else before


def _flows_of(template: JobTemplate, world: World) -> Iterator[tuple[str, str]]:
    for flow in world.list(JobFlow, template.metadata.namespace):
        if any(step.name == template.metadata.name for step in flow.spec.flows):
            yield flow.metadata.namespace, flow.metadata.name


@reconciler(JobFlow, owns=(Job,), reads=(JobTemplate,), finds={JobTemplate: _flows_of})
def reconcile_job_flow(flow: JobFlow, world: World, now: datetime) -> Iterator[Command]:
    """Start the jobs whose turn it is, and say how all of them fare."""
    if flow.metadata.deletion_timestamp is not None:
        return
    owned = {job.metadata.name: job for job in world.owned(Job, flow.metadata.uid)}
    jobs = {step.name: owned[name] for step in flow.spec.flows if (name := job_name(flow, step.name)) in owned}
    view = FlowView(flow, jobs, now)
    yield from _set_status(view)
    if view.phase is FlowPhase.SUCCEED:
        yield from _clear(view)
    elif view.phase in (FlowPhase.PENDING, FlowPhase.RUNNING):
        yield from _start(view, world)


def _clear(view: FlowView) -> Iterator[Command]:
    if view.flow.spec.job_retain_policy == "delete":
        for job in view.jobs.values():
            if job.metadata.deletion_timestamp is None:
                yield Delete(target_of(job), reason="its flow has succeeded", propagation="Background")


def _start(view: FlowView, world: World) -> Iterator[Command]:
    for step in view.flow.spec.flows:
        if step.name in view.jobs or not _is_turn(view, step):
            continue
        template = world.get(JobTemplate, view.flow.metadata.namespace, step.name)
        if template is None:
            message = f'jobTemplate "{step.name}" does not exist; the flow goes on when it is created'
            yield Event(target_of(view.flow), "JobTemplateNotFound", message, "Warning")
        elif (name := job_name(view.flow, step.name)) and world.get(Job, view.flow.metadata.namespace, name):
            message = f'job "{name}" exists and belongs to somebody else; delete it, or rename the flow'
            yield Event(target_of(view.flow), "ForeignJob", message, "Warning")
        else:
            yield Create(Job, _job(view.flow, step, template), is_announced=True)


def _job(flow: JobFlow, step: Flow, template: JobTemplate) -> Document:
    spec = said(template.spec)
    if step.patch is not None and step.patch.job_spec is not None:
        spec = {**spec, **said(step.patch.job_spec)}
    namespace = flow.metadata.namespace
    marks = {
        keys.MADE_BY_FLOW: f"{namespace}.{flow.metadata.name}",
        keys.MADE_FROM_TEMPLATE: f"{namespace}.{step.name}",
    }
    labels = {**template.metadata.labels, **marks}
    return job_from(flow, job_name(flow, step.name), spec, labels=labels, annotations=dict(marks))


def _is_turn(view: FlowView, step: Flow) -> bool:
    """Whether what the job waits for has come about."""
    wish = step.depends_on
    if wish is None:
        return True
    targets = [view.jobs.get(name) for name in wish.targets]
    probe = wish.probe
    if probe is not None and (probe.task_status_list or knocks_at_doors(step)):
        if not all(job is not None for job in targets) or not _have_reached(probe, [job for job in targets if job]):
            return False
        return not knocks_at_doors(step) or step.name in answered(view.flow)
    return all(job is not None and job.status.state.phase in SUCCEEDED for job in targets)


def _have_reached(probe: Probe, targets: Sequence[Job]) -> bool:
    """Whether all tasks named are in the phase asked for, in whichever of the targets has them."""
    for wish in probe.task_status_list:
        holders = [job for job in targets if any(task.name == wish.task_name for task in job.spec.tasks)]
        if not holders or not all(_has_reached(job, wish.task_name, wish.phase) for job in holders):
            return False
    return True


def _has_reached(job: Job, task_name: str, phase: str) -> bool:
    wanted = next(task.replicas for task in job.spec.tasks if task.name == task_name)
    counted = job.status.task_status_count.get(task_name)
    found = counted.phase if counted is not None else {}
    # A pod that has succeeded has been running before.
    there = found.get(phase, 0) + (found.get("Succeeded", 0) if phase == "Running" else 0)
    return there >= wanted


# How the jobs fare


def _set_status(view: FlowView) -> Iterator[Command]:
    before = said(view.flow.status)
    wanted: Document = {"state": {"phase": str(view.phase)}}
    if view.phase is FlowPhase.SUCCEED and len(view.jobs) < len(view.flow.spec.flows):
        return  # what was there is being deleted, and its story stays
    for step in view.flow.spec.flows:
        job = view.jobs.get(step.name)
        if job is not None:
            wanted.setdefault(_list_of(job), []).append(job.metadata.name)
    stories = [_story(view, job) for job in view.jobs.values()]
    if stories:
        wanted["jobStatusList"] = stories
        wanted["conditions"] = {job.metadata.name: _condition(job) for job in view.jobs.values()}
    if patch := merge_patch(before, wanted):
        yield SetStatus(target_of(view.flow), patch)


def _list_of(job: Job) -> str:
    return LISTS.get(Phase(job.status.state.phase or Phase.PENDING), UNKNOWN_LIST)


def _story(view: FlowView, job: Job) -> Document:
    """How a job fares, with the phases that it went through."""
    phase, since = job.status.state.phase or Phase.PENDING, job.status.state.last_transition_time
    known = next((one for one in view.flow.status.job_status_list if one.name == job.metadata.name), FlowJobStatus())
    stretches: list[Document] = [said(one) for one in known.running_histories]
    if not stretches or stretches[-1]["state"] != phase:
        turn = since or rfc3339(view.now)
        if stretches:
            stretches[-1]["endTimestamp"] = turn
        stretches.append({"state": str(phase), "startTimestamp": turn})
    story: Document = {
        "name": job.metadata.name, "state": str(phase), "startTimestamp": job.metadata.creation_timestamp,
        "runningHistories": stretches[-HISTORIES:],
    }  # fmt: skip
    if job.status.retry_count:
        story["restartCount"] = job.status.retry_count
    if phase in SUCCEEDED | FAILED:
        story["endTimestamp"] = since
    return story


def _condition(job: Job) -> Document:
    condition: Document = {"phase": str(job.status.state.phase or Phase.PENDING)}
    if created := job.metadata.creation_timestamp:
        condition["createTime"] = created
    if job.status.running_duration:
        condition["runningDuration"] = job.status.running_duration
    if job.status.task_status_count:
        condition["taskStatusCount"] = said(job.status.task_status_count)
    return condition
