"""ModelBooster of workload.serving.volcano.sh: one object from which a model is fetched, served and routed.

`hekla.serving` makes a ModelServing, a ModelServer and a ModelRoute from it.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Struct, field

from hekla.api.fields import CONDITIONS, DEFAULTED, REQUIRED, Limits
from hekla.api.kthena.route import ModelMatch
from hekla.api.meta import Column, Document, Resource, resource
from hekla.api.scalars import wire_names
from hekla.api.volcano.topology import StrictCondition

LABEL = Limits(pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
Million = Annotated[int, Limits(minimum=0, maximum=1_000_000, format="int32")]
_CORE = "io.k8s.api.core.v1"


class BackendType(StrEnum):
    """How a model is served."""

    VLLM = "vLLM"
    VLLM_DISAGGREGATED = "vLLMDisaggregated"


class WorkerType(StrEnum):
    """What a worker does."""

    SERVER = "server"
    PREFILL = "prefill"
    DECODE = "decode"
    CONTROLLER = "controller"
    COORDINATOR = "coordinator"


class ModelWorker(Struct, kw_only=True, frozen=True, rename="camel"):
    """One kind of engine process."""

    type: Annotated[str, Limits(enum=tuple(WorkerType)), DEFAULTED] = "server"
    """What it does."""

    image: str = ""
    """Its image."""

    replicas: Million = 0
    """How many instances a backend has."""

    pods: Million = 0
    """How many pods an instance has."""

    resources: Annotated[Document, Limits(schema_of=f"{_CORE}.ResourceRequirements")] = {}
    """What a pod asks for."""

    affinity: Annotated[Document, Limits(schema_of=f"{_CORE}.Affinity")] = {}
    """Where pods may run."""

    tolerations: Annotated[
        list[Annotated[Document, Limits(schema_of=f"{_CORE}.Toleration")]], Limits(list_type="atomic")
    ] = []
    """Taints that pods endure."""

    config: Document | None = None
    """Arguments of the engine, by their names."""


class ModelBackend(Struct, kw_only=True, frozen=True, rename=wire_names(model_uri="modelURI", cache_uri="cacheURI")):
    """What serves the model."""

    name: Annotated[str, LABEL, REQUIRED] = ""
    """Its name, one word of children's names."""

    type: Annotated[str, Limits(enum=tuple(BackendType)), REQUIRED] = ""
    """How the model is served."""

    model_uri: Annotated[str, Limits(pattern="^(hf://|s3://|obs://|pvc://|ms://).+"), REQUIRED] = ""
    """Where the model comes from: hf://, ms://, s3://, obs:// or pvc://."""

    cache_uri: Annotated[str, Limits(pattern="^(hostpath://|pvc://).+")] = ""
    """Where it is kept: hostpath:// or pvc://; absent: with the pod."""

    env_from: Annotated[
        list[Annotated[Document, Limits(schema_of=f"{_CORE}.EnvFromSource")]], Limits(list_type="atomic")
    ] = []
    """Environment of all containers, from elsewhere."""

    env: Annotated[
        list[Annotated[Document, Limits(schema_of=f"{_CORE}.EnvVar")]], Limits(list_type="map", list_keys=("name",))
    ] = []
    """Environment of all containers."""

    replicas: Annotated[Million, REQUIRED] = 0
    """How many groups serve."""

    min_replicas: Annotated[int | None, Limits(minimum=0, maximum=1_000_000)] = None
    """Kthena 0.3's fewest groups: becomes `replicas`, and the annotation serving.hekla.dev/min-replicas where the two differ."""

    max_replicas: Annotated[int | None, Limits(minimum=1, maximum=1_000_000)] = None
    """Kthena 0.3's most groups: becomes the annotation serving.hekla.dev/max-replicas."""

    workers: Annotated[list[ModelWorker], Limits(min_items=1, max_items=1000), REQUIRED] = []
    """What a group consists of."""

    scheduler_name: str = ""
    """Who places the pods."""

    runtime_class_name: str | None = None
    """RuntimeClass of the pods."""


class ModelBoosterSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """A model, what serves it, and which requests it gets."""

    name: Annotated[str, Limits(max_length=64), LABEL] = ""
    """The model's name for clients; the object's name if absent."""

    owner: str = ""
    """Whose model it is."""

    backend: Annotated[ModelBackend, REQUIRED] = field(default_factory=ModelBackend)
    """What serves it."""

    model_match: ModelMatch | None = None
    """Which requests it gets; absent: all that name it."""


class ModelBoosterStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """How far a model is."""

    conditions: Annotated[list[StrictCondition], CONDITIONS] = []
    """Observations: Initialized, Active, Failed."""

    observed_generation: Annotated[int, Limits(format="int64")] = 0
    """The generation that was looked at."""


@resource(
    "workload.serving.volcano.sh/v1alpha1",
    plural="modelboosters",
    has_status=True,
    columns=(
        Column(
            name="Active",
            json_path=".status.conditions[?(@.type=='Active')].status",
            description="Whether the model booster is active",
        ),
        Column(name="Age", json_path=".metadata.creationTimestamp", type="date"),
    ),
)
class ModelBooster(Resource, kw_only=True, frozen=True, rename="camel"):
    """A model to be served, in one object."""

    spec: ModelBoosterSpec = field(default_factory=ModelBoosterSpec)
    """The model."""

    status: ModelBoosterStatus = field(default_factory=ModelBoosterStatus)
    """How far it is."""
