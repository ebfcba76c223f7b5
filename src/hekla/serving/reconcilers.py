"""The reconcilers of this package, for whoever runs them: the embedded platform, or controllers on a cluster."""

from hekla.kube.reconcile import Reconciler
from hekla.serving.leader_worker_set import reconcile_leader_worker_set
from hekla.serving.model_booster import reconcile_model_booster
from hekla.serving.model_serving import reconcile_model_serving

RECONCILERS: tuple[Reconciler, ...] = (
    reconcile_model_serving,
    reconcile_model_booster,
    reconcile_leader_worker_set,
)
