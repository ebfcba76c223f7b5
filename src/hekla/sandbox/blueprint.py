"""A Sandbox from a SandboxTemplate: what it says, made safe where it says nothing, and the hash by which it is known.

`sandbox_warm_pool.py` makes Sandboxes that wait, `sandbox_claim.py` one that nobody waited for.
"""

import copy
from collections.abc import Iterator

import msgspec

from hekla.api.agents import Sandbox, SandboxTemplate, names
from hekla.api.agents.extensions import PolicyManagement, SandboxTemplateSpec
from hekla.api.meta import Document, Resource
from hekla.sandbox.owning import name_hash, owner_reference

PUBLIC_RESOLVERS = ("8.8.8.8", "1.1.1.1")
ANYWHERE = "*"
_SHARED = ("pod_template", "volume_claim_templates", "service")


def sandbox_document(
    template: SandboxTemplate, owner: Resource, metadata: Document, *, blueprint: Document | None = None
) -> Document:
    """The Sandbox to make; `metadata` has its name, and labels and annotations beside those of the template."""
    info, meta = Sandbox.kind_info, template.metadata
    labels = {
        names.TEMPLATE_REF_HASH: name_hash(meta.name),
        names.TEMPLATE_HASH: blueprint_hash(template),
        **(metadata.get("labels") or {}),
    }
    annotations = {names.TEMPLATE_REF: meta.name, **_handed_down(template), **(metadata.get("annotations") or {})}
    return {
        "apiVersion": info.api_version,
        "kind": info.kind,
        "metadata": {
            **metadata,
            "namespace": meta.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [owner_reference(owner)],
        },
        "spec": safe_blueprint(template) if blueprint is None else blueprint,
    }


def safe_blueprint(template: SandboxTemplate) -> Document:
    """What a template's Sandboxes say: no service account's token, and no cluster's names, unless the template says so."""
    blueprint = _blueprint(template.spec)
    spec = blueprint["podTemplate"]["spec"]
    spec.setdefault("automountServiceAccountToken", False)
    if is_closed_by_default(template.spec) and not spec.get("dnsPolicy"):
        spec["dnsPolicy"] = "None"
        spec["dnsConfig"] = {"nameservers": list(PUBLIC_RESOLVERS)}
    return blueprint


def is_closed_by_default(spec: SandboxTemplateSpec) -> bool:
    """Whether the default network policy holds: in from the router, out to the public Internet."""
    return spec.network_policy_management != PolicyManagement.UNMANAGED and spec.network_policy is None


def blueprint_hash(template: SandboxTemplate) -> str:
    """Changes when Sandboxes made from the template would. Labels and annotations of pods do not count."""
    blueprint = _blueprint(template.spec)
    told = {
        "spec": blueprint["podTemplate"]["spec"],
        "claims": [
            {"name": (one.get("metadata") or {}).get("name", ""), "spec": one["spec"]}
            for one in blueprint.get("volumeClaimTemplates") or ()
        ],
        "service": blueprint.get("service"),
    }
    return name_hash(msgspec.json.encode(told, order="deterministic").decode())


def _blueprint(spec: SandboxTemplateSpec) -> Document:
    template = spec.pod_template
    blueprint: Document = {"podTemplate": {"spec": copy.deepcopy(template.spec)}}
    metadata = {"labels": dict(template.metadata.labels), "annotations": dict(template.metadata.annotations)}
    if kept := {key: value for key, value in metadata.items() if value}:
        blueprint["podTemplate"]["metadata"] = kept
    if spec.volume_claim_templates:
        blueprint["volumeClaimTemplates"] = [_plain(msgspec.to_builtins(one)) for one in spec.volume_claim_templates]
    if spec.service is not None:
        blueprint["service"] = spec.service
    return blueprint


def _plain(claim: Document) -> Document:
    metadata = {key: value for key, value in claim["metadata"].items() if value}
    return {"metadata": metadata, "spec": claim["spec"]}


def allows_the_same(one: Sandbox, template: SandboxTemplate) -> bool:
    """Whether a Sandbox that waits may reach what its template says now, with the secrets and the isolation that it says. Of one that
    another controller made, which says nothing of that, nothing is wanted.
    """
    has, given, told = one.metadata.annotations, template.metadata.annotations, _handed_down(template)
    said = (key for key in _HANDED_DOWN if key != names.QUEUE and (key in has or given.get(key)))
    return all(has.get(key, "") == told.get(key, "") for key in said)


_HANDED_DOWN = (names.MIN_ISOLATION, names.QUEUE, names.EGRESS, "hekla.dev/egress-secrets")


def _handed_down(template: SandboxTemplate) -> dict[str, str]:
    """Our own annotations of a template, which its Sandboxes have too; and where they may go, if only its policy says it."""
    given = template.metadata.annotations
    own = {key: given[key] for key in _HANDED_DOWN if given.get(key)}
    if names.EGRESS not in given and (reach := ",".join(_reach(template.spec))):
        own[names.EGRESS] = reach
    return own


def _reach(spec: SandboxTemplateSpec) -> Iterator[str]:
    """A template's network policy as a list of hosts, where nodes have no network policies: addresses without holes in them."""
    if spec.network_policy_management == PolicyManagement.UNMANAGED or spec.network_policy is None:
        yield ANYWHERE
        return
    for rule in spec.network_policy.egress:
        ports = [one["port"] for one in rule.get("ports") or () if isinstance(one.get("port"), int)]
        for host in _hosts(rule):
            yield from (f"{host}:{port}" for port in ports) if ports else (host,)


def _hosts(rule: Document) -> Iterator[str]:
    if not rule.get("to"):
        yield ANYWHERE
    for peer in rule.get("to") or ():
        block = (peer.get("ipBlock") or {}).get("cidr", "")
        if block in ("0.0.0.0/0", "::/0"):
            yield ANYWHERE
        elif block.endswith(("/32", "/128")):
            yield block.rpartition("/")[0]
