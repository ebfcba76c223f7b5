"""Disruption budgets and evictions: how many pods may go at a time."""

from msgspec import Struct, field

from hekla.api.meta import Condition, ObjectMeta, Resource, resource
from hekla.api.scalars import IntOrString
from hekla.api.selectors import LabelSelector


class PodDisruptionBudgetSpec(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """How many of which pods must stay."""

    max_unavailable: IntOrString | None = None
    min_available: IntOrString | None = None
    selector: LabelSelector | None = None
    unhealthy_pod_eviction_policy: str = ""


class PodDisruptionBudgetStatus(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """How many may go now."""

    conditions: list[Condition] = []
    current_healthy: int = 0
    desired_healthy: int = 0
    disrupted_pods: dict[str, str] = {}
    disruptions_allowed: int = 0
    expected_pods: int = 0
    observed_generation: int = 0


@resource("policy/v1", plural="poddisruptionbudgets", short=("pdb",), has_status=True)
class PodDisruptionBudget(Resource, kw_only=True, frozen=True, rename="camel"):
    """How many pods of a set must stay up."""

    spec: PodDisruptionBudgetSpec = field(default_factory=PodDisruptionBudgetSpec)
    status: PodDisruptionBudgetStatus = field(default_factory=PodDisruptionBudgetStatus)


class Preconditions(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """What must be true of the object for a deletion to go on."""

    resource_version: str = ""
    uid: str = ""


class DeleteOptions(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """How an object is to be deleted."""

    api_version: str = ""
    dry_run: list[str] = []
    grace_period_seconds: int = 0
    kind: str = ""
    orphan_dependents: bool = False
    preconditions: Preconditions | None = None
    propagation_policy: str = ""


class Eviction(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """The wish that a pod go, if its budgets allow; posted to the pod's `eviction`."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    delete_options: DeleteOptions | None = None
