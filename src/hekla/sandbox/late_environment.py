"""Environment that a claim brings to a Sandbox whose pod runs already: the daemon inside gives it to every command and interpreter.

    SandboxClaim --adoption--> Sandbox's spec --annotation--> pod --node agent--> daemon; the pod's condition says when it is done

A pod with a command of its own began without the variables, and nobody can give them to it: the node says so, and the pod is made
anew. Pods that are made later have them from their Sandbox's spec, as always. `node/late_environment.py` does the node's part.
"""

import msgspec

from hekla.api.agents import Sandbox, SandboxClaim, SandboxTemplate, names
from hekla.api.meta import Document
from hekla.api.pods import Pod, PodCondition
from hekla.sandbox.owning import controller_of


def can_follow(claim: SandboxClaim, template: SandboxTemplate, *, has_runtime: bool) -> bool:
    """Whether the claim's variables can come to a pod of the template that runs already."""
    if not claim.spec.env:
        return True
    spec = template.spec.pod_template.spec
    containers = spec.get("containers") or [{}]
    first: Document = containers[0]
    return (
        has_runtime
        and (spec.get("runtimeClassName") or names.RUNTIME_CLASS) in names.RUNTIMES_WITH_DAEMON
        and not first.get("command")
        and not first.get("args")
        and all(one.container_name in ("", first.get("name")) for one in claim.spec.env)
    )


def with_environment(sandbox: Sandbox, claim: SandboxClaim) -> list[Document]:
    """The containers of a Sandbox whose first one has the claim's variables, too."""
    first, *others = sandbox.spec.pod_template.spec["containers"]
    brought = {one.name: one.value for one in claim.spec.env}
    kept = [one for one in first.get("env") or () if one.get("name") not in brought]
    added = [{"name": name, "value": value} for name, value in brought.items()]
    return [{**first, "env": [*kept, *added]}, *others]


def missing_environment(sandbox: Sandbox, pod: Pod) -> dict[str, str]:
    """Variables that a claimed Sandbox has and its pod, which was there before the claim, began without."""
    owner = controller_of(sandbox)
    is_claimed = owner is not None and owner.kind == SandboxClaim.kind_info.kind
    if not is_claimed or sandbox.metadata.labels.get(names.LAUNCH_TYPE) != "warm" or not pod.spec.containers:
        return {}
    began_with = {one.name: one.value for one in pod.spec.containers[0].env if one.value_from is None}
    containers = sandbox.spec.pod_template.spec.get("containers") or [{}]
    wanted = {
        one["name"]: one.get("value", "") for one in containers[0].get("env") or () if not one.get("valueFrom")
    }  # fmt: skip
    return {name: value for name, value in sorted(wanted.items()) if began_with.get(name) != value}


def note(sandbox: Sandbox, pod: Pod) -> dict[str, str]:
    """What the pod is told: an annotation with the variables that it lacks, if it lacks any."""
    missing = missing_environment(sandbox, pod)
    return {names.LATE_ENVIRONMENT: msgspec.json.encode(missing).decode()} if missing else {}


def is_awaited(sandbox: Sandbox, pod: Pod) -> bool:
    """Whether the container that runs has yet to be given variables."""
    if not missing_environment(sandbox, pod):
        return False
    said, statuses = _said(pod), pod.status.container_statuses
    running = statuses[0].container_id if statuses else ""
    return said is None or said.status != "True" or said.message != running


def cannot_have_it(sandbox: Sandbox, pod: Pod) -> bool:
    """Whether its node says that only a new pod can have the variables."""
    said = _said(pod)
    return said is not None and said.reason == names.ENVIRONMENT_OWN_COMMAND and bool(missing_environment(sandbox, pod))


def _said(pod: Pod) -> PodCondition | None:
    return next((one for one in pod.status.conditions if one.type == names.ENVIRONMENT_CONDITION), None)
