"""What every new pod is given: an account with a token, a priority, and patience with nodes that are briefly away."""

from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, ClassVar

from hekla.api.meta import Document
from hekla.apiserver.admission import AdmissionRequest, Operation, Reader
from hekla.apiserver.backend import NAME_LETTERS
from hekla.apiserver.status import forbidden

ACCOUNT_MOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
TOKEN_LIFE_S = 3607
"""What Kubernetes asks for; the seven seconds mark a token that admission added."""

PATIENCE_S = 300

SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def _is_new_pod(request: AdmissionRequest) -> bool:
    return request.operation is Operation.CREATE and request.kind.resource == "pods" and not request.subresource


@dataclass(frozen=True)
class ServiceAccountRule:
    """Gives a pod its service account and, unless told otherwise, a projected token for it."""

    name: str = "ServiceAccount"
    is_by_kind: ClassVar[bool] = True
    goes_by_template: ClassVar[bool] = True

    def wants(self, request: AdmissionRequest) -> bool:
        """New pods."""
        return _is_new_pod(request)

    def mutate(self, request: AdmissionRequest, reader: Reader) -> None:
        """Set the account, refuse one that does not exist, mount its token."""
        assert request.object is not None
        spec = request.object["spec"]
        account_name = spec.get("serviceAccountName") or "default"
        spec["serviceAccountName"] = spec["serviceAccount"] = account_name
        account = reader.get("serviceaccounts", request.namespace, account_name)
        if account is None:
            why = f'error looking up service account {request.namespace}/{account_name}: serviceaccount "{account_name}" not found'
            raise forbidden("pods", "", request.name, why)
        if "imagePullSecrets" not in spec and account.get("imagePullSecrets"):
            spec["imagePullSecrets"] = [dict(one) for one in account["imagePullSecrets"]]
        if _wants_token(spec, account):
            _mount_token(spec, _volume_name(spec, request.namespace, account_name))

    def validate(self, request: AdmissionRequest, reader: Reader) -> None:
        """All is said before."""


def _wants_token(spec: Document, account: Document) -> bool:
    asked = spec.get("automountServiceAccountToken")
    return bool(account.get("automountServiceAccountToken", True) if asked is None else asked)


def _volume_name(spec: Document, namespace: str, account: str) -> str:
    """Kubernetes throws dice for the name. Here all pods of an account have the same one, so that those of one template
    have the same spec to the byte: whoever keeps 200,000 of them keeps one spec.
    """
    name, taken = _usual_name(namespace, account), {volume.get("name") for volume in spec.get("volumes", ())}
    while name in taken:
        name += "x"
    return name


@lru_cache(maxsize=4096)
def _usual_name(namespace: str, account: str) -> str:
    drawn = blake2b(f"{namespace}/{account}".encode(), digest_size=5).digest()
    return "kube-api-access-" + "".join(NAME_LETTERS[number % len(NAME_LETTERS)] for number in drawn)


def _mount_token(spec: Document, volume: str) -> None:
    containers: list[Document] = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    missing = [c for c in containers if all(m.get("mountPath") != ACCOUNT_MOUNT for m in c.get("volumeMounts") or ())]
    if not missing:
        return
    for container in missing:
        mount = {"name": volume, "readOnly": True, "mountPath": ACCOUNT_MOUNT}
        container["volumeMounts"] = [*container.get("volumeMounts", ()), mount]
    spec["volumes"] = [*spec.get("volumes", ()), _token_volume(volume)]


def _token_volume(name: str) -> Document:
    namespace = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    sources: list[dict[str, Any]] = [
        {"serviceAccountToken": {"expirationSeconds": TOKEN_LIFE_S, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [namespace]}},
    ]
    return {"name": name, "projected": {"sources": sources, "defaultMode": 0o644}}


