"""What Kubernetes lets pass in a pod but tells its writer: what hides, doubles, does nothing or is about to go.

`kind_warnings.py` has the other kinds, and says when which of them are asked.
"""

from collections.abc import Iterator

from hekla.api.meta import Document

_DEPRECATED_LABELS = {
    "beta.kubernetes.io/arch": 'deprecated since v1.14; use "kubernetes.io/arch" instead',
    "beta.kubernetes.io/os": 'deprecated since v1.14; use "kubernetes.io/os" instead',
    "failure-domain.beta.kubernetes.io/region": 'deprecated since v1.17; use "topology.kubernetes.io/region" instead',
    "failure-domain.beta.kubernetes.io/zone": 'deprecated since v1.17; use "topology.kubernetes.io/zone" instead',
    "beta.kubernetes.io/instance-type": 'deprecated since v1.17; use "node.kubernetes.io/instance-type" instead',
    "app.kubernetes.io/created-by": "deprecated since v1.9",
    "scheduler.alpha.kubernetes.io/preferAvoidPods": "deprecated since v1.22; use Taints and Tolerations instead",
    "node-role.kubernetes.io/master": 'use "node-role.kubernetes.io/control-plane" instead',
}
_DEPRECATED_ANNOTATIONS = {
    "scheduler.alpha.kubernetes.io/critical-pod": 'non-functional in v1.16+; use the "priorityClassName" field instead',
    "security.alpha.kubernetes.io/sysctls": 'non-functional in v1.11+; use the "sysctls" field instead',
    "security.alpha.kubernetes.io/unsafe-sysctls": 'non-functional in v1.11+; use the "sysctls" field instead',
}
_DEPRECATED_VOLUMES = {
    "photonPersistentDisk": "deprecated in v1.11, non-functional in v1.16+",
    "gitRepo": "deprecated in v1.11",
    "scaleIO": "deprecated in v1.16, non-functional in v1.22+",
    "flocker": "deprecated in v1.22, non-functional in v1.25+",
    "storageOS": "deprecated in v1.22, non-functional in v1.25+",
    "quobyte": "deprecated in v1.22, non-functional in v1.25+",
    "glusterfs": "deprecated in v1.25, non-functional in v1.26+",
    "cephfs": "deprecated in v1.28, non-functional in v1.31+",
    "rbd": "deprecated in v1.28, non-functional in v1.31+",
}
_SECCOMP_POD = "seccomp.security.alpha.kubernetes.io/pod"
_SECCOMP_CONTAINER = "container.seccomp.security.alpha.kubernetes.io/"
_NO_SECCOMP = 'non-functional in v1.27+; use the "seccompProfile" field instead'
_APP_ARMOR = "container.apparmor.security.beta.kubernetes.io/"
_NO_APP_ARMOR = 'deprecated since v1.30; use the "appArmorProfile" field instead'
_SELECTS_NONE = "a null labelSelector results in matching no pod"
_CONTAINERS = ("initContainers", "containers", "ephemeralContainers")
_SELECTING = frozenset({"nodeSelector", "topologySpreadConstraints", "affinity"})
_LISTED = frozenset({"hostAliases", "imagePullSecrets", "overhead"})
_WHOLE_BYTES = ("memory", "ephemeral-storage")
_NEGATIVE_GRACE = "must be >= 0; negative values are invalid and will be treated as 1"


