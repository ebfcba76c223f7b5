"""Custom resource definitions: how a cluster learns new kinds."""

from typing import Any

from msgspec import Struct, field

from hekla.api.meta import Resource, Scope, resource
from hekla.api.scalars import wire_names


class CustomResourceDefinitionNames(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """The words for a kind."""

    categories: list[str] = []
    kind: str = ""
    list_kind: str = ""
    plural: str = ""
    short_names: list[str] = []
    singular: str = ""


class CustomResourceSubresourceScale(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Where replicas stand."""

    label_selector_path: str = ""
    spec_replicas_path: str = ""
    status_replicas_path: str = ""


class CustomResourceSubresources(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """What `/status` and `/scale` are."""

    scale: CustomResourceSubresourceScale | None = None
    status: dict[str, Any] | None = None


class CustomResourceColumnDefinition(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A column of `kubectl get`."""

    description: str = ""
    format: str = ""
    json_path: str = ""
    name: str = ""
    priority: int | None = None
    type: str = ""


class SelectableField(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A field that field selectors may ask for."""

    json_path: str = ""


class CustomResourceValidation(
    Struct, kw_only=True, frozen=True, rename=wire_names(open_api_v3_schema="openAPIV3Schema"), gc=False
):
    """The schema of a version."""

    open_api_v3_schema: dict[str, Any] = {}


class WebhookServiceReference(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """The service in which the webhook runs."""

    name: str = ""
    namespace: str = ""
    path: str = ""
    port: int = 0


class ConversionClientConfig(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """How the webhook is called."""

    ca_bundle: str = ""
    service: WebhookServiceReference | None = None
    url: str = ""


class WebhookConversion(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """The webhook that converts versions."""

    client_config: ConversionClientConfig | None = None
    conversion_review_versions: list[str] = []


class CustomResourceConversion(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """How versions are converted."""

    strategy: str = ""
    webhook: WebhookConversion | None = None


class CustomResourceDefinitionVersion(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One version of a kind."""

    additional_printer_columns: list[CustomResourceColumnDefinition] = []
    deprecated: bool = False
    deprecation_warning: str = ""
    name: str = ""
    schema: CustomResourceValidation | None = None
    selectable_fields: list[SelectableField] = []
    served: bool = False
    storage: bool = False
    subresources: CustomResourceSubresources | None = None


class CustomResourceDefinitionSpec(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """The kind."""

    conversion: CustomResourceConversion | None = None
    group: str = ""
    names: CustomResourceDefinitionNames | None = None
    preserve_unknown_fields: bool = False
    scope: str = ""
    versions: list[CustomResourceDefinitionVersion] = []


class CustomResourceDefinitionCondition(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One observation of a definition."""

    last_transition_time: str | None = None
    message: str = ""
    observed_generation: int = 0
    reason: str = ""
    status: str = ""
    type: str = ""


class CustomResourceDefinitionStatus(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Whether the kind is served, and under which names."""

    accepted_names: CustomResourceDefinitionNames | None = None
    conditions: list[CustomResourceDefinitionCondition] | None = None
    observed_generation: int = 0
    stored_versions: list[str] | None = None


@resource(
    "apiextensions.k8s.io/v1",
    plural="customresourcedefinitions",
    scope=Scope.CLUSTER,
    short=("crd", "crds"),
    categories=("api-extensions",),
    has_status=True,
)
class CustomResourceDefinition(Resource, kw_only=True, frozen=True, rename="camel"):
    """A kind that this cluster learns."""

    spec: CustomResourceDefinitionSpec = field(default_factory=CustomResourceDefinitionSpec)
    status: CustomResourceDefinitionStatus = field(default_factory=CustomResourceDefinitionStatus)
