"""Reconciles CodeInterpreters: a template for their sessions' Sandboxes, a pool where one is asked for, and whether all that is there.

Template and pool have the CodeInterpreter's name, as AgentCube's have; labels and annotations of its template reach the pods of
the pool, too.
"""

from collections.abc import Iterator
from datetime import datetime

from hekla.api.agents import CodeInterpreter, SandboxTemplate, SandboxWarmPool, names
from hekla.api.agents.extensions import PolicyManagement
from hekla.api.meta import Document, Resource
from hekla.kube.commands import Command, Create, Delete, Patch, SetStatus, target_of
from hekla.kube.reconcile import World, reconciler
from hekla.sandbox.agentcube_checks import interpreter_trouble
from hekla.sandbox.observing import Observation, as_documents, conditions
from hekla.sandbox.owning import controller_of, is_controlled_by, owner_reference

DEFAULT_PORT = 8080
CONTAINER = "code-interpreter"
OUR_IMAGE = "hekla/code-interpreter"
"""The interpreter that a node brings: the daemon in the node's own Python."""


@reconciler(CodeInterpreter, owns=(SandboxTemplate, SandboxWarmPool))
def reconcile_code_interpreter(one: CodeInterpreter, world: World, now: datetime) -> Iterator[Command]:
    """Bring template and pool of one CodeInterpreter up to date."""
    meta = one.metadata
    if meta.deletion_timestamp is not None:
        return
    template = world.get(SandboxTemplate, meta.namespace, meta.name)
    pool = world.get(SandboxWarmPool, meta.namespace, meta.name)
    taken = next((_taken(there) for there in (template, pool) if there and not is_controlled_by(there, one)), "")
    wrong = interpreter_trouble(one)
    if not taken and not wrong:
        yield from _keep(SandboxTemplate, one, template, template_spec(one))
        size = one.spec.warm_pool_size or 0
        if size > 0:
            spec = {
                "replicas": size,
                "sandboxTemplateRef": {"name": meta.name},
                "updateStrategy": {"type": "Recreate"},
            }
            yield from _keep(SandboxWarmPool, one, pool, spec, is_sized_by_others=_is_sized_by_others(one))
        elif pool is not None:
            yield Delete(target_of(pool), reason="warmPoolSize is absent or 0")
    if taken:
        yield from _tell(one, Observation("Ready", False, "NameTaken", taken), now)
    elif wrong:
        yield from _tell(one, Observation("Ready", False, "Invalid", wrong), now)
    else:
        yield from _tell(one, Observation("Ready", True, "Reconciled", "Sessions can be asked for"), now)


def _taken(there: Resource) -> str:
    owner = controller_of(there)
    whose = "nobody's" if owner is None else f"{owner.kind}/{owner.name}'s"
    kind = there.kind_info.kind
    return f'{kind} "{there.metadata.name}" is {whose}: delete it, or rename the CodeInterpreter'


def _is_sized_by_others(one: CodeInterpreter) -> bool:
    return one.metadata.annotations.get(names.POOL_POLICY, "fixed") != "fixed"


def _keep(
    kind: type[Resource],
    one: CodeInterpreter,
    there: SandboxTemplate | SandboxWarmPool | None,
    spec: Document,
    *,
    is_sized_by_others: bool = False,
) -> Iterator[Command]:
    meta = one.metadata
    own = {key: text for key, text in meta.annotations.items() if key.startswith(("hekla.dev/", names.QUEUE))}
    annotations = {names.EGRESS: "", **own}  # code that a model wrote reaches nobody, unless somebody says whom
    if there is None:
        metadata = {
            "name": meta.name,
            "namespace": meta.namespace,
            "labels": {names.WORKLOAD_NAME: meta.name, names.MANAGED_BY: names.MANAGER},
            "annotations": annotations,
            "ownerReferences": [owner_reference(one)],
        }
        info = kind.kind_info
        document = {"apiVersion": info.api_version, "kind": info.kind, "metadata": metadata, "spec": spec}
        yield Create(kind, document, is_told_of_when_refused=True)
        return
    patch: Document = {}
    if is_sized_by_others:
        spec = {key: value for key, value in spec.items() if key != "replicas"}
    if not _says(there, spec):
        patch["spec"] = _replacing(there, spec)
    taken_back = _taken_back(there, annotations)
    if taken_back or not annotations.items() <= there.metadata.annotations.items():
        patch["metadata"] = {"annotations": {**taken_back, **annotations}}
    if patch:
        yield Patch(target_of(there), patch)


