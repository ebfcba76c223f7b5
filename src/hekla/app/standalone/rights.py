"""The least rights of each component, derived from what it declares: reconcilers their kinds, the scheduler what it follows.

    whatever is followed                  list, watch
    Volcano's kinds with a reconciler     patch, and patch of /status
    kinds whose objects own others        update of /finalizers
    kinds that are owned                  create, get, patch, delete
    quotas, by who makes objects          list, watch

What cannot be derived stands in the tables below, each with its reason. `tests/e2e/test_standalone.py` runs every
component with exactly these rights.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from hekla.api.core import ConfigMap, ResourceQuota
from hekla.api.discovery import EndpointSlice
from hekla.api.foreign import ApiService
from hekla.api.kthena import AutoscalingPolicy, ModelServing
from hekla.api.meta import Document, Resource
from hekla.app.standalone.answering import USUAL, Place, place_of
from hekla.app.standalone.certificate_keeper import CONFIGURATION, CONFIGURATIONS, SECRET
from hekla.app.standalone.components import scheduler_kinds
from hekla.app.standalone.node_manifests import SIMULATED_NODES
from hekla.app.standalone.settings import (
    AGENTS,
    AGENTS_LEASE,
    CONTROLLERS,
    CONTROLLERS_LEASE,
    NODE,
    ROUTER,
    SCHEDULER,
    SERVING,
    SERVING_LEASE,
    WEBHOOKS,
)
from hekla.app.standalone.webhooks import READ_KINDS
from hekla.kube.reconcile import Reconciler
from hekla.sandbox.reconcilers import RECONCILERS as SANDBOX_RECONCILERS
from hekla.scheduler.memory import NAME as MEMORY
from hekla.scheduler.reload import CONFIG_MAP
from hekla.serving.reconcilers import RECONCILERS as SERVING_RECONCILERS
from hekla.serving.router.world import GATEWAY_KINDS, KINDS
from hekla.workloads.admission_resource_groups import CONFIG_MAP as RESOURCE_GROUPS
from hekla.workloads.ours import DEFAULT_SCHEDULER
from hekla.workloads.reconcilers import RECONCILERS

FOLLOW = ("list", "watch")
OWN_GROUPS = (".volcano.sh", "agents.x-k8s.io")
"""Only objects of these groups are written by a reconciler for being what they are; a ReplicaSet is only looked at."""

CONTROLLERS_ALSO = {
    "jobs.batch.volcano.sh": ("delete",),  # ttlSecondsAfterFinished
    "hypernodes.topology.volcano.sh": ("create", "delete"),  # those of nodes' labels
    "commands.bus.volcano.sh": ("delete",),  # a Command is taken by deleting it, before it is carried out
}
SCHEDULER_ALSO = {
    # get: did a bind without an answer arrive? delete: evictions; patch: opens the gate of a pod that its queue has room for
    "pods": ("get", "delete", "patch"),
    "pods/binding": ("create",),
    "pods/status": ("patch",),  # why it waits; nominated nodes; DisruptionTarget before an eviction
    "persistentvolumeclaims": ("patch",),  # the node that was chosen for a claim that waits for its consumer
    "persistentvolumes": ("patch",),  # whose a free volume is, where its class has no provisioner
    "nodeshards/status.shard.volcano.sh": ("patch",),  # which nodes it has in use
    # patch: the finalizer that keeps one that has devices; get: what of it is to be taken back where a pod is not bound
    "resourceclaims.resource.k8s.io": ("get", "patch"),
    "resourceclaims/status.resource.k8s.io": ("patch",),  # which devices, and for whom
    "resourceclaims/binding.resource.k8s.io": ("patch", "update"),  # asked for beside it, from Kubernetes 1.36 on
    "podgroups.scheduling.volcano.sh": ("patch",),
    "podgroups/status.scheduling.volcano.sh": ("patch",),
    "queues.scheduling.volcano.sh": (
        "create",
        "get",
        "patch",
    ),  # the queues root and default; past use as an annotation
    "queues/status.scheduling.volcano.sh": ("patch",),
    "subjectaccessreviews.authorization.k8s.io": ("create",),  # what may those know who ask `hekla why`?
}
SERVING_ALSO = {
    "autoscalingpolicies.workload.serving.volcano.sh": ("patch",),  # windows, as an annotation
    "autoscalingpolicies/status.workload.serving.volcano.sh": ("patch",),
    "leaderworkersets/status.leaderworkerset.x-k8s.io": ("patch",),  # kinds of other projects
    "gatewayclasses/status.gateway.networking.k8s.io": ("patch",),
    "gateways/status.gateway.networking.k8s.io": ("patch",),
    "httproutes/status.gateway.networking.k8s.io": ("patch",),
    "inferencepools/status.inference.networking.k8s.io": ("patch",),
}
ROUTER_ALSO = {
    "externalmodelproviders/status.networking.serving.volcano.sh": ("patch",),  # whether they can be asked
    "modelservings.workload.serving.volcano.sh": ("patch",),  # a request waits for the first replica
    "gatewayclasses.gateway.networking.k8s.io": ("create",),  # its own class, and the Gateway that it begins with
    "gateways.gateway.networking.k8s.io": ("create",),
}
AGENTS_ALSO = {
    # the gateway: makes and adopts sandboxes, and deletes the pods of those that end
    "sandboxes.agents.x-k8s.io": ("create", "delete", "get", "patch"),
    "pods": ("delete",),
    "pods/log": ("get",),  # E2B's logs of a sandbox
    "nodes": FOLLOW,  # where node agents listen, and whom to believe there
    "nodes/proxy": ("create", "delete", "get"),  # claims, freezes and reaches the sandboxes of a node
}
NODE_ALSO = {
    # to be signed for as a node; what it may do then, API servers say by themselves (the Node authorizer), of its own pods alone
    "certificatesigningrequests.certificates.k8s.io": ("create", "get"),
    "certificatesigningrequests/nodeclient.certificates.k8s.io": ("create",),
    "nodes": ("get",),  # whether the name is a machine's, before anything is signed for it
}
SIMULATED_NODES_ALSO = {
    # one account for all of them; nothing runs, so no Secret, ConfigMap or token is ever asked for
    # get: whose it is that is there already, as after each restart; not delete: that is of `--delete-node`, which is not given here
    "nodes": (*FOLLOW, "get", "create", "patch"),
    "nodes/status": ("patch",),
    "pods": (*FOLLOW, "delete"),
    "pods/status": ("patch",),
    "services": FOLLOW,
    "tokenreviews.authentication.k8s.io": ("create",),  # who asks for logs?
    "subjectaccessreviews.authorization.k8s.io": ("create",),
}
EVENTS = {"events": ("create", "get", "patch")}


@dataclass(frozen=True, kw_only=True)
class Rights:
    """What one component may do."""

    everywhere: list[Document]
    """Rules of its ClusterRole."""

    at_home: list[Document]
    """Rules of its Role in its own namespace."""


@dataclass
class _Verbs:
    by_resource: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))

    def allow(self, kind: type[Resource], *verbs: str, below: str = "") -> None:
        info = kind.kind_info
        self.by_resource[info.group, f"{info.plural}/{below}" if below else info.plural] |= set(verbs)

    def allow_named(self, table: Mapping[str, tuple[str, ...]]) -> None:
        for resource, verbs in table.items():
            plural, _, group = resource.partition(".")
            self.by_resource[group, plural] |= set(verbs)

    def rules(self) -> list[Document]:
        """Resources of one group with the same verbs stand in one rule."""
        together: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
        for (group, resource), verbs in self.by_resource.items():
            together[group, tuple(sorted(verbs))].append(resource)
        return [
            {"apiGroups": [group], "resources": sorted(resources), "verbs": list(verbs)}
            for (group, verbs), resources in sorted(together.items())
        ]


def rights_of(component: str, lease: str = DEFAULT_SCHEDULER) -> Rights:
    """The rights of a component; a scheduler's, of one that leads by this lease."""
    if component == SCHEDULER:
        return scheduler_rights(lease)
    return {
        CONTROLLERS: controllers_rights, WEBHOOKS: webhooks_rights, SERVING: serving_rights,
        ROUTER: router_rights, AGENTS: agents_rights, NODE: node_rights, SIMULATED_NODES: simulated_nodes_rights,
    }[component]()  # fmt: skip


