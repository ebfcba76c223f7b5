"""Which pods a node runs as sandboxes: what would open the host to them, or what it cannot keep, is refused with a sentence. Pure."""

from hekla.api.agents.names import MIN_ISOLATION
from hekla.api.agents.node_contract import keeps
from hekla.api.pods import Pod
from hekla.node.admission import Refusal


def sandbox_refusal_of(pod: Pod, runtime: str, isolation: str, why_none: str) -> Refusal | None:
    """Why this pod must not run in a sandbox here; None if it may. `why_none` says that no sandbox can run here at all."""
    name = pod.metadata.name
    if why_none:
        return Refusal("SandboxUnavailable", f'no pod of runtime class "{runtime}" can run on this node: {why_none}')
    demanded = pod.metadata.annotations.get(MIN_ISOLATION, "")
    if not keeps(isolation, demanded):
        return Refusal(
            "Isolation",
            f'pod "{name}" demands isolation "{demanded}" ({MIN_ISOLATION}); runtime "{runtime}" of this node has "{isolation}"',
        )
    spec = pod.spec
    for field, is_set in (("hostNetwork", spec.host_network), ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc)):
        if is_set:
            return Refusal("SandboxNotAllowed", f'pod "{name}" sets {field}; a sandbox shares nothing with its host')
    for volume in spec.volumes:
        if volume.host_path is not None:
            return Refusal(
                "SandboxNotAllowed",
                f'volume "{volume.name}" of pod "{name}" is a hostPath; a sandbox sees nothing of its host',
            )
    if len(spec.containers) != 1 or spec.init_containers:
        return Refusal(
            "SandboxNotAllowed",
            f'pod "{name}" has {len(spec.containers)} containers and {len(spec.init_containers)} init containers; '
            "a sandbox has one container and no init containers",
        )
    security = spec.containers[0].security_context
    if security is not None and security.privileged:
        return Refusal("SandboxNotAllowed", f'container "{spec.containers[0].name}" is privileged; no sandbox is')
    return None
