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


def plugins_of(job: Job) -> tuple[list[JobPlugin], list[str]]:
    """The job's plug-ins with their arguments, and sentences on those that cannot work."""
    found: list[JobPlugin] = []
    problems = [
        f'job plugin "{name}" does not exist; the job runs without it'  # a job that admission has not seen
        for name in job.spec.plugins
        if name not in PLUGINS
    ]
    for name, plugin in PLUGINS.items():
        if name not in job.spec.plugins:
            continue
        try:
            found.append(with_arguments(plugin, job.spec.plugins[name]))
        except ArgumentError as error:
            problems.append(str(error))
    return found, problems
