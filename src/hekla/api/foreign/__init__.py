"""Nouns of other projects: the Gateway API, the Inference Extension and LeaderWorkerSet for serving; Kubernetes'
APIService and FlowSchema.

Their definitions belong to those projects; on a cluster we read what is installed, and the embedded server serves these.
"""

from hekla.api.foreign.aggregation import ApiService
from hekla.api.foreign.flow_control import FlowSchema
from hekla.api.foreign.gateway import Gateway, GatewayClass, HttpRoute
from hekla.api.foreign.grant import ReferenceGrant
from hekla.api.foreign.inference import InferencePool
from hekla.api.foreign.leader_worker_set import LeaderWorkerSet

__all__ = [
    "ApiService", "FlowSchema", "Gateway", "GatewayClass", "HttpRoute", "InferencePool", "LeaderWorkerSet", "ReferenceGrant",
]  # fmt: skip

FOREIGN_KINDS = (
    GatewayClass,
    Gateway,
    HttpRoute,
    ReferenceGrant,
    InferencePool,
    LeaderWorkerSet,
    ApiService,
    FlowSchema,
)
"""Every kind of this package."""
