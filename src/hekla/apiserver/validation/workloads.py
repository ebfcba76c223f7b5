"""What is wrong with Deployment, ReplicaSet, StatefulSet, DaemonSet and with changes of them."""

from collections.abc import Callable

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import (
    IMMUTABLE,
    Cause,
    FieldError,
    forbidden_field,
    invalid,
    not_supported,
    required,
    shown,
)
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
    errors += _check_selection(spec, "deployment") + _check_template(spec, "ReplicaSet")
    errors += _check_strategy(spec.get("strategy", {}), "spec.strategy", ("Recreate", "RollingUpdate"))
    deadline = spec.get("progressDeadlineSeconds")
    if deadline is not None and deadline <= spec.get("minReadySeconds", 0):
        errors.append(invalid("spec.progressDeadlineSeconds", deadline, "must be greater than minReadySeconds"))
    return errors


def check_replica_set(replica_set: Document) -> list[FieldError]:
    """A replica set."""
    spec = replica_set.get("spec", {})
    return (
        check_counts(spec, "spec", "replicas", "minReadySeconds")
        + _check_selection(spec, "deployment")
        + _check_template(spec, "ReplicaSet")
    )


def check_replication_controller(controller: Document) -> list[FieldError]:
    """A replication controller, whose selector is a plain map."""
    spec = controller.get("spec", {})
    errors = check_counts(spec, "spec", "replicas", "minReadySeconds")
    if not spec.get("selector"):
        errors.append(required("spec.selector"))
    if "template" not in spec:
        return [*errors, required("spec.template")]
    labels = spec["template"].get("metadata", {}).get("labels", {})
    if any(labels.get(key) != value for key, value in spec.get("selector", {}).items()):
        errors.append(_not_selected(labels))
    return errors + _check_template(spec, "ReplicationController")


def check_daemon_set(daemon_set: Document) -> list[FieldError]:
    """A daemon set."""
    spec = daemon_set.get("spec", {})
    errors = _check_selection(spec, "daemonset") + _check_template(spec, "DaemonSet")
    errors += check_counts(spec, "spec", "minReadySeconds", "revisionHistoryLimit")
    rolling = spec.get("updateStrategy", {}).get("rollingUpdate", {})
    is_stopping, is_adding = (_is_some(rolling.get(key, 0)) for key in ("maxUnavailable", "maxSurge"))
    where, is_rolling = (
        "spec.updateStrategy.rollingUpdate",
        spec.get("updateStrategy", {}).get("type") == "RollingUpdate",
    )
    if is_stopping and is_adding:
        errors.append(
            invalid(f"{where}.maxSurge", rolling["maxSurge"], "may not be set when maxUnavailable is non-zero")
        )
    elif is_rolling and not is_stopping and not is_adding:
        errors.append(required(f"{where}.maxUnavailable", "cannot be 0 when maxSurge is 0"))
    return errors + _check_strategy(
        spec.get("updateStrategy", {}), "spec.updateStrategy", ("RollingUpdate", "OnDelete"), may_stand_still=True
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
    if "maxUnavailable" in rolling:
        errors += check_count_or_percent(rolling["maxUnavailable"], "spec.updateStrategy.rollingUpdate.maxUnavailable")
    if kind == "OnDelete" and "rollingUpdate" in spec.get("updateStrategy", {}):
        rules = {"Partition": rolling.get("partition"), "MaxUnavailable": rolling.get("maxUnavailable")}
        said = "only allowed for updateStrategy 'RollingUpdate'"
        errors.append(invalid("spec.updateStrategy.rollingUpdate", rules, said))
    errors += check_counts(spec, "spec", "replicas", "minReadySeconds")
    errors += check_counts(spec.get("ordinals", {}), "spec.ordinals", "start")
    retention = spec.get("persistentVolumeClaimRetentionPolicy", {})
    errors += [
        not_supported(f"spec.persistentVolumeClaimRetentionPolicy.{key}", retention[key], ("Retain", "Delete"))
        for key in ("whenDeleted", "whenScaled")
        if retention.get(key) is not None and retention[key] not in ("Retain", "Delete")
    ]
    return errors + _check_selection(spec, "statefulset") + _check_template(_with_claimed_volumes(spec), "StatefulSet")


def check_new_stateful_set(stateful_set: Document) -> list[FieldError]:
    """What stays as it is in a stateful set."""
    spec = stateful_set.get("spec", {})
    service = spec.get("serviceName")
    errors = [invalid("spec.serviceName", service, said) for said in names.dns_label(service)] if service else []
    for index, claim in enumerate(spec.get("volumeClaimTemplates", ())):
        errors += check_claim_spec(claim.get("spec", {}), f"spec.volumeClaimTemplates[{index}].spec")
    return errors


def _with_claimed_volumes(spec: Document) -> Document:
    """The set with the volumes that its pods will have of its claims: containers may mount them."""
    template = spec.get("template", {})
    pod = template.get("spec", {})
    claims = dict.fromkeys(claim.get("metadata", {}).get("name", "") for claim in spec.get("volumeClaimTemplates", ()))
    claimed = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]
    # a claim hides its namesake
    own = [volume for volume in pod.get("volumes", ()) if volume.get("name") not in claims]
    return {**spec, "template": {**template, "spec": {**pod, "volumes": own + claimed}}}


