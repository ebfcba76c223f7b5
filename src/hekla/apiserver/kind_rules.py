"""The table of built-in kinds: which defaults, checks and names each has."""

from hekla.apiserver import defaulting_others as others
from hekla.apiserver import defaulting_pods as pods
from hekla.apiserver import defaulting_workloads as workloads
from hekla.apiserver.label_keys import merge_label_keys
from hekla.apiserver.rules import Generation, Rules, empty_status
from hekla.apiserver.validation import (
    attachments,
    autoscalers,
    definitions,
    device_claims,
    device_slices,
    device_status,
    endpoints,
    events,
    ingresses,
    jobs,
    names,
    network_policies,
    persistent_volumes,
    quotas,
    services,
    storage,
    workload_status,
)
from hekla.apiserver.validation import others as other_checks
from hekla.apiserver.validation import workloads as workload_checks
from hekla.apiserver.validation.pod_updates import check_pod_update
from hekla.apiserver.validation.pods import check_pod, check_pod_template_object

PLAIN = Rules()
_COUNTED = Generation.SPEC
_RBAC = "rbac.authorization.k8s.io"


KIND_RULES: dict[str, Rules] = {
    "configmaps": Rules(check=other_checks.check_config_map, check_update=other_checks.check_immutable),
    "leases.coordination.k8s.io": Rules(check=other_checks.check_lease),
    "runtimeclasses.node.k8s.io": Rules(
        check=other_checks.check_runtime_class, check_update=other_checks.check_runtime_class_update
    ),
    "namespaces": Rules(
        default=others.default_namespace,
        create=others.start_namespace,
        update=others.keep_finalizers,
        check_new=other_checks.check_new_namespace,
        name=names.dns_label,
    ),
    "nodes": Rules(
        check=other_checks.check_node, check_update=other_checks.check_node_update, default=others.default_node
    ),
    "pods": Rules(
        default=pods.default_pod,
        create=pods.start_pod,
        settle=merge_label_keys,
        check=check_pod,
        check_update=check_pod_update,
        generation=_COUNTED,
    ),
    "podtemplates": Rules(
        default=workloads.default_pod_template_object, check=check_pod_template_object, generation=_COUNTED
    ),
    "services": Rules(
        check=services.check_service,
        check_update=services.check_service_update,
        default=others.default_service,
        create=empty_status,
        update=others.keep_allocated,
        name=names.dns_label,
    ),
    "endpoints": Rules(check=endpoints.check_endpoints, default=others.default_endpoints),
    "events": Rules(check=events.check_event),
    "events.events.k8s.io": Rules(
        check=events.check_newer_event,
        check_new=events.check_new_newer_event,
        check_update=events.check_newer_event_update,
    ),
    "secrets": Rules(
        check=other_checks.check_secret, check_update=other_checks.check_immutable, default=others.default_secret
    ),
    "limitranges": Rules(check=quotas.check_limit_range, default=others.default_limit_range),
    "resourcequotas": Rules(check=quotas.check_quota, check_update=quotas.check_quota_update, create=empty_status),
    "persistentvolumeclaims": Rules(
        check=storage.check_claim,
        check_update=storage.check_claim_update,
        check_status=storage.check_claim_status,
        default=others.default_claim,
        create=others.start_claim,
        update=others.keep_claim,
    ),
    "persistentvolumes": Rules(
        check=persistent_volumes.check_volume,
        check_update=persistent_volumes.check_volume_update,
        default=others.default_volume,
        create=others.start_volume,
    ),
    "replicationcontrollers": Rules(
        check_status=workload_status.check_replica_set_status,
        check=workload_checks.check_replication_controller,
        default=workloads.default_replication_controller,
        create=empty_status,
        generation=_COUNTED,
    ),
    "deployments.apps": Rules(
        check_status=workload_status.check_deployment_status,
        check=workload_checks.check_deployment,
        check_update=workload_checks.check_selector_kept,
        default=workloads.default_deployment,
        create=empty_status,
        generation=_COUNTED,
        keeps_labels_on_status=True,
    ),
    "replicasets.apps": Rules(
        check_status=workload_status.check_replica_set_status,
        check=workload_checks.check_replica_set,
        check_update=workload_checks.check_selector_kept,
        default=workloads.default_replica_set,
        create=empty_status,
        generation=_COUNTED,
        keeps_labels_on_status=True,
    ),
    "statefulsets.apps": Rules(
        check_status=workload_status.check_stateful_set_status,
        check=workload_checks.check_stateful_set,
        check_new=workload_checks.check_new_stateful_set,
        check_update=workload_checks.check_stateful_set_update,
        default=workloads.default_stateful_set,
        create=empty_status,
        name=names.dns_label,
        generation=_COUNTED,
        keeps_labels_on_status=True,
    ),
    "daemonsets.apps": Rules(
        check_status=workload_status.check_daemon_set_status,
        check=workload_checks.check_daemon_set,
        check_update=workload_checks.check_selector_kept,
        default=workloads.default_daemon_set,
        create=workloads.start_daemon_set,
        update=workloads.advance_daemon_set,
        generation=_COUNTED,
        keeps_labels_on_status=True,
    ),
    "controllerrevisions.apps": Rules(
        check=workload_checks.check_revision,
        check_new=workload_checks.check_new_revision,
        check_update=workload_checks.check_revision_update,
    ),
    "jobs.batch": Rules(
        check_status=workload_status.check_job_status,
        check=jobs.check_job,
        check_new=jobs.check_new_job,
        check_update=jobs.check_job_update,
        default=workloads.default_job,
        create=workloads.start_job,
        generation=_COUNTED,
        keeps_labels_on_status=True,
    ),
    "cronjobs.batch": Rules(
        check=jobs.check_cron_job, default=workloads.default_cron_job, create=empty_status, generation=_COUNTED
    ),
    "poddisruptionbudgets.policy": Rules(check=other_checks.check_budget, create=empty_status, generation=_COUNTED),
    "priorityclasses.scheduling.k8s.io": Rules(
        check=other_checks.check_priority_class,
        check_update=workload_checks.check_priority_class_update,
        default=others.default_priority_class,
        generation=Generation.FIRST,
    ),
    "endpointslices.discovery.k8s.io": Rules(
        check=endpoints.check_endpoint_slice,
        check_update=endpoints.check_endpoint_slice_update,
        default=others.default_endpoint_slice,
        generation=_COUNTED,
    ),
    "storageclasses.storage.k8s.io": Rules(
        check=storage.check_storage_class,
        check_update=storage.check_storage_class_update,
        default=others.default_storage_class,
    ),
    "csinodes.storage.k8s.io": Rules(check=attachments.check_csi_node),
    "volumeattachments.storage.k8s.io": Rules(check=attachments.check_attachment),
    "csidrivers.storage.k8s.io": Rules(check=storage.check_csi_driver, default=others.default_csi_driver),
    "roles." + _RBAC: Rules(check=other_checks.check_role, name=names.path_segment),
    "clusterroles." + _RBAC: Rules(check=other_checks.check_role, name=names.path_segment),
    "rolebindings." + _RBAC: Rules(
        check=other_checks.check_binding,
        check_update=other_checks.check_binding_update,
        default=others.default_binding,
        name=names.path_segment,
    ),
    "clusterrolebindings." + _RBAC: Rules(
        check=other_checks.check_binding,
        check_update=other_checks.check_binding_update,
        default=others.default_binding,
        name=names.path_segment,
    ),
    "resourceclaims.resource.k8s.io": Rules(
        check_new=device_claims.check_claim,
        check_update=device_claims.check_spec_kept,
        check_status=device_status.check_claim_status,
        update=device_status.forget_what_was_given_up,
        default=device_claims.default_claim,
        create=empty_status,
    ),
    "resourceclaimtemplates.resource.k8s.io": Rules(
        check_new=device_claims.check_claim_template,
        check_update=device_claims.check_spec_kept,
        default=device_claims.default_claim_template,
    ),
    "deviceclasses.resource.k8s.io": Rules(check=device_claims.check_device_class, generation=_COUNTED),
    "resourceslices.resource.k8s.io": Rules(
        check=device_slices.check_slice, check_update=device_slices.check_slice_update, generation=_COUNTED
    ),
    "networkpolicies.networking.k8s.io": Rules(
        check=network_policies.check_network_policy, default=others.default_network_policy, generation=_COUNTED
    ),
    "ingresses.networking.k8s.io": Rules(
        check=ingresses.check_ingress,
        check_new=ingresses.check_new_ingress,
        check_status=ingresses.check_ingress_status,
        create=empty_status,
        generation=_COUNTED,
    ),
    "ingressclasses.networking.k8s.io": Rules(
        check=ingresses.check_ingress_class,
        check_update=ingresses.check_ingress_class_update,
        default=others.default_ingress_class,
        generation=_COUNTED,
    ),
    "horizontalpodautoscalers.autoscaling": Rules(
        check=autoscalers.check_autoscaler,
        check_status=autoscalers.check_autoscaler_status,
        default=others.default_autoscaler,
        create=empty_status,
    ),
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": Rules(
        check=other_checks.check_webhooks, default=others.default_mutating_webhooks, generation=_COUNTED
    ),
    "validatingwebhookconfigurations.admissionregistration.k8s.io": Rules(
        check=other_checks.check_webhooks, default=others.default_validating_webhooks, generation=_COUNTED
    ),
    "customresourcedefinitions.apiextensions.k8s.io": Rules(
        check=definitions.check_definition,
        check_update=definitions.check_definition_update,
        default=others.default_definition,
        create=others.start_definition,
        update=others.remember_storage_version,
        generation=_COUNTED,
    ),
}
"""By `plural.group`; a kind that is not here has no rules of its own."""
