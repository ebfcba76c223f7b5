"""What a pod demands of a node besides resources: selectors, tolerations, affinities, ports, spread.

All values are frozen and hashable, so that two pods with equal demands are recognised as one shape. `filters/` says
what each demand means; `dialects/kubernetes.py` reads them from a pod.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, reduce
from typing import TYPE_CHECKING

from hekla.placement.named_jobs import Telling, told_to

if TYPE_CHECKING:
    from hekla.placement.devices.claims import DeviceClaim


class Operator(StrEnum):
    """How a requirement compares a label's value."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


class Effect(StrEnum):
    """What a taint does to pods that do not tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One demand on one label."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels meets the demand."""
        value = labels.get(self.key)
        match self.operator:
            case Operator.IN:
                return value is not None and value in self.values
            case Operator.NOT_IN:
                return value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.DOES_NOT_EXIST:
                return value is None
            case Operator.GT:
                return _is_ordered(self.values, value)
            case Operator.LT:
                return _is_ordered((value,), self.values[0] if self.values else None)


def _is_ordered(low: tuple[str | None, ...], high: str | None) -> bool:
    """Whether both are integers and the first is smaller; text that is no number satisfies nothing."""
    try:
        return int(low[0] or "") < int(high or "")
    except (ValueError, IndexError):
        return False


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """Demands on a node that must all hold; `names` are demands on its name. An empty term matches nothing."""

    labels: tuple[Requirement, ...] = ()
    names: tuple[Requirement, ...] = ()


@dataclass(frozen=True, slots=True)
class PreferredTerm:
    """A node term that is liked, not demanded."""

    weight: int
    term: NodeTerm


@dataclass(frozen=True, slots=True)
class Taint:
    """A node's wish to be left alone."""

    key: str
    value: str
    effect: Effect


@dataclass(frozen=True, slots=True)
class Toleration:
    """A pod's answer to taints; empty key tolerates every key, effect None every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: Effect | None = None

    def tolerates(self, taint: Taint) -> bool:
        """Whether this taint is answered."""
        if self.effect is not None and self.effect is not taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator == "Exists":
            return True
        return bool(self.key) and self.value == taint.value


@dataclass(frozen=True, slots=True)
class PodSelector:
    """Which pods are meant: by labels, and by namespace (None means every namespace)."""

    labels: tuple[Requirement, ...] = ()
    namespaces: frozenset[str] | None = frozenset()
    matches_nothing: bool = False
    """True for an absent selector, which Kubernetes reads as "no pod"."""

    def matches(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether a pod is selected."""
        if self.matches_nothing or (self.namespaces is not None and namespace not in self.namespaces):
            return False
        return all(requirement.matches(labels) for requirement in self.labels)

    def and_(self, other: "PodSelector") -> "PodSelector":
        """The pods that both select."""
        mine, others = self.namespaces, other.namespaces
        return PodSelector(
            (*self.labels, *(each for each in other.labels if each not in self.labels)),
            others if mine is None else mine if others is None else mine & others,
            self.matches_nothing or other.matches_nothing,
        )


@dataclass(frozen=True, slots=True)
class PodTerm:
    """Nearness to, or distance from, the pods of a selector, within the domains of a topology key."""

    topology_key: str
    selector: PodSelector


@dataclass(frozen=True, slots=True)
class PreferredPodTerm:
    """A pod term that is liked; a negative weight means disliked."""

    weight: int
    term: PodTerm


@dataclass(frozen=True, slots=True)
class TopologySpread:
    """A topology spread constraint: the domains' counts of selected pods differ by at most `max_skew`."""

    topology_key: str
    max_skew: int
    selector: PodSelector
    is_hard: bool = True
    min_domains: int = 1
    honours_affinity: bool = True
    honours_taints: bool = False


