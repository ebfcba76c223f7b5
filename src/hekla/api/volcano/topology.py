"""Group topology.volcano.sh: the HyperNode, nodes (or smaller HyperNodes) that lie close together in the network."""

from typing import Annotated

from msgspec import Struct, field

from hekla.api.fields import REQUIRED, DnsSubdomain, Limits, Rule, Time
from hekla.api.meta import Column, Resource, Scope, resource
from hekla.api.selectors import LabelSelector
from hekla.api.volcano.scheduling import SELECTOR


class ExactMatch(Struct, kw_only=True, frozen=True, rename="camel"):
    """Selects by name."""

    name: Annotated[DnsSubdomain, Limits(min_length=1), REQUIRED] = ""
    """The member's name."""


class RegexMatch(Struct, kw_only=True, frozen=True, rename="camel"):
    """Selects by a regular expression over names."""

    pattern: Annotated[str, Limits(min_length=1), REQUIRED] = ""
    """The expression, as Go's regexp reads it."""


ONE_MATCH = Limits(
    rules=(
        Rule(
            rule="has(self.exactMatch) || has(self.regexMatch) || has(self.labelMatch)",
            message="Either ExactMatch or RegexMatch or LabelMatch must be specified",
        ),
        Rule(
            rule="(has(self.exactMatch) ? 1 : 0) + (has(self.regexMatch) ? 1 : 0) + (has(self.labelMatch) ? 1 : 0) <= 1",
            message="Only one of ExactMatch, RegexMatch, or LabelMatch can be specified",
        ),
    )
)


class MemberSelector(Struct, kw_only=True, frozen=True, rename="camel"):
    """Selects members in exactly one of three ways."""

    exact_match: ExactMatch | None = None
    """By name."""

    regex_match: RegexMatch | None = None
    """By a pattern of names."""

    label_match: Annotated[LabelSelector | None, SELECTOR] = None
    """By labels."""


class Member(Struct, kw_only=True, frozen=True, rename="camel"):
    """What belongs to a HyperNode."""

    type: Annotated[str, Limits(enum=("Node", "HyperNode")), REQUIRED] = "Node"
    """Whether the members are nodes or HyperNodes of a lower tier."""

    selector: Annotated[MemberSelector, ONE_MATCH] = field(default_factory=MemberSelector)
    """Which of them belong."""


class HyperNodeSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """A domain's tier and members."""

    tier: Annotated[int, Limits(minimum=0), REQUIRED] = 0
    """How far apart members are; lower is closer."""

    tier_name: Annotated[str, Limits(max_length=253)] = ""
    """What people call the tier."""

    members: Annotated[list[Member], Limits(min_items=1)] = []
    """What belongs to the domain."""


class StrictCondition(Struct, kw_only=True, frozen=True, rename="camel"):
    """One observation, with the limits that Kubernetes sets for conditions."""

    type: Annotated[
        str,
        Limits(
            max_length=316,
            pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
        ),
        REQUIRED,
    ] = ""
    """What is observed, in CamelCase."""

    status: Annotated[str, Limits(enum=("True", "False", "Unknown")), REQUIRED] = ""
    """Whether it holds."""

    observed_generation: Annotated[int | None, Limits(minimum=0, format="int64")] = None
    """The generation of the spec that was looked at."""

    last_transition_time: Annotated[Time, REQUIRED] = None
    """When the status last changed."""

    reason: Annotated[
        str, Limits(min_length=1, max_length=1024, pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"), REQUIRED
    ] = ""
    """One word in CamelCase that says why."""

    message: Annotated[str, Limits(max_length=32768), REQUIRED] = ""
    """A sentence that says why."""


class HyperNodeStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """What a domain resolves to."""

    conditions: list[StrictCondition] = []
    """Observations about the domain."""

    node_count: Annotated[int, Limits(minimum=0, format="int64")] = 0
    """How many members were found."""


@resource(
    "topology.volcano.sh/v1alpha1",
    plural="hypernodes",
    scope=Scope.CLUSTER,
    short=("hn",),
    has_status=True,
    columns=(
        Column(name="Tier", json_path=".spec.tier"),
        Column(name="TierName", json_path=".spec.tierName"),
        Column(name="NodeCount", json_path=".status.nodeCount", type="integer"),
        Column(name="Age", json_path=".metadata.creationTimestamp", type="date"),
    ),
)
class HyperNode(Resource, kw_only=True, frozen=True, rename="camel"):
    """Nodes that lie close together in the network; HyperNodes of higher tiers hold those of lower ones."""

    spec: HyperNodeSpec = field(default_factory=HyperNodeSpec)
    """The domain's tier and members."""

    status: HyperNodeStatus = field(default_factory=HyperNodeStatus)
    """What it resolves to."""
