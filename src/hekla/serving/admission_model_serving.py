"""What is refused in a ModelServing, in the words of Kthena's webhook: names that would be too long, counts, updates, gangs."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from hekla.api.kthena import ModelServing
from hekla.api.kthena.serving import PodTemplate, RecoveryPolicy, Role, RolloutType
from hekla.api.scalars import IntOrString
from hekla.apiserver.admission import AdmissionRequest, Reader
from hekla.apiserver.fielderrors import FieldError, forbidden_field, invalid, required
from hekla.apiserver.validation.names import dns_label_1035
from hekla.serving.admission_words import check_int_or_percent, denial, scaled, unscalable
from hekla.serving.serving_plugins.plugin import PluginError
from hekla.serving.serving_plugins.registry import plugins_of

_ROLES = "spec.template.roles"
_ROLLING = "spec.rolloutStrategy.rollingUpdateConfiguration"
_ONLY_GROUPS = "rollingUpdateConfiguration is only valid when rolloutStrategy.type is ServingGroupRollingUpdate"
_ROLE_NAME = (
    "role name must be a valid DNS-1035 label (lowercase alphanumeric characters or '-', must start with a letter): "
)


def refuse_model_serving(request: AdmissionRequest, reader: Reader) -> str:
    """Why a ModelServing may not be written; empty if it may."""
    serving = msgspec.convert(request.object or {}, ModelServing)
    request.warnings += _idle_plugins(serving)
    return denial(wrongs(serving))


def _idle_plugins(serving: ModelServing) -> Iterator[str]:
    """What Kthena lets in of plug-ins and only its log tells of."""
    roles = {role.name for role in serving.spec.template.roles}
    for number, plugin in enumerate(serving.spec.plugins):
        try:
            plugins_of([plugin])
        except PluginError as error:
            yield f"spec.plugins[{number}]: {error}; no pod is made while it stands here"
        strangers = sorted(set(plugin.scope.roles if plugin.scope is not None else ()) - roles)
        if strangers:
            yield f"spec.plugins[{number}].scope.roles has {', '.join(strangers)}; spec.template.roles are {', '.join(sorted(roles))}"


def wrongs(serving: ModelServing) -> Iterator[FieldError]:
    """All that is wrong, in the webhook's order."""
    roles = serving.spec.template.roles
    yield from _long_names(serving)
    yield from _role_names(roles)
    yield from _images(roles)
    yield from _counts(serving)
    yield from _group_update(serving)
    yield from _role_updates(serving)
    yield from _gang(serving)
    yield from _workers(roles)
    yield from _recovery(serving)


def _long_names(serving: ModelServing) -> Iterator[FieldError]:
    name, replicas = serving.metadata.name, _or_one(serving.spec.replicas)
    for role in serving.spec.template.roles:
        said = dns_label_1035(f"{name}-{replicas}-{role.name}-{_or_one(role.replicas)}-{role.worker_replicas}")
        if said:
            yield invalid("metadata.name", name, f"invalid name: {'; '.join(said)}")


def _role_names(roles: list[Role]) -> Iterator[FieldError]:
    for number, role in enumerate(roles):
        if said := dns_label_1035(role.name):
            yield invalid(f"{_ROLES}[{number}].name", role.name, f"{_ROLE_NAME}{'; '.join(said)}")


def _images(roles: list[Role]) -> Iterator[FieldError]:
    for number, role in enumerate(roles):
        yield from _images_of(role.entry_template, f"{_ROLES}[{number}].entryTemplate")
        if role.worker_template is not None:
            yield from _images_of(role.worker_template, f"{_ROLES}[{number}].workerTemplate")


def _images_of(template: PodTemplate, where: str) -> Iterator[FieldError]:
    containers: list[Any] = template.spec.get("containers") or []
    for number, container in enumerate(containers):
        image = str(container.get("image") or "")
        if image and not image.strip():
            said = "image cannot be empty or whitespace only"
        elif " " in image:
            said = "image cannot contain spaces"
        else:
            continue
        field = f"{where}.spec.containers[{number}].image"
        yield invalid(field, image, f"invalid container image reference: {said}")


def _counts(serving: ModelServing) -> Iterator[FieldError]:
    spec = serving.spec
    if spec.replicas is None or spec.replicas < 0:
        yield invalid("spec.replicas", spec.replicas, "replicas must be a non-negative integer")
    if not spec.template.roles:
        yield invalid(_ROLES, spec.template.roles, "roles must be specified")
    for number, role in enumerate(spec.template.roles):
        if role.replicas is None or role.replicas < 0:
            said = "role replicas must be a non-negative integer"
            yield invalid(f"{_ROLES}[{number}].replicas", role.replicas, said)


