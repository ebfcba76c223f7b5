"""APIServices: groups of the API that another server answers for, as Kubernetes' aggregation layer has them.

The embedded server reads one of them only, that of the scheduler's answers (`hekla.app.explaining`); a real API server
reads them all.
"""

from msgspec import Struct, field

from hekla.api.admissionregistration import ServiceReference
from hekla.api.meta import Resource, Scope, resource


class ApiServiceSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """Which group and version, and who answers."""

    group: str = ""
    """Group whose requests are passed on."""

    version: str = ""
    """Version whose requests are passed on."""

    service: ServiceReference | None = None
    """Who answers; absent for groups that the API server itself serves."""

    ca_bundle: str = field(default="", name="caBundle")
    """PEM of the authorities that the service's certificate is checked against, in base64."""

    group_priority_minimum: int = 0
    """Where the group stands among others; the highest first."""

    version_priority: int = 0
    """Where the version stands in its group; the highest first."""

    insecure_skip_tls_verify: bool = field(default=False, name="insecureSkipTLSVerify")
    """Whether the service's certificate is not checked."""


class ApiServiceCondition(Struct, kw_only=True, frozen=True, rename="camel"):
    """One observation, such as Available."""

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


class ApiServiceStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """How it fares."""

    conditions: list[ApiServiceCondition] = []
    """Observations."""


@resource(
    "apiregistration.k8s.io/v1",
    plural="apiservices",
    kind="APIService",
    scope=Scope.CLUSTER,
    categories=("api-extensions",),
)
class ApiService(Resource, kw_only=True, frozen=True, rename="camel"):
    """A group and version of the API that another server answers for."""

    spec: ApiServiceSpec = field(default_factory=ApiServiceSpec)
    """Which, and who."""

    status: ApiServiceStatus = field(default_factory=ApiServiceStatus)
    """How it fares."""
