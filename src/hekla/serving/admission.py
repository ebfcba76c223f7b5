"""Every admission rule of serving: Kthena's webhooks, built in.

`app` hands them to the embedded server; on a cluster the same rules serve real webhooks.
"""

from hekla.apiserver.admission import AdmissionRule
from hekla.apiserver.webhook_rule import WRITE, WebhookRule
from hekla.serving.admission_autoscaling import (
    default_autoscaling_policy,
    refuse_autoscaling_policy,
    refuse_binding,
)  # fmt: skip
from hekla.serving.admission_booster import convert_model_booster, refuse_model_booster
from hekla.serving.admission_model_serving import refuse_model_serving
from hekla.serving.admission_routing import refuse_model_route, refuse_model_server, refuse_provider

_NETWORKING, _WORKLOAD = "networking.serving.volcano.sh", "workload.serving.volcano.sh"

ADMISSION_RULES: tuple[AdmissionRule, ...] = (
    WebhookRule(
        name="mutate-autoscalingpolicy.volcano.sh",
        resource=f"autoscalingpolicies.{_WORKLOAD}",
        operations=WRITE,
        change=default_autoscaling_policy,
    ),
    WebhookRule(
        name="validate-autoscalingpolicy.volcano.sh",
        resource=f"autoscalingpolicies.{_WORKLOAD}",
        operations=WRITE,
        refusal=refuse_autoscaling_policy,
    ),
    WebhookRule(
        name="validate-autoscalingpolicybinding.volcano.sh",
        resource=f"autoscalingpolicybindings.{_WORKLOAD}",
        operations=WRITE,
        refusal=refuse_binding,
    ),
    WebhookRule(
        name="mutate-modelbooster.volcano.sh",
        resource=f"modelboosters.{_WORKLOAD}",
        operations=WRITE,
        change=convert_model_booster,
    ),
    WebhookRule(
        name="validate-modelbooster.volcano.sh",
        resource=f"modelboosters.{_WORKLOAD}",
        operations=WRITE,
        refusal=refuse_model_booster,
        reads_annotations=True,
    ),
    WebhookRule(
        name="validate-workload-ai-v1alpha1-modelserving.volcano.sh",
        resource=f"modelservings.{_WORKLOAD}",
        operations=WRITE,
        refusal=refuse_model_serving,
    ),
    WebhookRule(
        name="validate-modelroute.volcano.sh",
        resource=f"modelroutes.{_NETWORKING}",
        operations=WRITE,
        refusal=refuse_model_route,
    ),
    WebhookRule(
        name="validate-modelserver.volcano.sh",
        resource=f"modelservers.{_NETWORKING}",
        operations=WRITE,
        refusal=refuse_model_server,
        reads_annotations=True,
    ),
    WebhookRule(
        name="validate-externalmodelprovider.volcano.sh",
        resource=f"externalmodelproviders.{_NETWORKING}",
        operations=WRITE,
        refusal=refuse_provider,
    ),
)
"""The rules that are on, mutating ones first."""
