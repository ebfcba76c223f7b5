"""Priority classes: who goes first, and who may push others out."""

from hekla.api.meta import Resource, Scope, resource


@resource("scheduling.k8s.io/v1", plural="priorityclasses", scope=Scope.CLUSTER, short=("pc",))
class PriorityClass(Resource, kw_only=True, frozen=True, rename="camel"):
    """A name for a priority."""

    description: str = ""
    global_default: bool = False
    preemption_policy: str = ""
    value: int = 0
