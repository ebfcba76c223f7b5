"""What people of a cluster may do with Hekla's kinds: whoever may look at a namespace's pods or change them, at its jobs, too.

The roles join Kubernetes' `view`, `edit` and `admin`; without them a user of `edit` could make pods, and no VolcanoJob. Queues,
HyperNodes and whatever else belongs to no namespace stay with the administrators of the cluster.
"""

from collections.abc import Iterator, Mapping

from hekla.api.crd import CUSTOM_KINDS
from hekla.api.meta import Document
from hekla.api.volcano.config import ColocationConfiguration

GROUP = "rbac.authorization.k8s.io"
LOOK = ("get", "list", "watch")
CHANGE = ("create", "delete", "deletecollection", "patch", "update")
OF_ADMINISTRATORS = frozenset({ColocationConfiguration.kind_info.resource})
"""Kinds of a namespace by which nodes, not jobs, are changed."""


def user_roles(labels: Mapping[str, str]) -> Iterator[Document]:
    """The two roles."""
    kinds = [one.kind_info for one in CUSTOM_KINDS]
    kinds = [one for one in kinds if one.is_namespaced and one.resource not in OF_ADMINISTRATORS]
    looked_at, changed = dict[str, list[str]](), dict[str, list[str]]()
    for kind in kinds:
        scale = [f"{kind.plural}/scale"] if kind.label_selector_path else []
        status = [f"{kind.plural}/status"] if kind.has_status else []
        looked_at.setdefault(kind.group, []).extend((kind.plural, *scale, *status))
        changed.setdefault(kind.group, []).extend((kind.plural, *scale))
    yield _role("hekla-view", ("view", "edit", "admin"), LOOK, looked_at, labels)
    yield _role("hekla-edit", ("edit", "admin"), CHANGE, changed, labels)


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
