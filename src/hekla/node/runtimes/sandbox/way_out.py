"""Gives a sandbox its way out, if its pod's rules name one: a broker that accepts from the sandbox's own loopback."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from hekla.api.agents.egress import RulesError, rules_of, secrets_of
from hekla.api.agents.names import EGRESS
from hekla.api.agents.node_contract import EGRESS_SECRETS, SecretHeader
from hekla.node.egress.broker import PORT, EgressBroker
from hekla.node.runtimes import ContainerSpec, StartError

SecretOfPod = Callable[[str, SecretHeader], Awaitable[str]]
"""The value of a secret of a pod, by the pod's uid; raises LookupError."""

PROXY = f"http://127.0.0.1:{PORT}"
ENVIRONMENT = {
    "HTTP_PROXY": PROXY, "HTTPS_PROXY": PROXY, "http_proxy": PROXY, "https_proxy": PROXY,
    "NO_PROXY": "localhost,127.0.0.1,::1", "no_proxy": "localhost,127.0.0.1,::1",
}  # fmt: skip


async def no_secrets(pod_uid: str, header: SecretHeader) -> str:
    """Where nobody keeps secrets."""
    raise LookupError(header.secret)


def broker_for(container: ContainerSpec, secret_of: SecretOfPod) -> EgressBroker | None:
    """The broker that a pod's annotations ask for; None: it has no way out. Raises StartError for what makes no sense."""
    annotations: Mapping[str, str] = container.annotations
    try:
        rules = rules_of(annotations.get(EGRESS, ""))
        # for hosts that are not allowed, too: a session's owner may narrow the rules, and widen them again while it runs
        secrets = secrets_of(annotations.get(EGRESS_SECRETS, ""))
    except RulesError as problem:
        raise StartError(str(problem)) from None
    if not rules:
        return None
    uid = container.key.pod_uid
    return EgressBroker(f"{container.hostname}/{uid}", rules, secrets, secret_of=partial(secret_of, uid))
