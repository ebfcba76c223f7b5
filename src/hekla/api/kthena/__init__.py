"""Kthena's nouns, to the last field: models to be served, the servers, routes and providers, and how many replicas serve.

Group, version, kind and field names are Kthena's, so its manifests apply unchanged. One module per kind.
"""

from hekla.api.kthena.autoscaling import AutoscalingPolicy
from hekla.api.kthena.binding import AutoscalingPolicyBinding
from hekla.api.kthena.booster import ModelBooster
from hekla.api.kthena.provider import ExternalModelProvider
from hekla.api.kthena.route import ModelRoute
from hekla.api.kthena.server import ModelServer
from hekla.api.kthena.serving import ModelServing

__all__ = [
    "AutoscalingPolicy",
    "AutoscalingPolicyBinding",
    "ExternalModelProvider",
    "ModelBooster",
    "ModelRoute",
    "ModelServer",
    "ModelServing",
]

KTHENA_KINDS = (
    ModelBooster, ModelServing, AutoscalingPolicy, AutoscalingPolicyBinding, ModelServer, ModelRoute,
    ExternalModelProvider,
)  # fmt: skip
"""Every kind of this package, in the order of `make gen`."""
