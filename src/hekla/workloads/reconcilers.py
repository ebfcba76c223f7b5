"""The reconcilers of this package, for whoever runs them: the embedded platform, or controllers on a cluster."""

from hekla.kube.reconcile import Reconciler
from hekla.workloads.command import reconcile_command
from hekla.workloads.cron_job import reconcile_cron_job
from hekla.workloads.job import reconcile_job
from hekla.workloads.job_flow import reconcile_job_flow
from hekla.workloads.job_template import reconcile_job_template
from hekla.workloads.plain_groups import PLAIN_GROUPS
from hekla.workloads.queue import reconcile_queue
from hekla.workloads.queue_counters import reconcile_queue_counters

RECONCILERS: tuple[Reconciler, ...] = (
    reconcile_job,
    reconcile_queue,
    reconcile_queue_counters,
    reconcile_command,
    reconcile_cron_job,
    reconcile_job_flow,
    reconcile_job_template,
    *PLAIN_GROUPS,
)
