"""What is wrong with Deployment, ReplicaSet, StatefulSet, DaemonSet and with changes of them."""

from typing import Any

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import IMMUTABLE, FieldError, forbidden_field, invalid, not_supported, required
from hekla.apiserver.validation import names
from hekla.apiserver.validation.pods import check_pod_template
from hekla.apiserver.validation.selectors import check_label_selector, matches_labels
from hekla.apiserver.validation.storage import check_claim_spec

_NOT_NEGATIVE = "must be greater than or equal to 0"
_ONLY_STATEFUL = (
    "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy',"
    " 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
)
_STATEFUL_CHANGES = (
    "replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit", "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
)  # fmt: skip


def check_deployment(deployment: Document) -> list[FieldError]:
    """A deployment."""
    spec = deployment.get("spec", {})
    errors = check_counts(
        spec, "spec", "replicas", "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"
    )
    errors += check_selector(spec, "spec") + _check_template(spec, "Always")
    errors += _check_strategy(spec.get("strategy", {}), "spec.strategy", ("Recreate", "RollingUpdate"))
    deadline = spec.get("progressDeadlineSeconds")
    if deadline is not None and deadline <= spec.get("minReadySeconds", 0):
        errors.append(invalid("spec.progressDeadlineSeconds", deadline, "must be greater than minReadySeconds"))
    return errors


def check_replica_set(replica_set: Document) -> list[FieldError]:
    """A replica set, or a replication controller."""
    spec = replica_set.get("spec", {})
    return (
        check_counts(spec, "spec", "replicas", "minReadySeconds")
        + check_selector(spec, "spec")
        + _check_template(spec, "Always")
    )


def check_replication_controller(controller: Document) -> list[FieldError]:
    """A replication controller, whose selector is a plain map."""
    spec = controller.get("spec", {})
    errors = check_counts(spec, "spec", "replicas", "minReadySeconds")
    if not spec.get("selector"):
        errors.append(required("spec.selector"))
    if "template" not in spec:
        return [*errors, required("spec.template")]
    return errors + _check_template(spec, "Always")


def check_daemon_set(daemon_set: Document) -> list[FieldError]:
    """A daemon set."""
    spec = daemon_set.get("spec", {})
    errors = check_selector(spec, "spec") + _check_template(spec, "Always")
    errors += check_counts(spec, "spec", "minReadySeconds", "revisionHistoryLimit")
    rolling = spec.get("updateStrategy", {}).get("rollingUpdate", {})
    if not _is_zero(rolling.get("maxUnavailable", 0)) and not _is_zero(rolling.get("maxSurge", 0)):
        where = "spec.updateStrategy.rollingUpdate.maxSurge"
        errors.append(invalid(where, rolling["maxSurge"], "may not be set when maxUnavailable is non-zero"))
    return errors + _check_strategy(
        spec.get("updateStrategy", {}), "spec.updateStrategy", ("RollingUpdate", "OnDelete")
    )


def check_stateful_set(stateful_set: Document) -> list[FieldError]:
    """A stateful set."""
    spec = stateful_set.get("spec", {})
    errors = []
    policy = spec.get("podManagementPolicy", "")
    if policy not in ("OrderedReady", "Parallel"):
        errors.append(invalid("spec.podManagementPolicy", policy, "must be 'OrderedReady' or 'Parallel'"))
    kind = spec.get("updateStrategy", {}).get("type", "")
    if kind not in ("RollingUpdate", "OnDelete"):
        errors.append(
            invalid("spec.updateStrategy", spec.get("updateStrategy", {}), "must be 'RollingUpdate' or 'OnDelete'")
        )
    rolling = spec.get("updateStrategy", {}).get("rollingUpdate", {})
    errors += check_counts(rolling, "spec.updateStrategy.rollingUpdate", "partition")
    if kind == "OnDelete" and "rollingUpdate" in spec.get("updateStrategy", {}):
        shown = {"Partition": rolling.get("partition"), "MaxUnavailable": rolling.get("maxUnavailable")}
        said = "only allowed for updateStrategy 'RollingUpdate'"
        errors.append(invalid("spec.updateStrategy.rollingUpdate", shown, said))
    errors += check_counts(spec, "spec", "replicas", "minReadySeconds")
    errors += check_counts(spec.get("ordinals", {}), "spec.ordinals", "start")
    service = spec.get("serviceName")
    if service:
        errors += [invalid("spec.serviceName", service, said) for said in names.dns_label(service)]
    retention = spec.get("persistentVolumeClaimRetentionPolicy", {})
    errors += [
        not_supported(f"spec.persistentVolumeClaimRetentionPolicy.{key}", retention[key], ("Retain", "Delete"))
        for key in ("whenDeleted", "whenScaled")
        if retention.get(key) is not None and retention[key] not in ("Retain", "Delete")
    ]
    errors += check_selector(spec, "spec") + _check_template(_with_claimed_volumes(spec), "Always")
    for index, claim in enumerate(spec.get("volumeClaimTemplates", ())):
        errors += check_claim_spec(claim.get("spec", {}), f"spec.volumeClaimTemplates[{index}].spec")
    return errors


