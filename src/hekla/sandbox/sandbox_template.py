"""Reconciles SandboxTemplates: the one network policy that all Sandboxes of a template share.

On a cluster the network plug-in enforces it; on our own nodes a sandbox has no way out but the egress broker (`blueprint.py`
tells it where to).
"""

from collections.abc import Iterator
from datetime import datetime

import msgspec

from hekla.api.agents import SandboxTemplate, names
from hekla.api.agents.extensions import PolicyManagement
from hekla.api.meta import Document
from hekla.api.networking import NetworkPolicy
from hekla.kube.commands import Command, Create, Delete, Event, Patch, target_of
from hekla.kube.reconcile import World, reconciler
from hekla.sandbox.blueprint import is_closed_by_default
from hekla.sandbox.owning import is_controlled_by, name_hash, owner_reference

PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16")
PRIVATE_6 = ("fc00::/7", "fe80::/10")
"""What no Sandbox reaches by default: networks of clusters and offices, and the metadata services of clouds."""


@reconciler(SandboxTemplate, owns=(NetworkPolicy,))
def reconcile_sandbox_template(template: SandboxTemplate, world: World, now: datetime) -> Iterator[Command]:
    """Bring the network policy of one template up to date."""
    meta = template.metadata
    if meta.deletion_timestamp is not None:
        return
    label = {names.TEMPLATE_REF_HASH: name_hash(meta.name)}
    if not label.items() <= meta.labels.items():
        yield Patch(target_of(template), {"metadata": {"labels": label}})
    name = f"{meta.name}-network-policy"
    there = world.get(NetworkPolicy, meta.namespace, name)
    if template.spec.network_policy_management == PolicyManagement.UNMANAGED:
        if there is not None and is_controlled_by(there, template):
            yield Delete(target_of(there), reason="networkPolicyManagement is Unmanaged")
        return
    spec = policy_spec(template)
    if there is None:
        metadata = {"name": name, "namespace": meta.namespace, "ownerReferences": [owner_reference(template)]}
        document = {
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec,
        }  # fmt: skip
        yield Create(NetworkPolicy, document, is_told_of_when_refused=True)
    elif not is_controlled_by(there, template):
        message = f'NetworkPolicy "{name}" is not controlled by this template and is left as it is: delete it, or rename the template'
        yield Event(target_of(template), "PolicyNotOwned", message, type="Warning")
    elif _meaning(there.spec) != _meaning(msgspec.convert(spec, type(there.spec))):
        yield Patch(target_of(there), {"spec": spec})


def policy_spec(template: SandboxTemplate) -> Document:
    """The policy: the template's own rules, or the default ones."""
    spec: Document = {
        "podSelector": {"matchLabels": {names.TEMPLATE_REF_HASH: name_hash(template.metadata.name)}},
        "policyTypes": ["Ingress", "Egress"],
    }
    policy = template.spec.network_policy
    if not is_closed_by_default(template.spec) and policy is not None:
        return spec | {"ingress": _spelled_out(policy.ingress), "egress": _spelled_out(policy.egress)}
    router = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": names.ROUTER_NAMESPACE}},
        "podSelector": {"matchLabels": {"app": names.ROUTER_APP}},
    }
    public = [
        {"ipBlock": {"cidr": "0.0.0.0/0", "except": list(PRIVATE)}},
        {"ipBlock": {"cidr": "::/0", "except": list(PRIVATE_6)}},
    ]
    return spec | {"ingress": [{"from": [router]}], "egress": [{"to": public}]}


def _spelled_out(rules: list[Document]) -> list[Document]:
    """Rules with the protocol that a server would write into them."""
    return [
        rule | ({"ports": [{"protocol": "TCP", **port} for port in rule["ports"]]} if rule.get("ports") else {})
        for rule in rules
    ]


def _meaning(spec: object) -> bytes:
    return msgspec.json.encode(spec, order="deterministic")