def pod_warnings(metadata: Document, spec: Document, path: str = "") -> list[str]:
    """All of it; `path` ends with a dot, or is empty for a pod of its own."""
    found = list(_about_selectors(spec, f"{path}spec")) if spec.keys() & _SELECTING else []
    if metadata.get("annotations"):
        found += _about_annotations(metadata["annotations"], spec, path)
    for index, volume in enumerate(spec.get("volumes", ())):
        gone = _DEPRECATED_VOLUMES.keys() & volume.keys()
        found += [f"{path}spec.volumes[{index}].{key}: {_DEPRECATED_VOLUMES[key]}" for key in sorted(gone)]
        if "projected" in volume and not any(volume["projected"].get("sources") or ()):
            found.append(f'volume "{volume.get("name", "")}" (Projected) has no sources provided')
    if spec.keys() & _LISTED:
        found += _doubled(spec.get("hostAliases", ()), "ip", f"{path}spec.hostAliases", "duplicate ip")
        found += _doubled(spec.get("imagePullSecrets", ()), "name", f"{path}spec.imagePullSecrets", "duplicate name")
        found += _fractions(spec.get("overhead", {}), f"{path}spec.overhead")
    ports: list[tuple[list[Document], str]] = []
    for key in _CONTAINERS:
        if key in spec:
            for index, container in enumerate(spec[key]):
                if "ports" in container:
                    ports.append((container["ports"], f"{path}spec.{key}[{index}].ports"))
                if _may_be_odd(container):
                    found += _about_container(container, f"{path}spec.{key}[{index}]")
    if ports:
        found += _about_ports(ports)
    if spec.get("terminationGracePeriodSeconds", 0) < 0:
        found.append(f"{path}spec.terminationGracePeriodSeconds: {_NEGATIVE_GRACE}")
    return found


def label_warning(label: str) -> str:
    """What is to be said of a label of nodes; empty: nothing."""
    return _DEPRECATED_LABELS.get(label, "")


def _containers(spec: Document, path: str) -> Iterator[tuple[Document, str]]:
    for key in _CONTAINERS:
        for index, container in enumerate(spec.get(key, ())):
            yield container, f"{path}.{key}[{index}]"


# ---- placement


def _about_selectors(spec: Document, path: str) -> Iterator[str]:
    for label in sorted(_DEPRECATED_LABELS.keys() & spec.get("nodeSelector", {}).keys()):
        yield f"{path}.nodeSelector[{label}]: {_DEPRECATED_LABELS[label]}"
    for index, spread in enumerate(spec.get("topologySpreadConstraints", ())):
        where, label = f"{path}.topologySpreadConstraints[{index}]", spread.get("topologyKey", "")
        if label in _DEPRECATED_LABELS:
            yield f"{where}.topologyKey: {label} is {_DEPRECATED_LABELS[label]}"
        if "labelSelector" not in spread:
            yield f"{where}.labelSelector: {_SELECTS_NONE}"
    if "affinity" in spec:
        yield from _about_affinity(spec["affinity"], f"{path}.affinity")


def _about_affinity(affinity: Document, path: str) -> Iterator[str]:
    nodes, where = affinity.get("nodeAffinity", {}), f"{path}.nodeAffinity"
    required, preferred = "requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution"  # fmt: skip
    for index, term in enumerate(nodes.get(required, {}).get("nodeSelectorTerms", ())):
        yield from _about_term(term, f"{where}.{required}.nodeSelectorTerms[{index}]")
    for index, weighted in enumerate(nodes.get(preferred, ())):
        yield from _about_term(weighted.get("preference", {}), f"{where}.{preferred}[{index}].preference")
    for key in ("podAffinity", "podAntiAffinity"):
        pods = affinity.get(key, {})
        for index, term in enumerate(pods.get(required, ())):
            if "labelSelector" not in term:
                yield f"{path}.{key}.{required}[{index}].labelSelector: {_SELECTS_NONE}"
        for index, weighted in enumerate(pods.get(preferred, ())):
            if "labelSelector" not in weighted.get("podAffinityTerm", {}):
                yield f"{path}.{key}.{preferred}[{index}].podAffinityTerm.labelSelector: {_SELECTS_NONE}"


def _about_term(term: Document, path: str) -> Iterator[str]:
    for index, expression in enumerate(term.get("matchExpressions", ())):
        label = expression.get("key", "")
        if label in _DEPRECATED_LABELS:
            yield f"{path}.matchExpressions[{index}].key: {label} is {_DEPRECATED_LABELS[label]}"


# ---- metadata


