"""The reconcilers of this package, for whoever runs them: the embedded platform, or controllers on a cluster."""

from hekla.kube.reconcile import Reconciler
from hekla.workloads.admission_resource_groups import HOME
from hekla.workloads.command import reconcile_command
from hekla.workloads.cron_job import reconcile_cron_job
from hekla.workloads.hyper_node import reconcile_hyper_node
from hekla.workloads.hyper_node_discovery import label_discovery
from hekla.workloads.job import reconcile_job
from hekla.workloads.job_flow import reconcile_job_flow
from hekla.workloads.job_template import reconcile_job_template
from hekla.workloads.ours import USUAL, Ours
from hekla.workloads.plain_groups import plain_groups
from hekla.workloads.queue import reconcile_queue
from hekla.workloads.queue_counters import reconcile_queue_counters

_ALWAYS: tuple[Reconciler, ...] = (
    reconcile_job,
    reconcile_queue,
    reconcile_queue_counters,
    reconcile_command,
    reconcile_cron_job,
    reconcile_job_flow,
    reconcile_job_template,
    reconcile_hyper_node,
)


def reconcilers(*, every_pod: bool = False, ours: Ours = USUAL, home: str = HOME) -> tuple[Reconciler, ...]:
    """All of them; `every_pod` gives each plain pod a PodGroup, not only gangs (ADR 0015); `ours` says of which pods; `home` is the
    namespace of their configuration.
    """
    return (*_ALWAYS, label_discovery(home), *plain_groups(every_pod=every_pod, ours=ours))


RECONCILERS: tuple[Reconciler, ...] = reconcilers()
"""Those of the embedded platform. They declare every kind that the others need."""
