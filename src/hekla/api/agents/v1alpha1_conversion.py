"""How v1alpha1 and v1beta1 of agent-sandbox's kinds become each other, so that neither loses what the other has no place for.

What v1alpha1 alone can say is kept in the annotation `api.agents.x-k8s.io/v1alpha1-<kind>-state` of the stored object, in the place
that agent-sandbox's own webhook keeps it; what v1beta1 alone can say is shown to clients of v1alpha1 in annotations
`api.agents.x-k8s.io/v1beta1-...`, which come back with their updates. Documents that are given are not changed.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hekla.api.agents import names
from hekla.api.agents.extensions import Injection
from hekla.api.agents.v1alpha1_schema import VERSION
from hekla.api.meta import Document

_DOMAIN = "api.agents.x-k8s.io"
_NEWER = f"{_DOMAIN}/v1beta1-"
_NOT_POOLS = ("", "none", "default")

_ONLY_NEWER: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Sandbox": {"node-name": ("status", "nodeName")},
    "SandboxTemplate": {"volume-claim-templates-policy": ("spec", "volumeClaimTemplatesPolicy")},
    "SandboxWarmPool": {"observed-generation": ("status", "observedGeneration")},
    "SandboxClaim": {"volume-claim-templates": ("spec", "volumeClaimTemplates")},
}
"""What v1alpha1 has no field for: by kind, the annotation's name after its prefix, and where the value stands."""

_TEXTS: Mapping[str, tuple[str, ...]] = {"volumeClaimTemplatesPolicy": tuple(Injection)}
"""Those that are written as they are, and what they may be."""


class OlderKind(NamedTuple):
    """The two ways between v1alpha1 and v1beta1 of one kind."""

    to_newer: Callable[[Document], Document]
    to_older: Callable[[Document], Document]


def _parts(document: Document) -> Document:
    """A copy whose metadata, annotations, spec and status may be changed."""
    copied = {**document, "metadata": {**document["metadata"]}}
    copied["metadata"]["annotations"] = {**(document["metadata"].get("annotations") or {})}
    for part in ("spec", "status"):
        if isinstance(document.get(part), dict):
            copied[part] = {**document[part]}
    return copied


def _finished(document: Document) -> Document:
    if not document["metadata"]["annotations"]:
        del document["metadata"]["annotations"]
    return document


def _state_key(kind: str) -> str:
    return f"{_DOMAIN}/{VERSION}-{kind.lower()}-state"


def _shown_newer(kind: str, document: Document) -> None:
    """Move what only v1beta1 has into annotations."""
    notes = document["metadata"]["annotations"]
    for name, (part, key) in _ONLY_NEWER[kind].items():
        notes.pop(_NEWER + name, None)
        value = (document.get(part) or {}).pop(key, None)
        if value is not None:
            notes[_NEWER + name] = value if key in _TEXTS else json.dumps(value)


def _taken_back(kind: str, document: Document) -> None:
    """Move it from annotations to where it belongs; what nobody can read is let lie."""
    notes = document["metadata"]["annotations"]
    for name, (part, key) in _ONLY_NEWER[kind].items():
        text = notes.get(_NEWER + name)
        if text is None:
            continue
        try:
            value = text if key in _TEXTS else json.loads(text)
        except ValueError:
            continue
        if value not in _TEXTS.get(key, (value,)):
            continue
        if part in document or part == "spec":  # who applies a manifest that was read from a server has no status in it
            document.setdefault(part, {})[key] = value
        del notes[_NEWER + name]


def _state(kind: str, document: Document) -> Document:
    """What the stored object remembers of v1alpha1; empty if nothing, or nothing that can be read."""
    text = document["metadata"]["annotations"].pop(_state_key(kind), "")
    try:
        found: Any = json.loads(text) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _of_state(state: Document, part: str) -> Document:
    found = state.get(part)
    return found if isinstance(found, dict) else {}


def _remember(kind: str, document: Document, **said: Document) -> None:
    if kept := {part: values for part, values in said.items() if values}:
        document["metadata"]["annotations"][_state_key(kind)] = json.dumps(kept, sort_keys=True)


# ---- Sandbox: replicas became operatingMode


def _newer_sandbox(document: Document) -> Document:
    new = _parts(document)
    _state("Sandbox", new)
    _taken_back("Sandbox", new)
    spec, status = new.setdefault("spec", {}), new.get("status") or {}
    kept = {"spec": _taken(spec, "replicas"), "status": _taken(status, "replicas")}
    spec["operatingMode"] = "Suspended" if kept["spec"].get("replicas") == 0 else "Running"
    _remember("Sandbox", new, **kept)
    return _finished(new)


