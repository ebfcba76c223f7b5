"""`hekla why autoscalingpolicy/X`: what a policy scales, how many there are and are wanted, and why no more and no fewer.

The autoscaler writes its reasons into the policy's conditions; here they stand beside the bounds that it keeps to.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hekla.api.kthena import AutoscalingPolicy
    from hekla.api.meta import Document
    from hekla.cli.connection import Connection


async def why_policy(connection: "Connection", name: str, namespace: str) -> "Document":
    """The answer about an AutoscalingPolicy; raises NotFoundError."""
    import msgspec

    from hekla.api.kthena import AutoscalingPolicy

    found = await connection.client.get_document(AutoscalingPolicy.kind_info, name.partition(".")[2], namespace)
    return policy_state(name, namespace, msgspec.convert(found, AutoscalingPolicy))


def policy_state(name: str, namespace: str, policy: "AutoscalingPolicy") -> "Document":
    """What is to be told of a policy. Pure."""
    ready = next((one for one in policy.status.conditions if one.type == "Ready"), None)
    verdict = "has not been looked at yet: is an autoscaler running?"
    if ready is not None:
        verdict = f"{'scales' if ready.status == 'True' else 'scales nothing now'} ({ready.reason})"
    metrics = [f"{one.name} at {one.target_value}" for one in policy.spec.metrics]
    return {
        "kind": "Explanations",
        "metadata": {"name": name, "namespace": namespace},
        "message": f"{name.replace('.', '/', 1)} {verdict}",
        "complaints": [
            f"{one.type} is {one.status.lower()} ({one.reason}): {one.message}"
            for one in policy.status.conditions
            if one.type == "Ready" or one.status != _good(one.type)
        ],
        "metrics": metrics,
        "scaled": list(_scaled(policy)),
    }


def _good(kind: str) -> str:
    return "False" if kind == "RatioConstraintViolated" else "True"


def _scaled(policy: "AutoscalingPolicy") -> Iterator[dict[str, Any]]:
    """Each thing that is scaled, its bounds, and how many there are."""
    status = policy.status
    told = [status.homogeneous_status] if status.homogeneous_status is not None else [*status.heterogeneous_status]
    if status.disaggregated_status is not None:
        told += status.disaggregated_status.roles
    counts = {one.name: one for one in told}
    for name, least, most in _bounds(policy):
        one = counts.get(name) or counts.get(name.rpartition("/")[2])
        if one is None and len(counts) == 1:
            one = next(iter(counts.values()))
        yield {"name": name, "min": least, "max": most} | (
            {} if one is None else {
                "current": one.current_replicas, "wanted": one.desired_replicas, "mode": one.mode,
                "lastScaled": one.last_scale_time,
            }
        )  # fmt: skip


def _bounds(policy: "AutoscalingPolicy") -> Iterator[tuple[str, int, int]]:
    spec = policy.spec
    if (one := spec.homogeneous_target) is not None:
        yield one.target.target_ref.name, one.min_replicas, one.max_replicas
    if spec.heterogeneous_target is not None:
        for param in spec.heterogeneous_target.params:
            yield param.target.target_ref.name, param.min_replicas, param.max_replicas
    if (several := spec.disaggregated_target) is not None:
        for role, bounds in several.roles.items():
            yield f"{several.target_ref.name}/{role}", bounds.min_replicas, bounds.max_replicas


def text(found: Mapping[str, Any]) -> str:
    """As people read it."""
    lines = [f"{found['message']} (namespace {found['metadata']['namespace']})"]
    lines += [f"  {said}" for said in found["complaints"]]
    lines += ["", f"holds {', '.join(found['metrics'])}"] if found["metrics"] else []
    for one in found["scaled"]:
        state = f"; {one['current']} now, {one['wanted']} wanted" if "current" in one else ""
        last = f", last changed {one['lastScaled']}" if one.get("lastScaled") else ""
        lines.append(f"{one['name']}: between {one['min']} and {one['max']}{state}{last}")
    return "\n".join(lines)