def _taken_back(there: SandboxTemplate | SandboxWarmPool, annotations: Document) -> Document:
    """What a template still says that its interpreter says no more; a pool's own policy may be its user's."""
    if isinstance(there, SandboxWarmPool):
        return {}
    return {key: None for key in there.metadata.annotations if key.startswith("hekla.dev/") and key not in annotations}


def _says(there: SandboxTemplate | SandboxWarmPool, spec: Document) -> bool:
    if isinstance(there, SandboxTemplate):
        template = spec["podTemplate"]
        said = there.spec.pod_template
        return (
            there.spec.network_policy_management == spec["networkPolicyManagement"]
            and said.metadata.labels == template["metadata"]["labels"]
            and said.metadata.annotations == template["metadata"]["annotations"]
            and _is_in(template["spec"], said.spec)
            and said.spec.keys() <= template["spec"].keys()
        )
    replicas = spec.get("replicas", there.spec.replicas)
    return there.spec.replicas == replicas and there.spec.template_ref.name == spec["sandboxTemplateRef"]["name"]


def _is_in(wanted: object, there: object) -> bool:
    """Whether all that is wanted is said; a server adds to objects, not to lists."""
    if isinstance(wanted, dict) and isinstance(there, dict):
        return all(key in there and _is_in(value, there[key]) for key, value in wanted.items())
    if isinstance(wanted, list) and isinstance(there, list):
        return len(wanted) == len(there) and all(_is_in(*pair) for pair in zip(wanted, there, strict=True))
    return wanted == there


def _replacing(there: SandboxTemplate | SandboxWarmPool, spec: Document) -> Document:
    """A merge patch that leaves nothing of the old pod template."""
    if not isinstance(there, SandboxTemplate):
        return spec
    old, new = there.spec.pod_template, spec["podTemplate"]
    metadata = {
        "labels": {**dict.fromkeys(old.metadata.labels), **new["metadata"]["labels"]},
        "annotations": {**dict.fromkeys(old.metadata.annotations), **new["metadata"]["annotations"]},
    }
    return {**spec, "podTemplate": {"metadata": metadata, "spec": {**dict.fromkeys(old.spec), **new["spec"]}}}


def template_spec(one: CodeInterpreter) -> Document:
    """The SandboxTemplate that a CodeInterpreter stands for."""
    template = one.spec.template
    container: Document = {"name": CONTAINER, "image": template.image or OUR_IMAGE}
    optional: Document = {
        "imagePullPolicy": template.image_pull_policy,
        "env": template.environment,
        "command": template.command,
        "args": template.args,
        "resources": template.resources,
    }
    container |= {key: value for key, value in optional.items() if value}
    container["ports"] = [
        {"containerPort": port.port, **({"name": port.name} if port.name else {})} for port in one.spec.ports
    ] or [{"containerPort": DEFAULT_PORT}]
    spec: Document = {"containers": [container], "automountServiceAccountToken": False}
    if template.runtime_class_name:
        spec["runtimeClassName"] = template.runtime_class_name
    if template.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret.name} for secret in template.image_pull_secrets]
    labels = {**template.labels, names.WORKLOAD_NAME: one.metadata.name, names.MANAGED_BY: names.MANAGER}
    return {
        "podTemplate": {"metadata": {"labels": labels, "annotations": dict(template.annotations)}, "spec": spec},
        "networkPolicyManagement": PolicyManagement.UNMANAGED.value,
    }


def _tell(one: CodeInterpreter, observation: Observation, now: datetime) -> Iterator[Command]:
    is_ready = observation.status is True
    told = conditions(one.status.conditions, [observation], one.metadata.generation, now)
    if as_documents(one.status.conditions) != told or one.status.ready is not is_ready:
        yield SetStatus(target_of(one), {"ready": is_ready, "conditions": told})
