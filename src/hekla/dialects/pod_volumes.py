"""Which nodes a pod's volumes allow, and whether they allow any yet.

A bound claim allows the nodes that reach its volume. An unbound one whose class waits for its first consumer allows
the class's topologies, or the nodes of a free volume that would do; any other unbound claim must be bound first.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from hekla.api.pod_scheduling import NodeSelectorTerm
from hekla.api.pods import Pod
from hekla.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from hekla.dialects.node_terms import node_term
from hekla.dialects.surroundings import Surroundings
from hekla.lib import quantity
from hekla.placement.constraint import NodeTerm, Operator, Refusal, Requirement

SELECTED_NODE = "volume.kubernetes.io/selected-node"
NO_PROVISIONER = "kubernetes.io/no-provisioner"
ONE_POD = "ReadWriteOncePod"


@dataclass(frozen=True, kw_only=True)
class VolumeDemands:
    """What a pod's volumes demand."""

    terms: tuple[tuple[NodeTerm, ...], ...] = ()
    exclusive: tuple[str, ...] = ()
    blocked: Refusal | None = None


NO_DEMANDS = VolumeDemands()


def volume_demands(pod: Pod, around: Surroundings) -> VolumeDemands:
    """The demands of all claims of a pod; the first that blocks it decides."""
    names = list(claim_names(pod))
    if not names:
        return NO_DEMANDS
    terms: list[tuple[NodeTerm, ...]] = []
    exclusive: list[str] = []
    for name in names:
        found = _claim_demands(pod, name, around)
        if found.blocked is not None:
            return found
        terms += found.terms
        exclusive += found.exclusive
    return VolumeDemands(terms=tuple(terms), exclusive=tuple(exclusive))


def claim_names(pod: Pod) -> Iterator[str]:
    """The claims a pod uses, those made for it (`<pod>-<volume>`) included."""
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name
        elif volume.ephemeral is not None:
            yield f"{pod.metadata.name}-{volume.name}"


def waits_for_consumer(claim: PersistentVolumeClaim, around: Surroundings) -> bool:
    """Whether a claim is bound only once a node has been chosen for its first pod."""
    if claim.spec.volume_name:
        return False
    storage_class = around.storage_class(claim.spec.storage_class_name)
    return storage_class is not None and storage_class.volume_binding_mode == "WaitForFirstConsumer"


def _claim_demands(pod: Pod, name: str, around: Surroundings) -> VolumeDemands:
    claim = around.claim(pod.metadata.namespace, name)
    if claim is None:
        return _blocked("claim-missing", f'persistentvolumeclaim "{name}" not found')
    if claim.metadata.deletion_timestamp:
        return _blocked("claim-leaving", f'persistentvolumeclaim "{name}" is being deleted')
    exclusive = (f"{pod.metadata.namespace}/{name}",) if ONE_POD in claim.spec.access_modes else ()
    if claim.spec.volume_name:
        volume = around.volume(claim.spec.volume_name)
        if volume is None:
            lost = f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{claim.spec.volume_name}"'
            return _blocked("volume-missing", lost)
        return VolumeDemands(terms=_reach(volume), exclusive=exclusive)
    storage_class = around.storage_class(claim.spec.storage_class_name)
    if storage_class is None or storage_class.volume_binding_mode != "WaitForFirstConsumer":
        return _blocked("claim-unbound", "pod has unbound immediate PersistentVolumeClaims")
    return _unbound(claim, storage_class, exclusive, around)


def _unbound(
    claim: PersistentVolumeClaim, storage_class: StorageClass, exclusive: tuple[str, ...], around: Surroundings
) -> VolumeDemands:
    """Of a claim that waits for its first consumer: the node chosen before, free volumes, or the class's topologies."""
    chosen = claim.metadata.annotations.get(SELECTED_NODE)
    if chosen:
        here = NodeTerm(names=(Requirement("metadata.name", Operator.IN, (chosen,)),))
        return VolumeDemands(terms=((here,),), exclusive=exclusive)
    if storage_class.provisioner == NO_PROVISIONER:
        fitting = [v for v in around.volumes_of_class(claim.spec.storage_class_name) if _would_do(v, claim)]
        if not fitting:
            return _blocked("no-volume", "node(s) didn't find available persistent volumes to bind")
        if any(not _reach(volume) for volume in fitting):
            return VolumeDemands(exclusive=exclusive)
        return VolumeDemands(
            terms=(tuple(t for v in fitting for terms in _reach(v) for t in terms),), exclusive=exclusive
        )
    topologies = tuple(_topology(e.match_label_expressions) for e in storage_class.allowed_topologies)
    return VolumeDemands(terms=(topologies,) if topologies else (), exclusive=exclusive)


def _topology(expressions: list) -> NodeTerm:  # type: ignore[type-arg]  # TopologySelectorLabelRequirement
    return NodeTerm(labels=tuple(Requirement(e.key, Operator.IN, tuple(e.values)) for e in expressions))


def _reach(volume: PersistentVolume) -> tuple[tuple[NodeTerm, ...], ...]:
    """The nodes that reach a volume: one list of terms, or none at all for a volume that is reached everywhere."""
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return ()
    terms: list[NodeSelectorTerm] = affinity.required.node_selector_terms
    return (tuple(node_term(term) for term in terms),)


def _would_do(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Whether a free volume is large enough and offers what the claim wants."""
    holder = volume.spec.claim_ref
    if holder is not None and (holder.namespace, holder.name) != (claim.metadata.namespace, claim.metadata.name):
        return False
    if volume.status.phase not in {"", "Available"} and holder is None:
        return False
    wanted = claim.spec.resources.requests.get("storage", "0") if claim.spec.resources else "0"
    has = quantity.to_int(volume.spec.capacity.get("storage", "0"))
    return has >= quantity.to_int(wanted) and set(claim.spec.access_modes) <= set(volume.spec.access_modes)


def _blocked(code: str, sentence: str) -> VolumeDemands:
    return VolumeDemands(blocked=Refusal(code, sentence))