def _older_sandbox(document: Document) -> Document:
    old = _parts(document)
    state = _state("Sandbox", old)
    _shown_newer("Sandbox", old)
    spec = old.setdefault("spec", {})
    replicas = 0 if spec.pop("operatingMode", "Running") == "Suspended" else 1
    said, counted = _of_state(state, "spec"), _of_state(state, "status")
    is_as_it_was = bool(state) and said.get("replicas", 1) == replicas
    if not is_as_it_was or "replicas" in said:
        spec["replicas"] = replicas
    if "status" in old and (not is_as_it_was or "replicas" in counted):
        old["status"]["replicas"] = counted["replicas"] if is_as_it_was else replicas
    return _finished(old)


def _taken(part: Document, key: str) -> Document:
    return {key: part.pop(key)} if key in part else {}


# ---- SandboxClaim: a template, and whether to wait in which pool, became a pool


def _newer_claim(document: Document) -> Document:
    new = _parts(document)
    _state("SandboxClaim", new)
    _taken_back("SandboxClaim", new)
    notes, spec = new["metadata"]["annotations"], new.setdefault("spec", {})
    kept = {**_taken(spec, "sandboxTemplateRef"), **_taken(spec, "warmpool")}
    template, policy = (kept.get("sandboxTemplateRef") or {}).get("name", ""), kept.get("warmpool")
    odd_name = notes.pop(f"{_NEWER}warm-pool-ref", None)
    if policy not in (None, *_NOT_POOLS):
        spec["warmPoolRef"] = {"name": policy}
    elif odd_name is not None and policy == odd_name:
        spec["warmPoolRef"] = {"name": odd_name}
    else:
        spec["warmPoolRef"] = {"name": names.SHADOW_POOL + template}
    notes.pop(names.POOL_NONE, None)
    if policy == "none" and odd_name is None:
        notes[names.POOL_NONE] = "true"
    _remember("SandboxClaim", new, spec=kept)
    return _finished(new)


def _older_claim(document: Document) -> Document:
    old = _parts(document)
    said = _of_state(_state("SandboxClaim", old), "spec")
    _shown_newer("SandboxClaim", old)
    notes, spec = old["metadata"]["annotations"], old.setdefault("spec", {})
    pool = (spec.pop("warmPoolRef", None) or {}).get("name", "")
    wants_none = notes.pop(names.POOL_NONE, None) is not None
    template = (said.get("sandboxTemplateRef") or {}).get("name", "")
    policy = said.get("warmpool")
    was = policy if policy not in (None, *_NOT_POOLS) else names.SHADOW_POOL + template
    if said and pool == was:
        spec |= said
    elif pool.startswith(names.SHADOW_POOL):
        spec |= {
            "sandboxTemplateRef": {"name": pool.removeprefix(names.SHADOW_POOL)},
            "warmpool": "none" if wants_none else "default",
        }
    else:
        # v1alpha1 wants a template, and none is told: that of the pool's name, which CodeInterpreters' have, is a guess
        spec |= {"sandboxTemplateRef": {"name": template or pool}, "warmpool": pool}
        if pool in _NOT_POOLS:
            notes[f"{_NEWER}warm-pool-ref"] = pool
    return _finished(old)


# ---- templates and pools: some fields are new


def _newer_plain(kind: str) -> Callable[[Document], Document]:
    def convert(document: Document) -> Document:
        new = _parts(document)
        _state(kind, new)
        _taken_back(kind, new)
        return _finished(new)

    return convert


def _older_plain(kind: str) -> Callable[[Document], Document]:
    def convert(document: Document) -> Document:
        old = _parts(document)
        _state(kind, old)
        _shown_newer(kind, old)
        if kind == "SandboxWarmPool":
            old.setdefault("spec", {}).setdefault("replicas", 1)
        return _finished(old)

    return convert


OLDER_KINDS: Mapping[str, OlderKind] = {
    "sandboxes.agents.x-k8s.io": OlderKind(_newer_sandbox, _older_sandbox),
    "sandboxclaims.extensions.agents.x-k8s.io": OlderKind(_newer_claim, _older_claim),
    **{
        f"{plural}.extensions.agents.x-k8s.io": OlderKind(_newer_plain(kind), _older_plain(kind))
        for kind, plural in (("SandboxTemplate", "sandboxtemplates"), ("SandboxWarmPool", "sandboxwarmpools"))
    },
}
"""By resource."""
