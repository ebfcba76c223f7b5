"""The reconcilers of this package, for whoever runs them: the embedded platform, or controllers on a cluster."""

from hekla.kube.reconcile import Reconciler
from hekla.sandbox.agent_runtime import reconcile_agent_runtime
from hekla.sandbox.code_interpreter import reconcile_code_interpreter
from hekla.sandbox.sandbox import reconcile_sandbox
from hekla.sandbox.sandbox_claim import reconcile_sandbox_claim
from hekla.sandbox.sandbox_template import reconcile_sandbox_template
from hekla.sandbox.sandbox_warm_pool import reconcile_sandbox_warm_pool

RECONCILERS: tuple[Reconciler, ...] = (
    reconcile_sandbox,
    reconcile_sandbox_template,
    reconcile_sandbox_warm_pool,
    reconcile_sandbox_claim,
    reconcile_code_interpreter,
    reconcile_agent_runtime,
)
