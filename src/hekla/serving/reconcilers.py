"""The reconcilers of this package, for whoever runs them: the embedded platform, or controllers on a cluster."""

from hekla.kube.reconcile import Reconciler
from hekla.serving.model_serving import reconcile_model_serving

RECONCILERS: tuple[Reconciler, ...] = (reconcile_model_serving,)
