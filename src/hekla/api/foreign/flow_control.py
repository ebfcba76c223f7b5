"""FlowSchemas: in which queue of an API server a request waits when more come than it can answer at once.

The embedded server knows them to take the manifests of `hekla install`; a real API server sorts requests by them.
"""

from msgspec import Struct, field

from hekla.api.meta import Resource, Scope, resource


class PriorityLevelReference(Struct, kw_only=True, frozen=True, rename="camel"):
    """A level by its name."""

    name: str = ""
    """Name of a PriorityLevelConfiguration."""


class FlowDistinguisher(Struct, kw_only=True, frozen=True, rename="camel"):
    """What tells flows of one schema apart."""

    type: str
    """ByUser or ByNamespace."""


class FlowSubjectName(Struct, kw_only=True, frozen=True, rename="camel"):
    """A user or a group."""

    name: str
    """Its name, or `*` for all."""


class FlowServiceAccount(Struct, kw_only=True, frozen=True, rename="camel"):
    """A service account."""

    name: str
    """Its name, or `*` for all of the namespace."""

    namespace: str
    """Where it is."""


class FlowSubject(Struct, kw_only=True, frozen=True, rename="camel"):
    """Who asks."""

    kind: str
    """User, Group or ServiceAccount."""

    user: FlowSubjectName | None = None
    """Of kind User."""

    group: FlowSubjectName | None = None
    """Of kind Group."""

    service_account: FlowServiceAccount | None = None
    """Of kind ServiceAccount."""


class FlowResourceRule(Struct, kw_only=True, frozen=True, rename="camel"):
    """Requests about objects."""

    verbs: list[str]
    """get, list, create and the others, or `*`."""

    api_groups: list[str] = field(name="apiGroups")
    """Groups of the API, or `*`."""

    resources: list[str]
    """Plural names of kinds, or `*`."""

    cluster_scope: bool = False
    """Whether requests are meant that name no namespace."""

    namespaces: list[str] = []
    """Namespaces, or `*`."""


class FlowNonResourceRule(Struct, kw_only=True, frozen=True, rename="camel"):
    """Requests about anything else."""

    verbs: list[str]
    """Of HTTP in lower case, or `*`."""

    non_resource_urls: list[str] = field(name="nonResourceURLs")
    """Paths, or `*`."""


class FlowRule(Struct, kw_only=True, frozen=True, rename="camel"):
    """Who asks what."""

    subjects: list[FlowSubject]
    """Any of these."""

    resource_rules: list[FlowResourceRule] = []
    """Any of these, or of the others."""

    non_resource_rules: list[FlowNonResourceRule] = []
    """Any of these, or of the others."""


class FlowSchemaSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """Which requests, and where they wait."""

    priority_level_configuration: PriorityLevelReference = field(default_factory=PriorityLevelReference)
    """The level whose places and queues they share."""

    matching_precedence: int = 1000
    """Of several that match, the lowest number counts."""

    distinguisher_method: FlowDistinguisher | None = None
    """What tells flows apart; all are one flow if absent."""

    rules: list[FlowRule] = []
    """A request that matches one of them is meant."""


class FlowSchemaCondition(Struct, kw_only=True, frozen=True, rename="camel"):
    """One observation, such as Dangling."""

    type: str = ""
    """What was observed."""

    status: str = ""
    """True, False or Unknown."""

    reason: str = ""
    """In one word."""

    message: str = ""
    """In a sentence."""

    last_transition_time: str = ""
    """When the status last changed."""


class FlowSchemaStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """How it fares."""

    conditions: list[FlowSchemaCondition] = []
    """Observations."""


@resource(
    "flowcontrol.apiserver.k8s.io/v1",
    plural="flowschemas",
    kind="FlowSchema",
    scope=Scope.CLUSTER,
)
class FlowSchema(Resource, kw_only=True, frozen=True, rename="camel"):
    """Requests that share a level of an API server's places."""

    spec: FlowSchemaSpec = field(default_factory=FlowSchemaSpec)
    """Which, and where."""

    status: FlowSchemaStatus = field(default_factory=FlowSchemaStatus)
    """How it fares."""