@dataclass(frozen=True)
class PriorityRule:
    """Turns a pod's priority class into a number."""

    name: str = "Priority"
    is_by_kind: ClassVar[bool] = True
    goes_by_template: ClassVar[bool] = True

    def wants(self, request: AdmissionRequest) -> bool:
        """New pods."""
        return _is_new_pod(request)

    def mutate(self, request: AdmissionRequest, reader: Reader) -> None:
        """Resolve priorityClassName, or take the cluster's default class."""
        assert request.object is not None
        spec = request.object["spec"]
        value, policy = self._resolve(spec, request, reader)
        given = spec.get("priority")
        if given is not None and given != value:
            why = f"the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name"
            raise forbidden("pods", "", request.name, why)
        spec["priority"] = value
        if spec.get("preemptionPolicy", policy) != policy:
            why = (
                f"the string value of PreemptionPolicy ({spec['preemptionPolicy']}) must not be provided in pod spec; "
                f"priority admission controller computed {policy} from the given PriorityClass name"
            )
            raise forbidden("pods", "", request.name, why)
        spec["preemptionPolicy"] = policy

    def validate(self, request: AdmissionRequest, reader: Reader) -> None:
        """All is said before."""

    def _resolve(self, spec: Document, request: AdmissionRequest, reader: Reader) -> tuple[int, str]:
        wanted = spec.get("priorityClassName") or ""
        if not wanted:
            default = _default_class(reader)
            if default is None:
                return 0, "PreemptLowerPriority"
            spec["priorityClassName"] = default["metadata"]["name"]
            return _value_and_policy(default)
        found = reader.get("priorityclasses.scheduling.k8s.io", "", wanted)
        if found is not None:
            return _value_and_policy(found)
        if wanted in SYSTEM_PRIORITIES:
            return SYSTEM_PRIORITIES[wanted], "PreemptLowerPriority"
        raise forbidden("pods", "", request.name, f"no PriorityClass with name {wanted} was found")


def _default_class(reader: Reader) -> Document | None:
    defaults = [c for c in reader.list("priorityclasses.scheduling.k8s.io") if c.get("globalDefault")]
    return min(defaults, key=lambda c: int(c.get("value", 0))) if defaults else None


def _value_and_policy(priority_class: Document) -> tuple[int, str]:
    return int(priority_class.get("value", 0)), priority_class.get("preemptionPolicy") or "PreemptLowerPriority"


@dataclass(frozen=True)
class DefaultTolerationSeconds:
    """Lets a pod stay five minutes on a node that is not ready or unreachable."""

    name: str = "DefaultTolerationSeconds"
    is_by_kind: ClassVar[bool] = True
    goes_by_template: ClassVar[bool] = True

    def wants(self, request: AdmissionRequest) -> bool:
        """New pods."""
        return _is_new_pod(request)

    def mutate(self, request: AdmissionRequest, reader: Reader) -> None:
        """Add the two tolerations that are not there already."""
        assert request.object is not None
        spec = request.object["spec"]
        tolerations: list[Document] = list(spec.get("tolerations", ()))
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
            if not any(_tolerates(one, key) for one in tolerations):
                patience = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": PATIENCE_S}
                tolerations.append(patience)
        spec["tolerations"] = tolerations

    def validate(self, request: AdmissionRequest, reader: Reader) -> None:
        """All is said before."""


def _tolerates(toleration: Document, key: str) -> bool:
    return toleration.get("key", "") in ("", key) and toleration.get("effect", "") in ("", "NoExecute")


@dataclass(frozen=True)
class RuntimeClassRule:
    """Adds what a pod's runtime class costs and where it runs."""

    name: str = "RuntimeClass"
    is_by_kind: ClassVar[bool] = True
    goes_by_template: ClassVar[bool] = True

    def wants(self, request: AdmissionRequest) -> bool:
        """New pods; most name no class."""
        return _is_new_pod(request)

    def mutate(self, request: AdmissionRequest, reader: Reader) -> None:
        """Set overhead, merge node selector and tolerations; refuse a class that does not exist."""
        assert request.object is not None
        spec = request.object["spec"]
        wanted = spec.get("runtimeClassName")
        if not wanted:
            self._refuse_overhead(request, spec)
            return
        found = reader.get("runtimeclasses.node.k8s.io", "", wanted)
        if found is None:
            raise forbidden("pods", "", request.name, f'pod rejected: RuntimeClass "{wanted}" not found')
        overhead = (found.get("overhead") or {}).get("podFixed")
        if overhead:
            spec["overhead"] = dict(overhead)
        else:
            self._refuse_overhead(request, spec)
        scheduling = found.get("scheduling") or {}
        if scheduling.get("nodeSelector"):
            spec["nodeSelector"] = {**spec.get("nodeSelector", {}), **scheduling["nodeSelector"]}
        if scheduling.get("tolerations"):
            spec["tolerations"] = [*spec.get("tolerations", ()), *scheduling["tolerations"]]

    def _refuse_overhead(self, request: AdmissionRequest, spec: Document) -> None:
        if "overhead" in spec:
            why = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
            raise forbidden("pods", "", request.name, why)

    def validate(self, request: AdmissionRequest, reader: Reader) -> None:
        """All is said before."""