def _about_annotations(annotations: dict[str, str], spec: Document, path: str) -> Iterator[str]:
    where = f"{path}metadata.annotations"
    for key in sorted(_DEPRECATED_ANNOTATIONS.keys() & annotations.keys()):
        yield f"{where}[{key}]: {_DEPRECATED_ANNOTATIONS[key]}"
    if _SECCOMP_POD in annotations and "seccompProfile" not in spec.get("securityContext", {}):
        yield f"{where}[{_SECCOMP_POD}]: {_NO_SECCOMP}"
    for key in sorted(annotations):
        if key.startswith(_APP_ARMOR) and _lacks_profile(spec, key.removeprefix(_APP_ARMOR)):
            yield f"{where}[{key}]: {_NO_APP_ARMOR}"
    for container, _ in _containers(spec, ""):
        key = _SECCOMP_CONTAINER + container.get("name", "")
        if key in annotations and "seccompProfile" not in container.get("securityContext", {}):
            yield f"{where}[{key}]: {_NO_SECCOMP}"


def _lacks_profile(spec: Document, name: str) -> bool:
    found = [one for one, _ in _containers(spec, "") if one.get("name") == name]
    return bool(found) and not any("appArmorProfile" in one.get("securityContext", {}) for one in (spec, *found))


# ---- containers


def _may_be_odd(container: Document) -> bool:
    # asked first: most containers are not, and every pod that is made comes by here
    if (env := container.get("env")) and len(env) != len({one.get("name") for one in env}):
        return True
    for key, amounts in container.get("resources", {}).items():
        if key != "claims":
            for name in _WHOLE_BYTES:
                if name in amounts and amounts[name].endswith("m"):
                    return True
    return False


def _about_container(container: Document, path: str) -> Iterator[str]:
    for key, amounts in container.get("resources", {}).items():
        if key != "claims":
            yield from _fractions(amounts, f"{path}.resources.{key}")
    yield from _hidden(container.get("env", []), f"{path}.env")


def _doubled(items: list[Document], key: str, path: str, said: str) -> Iterator[str]:
    seen = set[str]()
    for index, item in enumerate(items):
        value = item.get(key, "")
        if value in seen:
            yield f'{path}[{index}].{key}: {said} "{value}"'
        if not value and key == "name":
            yield f'{path}[{index}].{key}: invalid empty name ""'
        seen.add(value)


def _fractions(amounts: dict[str, str], path: str) -> Iterator[str]:
    # quantities come in their shortest form, in which only a fraction ends in an m
    for key in _WHOLE_BYTES:
        if key in amounts and amounts[key].endswith("m"):
            yield f'{path}[{key}]: fractional byte value "{amounts[key]}" is invalid, must be an integer'


def _hidden(variables: list[Document], path: str) -> Iterator[str]:
    """Names given twice, unless the second value is made of the first."""
    seen = set[str]()
    for index, env in enumerate(variables):
        name, value = env.get("name", ""), env.get("value", "")
        reference = f"$({name})"
        if name in seen and ("valueFrom" in env or value == reference or reference not in value):
            yield f'{path}[{index}]: hides previous definition of "{name}", which may be dropped when using apply'
        seen.add(name)


def _about_ports(lists: list[tuple[list[Document], str]]) -> Iterator[str]:
    known: dict[tuple[int, str], list[tuple[int, str, str]]] = {}
    for ports, path in lists:
        for index, port in enumerate(ports):
            where, host, address = f"{path}[{index}]", port.get("hostPort", 0), port.get("hostIP", "")
            if address and not host:
                yield f"{where}: hostIP set without hostPort: {_as_go_prints(port)}"
            others = known.setdefault((port.get("containerPort", 0), port.get("protocol", "")), [])
            for other_host, other_address, other_where in others:
                if (host, address) == (other_host, other_address):
                    yield f"{where}: duplicate port definition with {other_where}"
                elif not host or not other_host:
                    yield f"{where}: overlapping port definition with {other_where}"
                elif host == other_host and bool(address) != bool(other_address):
                    yield f"{where}: dangerously ambiguous port definition with {other_where}"
            others.append((host, address, where))


def _as_go_prints(port: Document) -> str:
    return (
        f"{{Name:{port.get('name', '')} HostPort:{port.get('hostPort', 0)} ContainerPort:{port.get('containerPort', 0)} "
        f"Protocol:{port.get('protocol', '')} HostIP:{port.get('hostIP', '')}}}"
    )
