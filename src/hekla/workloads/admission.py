"""Every admission rule of the workloads: Volcano's webhooks, built in.

`app` hands them to the embedded server; on a cluster the same rules serve real webhooks.
"""

from collections.abc import Sequence

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


def complete_pods(namespace: str) -> WebhookRule:
    """The rule that completes pods, with the resource groups of a ConfigMap in this namespace."""
    join = JoinResourceGroup(namespace)

    def change(request: AdmissionRequest, reader: Reader) -> None:
        join(request, reader)  # first, for it may hand the pod to another scheduler
        gate_pod(request, reader)
        group_plain_pod(request, reader)

    return WebhookRule(name="mutatepod.hekla.dev", resource="pods", operations=CREATE, change=change)


ADMISSION_RULES: tuple[AdmissionRule, ...] = (
    WebhookRule(name="mutatejob.volcano.sh", resource="jobs.batch.volcano.sh", operations=WRITE, change=default_job),
    WebhookRule(
        name="mutatequeue.volcano.sh", resource="queues.scheduling.volcano.sh", operations=WRITE, change=default_queue
    ),
    WebhookRule(
        name="mutatepodgroup.volcano.sh",
        resource="podgroups.scheduling.volcano.sh",
        operations=CREATE,
        change=default_pod_group,
    ),
    complete_pods(HOME),
    WebhookRule(name="validatejob.volcano.sh", resource="jobs.batch.volcano.sh", operations=WRITE, refusal=refuse_job),
    WebhookRule(
        name="validatecronjob.volcano.sh",
        resource="cronjobs.batch.volcano.sh",
        operations=WRITE,
        refusal=refuse_cron_job,
    ),
    WebhookRule(
        name="validatequeue.volcano.sh", resource="queues.scheduling.volcano.sh", operations=ANY, refusal=refuse_queue
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
    WebhookRule(name="validatepod.volcano.sh", resource="pods", operations=CREATE, refusal=refuse_pod),
)
"""The rules that are on, mutating ones first."""

RESOURCE_GROUPS_CHECK: AdmissionRule = WebhookRule(
    name="validateadmissionconf.hekla.dev", resource="configmaps", operations=WRITE, refusal=refuse_configuration
)
"""For the embedded server, which can refuse a ConfigMap of resource groups that cannot be used. On a cluster every ConfigMap
would have to be shown to us for it; there whoever makes pods is warned.
"""


def rules_of(namespace: str) -> Sequence[AdmissionRule]:
    """The rules as webhooks ask them whose ConfigMap is in this namespace."""
    if namespace == HOME:
        return ADMISSION_RULES
    mine = complete_pods(namespace)
    return [mine if isinstance(rule, WebhookRule) and rule.name == mine.name else rule for rule in ADMISSION_RULES]