def _check_selection(spec: Document, owner: str) -> list[FieldError]:
    """A selector that selects something, the pods of the template among it."""
    selector, labels = spec.get("selector"), spec.get("template", {}).get("metadata", {}).get("labels", {})
    if selector is None:
        missing = [] if owner == "daemonset" else [required("spec.selector")]
        return [*missing, _not_selected(labels)]
    errors = check_label_selector(selector, "spec.selector")
    if errors:
        return errors + _MALFORMED[owner](selector)
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        errors.append(invalid("spec.selector", selector, f"empty selector is invalid for {owner}"))
    return errors if matches_labels(selector, labels) else [*errors, _not_selected(labels)]


_MALFORMED: dict[str, Callable[[Document], list[FieldError]]] = {
    "deployment": lambda selector: [invalid("spec.selector", selector, "invalid label selector")],
    "statefulset": lambda selector: [FieldError(Cause.INVALID, "spec.selector", f"Invalid value: {shown(selector)}")],
    "daemonset": lambda selector: [],
}
"""What Kubernetes adds to what is wrong with a selector, by what it says the selector is of."""


def _not_selected(labels: dict[str, str]) -> FieldError:
    said = "`selector` does not match template `labels`"
    return invalid("spec.template.metadata.labels", labels or None, said)


def _check_template(spec: Document, owner: str) -> list[FieldError]:
    template = spec.get("template", {})
    errors = check_pod_template(template, "spec.template")
    policy = template.get("spec", {}).get("restartPolicy")
    if policy in ("OnFailure", "Never"):
        errors.append(not_supported("spec.template.spec.restartPolicy", policy, ("Always",)))
    if template.get("spec", {}).get("activeDeadlineSeconds") is not None:
        where = "spec.template.spec.activeDeadlineSeconds"
        errors.append(forbidden_field(where, f"activeDeadlineSeconds in {owner} is not Supported"))
    return errors


def check_counts(spec: Document, path: str, *keys: str) -> list[FieldError]:
    """Numbers that must not be negative."""
    return [
        invalid(f"{path}.{key}".lstrip("."), spec[key], _NOT_NEGATIVE)
        for key in keys
        if isinstance(spec.get(key), int) and spec[key] < 0
    ]


def _check_strategy(
    strategy: Document, path: str, kinds: tuple[str, ...], *, may_stand_still: bool = False
) -> list[FieldError]:
    kind, rolling = strategy.get("type", ""), strategy.get("rollingUpdate")
    if kind == "Recreate" and rolling is not None:
        return [forbidden_field(f"{path}.rollingUpdate", "may not be specified when strategy `type` is 'Recreate'")]
    if kind not in kinds:
        rules = rolling and {"MaxUnavailable": rolling.get("maxUnavailable"), "MaxSurge": rolling.get("maxSurge")}
        return [not_supported(path, {"Type": kind, "RollingUpdate": rules}, kinds)]
    if kind != "RollingUpdate" or rolling is None:
        return []
    errors = []
    for key in ("maxUnavailable", "maxSurge"):
        errors += check_count_or_percent(rolling.get(key, 0), f"{path}.rollingUpdate.{key}")
    stands_still = not any(_is_some(rolling.get(key, 0)) for key in ("maxUnavailable", "maxSurge"))
    if not errors and stands_still and not may_stand_still:
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


def _is_some(value: int | str) -> bool:
    """Whether a number or a percentage is more than none; what is neither is none."""
    return value != 0 if isinstance(value, int) else value.strip("0") != "%" and value.endswith("%")


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


def check_revision(revision: Document) -> list[FieldError]:
    """A controller revision."""
    return check_counts(revision, "", "revision")


def check_new_revision(revision: Document) -> list[FieldError]:
    """What stays as it is in a controller revision."""
    return [] if revision.get("data") is not None else [required("data", "data is mandatory")]


def check_revision_update(new: Document, old: Document) -> list[FieldError]:
    """What a revision holds stays."""
    return [] if new.get("data") == old.get("data") else [invalid("data", new.get("data"), IMMUTABLE)]


def check_priority_class_update(new: Document, old: Document) -> list[FieldError]:
    """A class keeps its value and policy."""
    errors = []
    if new.get("value") != old.get("value"):
        errors.append(forbidden_field("value", "may not be changed in an update."))
    if new.get("preemptionPolicy") != old.get("preemptionPolicy"):
        errors.append(invalid("preemptionPolicy", new.get("preemptionPolicy"), IMMUTABLE))
    return errors
