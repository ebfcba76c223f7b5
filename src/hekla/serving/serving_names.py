"""Names of what a ModelServing makes, and the annotations of our own that it understands.

    group         <serving>-<i>                 instance      <role>-<j>
    entry pod     <serving>-<i>-<role>-<j>-0    worker        <serving>-<i>-<role>-<j>-<n>

The labels are Kthena's (`hekla.api.kthena.labels`).
"""

from hekla.api.meta import Document, Resource
from hekla.lib.digits import whole_number

MAX_SKEW = "serving.hekla.dev/max-skew"
"""On a ModelServing with RoleRollingUpdate: by how much, such as `25%`, the update of one role may be ahead of another's."""

PLACEMENT = "placement.serving.hekla.dev/"
"""On a ModelServing, followed by a role's name: node labels, `pool=h100,zone=a`, that nodes of the role's pods must carry."""

STARTUP = "serving.hekla.dev/startup"
"""On a ModelServing: `LeaderReady` has the workers of an instance made when its entry pod is ready; else all are made at once."""

LEADER_READY = "LeaderReady"

WHOLE = "serving.hekla.dev/whole"
"""On a pod: what its group consisted of when nothing was missing. A pod that vanishes later is known to be lost."""

SHAPE = "serving.hekla.dev/shape"
"""On a PodGroup: a hash of the subgroups it was given, for clusters whose PodGroups do not keep them."""


def group_name(serving: str, ordinal: int) -> str:
    """A group's name."""
    return f"{serving}-{ordinal}"


def role_id(role: str, ordinal: int) -> str:
    """The name of a role's instance within its group."""
    return f"{role}-{ordinal}"


def pod_name(group: str, instance: str, index: int) -> str:
    """A pod's name; index 0 is the entry, and the name of the instance's service as well."""
    return f"{group}-{instance}-{index}"


def ordinal_of(name: str) -> int:
    """The number at the end of a name; -1 if there is none."""
    text = name.rpartition("-")[2]
    number = whole_number(text)
    return -1 if number is None else number


def starts_leaders_first(serving: Resource) -> bool:
    """Whether workers are made when their entry pod is ready."""
    return serving.metadata.annotations.get(STARTUP) == LEADER_READY


def owner_reference(owner: Resource) -> Document:
    """How an object names its controller."""
    info = owner.kind_info
    return {
        "apiVersion": info.api_version,
        "kind": info.kind,
        "name": owner.metadata.name,
        "uid": owner.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