def _group_update(serving: ModelServing) -> Iterator[FieldError]:
    strategy = serving.spec.rollout_strategy
    if strategy is None or strategy.rolling_update_configuration is None:
        return
    if strategy.type == RolloutType.ROLE:
        yield forbidden_field(_ROLLING, _ONLY_GROUPS)
        return
    rolling = strategy.rolling_update_configuration
    yield from check_int_or_percent(f"{_ROLLING}.maxUnavailable", rolling.max_unavailable)
    yield from check_int_or_percent(f"{_ROLLING}.maxSurge", rolling.max_surge)
    yield from check_int_or_percent(f"{_ROLLING}.partition", rolling.partition)
    if serving.spec.replicas is not None and rolling.max_unavailable is not None:
        field = f"{_ROLLING}.maxUnavailable"
        value = scaled(rolling.max_unavailable, serving.spec.replicas)
        if value is None:
            yield _unscalable(field, rolling.max_unavailable)
        elif value == 0 and not _surge(rolling.max_surge, serving.spec.replicas):
            yield invalid(_ROLLING, "", "maxUnavailable cannot be 0")


def _role_updates(serving: ModelServing) -> Iterator[FieldError]:
    strategy = serving.spec.rollout_strategy
    is_by_role = strategy is not None and strategy.type == RolloutType.ROLE
    for number, role in enumerate(serving.spec.template.roles):
        where = f"{_ROLES}[{number}]"
        if role.partition is not None:
            yield from check_int_or_percent(f"{where}.partition", role.partition)
            if not is_by_role:
                said = "partition is only valid when rolloutStrategy.type is RoleRollingUpdate"
                yield forbidden_field(f"{where}.partition", said)
        if is_by_role:
            yield from check_int_or_percent(f"{where}.maxSurge", role.max_surge)
        if is_by_role and role.max_unavailable is not None:
            yield from _role_unavailable(role, role.max_unavailable, f"{where}.maxUnavailable")


def _role_unavailable(role: Role, said: IntOrString, field: str) -> Iterator[FieldError]:
    yield from check_int_or_percent(field, said)
    replicas = _or_one(role.replicas)
    value = scaled(said, replicas)
    if value is None:
        yield _unscalable(field, said)
    elif value == 0 and not _surge(role.max_surge, replicas):
        yield invalid(field, said, "maxUnavailable cannot be 0")
    elif value > replicas:
        yield invalid(field, said, f"maxUnavailable cannot be greater than replicas ({replicas})")


def _gang(serving: ModelServing) -> Iterator[FieldError]:
    gang = serving.spec.template.gang_policy
    roles = {role.name: role for role in serving.spec.template.roles}
    for name, minimum in ((gang.min_role_replicas if gang else None) or {}).items():
        field = f"spec.template.gangPolicy.minRoleReplicas[{name}]"
        if name not in roles:
            yield invalid(field, name, f"role {name} does not exist in template.roles")
            continue
        replicas = _or_one(roles[name].replicas)
        if minimum > replicas:
            said = f"minRoleReplicas ({minimum}) for role {name} cannot exceed replicas ({replicas})"
            yield invalid(field, minimum, said)
        if minimum < 0:
            yield invalid(field, minimum, f"minRoleReplicas for role {name} must be non-negative")


def _workers(roles: list[Role]) -> Iterator[FieldError]:
    for number, role in enumerate(roles):
        if role.worker_replicas < 0:
            said = "workerReplicas must be a non-negative integer"
            yield invalid(f"{_ROLES}[{number}].workerReplicas", role.worker_replicas, said)
        if role.worker_replicas > 0 and role.worker_template is None:
            said = "workerTemplate is required when workerReplicas is greater than 0"
            yield required(f"{_ROLES}[{number}].workerTemplate", said)


def _recovery(serving: ModelServing) -> Iterable[FieldError]:
    strategy, recovery = serving.spec.rollout_strategy, serving.spec.recovery_policy or RecoveryPolicy.ROLE
    rollout = (strategy.type if strategy else "") or RolloutType.GROUP
    if recovery != RecoveryPolicy.GROUP or rollout != RolloutType.ROLE:
        return []
    said = (
        "incompatible recoveryPolicy and rolloutStrategy.type after applying defaults: "
        f"recoveryPolicy={recovery}, rolloutStrategy.type={rollout}; valid pairs: "
        "(ServingGroupRecreate,ServingGroupRollingUpdate) or (RoleRecreate,RoleRollingUpdate)"
    )
    return [invalid("spec.rolloutStrategy.type", str(rollout), said)]


def _or_one(count: int | None) -> int:
    return 1 if count is None else count


def _surge(value: IntOrString | None, total: int) -> int:
    return (scaled(value, total, rounds_up=True) or 0) if value is not None else 0


def _unscalable(field: str, value: IntOrString) -> FieldError:
    return invalid(field, value, f"invalid maxUnavailable: {unscalable(value)}")
