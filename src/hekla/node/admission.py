"""Whether a node takes a pod that was bound to it: the last check, against mistakes of whoever placed it.

Pure. Reasons and sentences are the kubelet's. Devices are handed out here too: which GPUs of its node a pod sees.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from hekla.api.containers import Container
from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.lib import quantity
from hekla.node.pod_lifecycle import is_sidecar

GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not."""

    reason: str
    message: str


def requests_of(pod: Pod) -> dict[str, int]:
    """What a pod needs, in milli-units: containers together, or the hungriest init container with its sidecars."""
    total: dict[str, int] = {}
    for container in pod.spec.containers:
        _add(total, _requests(container))
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in pod.spec.init_containers:
        if is_sidecar(container):
            _add(sidecars, _requests(container))
            _raise(peak, sidecars)
        else:
            alone = _requests(container)
            _add(alone, sidecars)
            _raise(peak, alone)
    _add(total, sidecars)
    _raise(total, peak)
    _add(total, {name: quantity.to_milli(text) for name, text in pod.spec.overhead.items()})
    total["pods"] = 1000
    return total


def refusal_of(pod: Pod, node: Node, admitted: Iterable[Mapping[str, int]]) -> Refusal | None:
    """Why the node must not run the pod beside what was admitted, which needs so much each; None if it may."""
    for key, value in pod.spec.node_selector.items():
        if node.metadata.labels.get(key) != value:
            return Refusal(
                "NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
            )
    used: dict[str, int] = {}
    for other in admitted:
        _add(used, other)
    for name, wanted in sorted(requests_of(pod).items()):
        allocatable = quantity.to_milli(node.status.allocatable.get(name, "0"))
        if wanted and used.get(name, 0) + wanted > allocatable:
            return _out_of(name, wanted, used.get(name, 0), allocatable)
    return None


def uninvited(pod: Pod, taints: Iterable[Mapping[str, str]], runtimes: Collection[str]) -> Refusal | None:
    """Why a guest in somebody else's cluster must not run the pod, though it was bound here: it tolerates any taint, as the pods of
    DaemonSets do that are part of a cluster's network, and never asked for a node that runs pods as processes of its machine.
    """
    keys = {taint["key"] for taint in taints}
    if not keys or pod.spec.runtime_class_name in runtimes or any(one.key in keys for one in pod.spec.tolerations):
        return None
    message = (
        f"node runs only pods that tolerate {' or '.join(sorted(keys))} by name, or name a runtime class of Hekla's"
    )
    return Refusal("TaintToleration", message)


def no_process(pod: Pod) -> Refusal:
    """Why a guest that takes sandboxes alone does not run a pod."""
    message = (
        f'pod "{pod.metadata.name}" would be a process of the machine, on its network, and this node takes sandboxes; '
        "name a runtime class that isolates (sandbox, oci, microvm), or start the node with --allow-processes"
    )
    return Refusal("ProcessesNotAllowed", message)


def _out_of(name: str, wanted: int, used: int, allocatable: int) -> Refusal:
    scale = 1 if name == "cpu" else 1000
    figures = f"requested: {wanted // scale}, used: {used // scale}, capacity: {allocatable // scale}"
    if "/" in name:
        return Refusal(
            "UnexpectedAdmissionError", f"Allocate failed due to not enough {name}, {figures}, which is unexpected"
        )
    return Refusal(f"OutOf{name}", f"Node didn't have enough resource: {name}, {figures}")


def _requests(container: Container) -> dict[str, int]:
    wanted = container.resources
    if wanted is None:
        return {}
    merged = {**{name: text for name, text in wanted.limits.items() if name not in wanted.requests}, **wanted.requests}
    return {name: quantity.to_milli(text) for name, text in merged.items()}


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _raise(total: dict[str, int], floor: Mapping[str, int]) -> None:
    for name, amount in floor.items():
        total[name] = max(total.get(name, 0), amount)


@dataclass(slots=True)
class DeviceLedger:
    """Which devices of one node each pod's containers hold. Virtual ones: a number is all there is to them."""

    held: dict[tuple[str, str, str], tuple[int, ...]] = field(default_factory=dict)
    """(resource, pod uid, container): indices."""

    def take(self, resource: str, capacity: int, pod_uid: str, container: str, count: int) -> tuple[int, ...] | None:
        """The container's devices, the lowest free ones; the same on every call; None if there are too few."""
        key = (resource, pod_uid, container)
        if key not in self.held:
            taken = {each for (name, _, _), held in self.held.items() if name == resource for each in held}
            free = [index for index in range(capacity) if index not in taken]
            if len(free) < count:
                return None
            self.held[key] = tuple(free[:count])
        return self.held[key]

    def hold(self, resource: str, pod_uid: str, container: str, indices: tuple[int, ...]) -> None:
        """The container has these already."""
        self.held[resource, pod_uid, container] = indices

    def release(self, pod_uid: str) -> None:
        """The pod is gone or has ended."""
        for key in [key for key in self.held if key[1] == pod_uid]:
            del self.held[key]


def gpu_request(container: Container) -> tuple[str, int]:
    """Which GPU resource a container asks for, and how many; ("", 0) if none."""
    for resource in GPU_RESOURCES:
        count = _requests(container).get(resource, 0) // 1000
        if count:
            return resource, count
    return "", 0


def gpu_environment(resource: str, indices: tuple[int, ...]) -> dict[str, str]:
    """How a container is told which GPUs are its own."""
    listed = ",".join(str(each) for each in indices)
    if resource == "amd.com/gpu":
        return {"ROCR_VISIBLE_DEVICES": listed, "HIP_VISIBLE_DEVICES": listed}
    return {"NVIDIA_VISIBLE_DEVICES": listed, "CUDA_VISIBLE_DEVICES": listed}