def controllers_rights(reconcilers: Iterable[Reconciler] = RECONCILERS) -> Rights:
    """What the reconcilers of workloads declare."""
    verbs = _declared(reconcilers)
    verbs.allow_named(CONTROLLERS_ALSO)
    return Rights(everywhere=verbs.rules(), at_home=[*lease_rules(CONTROLLERS_LEASE)])


def serving_rights() -> Rights:
    """What the reconcilers of serving declare."""
    verbs = _declared(SERVING_RECONCILERS)
    verbs.allow_named(SERVING_ALSO)
    return Rights(everywhere=verbs.rules(), at_home=[*lease_rules(SERVING_LEASE)])


def router_rights() -> Rights:
    """What routing looks at; of secrets it asks for providers' credentials by their label, and for certificates by their type."""
    verbs = _Verbs()
    followed: tuple[type[Resource], ...] = (*KINDS, *GATEWAY_KINDS, ModelServing, AutoscalingPolicy)
    for kind in followed:
        verbs.allow(kind, *FOLLOW)
    verbs.allow_named(ROUTER_ALSO)
    return Rights(everywhere=verbs.rules(), at_home=[])


def agents_rights() -> Rights:
    """What the reconcilers of sandboxes declare, and what the gateway does through objects and nodes."""
    verbs = _declared(SANDBOX_RECONCILERS)
    verbs.allow_named(AGENTS_ALSO)
    return Rights(everywhere=verbs.rules(), at_home=[*lease_rules(AGENTS_LEASE)])


