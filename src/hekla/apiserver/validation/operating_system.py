"""What a pod may not ask for on the operating system it names, and with users of its own."""

from collections.abc import Iterator

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import FieldError, forbidden_field, invalid, not_supported, required

_NOT_ON_WINDOWS = "cannot be set for a windows pod"
_NOT_ON_LINUX = "windows options cannot be set for a linux pod"
_WITH_OWN_USERS = "when `hostUsers` is false"
_POD_CONTEXT = (
    "appArmorProfile", "seLinuxOptions", "seccompProfile", "fsGroup", "fsGroupChangePolicy", "sysctls", "runAsUser",
    "runAsGroup", "supplementalGroups", "supplementalGroupsPolicy", "seLinuxChangePolicy",
)  # fmt: skip
_CONTAINER_CONTEXT = (
    "appArmorProfile", "seLinuxOptions", "seccompProfile", "capabilities", "readOnlyRootFilesystem", "privileged",
    "allowPrivilegeEscalation", "procMount", "runAsUser", "runAsGroup",
)  # fmt: skip
_ALL_HOST_PROCESS = "If pod contains any hostProcess containers then all containers must be HostProcess containers"
_HOST_PROCESS_NETWORK = "hostNetwork must be true if pod contains any hostProcess containers"


def check_operating_system(spec: Document, path: str) -> list[FieldError]:
    """The system's name, and what it rules out."""
    errors = _check_host_process(spec, path)
    if spec.get("hostUsers") is False:
        errors += _check_own_users(spec, path)
    if "os" not in spec:
        return errors
    match spec["os"].get("name", ""):
        case "":
            errors.append(required(f"{path}.os.name"))
        case "linux":
            errors += _check_linux(spec, path)
        case "windows":
            errors += _check_windows(spec, path)
        case other:
            errors.append(not_supported(f"{path}.os", other, ("linux", "windows")))
    return errors


def _containers(spec: Document, path: str) -> Iterator[tuple[str, Document]]:
    for key in ("initContainers", "containers", "ephemeralContainers"):
        for index, container in enumerate(spec.get(key) or ()):
            yield f"{path}.{key}[{index}]", container


def _check_linux(spec: Document, path: str) -> list[FieldError]:
    owners = ((path, spec), *_containers(spec, path))
    return [
        forbidden_field(f"{where}.securityContext.windowsOptions", _NOT_ON_LINUX)
        for where, owner in owners
        if "windowsOptions" in owner.get("securityContext", {})
    ]


def _check_windows(spec: Document, path: str) -> list[FieldError]:
    context = spec.get("securityContext", {})
    found = [f"{path}.{key}" for key in ("hostPID", "hostIPC") if spec.get(key)]
    found += [f"{path}.{key}" for key in ("hostUsers", "shareProcessNamespace") if key in spec]
    found += [f"{path}.securityContext.{key}" for key in _POD_CONTEXT if key in context]
    for where, container in _containers(spec, path):
        inner = container.get("securityContext", {})
        found += [f"{where}.securityContext.{key}" for key in _CONTAINER_CONTEXT if key in inner]
    errors = [forbidden_field(where, _NOT_ON_WINDOWS) for where in found]
    if "resources" in spec:
        errors.append(forbidden_field(f"{path}.resources", "may not be set for a windows pod"))
    return errors


def _check_own_users(spec: Document, path: str) -> list[FieldError]:
    shared = (("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC"))
    errors = [forbidden_field(f"{path}.{said}", _WITH_OWN_USERS) for key, said in shared if spec.get(key)]
    return errors + [
        forbidden_field(f"{where}.volumeDevices", _WITH_OWN_USERS)
        for where, container in _containers(spec, path)
        if container.get("volumeDevices")
    ]


def _check_host_process(spec: Document, path: str) -> list[FieldError]:
    """Containers of Windows that run as processes of the host: all of a pod or none, in the host's network."""
    of_pod = _host_process(spec)
    if of_pod is None and not any(_host_process(container) is not None for _, container in _containers(spec, path)):
        return []
    errors, kinds = list[FieldError](), list[bool]()
    for where, container in _containers(spec, path):
        own = _host_process(container)
        if of_pod is not None and own is not None and own != of_pod:
            said = f"pod hostProcess value must be identical if both are specified, was {str(of_pod).lower()}"
            errors.append(invalid(f"{where}.securityContext.windowsOptions.hostProcess", own, said))
        kinds.append(bool(of_pod if own is None else own))
    if any(kinds):
        if not all(kinds):
            errors.append(invalid(path, "", _ALL_HOST_PROCESS))
        if not spec.get("hostNetwork"):
            errors.append(invalid(f"{path}.hostNetwork", False, _HOST_PROCESS_NETWORK))
    return errors


def _host_process(owner: Document) -> bool | None:
    found: bool | None = owner.get("securityContext", {}).get("windowsOptions", {}).get("hostProcess")
    return found