@dataclass(frozen=True, slots=True)
class HostPort:
    """A port that a pod takes on its node's address; `ip` "" means every address."""

    protocol: str
    port: int
    ip: str = ""


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk of a cloud that a pod mounts by its own name; only readers share one on a node."""

    name: str
    is_read_only: bool = False


@dataclass(frozen=True, slots=True)
class FreeVolume:
    """A volume that nobody has claimed: its size, and from where it is reached (None: from everywhere)."""

    name: str
    capacity: int
    terms: tuple[NodeTerm, ...] | None = None


@dataclass(frozen=True, slots=True)
class UnboundClaim:
    """What a claim without a volume asks for, and the free volumes that would do, the smallest first."""

    storage_class: str
    requested: int
    choices: tuple[FreeVolume, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something is refused: a stable code for programs, a phrase for people that is counted over nodes."""

    code: str
    sentence: str
    """For everybody who may read about what is refused: in the pieces of `telling` jobs of other namespaces have names."""

    telling: Telling = ()
    """The sentence in pieces, if it names jobs."""

    @classmethod
    def naming(cls, code: str, telling: Telling, namespace: str) -> "Refusal":
        """A refusal that names jobs, of something in this namespace."""
        return cls(code, told_to(telling, lambda other: other == namespace), telling)

    def told_to(self, may_see: Callable[[str], bool]) -> str:
        """The sentence, for somebody who may see what is in these namespaces."""
        return told_to(self.telling, may_see) if self.telling else self.sentence


@dataclass(frozen=True)
class Constraints:
    """Everything that a pod demands of a node besides resources."""

    node_name: str = ""
    selector: tuple[tuple[str, str], ...] = ()
    node_affinity: tuple[NodeTerm, ...] | None = None
    """Terms of which one must hold; None when the pod has no node affinity."""

    preferred_nodes: tuple[PreferredTerm, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    affinity: tuple[PodTerm, ...] = ()
    anti_affinity: tuple[PodTerm, ...] = ()
    preferred_pods: tuple[PreferredPodTerm, ...] = ()
    spreads: tuple[TopologySpread, ...] = ()
    ports: tuple[HostPort, ...] = ()
    volume_terms: tuple[tuple[NodeTerm, ...], ...] = ()
    """Per bound volume, the node terms of which one must hold."""

    volume_zones: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Per label of a bound volume that names zones or regions, its values: the node is in one of them."""

    storage_terms: tuple[tuple[NodeTerm, ...], ...] = ()
    """Per volume that is still to be made, the nodes from which enough room is reached."""

    unbound_claims: tuple[UnboundClaim, ...] = ()
    """What claims ask for that are to be bound to one of the free volumes, those with fewest choices first."""

    attaches: tuple[tuple[str, int], ...] = ()
    """By driver, how many volumes are attached to the pod's node; which ones, its task says."""

    disks: tuple[Disk, ...] = ()
    exclusive_claims: tuple[str, ...] = ()
    """Claims (`namespace/name`) that only one pod at a time may use: access mode ReadWriteOncePod."""

    device_claims: "tuple[DeviceClaim, ...]" = ()
    """What its resource claims ask for; which claims these are, its task says."""

    images: tuple[str, ...] = ()
    """Of its containers, with their tags; an image of two containers is there twice."""

    unasked: tuple[tuple[str, int], ...] = ()
    """What it is counted as, by resource, beyond its request, where it is compared how full nodes are."""

    blocked: Refusal | None = None
    """Why no node at all can take the pod for now (a claim that does not exist); None if nothing blocks it."""

    traits: tuple[tuple[str, Hashable], ...] = ()
    """What plug-ins read of the pod: its annotations by name, and what a `Reader` adds of its job and queue."""

    is_single: bool = False
    """Whether a plug-in decides on each such pod by itself; a `Reader` says so."""

    @cached_property
    def is_local(self) -> bool:
        """Whether where other pods run makes no difference to this one's own demands."""
        return not (
            self.is_single or self.affinity or self.anti_affinity or self.preferred_pods or self.spreads or self.ports
            or self.exclusive_claims or self.unbound_claims or self.attaches or self.disks
            or self.device_claims
        )  # fmt: skip

    @cached_property
    def company(self) -> tuple[PodTerm, ...]:
        """Its affinity terms as they are counted: by pods that meet all of them at once, as kube-scheduler does."""
        if len(self.affinity) < 2:
            return self.affinity
        everybody = reduce(PodSelector.and_, (term.selector for term in self.affinity))
        return tuple(PodTerm(term.topology_key, everybody) for term in self.affinity)

    def trait(self, name: str) -> Hashable:
        """What is known of the pod under this name; None if nothing."""
        return next((value for key, value in self.traits if key == name), None)

    def __hash__(self) -> int:
        # Computed once: a constraint is looked up for every pod that arrives.
        known = self.__dict__.get("_hash")
        if known is None:
            known = self.__dict__["_hash"] = hash(tuple(getattr(self, name) for name in self.__dataclass_fields__))
        return int(known)


NO_CONSTRAINTS = Constraints()
