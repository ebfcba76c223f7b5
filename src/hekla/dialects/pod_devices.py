"""What the resource claims of a pod ask for, or why it has to wait for one of them.

`device_objects.py` keeps claims, classes and slices; `device_selectors.py` evaluates what selects devices.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from hekla.api import devices as api
from hekla.api.pods import Pod
from hekla.dialects.device_selectors import CelSelector
from hekla.dialects.surroundings import Surroundings
from hekla.lib import quantity
from hekla.placement.constraint import Effect, Refusal, Toleration
from hekla.placement.devices.claims import Choice, ClaimRequest, DeviceClaim, Match

CODE = "resource-claims"


@dataclass(frozen=True, kw_only=True)
class DeviceDemands:
    """What a pod's resource claims demand."""

    names: tuple[str, ...] = ()
    """The claims, `namespace/name`."""

    claims: tuple[DeviceClaim, ...] = ()
    """What each asks for."""

    blocked: Refusal | None = None


NO_CLAIMS = DeviceDemands()


def device_demands(pod: Pod, around: Surroundings) -> DeviceDemands:
    """The demands of all resource claims of a pod; the first that has to be waited for decides."""
    names, claims = list[str](), list[DeviceClaim]()
    namespace = pod.metadata.namespace
    for entry, name in named_claims(pod):
        if name is None:
            return _blocked(f'waiting for resource claim "{entry}" to be made from its template')
        claim = around.resource_claim(namespace, name)
        if claim is None:
            return _blocked(f'resourceclaim "{name}" not found')
        if claim.metadata.deletion_timestamp:
            return _blocked(f'resourceclaim "{name}" is being deleted')
        owner = next((one for one in claim.metadata.owner_references if one.controller), None)
        if entry and owner is not None and owner.uid != pod.metadata.uid and _is_own(pod, entry):
            return _blocked(f'resourceclaim "{name}" was not made for this pod')
        try:
            claims.append(_claim(claim, around))
        except _UnusableError as error:
            return _blocked(f"{namespace}/{name}: {error}")
        names.append(f"{namespace}/{name}")
    return DeviceDemands(names=tuple(names), claims=tuple(claims))


def named_claims(pod: Pod) -> Iterator[tuple[str, str | None]]:
    """(A claim's name in the pod, its own name); None while it is still to be made. One that is not needed is left out."""
    made = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses}
    for entry in pod.spec.resource_claims:
        if entry.resource_claim_name:
            yield entry.name, entry.resource_claim_name
        elif entry.name not in made:
            yield entry.name, None
        elif made[entry.name]:
            yield entry.name, made[entry.name]


def claim_ids(pod: Pod) -> Iterator[tuple[str, str]]:
    """Namespace and name of the claims that a pod uses, as far as they are known."""
    for _, name in named_claims(pod) if pod.spec.resource_claims else ():
        if name is not None:
            yield pod.metadata.namespace, name


class _UnusableError(Exception):
    """A claim that cannot be answered as it is; the text is a sentence."""


def _is_own(pod: Pod, entry: str) -> bool:
    return any(one.name == entry and one.resource_claim_template_name for one in pod.spec.resource_claims)


def _blocked(sentence: str) -> DeviceDemands:
    return DeviceDemands(blocked=Refusal(CODE, sentence))


def _claim(claim: api.ResourceClaim, around: Surroundings) -> DeviceClaim:
    wanted = claim.spec.devices
    said_by = f"claim {claim.metadata.namespace}/{claim.metadata.name}"
    return DeviceClaim(
        requests=tuple(_request(request, said_by, around) for request in wanted.requests),
        matches=tuple(
            Match(
                attribute=one.match_attribute or one.distinct_attribute or "", requests=frozenset(one.requests),
                is_distinct=not one.match_attribute,
            )
            for one in wanted.constraints
            if one.match_attribute or one.distinct_attribute
        ),
    )  # fmt: skip


def _request(request: api.DeviceRequest, said_by: str, around: Surroundings) -> ClaimRequest:
    if request.exactly is not None:
        return ClaimRequest(name=request.name, choices=(_choice(request.name, request.exactly, said_by, around),))
    choices = [_choice(f"{request.name}/{one.name}", one, said_by, around) for one in request.first_available]
    if not choices:
        raise _UnusableError(f"request {request.name} asks for nothing that this scheduler knows")
    return ClaimRequest(name=request.name, choices=tuple(choices))


def _choice(
    label: str, asked: api.ExactDeviceRequest | api.DeviceSubRequest, said_by: str, around: Surroundings
) -> Choice:
    known = around.device_class(asked.device_class_name)
    if known is None:
        raise _UnusableError(f"request {label}: device class {asked.device_class_name} does not exist")
    if asked.allocation_mode not in {"", "ExactCount", "All"}:
        raise _UnusableError(f"request {label}: unsupported allocation mode {asked.allocation_mode}")
    by_class = [(f"class {known.metadata.name}: selector #{n}", one) for n, one in enumerate(known.spec.selectors)]
    own = [(f"{said_by}: request {label}: selector #{n}", one) for n, one in enumerate(asked.selectors)]
    least = asked.capacity.requests if asked.capacity is not None else {}
    return Choice(
        label=label,
        device_class=asked.device_class_name,
        selector=CelSelector(
            tuple((said, one.cel.expression) for said, one in (*by_class, *own) if one.cel is not None)
        ),
        count=asked.count or 1,
        takes_all=asked.allocation_mode == "All",
        is_admin=isinstance(asked, api.ExactDeviceRequest) and bool(asked.admin_access),
        least=tuple(sorted((name, milli(text)) for name, text in least.items())),
        tolerations=tuple(
            Toleration(t.key, t.operator or "Equal", t.value, Effect(t.effect) if t.effect else None)
            for t in asked.tolerations
        ),
    )


def milli(text: str) -> int:
    """A quantity in thousandths, rounded down."""
    return int(quantity.parse(text).value * 1000)
