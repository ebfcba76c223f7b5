"""The order of admission on the embedded server: Kubernetes' own rules, then those of the features.

Mutating rules run in this order; validating ones see the final object. The quota comes last, so that nothing that is
refused for another reason is counted.
"""

import random
from collections.abc import Sequence

from hekla.apiserver.admission import AdmissionRule
from hekla.apiserver.admission_rules.claim_binding import ClaimBinding
from hekla.apiserver.admission_rules.limit_ranger import LimitRanger
from hekla.apiserver.admission_rules.namespace_lifecycle import NamespaceLifecycle
from hekla.apiserver.admission_rules.node_taints import TaintNewNodes
from hekla.apiserver.admission_rules.pod_defaults import (
    DefaultTolerationSeconds,
    PriorityRule,
    RuntimeClassRule,
    ServiceAccountRule,
)
from hekla.apiserver.admission_rules.rbac_escalation import RbacEscalation
from hekla.apiserver.admission_rules.resource_quota import ResourceQuotaRule
from hekla.apiserver.admission_rules.service_addresses import ServiceAddresses
from hekla.apiserver.admission_rules.storage_defaults import DefaultStorageClass, StorageProtection
from hekla.apiserver.admission_rules.webhooks import MutatingWebhooks, ValidatingWebhooks, WebhookCaller
from hekla.apiserver.auth.rbac import RbacAuthorizer
from hekla.app.settings import Settings
from hekla.node.addresses import SERVICE_NETWORK


def platform_rules(authorizer: RbacAuthorizer, settings: Settings, webhooks: WebhookCaller) -> Sequence[AdmissionRule]:
    """Every rule, in order. New nodes are tainted only where a controller runs that takes the taint off again."""
    return [
        NamespaceLifecycle(),
        ServiceAccountRule(),
        PriorityRule(),
        DefaultTolerationSeconds(),
        RuntimeClassRule(),
        LimitRanger(),
        *([] if "controlplane" in settings.without else [TaintNewNodes()]),
        DefaultStorageClass(),
        StorageProtection(),
        ServiceAddresses(SERVICE_NETWORK, random.Random()),
        RbacEscalation(authorizer),
        ClaimBinding(authorizer),
        MutatingWebhooks(webhooks),
        *feature_rules(settings),
        ValidatingWebhooks(webhooks),
        ResourceQuotaRule(),
    ]


def feature_rules(settings: Settings) -> Sequence[AdmissionRule]:
    """What the features bring: Volcano's and Kthena's webhooks as rules."""
    rules: list[AdmissionRule] = []
    if "workloads" not in settings.without:
        from hekla.workloads.admission import ADMISSION_RULES as OF_WORKLOADS
        from hekla.workloads.admission import RESOURCE_GROUPS_CHECK

        rules += (*OF_WORKLOADS, RESOURCE_GROUPS_CHECK)
    if "serving" not in settings.without:
        from hekla.serving.admission import ADMISSION_RULES as OF_SERVING

        rules += OF_SERVING
    if "agents" not in settings.without:
        from hekla.sandbox.admission import ADMISSION_RULES as OF_AGENTS

        rules += OF_AGENTS
    return rules
