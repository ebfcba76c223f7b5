"""What pods of one template have in common, read once: a start with 150,000 pods meets a few hundred templates.

Pods that are decoded by `kube/sharing.py` share the parts of their specs, so a template is known by the identity of its
list of containers, and by those annotations and labels that anybody in placement reads. Each pod adds its name, its time
and how it fares (`kubernetes.py`, `volcano.py`). What depends on other objects or on the pod's name is no template's.
"""

from collections import OrderedDict
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import msgspec

from hekla.api.pods import Pod
from hekla.dialects.eviction_terms import COOLDOWN_KEY, PREEMPTABLE_KEY, never_preempts, terms
from hekla.dialects.pod_constraints import pod_constraints
from hekla.dialects.pod_devices import NO_CLAIMS, device_demands
from hekla.dialects.pod_requests import pod_limits, pod_request
from hekla.dialects.pod_volumes import has_demands, volume_demands
from hekla.dialects.surroundings import Surroundings
from hekla.dialects.traits import pod_traits
from hekla.lib.quantity import QuantityError
from hekla.placement.constraint import Constraints, Refusal
from hekla.placement.model import TaskSpec
from hekla.placement.plugins.conformance import SYSTEM_PRIORITY

ROLE_KEY = "volcano.sh/task-spec"
PRIORITY_KEY = "volcano.sh/task-priority"

QUEUE_GATE = "scheduling.volcano.sh/queue-allocation-gate"
"""The annotation by which a pod asks to be held back until its queue has room, and the gate that holds it."""

_INT32 = 2**31

MOST_TEMPLATES = 8192
"""Templates that are remembered; the oldest goes."""

_DOMAINS = ("volcano.sh/", "hekla.dev/", "scheduling.")
"""How annotations begin that placement may read; others differ from pod to pod and change nothing."""

_parts_of = attrgetter(
    "containers", "init_containers", "volumes", "node_selector", "tolerations", "overhead", "resources", "affinity",
    "topology_spread_constraints", "scheduling_gates", "resource_claims", "host_network", "priority", "termination_grace_period_seconds",
)  # fmt: skip
"""All of a pod's spec that a template is read from."""

_Key = tuple[int, tuple[str | None, ...], tuple[tuple[str, str], ...], bool]
_known: OrderedDict[_Key, tuple[Any, TaskSpec]] = OrderedDict()
"""By the identity of the list of containers, with all parts: while they are kept, no other list can have it."""


def template(pod: Pod, around: Surroundings) -> TaskSpec:
    """The task of a pod but for its name, its namespace, its labels, its time, and how it fares."""
    spec, labels, annotations = pod.spec, pod.metadata.labels, pod.metadata.annotations
    if _depends_on_others(pod):
        return _read(pod, around)
    parts = _parts_of(spec)
    key = (
        id(spec.containers),
        (labels.get(ROLE_KEY), labels.get(PREEMPTABLE_KEY), labels.get(COOLDOWN_KEY)) if labels else (),
        tuple(item for item in annotations.items() if item[0].startswith(_DOMAINS)) if annotations else (),
        never_preempts(pod, around),
    )
    known = _known.get(key)
    if known is None or known[0] != parts:  # parts that are shared are the same objects, which is quick to see
        known = _known[key] = (parts, _read(pod, around))
        if len(_known) > MOST_TEMPLATES:
            _known.popitem(last=False)
    return known[1]


def _read(pod: Pod, around: Surroundings) -> TaskSpec:
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    request, limits, constraints, volumes, claims = _demands(pod, around)
    return TaskSpec(
        uid="",
        name="",
        request=request,
        limits=limits,
        constraints=constraints,
        volumes=volumes,
        device_claims=claims,
        role=annotations.get(ROLE_KEY) or labels.get(ROLE_KEY, ""),
        priority=_priority(pod),
        is_gated=bool(pod.spec.scheduling_gates),
        asks_queue=_asks_queue(pod),
        **terms(pod, around),
    )


def _asks_queue(pod: Pod) -> bool:
    """Whether the pod's queue opens its gate: it says so, and has no other gate."""
    if pod.metadata.annotations.get(QUEUE_GATE) != "true":
        return False
    return all(gate.name == QUEUE_GATE for gate in pod.spec.scheduling_gates)


Demands = tuple[Mapping[str, int], Mapping[str, int], Constraints, tuple[tuple[str, str], ...], tuple[str, ...]]
"""Request, limits, constraints, which volumes are attached, and which resource claims are used."""

_known_demands: OrderedDict[bytes, Demands] = OrderedDict()
_encode = msgspec.msgpack.Encoder().encode


def _demands(pod: Pod, around: Surroundings) -> Demands:
    """Request and constraints. Pods of which nothing is shared, because each mounts a volume of its own name, have equal ones."""
    spec = pod.spec
    if _depends_on_others(pod):
        return _read_demands(pod, around)
    parts = [(c.resources, c.ports, c.image, c.restart_policy) for c in (*spec.containers, *spec.init_containers)]
    key = _encode((
        len(spec.containers), parts, spec.node_selector, spec.tolerations, spec.overhead, spec.resources, spec.host_network,
        pod_traits(pod),
    ))  # fmt: skip
    known = _known_demands.get(key)
    if known is None:
        known = _known_demands[key] = _read_demands(pod, around)
        if len(_known_demands) > MOST_TEMPLATES:
            _known_demands.popitem(last=False)
    return known


def _read_demands(pod: Pod, around: Surroundings) -> Demands:
    try:
        request, volumes = pod_request(pod.spec), volume_demands(pod, around)
        devices = device_demands(pod, around) if pod.spec.resource_claims else NO_CLAIMS
        constraints = pod_constraints(pod, around, volumes, devices)
        return request, pod_limits(pod.spec, request), constraints, volumes.attached, devices.names
    except (QuantityError, ValueError) as error:
        return {}, {}, Constraints(blocked=Refusal("invalid-pod", f"pod cannot be understood: {error}")), (), ()


def _depends_on_others(pod: Pod) -> bool:
    """Whether the demands depend on the pod's namespace and labels, or on other objects."""
    spec = pod.spec
    if spec.affinity is not None or spec.topology_spread_constraints or spec.resource_claims:
        return True
    return has_demands(pod)


def _priority(pod: Pod) -> int:
    """The pod's priority, or what an annotation says in its place; one that is no number of 32 bits says nothing.

    What keeps system pods from being evicted (`plugins/conformance.py`) is neither got nor lost by an annotation: it goes with
    a priority class, whose use can be restricted.
    """
    own, text = pod.spec.priority or 0, pod.metadata.annotations.get(PRIORITY_KEY, "")
    if not text:
        return own  # most pods; raising and catching an error for each took 2 % of a large start
    try:
        told = int(text)
    except ValueError:
        return own
    if not -_INT32 <= told < _INT32:
        return own
    return max(told, SYSTEM_PRIORITY) if own >= SYSTEM_PRIORITY else min(told, SYSTEM_PRIORITY - 1)
