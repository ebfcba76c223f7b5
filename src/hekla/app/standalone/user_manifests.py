"""What people of a cluster may do with Hekla's kinds: whoever may look at a namespace's pods or change them, at its jobs, too.

The roles join Kubernetes' `view`, `edit` and `admin`; without them a user of `edit` could make pods, and no VolcanoJob. Queues, HyperNodes and
whatever else belongs to no namespace are seen by whoever has `view` of the cluster, or `hekla-cluster-view` alone; `hekla-cluster-edit`,
which joins nothing, lets change them.
"""

from collections.abc import Iterable, Iterator, Mapping

from hekla.api.crd import CUSTOM_KINDS
from hekla.api.explanation import SCHEDULER, SNAPSHOT
from hekla.api.meta import Document, Kind
from hekla.api.volcano.config import ColocationConfiguration

VIEW, EDIT = "hekla-view", "hekla-edit"
CLUSTER_VIEW, CLUSTER_EDIT = "hekla-cluster-view", "hekla-cluster-edit"
GROUP = "rbac.authorization.k8s.io"
LOOK = ("get", "list", "watch")
CHANGE = ("create", "delete", "deletecollection", "patch", "update")
OF_ADMINISTRATORS = frozenset({ColocationConfiguration.kind_info.resource})
"""Kinds of a namespace by which nodes, not jobs, are changed."""


def user_roles(labels: Mapping[str, str]) -> Iterator[Document]:
    """The roles for one namespace, and those for the cluster."""
    kinds = [one.kind_info for one in CUSTOM_KINDS if one.kind_info.resource not in OF_ADMINISTRATORS]
    looked_at, changed = _resources(one for one in kinds if one.is_namespaced)
    yield _role(VIEW, ("view", "edit", "admin"), LOOK, looked_at, labels)
    yield _role(EDIT, ("edit", "admin"), CHANGE, changed, labels)
    looked_at, changed = _resources(one for one in kinds if not one.is_namespaced)
    yield _role(
        CLUSTER_VIEW, ("view", "edit", "admin"), LOOK, looked_at | {SCHEDULER.group: [SCHEDULER.plural]}, labels
    )
    yield _role(CLUSTER_EDIT, (), (*LOOK, *CHANGE), changed | {SNAPSHOT.group: [SNAPSHOT.plural]}, labels)


def _resources(kinds: Iterable[Kind]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """What may be looked at, and what may be changed, by group."""
    looked_at, changed = dict[str, list[str]](), dict[str, list[str]]()
    for kind in kinds:
        scale = [f"{kind.plural}/scale"] if kind.label_selector_path else []
        status = [f"{kind.plural}/status"] if kind.has_status else []
        looked_at.setdefault(kind.group, []).extend((kind.plural, *scale, *status))
        changed.setdefault(kind.group, []).extend((kind.plural, *scale))
    return looked_at, changed


def _role(
    name: str, joins: tuple[str, ...], verbs: tuple[str, ...], resources: Mapping[str, list[str]], labels: Mapping[str, str]
) -> Document:  # fmt: skip
    joining = {f"{GROUP}/aggregate-to-{one}": "true" for one in joins}
    rules = [
        {"apiGroups": [group], "resources": sorted(found), "verbs": list(verbs)}
        for group, found in sorted(resources.items())
    ]
    metadata = {"name": name, "labels": {**labels, **joining}}
    return {"apiVersion": f"{GROUP}/v1", "kind": "ClusterRole", "metadata": metadata, "rules": rules}
