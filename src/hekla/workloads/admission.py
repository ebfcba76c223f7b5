"""Every admission rule of the workloads: Volcano's webhooks, built in.

`app` hands them to the embedded server; on a cluster the same rules serve real webhooks.
"""

from collections.abc import Sequence
from functools import partial

from hekla.apiserver.admission import AdmissionRequest, AdmissionRule, Reader
from hekla.apiserver.webhook_rule import ANY, CREATE, WRITE, WebhookRule
from hekla.workloads.admission_cronjob import refuse_cron_job
from hekla.workloads.admission_flow import refuse_job_flow
from hekla.workloads.admission_hypernode import refuse_hyper_node
from hekla.workloads.admission_job import refuse_job
from hekla.workloads.admission_job_defaults import default_job
from hekla.workloads.admission_plain_pod import group_plain_pod
from hekla.workloads.admission_pod import gate_pod, refuse_pod
from hekla.workloads.admission_pod_group import default_pod_group, refuse_pod_group
from hekla.workloads.admission_queue import default_queue, refuse_queue
from hekla.workloads.admission_resource_groups import HOME, JoinResourceGroup, refuse_configuration
from hekla.workloads.ours import USUAL, Ours


def complete_pods(namespace: str, ours: Ours = USUAL) -> WebhookRule:
    """The rule that completes pods, with the resource groups of a ConfigMap in this namespace."""
    join = JoinResourceGroup(namespace)

    def change(request: AdmissionRequest, reader: Reader) -> None:
        join(request, reader)  # first, for it may hand the pod to another scheduler
        gate_pod(request, reader, ours)
        group_plain_pod(request, reader, ours)

    return WebhookRule(
        name="mutatepod.hekla.dev", resource="pods", operations=CREATE, change=change, goes_by_template=True
    )


def _rules(namespace: str, ours: Ours) -> tuple[AdmissionRule, ...]:
    return (
        WebhookRule(
            name="mutatejob.volcano.sh",
            resource="jobs.batch.volcano.sh",
            operations=WRITE,
            change=partial(default_job, ours=ours),
        ),
        WebhookRule(
            name="mutatequeue.volcano.sh",
            resource="queues.scheduling.volcano.sh",
            operations=WRITE,
            change=default_queue,
            reads_annotations=True,
        ),
        WebhookRule(
            name="mutatepodgroup.volcano.sh",
            resource="podgroups.scheduling.volcano.sh",
            operations=CREATE,
            change=default_pod_group,
        ),
        complete_pods(namespace, ours),
        WebhookRule(
            name="validatejob.volcano.sh", resource="jobs.batch.volcano.sh", operations=WRITE, refusal=refuse_job
        ),
        WebhookRule(
            name="validatecronjob.volcano.sh",
            resource="cronjobs.batch.volcano.sh",
            operations=WRITE,
            refusal=partial(refuse_cron_job, ours=ours),
        ),
        WebhookRule(
            name="validatequeue.volcano.sh",
            resource="queues.scheduling.volcano.sh",
            operations=ANY,
            refusal=partial(refuse_queue, ours=ours),
            reads_annotations=True,
        ),
        WebhookRule(
            name="validatepodgroup.volcano.sh",
            resource="podgroups.scheduling.volcano.sh",
            operations=WRITE,
            refusal=refuse_pod_group,
        ),
        WebhookRule(
            name="validatehypernodes.volcano.sh",
            resource="hypernodes.topology.volcano.sh",
            operations=WRITE,
            refusal=refuse_hyper_node,
        ),
        WebhookRule(
            name="validatejobflow.volcano.sh",
            resource="jobflows.flow.volcano.sh",
            operations=WRITE,
            refusal=refuse_job_flow,
        ),
        WebhookRule(
            name="validatepod.volcano.sh",
            resource="pods",
            operations=CREATE,
            refusal=partial(refuse_pod, ours=ours),
            goes_by_template=True,
        ),
    )


ADMISSION_RULES = _rules(HOME, USUAL)
"""The rules that are on, mutating ones first."""

RESOURCE_GROUPS_CHECK: AdmissionRule = WebhookRule(
    name="validateadmissionconf.hekla.dev", resource="configmaps", operations=WRITE, refusal=refuse_configuration
)
"""For the embedded server, which can refuse a ConfigMap of resource groups that cannot be used. On a cluster every ConfigMap
would have to be shown to us for it; there whoever makes pods is warned.
"""


def rules_of(namespace: str, ours: Ours = USUAL) -> Sequence[AdmissionRule]:
    """The rules as webhooks ask them whose ConfigMap is in this namespace, and whose pods are these."""
    return ADMISSION_RULES if (namespace, ours) == (HOME, USUAL) else _rules(namespace, ours)
