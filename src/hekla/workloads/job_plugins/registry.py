"""Which job plug-ins there are, and those of one job in the order in which they work on a pod."""

from collections.abc import Mapping
from typing import Any

from hekla.api.volcano import Job
from hekla.workloads.job_plugins.env import Env
from hekla.workloads.job_plugins.hcclrank import Hcclrank
from hekla.workloads.job_plugins.mpi import Mpi
from hekla.workloads.job_plugins.plugin import ArgumentError, JobPlugin, with_arguments
from hekla.workloads.job_plugins.pytorch import Pytorch
from hekla.workloads.job_plugins.ray import Ray
from hekla.workloads.job_plugins.ssh import Ssh
from hekla.workloads.job_plugins.svc import Svc
from hekla.workloads.job_plugins.tensorflow import Tensorflow

PLUGINS: Mapping[str, type[Any]] = {one.name: one for one in (Env, Svc, Ssh, Pytorch, Tensorflow, Mpi, Ray, Hcclrank)}
"""Plug-ins by the name that jobs use, in the order in which they work. Volcano's order changes from pod to pod; ours does
not, because `hcclrank` reads what `pytorch` has set."""

NAMES_HOSTS = frozenset(one.name for one in (Svc, Ssh, Tensorflow, Mpi))
"""Plug-ins that write down the name of every pod."""

MOST_HOSTS = 100_000
"""Names that these write at most: several megabytes, where a ConfigMap holds one."""


def plugins_of(job: Job) -> tuple[list[JobPlugin], list[str]]:
    """The job's plug-ins with their arguments, and sentences on those that cannot work."""
    found: list[JobPlugin] = []
    problems = [
        f'job plugin "{name}" does not exist; the job runs without it'  # a job that admission has not seen
        for name in job.spec.plugins
        if name not in PLUGINS
    ]
    hosts = sum(task.replicas for task in job.spec.tasks)
    for name, plugin in PLUGINS.items():
        if name not in job.spec.plugins:
            continue
        if hosts > MOST_HOSTS and name in NAMES_HOSTS:
            problems.append(
                f'job plugin "{name}" would name {hosts} hosts and names at most {MOST_HOSTS}; the job runs without it'
            )
            continue
        try:
            found.append(with_arguments(plugin, job.spec.plugins[name]))
        except ArgumentError as error:
            problems.append(str(error))
    return found, problems
