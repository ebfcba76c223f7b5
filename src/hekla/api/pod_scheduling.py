"""What a pod asks of the place where it runs: affinity, tolerations, spread, gates.

`pods.py` holds the pod that asks.
"""

from msgspec import Struct

from hekla.api.selectors import LabelSelector


class NodeSelectorRequirement(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One clause on a node's labels or fields; Gt and Lt compare as integers."""

    key: str = ""
    operator: str = ""
    values: list[str] = []


class NodeSelectorTerm(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Clauses that must all hold."""

    match_expressions: list[NodeSelectorRequirement] = []
    match_fields: list[NodeSelectorRequirement] = []


class NodeSelector(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Terms of which one must hold."""

    node_selector_terms: list[NodeSelectorTerm] = []


class PreferredSchedulingTerm(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A wish for nodes, with its weight from 1 to 100."""

    preference: NodeSelectorTerm | None = None
    weight: int = 0


class NodeAffinity(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Which nodes a pod must, or would like to, run on."""

    preferred_during_scheduling_ignored_during_execution: list[PreferredSchedulingTerm] = []
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class PodAffinityTerm(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Other pods, and the topology domain in which to be with them or away from them."""

    label_selector: LabelSelector | None = None
    match_label_keys: list[str] = []
    mismatch_label_keys: list[str] = []
    namespace_selector: LabelSelector | None = None
    namespaces: list[str] = []
    topology_key: str = ""


class WeightedPodAffinityTerm(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A wish to be near or far from pods, with its weight from 1 to 100."""

    pod_affinity_term: PodAffinityTerm | None = None
    weight: int = 0


class PodAffinity(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Pods to run beside."""

    preferred_during_scheduling_ignored_during_execution: list[WeightedPodAffinityTerm] = []
    required_during_scheduling_ignored_during_execution: list[PodAffinityTerm] = []


class PodAntiAffinity(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Pods to keep away from."""

    preferred_during_scheduling_ignored_during_execution: list[WeightedPodAffinityTerm] = []
    required_during_scheduling_ignored_during_execution: list[PodAffinityTerm] = []


class Affinity(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """All that a pod says about nodes and about other pods."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAntiAffinity | None = None


class Toleration(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A taint that the pod bears; an empty key with operator Exists bears all of them."""

    effect: str = ""
    key: str = ""
    operator: str = ""
    toleration_seconds: int | None = None
    value: str = ""


class TopologySpreadConstraint(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """How evenly matching pods must lie over the domains of a topology key."""

    label_selector: LabelSelector | None = None
    match_label_keys: list[str] = []
    max_skew: int = 0
    min_domains: int | None = None
    node_affinity_policy: str = ""
    node_taints_policy: str = ""
    topology_key: str = ""
    when_unsatisfiable: str = ""


class PodSchedulingGate(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A reason not to schedule yet; the pod waits until the last gate is taken away."""

    name: str = ""


class PodSchedulingGroup(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """The group of pods with which this one is scheduled."""

    pod_group_name: str = ""


class PodResourceClaim(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A resource claim, or a template for one, that the pod's containers refer to by name."""

    name: str = ""
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""