def node_rights() -> Rights:
    """To become a node."""
    verbs = _Verbs()
    verbs.allow_named(NODE_ALSO)
    return Rights(everywhere=verbs.rules(), at_home=[])


def simulated_nodes_rights() -> Rights:
    """To be many nodes at once."""
    verbs = _Verbs()
    verbs.allow_named(SIMULATED_NODES_ALSO)
    verbs.allow_named(EVENTS)
    return Rights(everywhere=verbs.rules(), at_home=[])


def _declared(reconcilers: Iterable[Reconciler]) -> _Verbs:
    verbs = _Verbs()
    for one in reconcilers:
        verbs.allow(one.kind, *FOLLOW)
        if one.kind.kind_info.group.endswith(OWN_GROUPS):
            verbs.allow(one.kind, "patch")
            verbs.allow(one.kind, "patch", below="status")
        if one.owns:
            # asked for where OwnerReferencesPermissionEnforcement is on, by owners that block the deletion
            verbs.allow(one.kind, "update", below="finalizers")
        for kind in one.owns:
            verbs.allow(kind, *FOLLOW, "create", "delete", "get", "patch")
        for kind in (*one.reads, *one.wakes, *one.finds, *((ResourceQuota,) if one.awaits_quota else ())):
            verbs.allow(kind, *FOLLOW)
    verbs.allow_named(EVENTS)
    return verbs


def scheduler_rights(lease: str = DEFAULT_SCHEDULER) -> Rights:
    """What the scheduler follows, and the little that it writes."""
    verbs = _Verbs()
    for kind in scheduler_kinds():
        verbs.allow(kind, *FOLLOW)
    verbs.allow_named(SCHEDULER_ALSO)
    verbs.allow_named(EVENTS)
    configuration = _named(ConfigMap.kind_info.group, ConfigMap.kind_info.plural, CONFIG_MAP, "list", "watch")
    memory = [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]},
        _named(ConfigMap.kind_info.group, ConfigMap.kind_info.plural, MEMORY, "get", "patch"),
    ]
    places = tuple(dict.fromkeys((USUAL, place_of(lease))))
    at_home = [*lease_rules(lease), configuration, *memory, *_answers_at_home(places)]
    return Rights(everywhere=[*verbs.rules(), *_registration(places)], at_home=at_home)


def _answers_at_home(places: Iterable[Place]) -> Iterator[Document]:
    """To say where the replica that leads answers. It is made by an apply, which names it."""
    info = EndpointSlice.kind_info
    for place in places:
        yield _named(info.group, info.plural, place.service, "create", "get", "patch")


def _registration(places: Iterable[Place]) -> Iterator[Document]:
    """To register for a term, and to take it back.

    It is made by an apply, which names it: who may create any other has a say in which server answers for a group of the API.
    """
    info = ApiService.kind_info
    for place in places:
        yield _named(info.group, info.plural, place.registration, "create", "delete", "get", "patch")


def webhooks_rights() -> Rights:
    """What rules look at, and what certificates need."""
    verbs = _Verbs()
    for kind in READ_KINDS:
        verbs.allow(kind, *FOLLOW)
    registrations = {
        "apiGroups": ["admissionregistration.k8s.io"], "resources": list(CONFIGURATIONS),
        "resourceNames": [CONFIGURATION], "verbs": ["get", "patch"],
    }  # fmt: skip
    groups = _named(ConfigMap.kind_info.group, ConfigMap.kind_info.plural, RESOURCE_GROUPS, "list", "watch")
    return Rights(
        everywhere=[*verbs.rules(), registrations], at_home=[_named("", "secrets", SECRET, "get", "patch"), groups]
    )


def lease_rules(name: str) -> Iterator[Document]:
    """To create is to name nobody yet, so only the rest can be bound to a name."""
    group = "coordination.k8s.io"
    yield {"apiGroups": [group], "resources": ["leases"], "verbs": ["create"]}
    yield _named(group, "leases", name, "get", "patch")


def _named(group: str, resource: str, name: str, *verbs: str) -> Document:
    return {"apiGroups": [group], "resources": [resource], "resourceNames": [name], "verbs": list(verbs)}
