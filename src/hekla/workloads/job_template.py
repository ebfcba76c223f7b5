"""Reconciles JobTemplate: says which jobs were made from it. `job_flow.py` makes them."""

from collections.abc import Iterator
from datetime import datetime

from hekla.api.volcano import Job, JobTemplate
from hekla.kube.commands import Command, SetStatus, target_of
from hekla.kube.reconcile import World, reconciler
from hekla.workloads import keys


def _template_of(job: Job) -> Iterator[tuple[str, str]]:
    namespace, dot, name = job.metadata.labels.get(keys.MADE_FROM_TEMPLATE, "").partition(".")
    if dot:
        yield namespace, name


@reconciler(JobTemplate, reads=(Job,), wakes={Job: _template_of})
def reconcile_job_template(template: JobTemplate, world: World, now: datetime) -> Iterator[Command]:
    """List the jobs that were made from a template."""
    if template.metadata.deletion_timestamp is not None:
        return
    namespace = template.metadata.namespace
    mark = {keys.MADE_FROM_TEMPLATE: f"{namespace}.{template.metadata.name}"}
    made = [job.metadata.name for job in world.list(Job, namespace, mark)]
    if made != template.status.job_depends_on_list:
        yield SetStatus(target_of(template), {"jobDependsOnList": made or None})