def _with_claimed_volumes(spec: Document) -> Document:
    """The set with the volumes that its pods will have of its claims: containers may mount them."""
    template = spec.get("template", {})
    pod = template.get("spec", {})
    claims = [claim.get("metadata", {}).get("name", "") for claim in spec.get("volumeClaimTemplates", ())]
    claimed = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims if name]
    # a claim hides its namesake
    own = [volume for volume in pod.get("volumes", ()) if volume.get("name") not in claims]
    return {**spec, "template": {**template, "spec": {**pod, "volumes": own + claimed}}}


def check_selector(spec: Document, path: str) -> list[FieldError]:
    """A selector that selects something."""
    selector = spec.get("selector")
    if selector is None:
        return [required(f"{path}.selector")]
    errors = check_label_selector(selector, f"{path}.selector")
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        errors.append(invalid(f"{path}.selector", selector, "empty selector is invalid for deployment"))
    return errors


def _check_template(spec: Document, *policies: str) -> list[FieldError]:
    template = spec.get("template", {})
    errors = []
    selector, labels = spec.get("selector"), template.get("metadata", {}).get("labels", {})
    if selector and not _selects(selector, labels):
        errors.append(invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`"))
    errors += check_pod_template(template, "spec.template")
    policy = template.get("spec", {}).get("restartPolicy")
    if policy in ("OnFailure", "Never"):
        errors.append(not_supported("spec.template.spec.restartPolicy", policy, policies))
    if template.get("spec", {}).get("activeDeadlineSeconds") is not None:
        errors.append(
            forbidden_field(
                "spec.template.spec.activeDeadlineSeconds", "activeDeadlineSeconds in ReplicaSet is not Supported"
            )
        )
    return errors


def _selects(selector: Document, labels: dict[str, str]) -> bool:
    if "matchLabels" in selector or "matchExpressions" in selector or not selector:
        return matches_labels(selector, labels)
    return all(labels.get(key) == value for key, value in selector.items())


def check_counts(spec: Document, path: str, *keys: str) -> list[FieldError]:
    """Numbers that must not be negative."""
    return [
        invalid(f"{path}.{key}", spec[key], _NOT_NEGATIVE)
        for key in keys
        if isinstance(spec.get(key), int) and spec[key] < 0
    ]


def _check_strategy(strategy: Document, path: str, kinds: tuple[str, ...]) -> list[FieldError]:
    kind, rolling = strategy.get("type", ""), strategy.get("rollingUpdate")
    if kind == "Recreate" and rolling is not None:
        return [forbidden_field(f"{path}.rollingUpdate", "may not be specified when strategy `type` is 'Recreate'")]
    if kind not in kinds:
        return [not_supported(f"{path}.type", kind, kinds)]
    if kind != "RollingUpdate" or rolling is None:
        return []
    errors = []
    for key in ("maxUnavailable", "maxSurge"):
        errors += check_count_or_percent(rolling.get(key, 0), f"{path}.rollingUpdate.{key}")
    if not errors and _is_zero(rolling.get("maxUnavailable", 0)) and _is_zero(rolling.get("maxSurge", 0)):
        errors.append(
            invalid(
                f"{path}.rollingUpdate.maxUnavailable",
                rolling.get("maxUnavailable", 0),
                "may not be 0 when `maxSurge` is 0",
            )
        )
    if (
        str(rolling.get("maxUnavailable", "")).endswith("%")
        and not errors
        and int(str(rolling["maxUnavailable"])[:-1]) > 100
    ):
        errors.append(
            invalid(f"{path}.rollingUpdate.maxUnavailable", rolling["maxUnavailable"], "must not be greater than 100%")
        )
    return errors


def check_count_or_percent(value: int | str, path: str) -> list[FieldError]:
    """A number of zero or more, or a percentage."""
    if isinstance(value, int):
        return [] if value >= 0 else [invalid(path, value, _NOT_NEGATIVE)]
    if value.endswith("%") and value[:-1].isdigit() and value.isascii() and len(value) < 12:
        return []
    said = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"
    return [invalid(path, value, said)]


def _is_zero(value: Any) -> bool:
    return value in (0, "0%")


def check_selector_kept(new: Document, old: Document) -> list[FieldError]:
    """The selector of a Deployment, ReplicaSet or DaemonSet stays."""
    selector = new["spec"].get("selector")
    if selector != old["spec"].get("selector"):
        return [invalid("spec.selector", selector, IMMUTABLE)]
    return []


def check_stateful_set_update(new: Document, old: Document) -> list[FieldError]:
    """Most of a stateful set stays."""
    wanted = {key: value for key, value in new["spec"].items() if key not in _STATEFUL_CHANGES}
    before = {key: value for key, value in old["spec"].items() if key not in _STATEFUL_CHANGES}
    return [] if wanted == before else [forbidden_field("spec", _ONLY_STATEFUL)]


def check_priority_class_update(new: Document, old: Document) -> list[FieldError]:
    """A class keeps its value and policy."""
    errors = []
    if new.get("value") != old.get("value"):
        errors.append(forbidden_field("value", "may not be changed in an update."))
    if new.get("preemptionPolicy") != old.get("preemptionPolicy"):
        errors.append(invalid("preemptionPolicy", new.get("preemptionPolicy"), IMMUTABLE))
    return errors
