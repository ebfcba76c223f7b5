"""What a pod demands of a node, in the engine's words."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from hekla.api.pod_scheduling import PodAffinityTerm, TopologySpreadConstraint
from hekla.api.pods import Pod
from hekla.api.selectors import LabelSelector
from hekla.dialects.node_terms import label_requirements, node_term
from hekla.dialects.pod_devices import NO_CLAIMS, DeviceDemands
from hekla.dialects.pod_requests import pod_unasked
from hekla.dialects.pod_volumes import VolumeDemands
from hekla.dialects.surroundings import Surroundings
from hekla.dialects.traits import pod_traits
from hekla.placement.constraint import (
    Constraints,
    Effect,
    HostPort,
    NodeTerm,
    Operator,
    PodSelector,
    PodTerm,
    PreferredPodTerm,
    PreferredTerm,
    Requirement,
    Toleration,
    TopologySpread,
)  # fmt: skip


def pod_constraints(
    pod: Pod, around: Surroundings, volumes: VolumeDemands, devices: DeviceDemands = NO_CLAIMS
) -> Constraints:
    """All demands of a pod besides resources, those of its volumes and resource claims included."""
    spec = pod.spec
    affinity = spec.affinity
    near = affinity.pod_affinity if affinity else None
    apart = affinity.pod_anti_affinity if affinity else None
    return Constraints(
        selector=tuple(sorted(spec.node_selector.items())),
        node_affinity=_required_nodes(pod),
        preferred_nodes=_preferred_nodes(pod),
        tolerations=tuple(
            Toleration(t.key, t.operator or "Equal", t.value, Effect(t.effect) if t.effect else None)
            for t in spec.tolerations
        ),
        affinity=_terms(pod, near.required_during_scheduling_ignored_during_execution if near else (), around),
        anti_affinity=_terms(pod, apart.required_during_scheduling_ignored_during_execution if apart else (), around),
        preferred_pods=_preferred_pods(pod, around),
        spreads=tuple(_spread(pod, constraint) for constraint in spec.topology_spread_constraints),
        ports=_ports(pod),
        volume_terms=volumes.terms,
        volume_zones=volumes.zones,
        storage_terms=volumes.storage,
        unbound_claims=volumes.unbound,
        attaches=tuple(Counter(driver for driver, _ in volumes.attached).items()),
        disks=volumes.disks,
        exclusive_claims=volumes.exclusive,
        device_claims=devices.claims,
        images=_images(pod),
        unasked=pod_unasked(spec),
        blocked=volumes.blocked or devices.blocked,
        traits=pod_traits(pod),
    )


def _images(pod: Pod) -> tuple[str, ...]:
    """As nodes name them; two containers of one image count it twice, as kube-scheduler does."""
    names = (container.image for container in (*pod.spec.init_containers, *pod.spec.containers))
    return tuple(sorted(name if ":" in name.rpartition("/")[2] else f"{name}:latest" for name in names if name))


def _required_nodes(pod: Pod) -> tuple[NodeTerm, ...] | None:
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    return tuple(node_term(term) for term in required.node_selector_terms) if required is not None else None


def _preferred_nodes(pod: Pod) -> tuple[PreferredTerm, ...]:
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    wishes = affinity.preferred_during_scheduling_ignored_during_execution if affinity else ()
    return tuple(PreferredTerm(w.weight, node_term(w.preference)) for w in wishes if w.preference is not None)


def _preferred_pods(pod: Pod, around: Surroundings) -> tuple[PreferredPodTerm, ...]:
    affinity = pod.spec.affinity
    near = affinity.pod_affinity if affinity else None
    apart = affinity.pod_anti_affinity if affinity else None
    liked = near.preferred_during_scheduling_ignored_during_execution if near else ()
    disliked = apart.preferred_during_scheduling_ignored_during_execution if apart else ()
    signed = [(w.weight, w.pod_affinity_term) for w in liked] + [(-w.weight, w.pod_affinity_term) for w in disliked]
    return tuple(PreferredPodTerm(weight, _term(pod, term, around)) for weight, term in signed if term is not None)


def _terms(pod: Pod, terms: Iterable[PodAffinityTerm], around: Surroundings) -> tuple[PodTerm, ...]:
    return tuple(_term(pod, term, around) for term in terms)


def _term(pod: Pod, term: PodAffinityTerm, around: Surroundings) -> PodTerm:
    labels = pod.metadata.labels
    extra = (
        *_by_keys(term.match_label_keys, labels, Operator.IN),
        *_by_keys(term.mismatch_label_keys, labels, Operator.NOT_IN),
    )
    return PodTerm(term.topology_key, _selector(term.label_selector, extra, _namespaces(pod, term, around)))


def _namespaces(pod: Pod, term: PodAffinityTerm, around: Surroundings) -> frozenset[str] | None:
    """The pod's own namespace unless the term names or selects others; an empty selector selects all (None)."""
    chosen = term.namespace_selector
    if chosen is None:
        return frozenset(term.namespaces or (pod.metadata.namespace,))
    if not chosen.match_labels and not chosen.match_expressions:
        return None
    return frozenset(term.namespaces) | around.namespaces(chosen)


def _spread(pod: Pod, constraint: TopologySpreadConstraint) -> TopologySpread:
    """A selector that demands nothing counts nobody here, where elsewhere it means everybody: so kube-scheduler counts."""
    extra = _by_keys(constraint.match_label_keys, pod.metadata.labels, Operator.IN)
    selector = _selector(constraint.label_selector, extra, frozenset((pod.metadata.namespace,)))
    return TopologySpread(
        constraint.topology_key,
        constraint.max_skew,
        selector if selector.labels else replace(selector, matches_nothing=True),
        is_hard=constraint.when_unsatisfiable != "ScheduleAnyway",
        min_domains=constraint.min_domains or 1,
        honours_affinity=constraint.node_affinity_policy != "Ignore",
        honours_taints=constraint.node_taints_policy == "Honor",
    )


def _selector(
    selector: LabelSelector | None, extra: tuple[Requirement, ...], namespaces: frozenset[str] | None
) -> PodSelector:
    if selector is None:
        return PodSelector(namespaces=namespaces, matches_nothing=True)
    own = label_requirements(selector)
    # The API server merges the keys into the selector; they must not count twice, or equal terms would look different.
    return PodSelector((*own, *(r for r in extra if r not in own)), namespaces)


def _by_keys(keys: Iterable[str], labels: Mapping[str, str], operator: Operator) -> tuple[Requirement, ...]:
    return tuple(Requirement(key, operator, (labels[key],)) for key in keys if key in labels)


def _ports(pod: Pod) -> tuple[HostPort, ...]:
    """Host ports of all containers; with the host's network every container port is one."""
    taken = set()
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        for port in container.ports:
            number = port.host_port or (port.container_port if pod.spec.host_network else 0)
            if number:
                ip = "" if port.host_ip in {"", "0.0.0.0"} else port.host_ip
                taken.add(HostPort(port.protocol or "TCP", number, ip))
    return tuple(sorted(taken, key=lambda port: (port.protocol, port.port, port.ip)))
