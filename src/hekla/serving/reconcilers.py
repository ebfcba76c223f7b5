"""The reconcilers of this package, for whoever runs them: the embedded platform, or controllers on a cluster."""

from hekla.kube.reconcile import Reconciler
from hekla.serving.binding_conversion import reconcile_binding
from hekla.serving.gateway_status import (
    reconcile_gateway,
    reconcile_gateway_class,
    reconcile_http_route,
    reconcile_inference_pool,
)
from hekla.serving.leader_worker_set import reconcile_leader_worker_set
from hekla.serving.model_booster import reconcile_model_booster, with_images
from hekla.serving.model_booster_pods import Images
from hekla.serving.model_serving import reconcile_model_serving
from hekla.serving.route_status import reconcile_model_route_status, reconcile_model_server_status

RECONCILERS: tuple[Reconciler, ...] = (
    reconcile_model_serving,
    reconcile_model_booster,
    reconcile_leader_worker_set,
    reconcile_binding,
    reconcile_model_route_status,
    reconcile_model_server_status,
    reconcile_gateway_class,
    reconcile_gateway,
    reconcile_http_route,
    reconcile_inference_pool,
)


def reconcilers(images: Images) -> tuple[Reconciler, ...]:
    """The same with other images around the engines of ModelBoosters."""
    return tuple(with_images(images) if one is reconcile_model_booster else one for one in RECONCILERS)
