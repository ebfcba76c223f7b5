"""What is wrong with security contexts, of a pod and of its containers; `operating_system.py` has what Windows lacks."""

import re
from typing import Any

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import FieldError, duplicate, invalid, not_supported, required, too_long
from hekla.apiserver.validation import names
from hekla.apiserver.validation.paths import check_relative

_LARGEST_ID = 2**31 - 1
_PROFILES = ("Localhost", "RuntimeDefault", "Unconfined")
_SYSCTL = r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_match_sysctl = re.compile(rf"{_SYSCTL}\Z").match
_LONGEST_SYSCTL, _LONGEST_PROFILE = 253, 4095
_CHOICES = (
    ("fsGroupChangePolicy", ("Always", "OnRootMismatch")),
    ("supplementalGroupsPolicy", ("Merge", "Strict")),
    ("seLinuxChangePolicy", ("Recursive",)),
)
_GO_FIELDS = (
    "capabilities", "privileged", "seLinuxOptions", "windowsOptions", "runAsUser", "runAsGroup", "runAsNonRoot",
    "readOnlyRootFilesystem", "allowPrivilegeEscalation", "procMount", "seccompProfile", "appArmorProfile",
)  # fmt: skip
"""The fields of a container's security context in Go's order, which is how Kubernetes prints it in a sentence."""


def check_pod_security(spec: Document, path: str) -> list[FieldError]:
    """The security context of a pod; `path` is the spec's."""
    context = spec.get("securityContext")
    where = f"{path}.securityContext"
    is_shared = spec.get("shareProcessNamespace") and spec.get("hostPID")
    errors = []
    if is_shared:
        said = "ShareProcessNamespace and HostPID cannot both be enabled"
        errors.append(invalid(f"{where}.shareProcessNamespace", True, said))
    if not context:
        return errors
    errors += check_ids(context, where)
    for index, group in enumerate(context.get("supplementalGroups", ())):
        errors += _check_id(group, f"{where}.supplementalGroups[{index}]")
    if "sysctls" in context:
        errors += _check_sysctls(context["sysctls"], f"{where}.sysctls")
    errors += [
        not_supported(f"{where}.{key}", context[key], allowed)
        for key, allowed in _CHOICES
        if key in context and context[key] not in allowed
    ]
    return errors + _check_profiles(context, where)


def check_container_security(context: Document, path: str, *, has_host_users: bool) -> list[FieldError]:
    """The security context of a container."""
    errors = check_ids(context, path)
    mount = context.get("procMount")
    if mount is not None:
        if mount not in ("Default", "Unmasked"):
            errors.append(not_supported(f"{path}.procMount", mount, ("Default", "Unmasked")))
        elif mount == "Unmasked" and has_host_users:
            errors.append(invalid(f"{path}.procMount", mount, "`hostUsers` must be false to use `Unmasked`"))
    if context.get("allowPrivilegeEscalation") is False:
        errors += _check_escalation(context, path)
    return errors + _check_profiles(context, path)


def check_ids(context: Document, path: str) -> list[FieldError]:
    """User and group numbers."""
    keys = ("runAsUser", "runAsGroup", "fsGroup")
    return [error for key in keys if key in context for error in _check_id(context[key], f"{path}.{key}")]


def _check_id(number: int, path: str) -> list[FieldError]:
    if 0 <= number <= _LARGEST_ID:
        return []
    return [invalid(path, number, f"must be between 0 and {_LARGEST_ID}, inclusive")]


def _check_escalation(context: Document, path: str) -> list[FieldError]:
    said = "cannot set `allowPrivilegeEscalation` to false and "
    errors = [invalid(path, as_go(context), f"{said}`privileged` to true")] if context.get("privileged") else []
    if "CAP_SYS_ADMIN" in (context.get("capabilities") or {}).get("add", ()):
        errors.append(invalid(path, as_go(context), f"{said}`capabilities.Add` CAP_SYS_ADMIN"))
    return errors


def as_go(context: Document) -> dict[str, Any]:
    """A container's security context with Go's names, all of them: what Kubernetes shows of a wrong one."""
    made: dict[str, Any] = {}
    for key in _GO_FIELDS:
        name, value = f"{key[0].upper()}{key[1:]}", context.get(key)
        if key == "seLinuxOptions":
            name = "SELinuxOptions"
        if key == "capabilities" and value is not None:
            value = {"Add": value.get("add"), "Drop": value.get("drop")}
        made[name] = value
    return made


def _check_profiles(context: Document, path: str) -> list[FieldError]:
    errors = []
    if "seccompProfile" in context:
        errors += _check_seccomp(context["seccompProfile"], f"{path}.seccompProfile")
    if "windowsOptions" in context:
        errors += _check_windows_options(context["windowsOptions"], f"{path}.windowsOptions")
    if "appArmorProfile" in context:
        errors += _check_app_armor(context["appArmorProfile"], f"{path}.appArmorProfile")
    return errors


def _check_seccomp(profile: Document, path: str) -> list[FieldError]:
    kind, local, where = profile.get("type", ""), profile.get("localhostProfile"), f"{path}.localhostProfile"
    errors = []
    if not kind:
        errors.append(required(f"{path}.type", "type is required when seccompProfile is set"))
    elif kind not in _PROFILES:
        errors.append(not_supported(f"{path}.type", kind, _PROFILES))
    if kind != "Localhost":
        if local is not None:
            shown = {"Type": kind, "LocalhostProfile": local}
            errors.append(invalid(where, shown, "can only be set when seccomp type is Localhost"))
    elif local is None:
        errors.append(required(where, "must be set when seccomp type is Localhost"))
    else:
        errors += check_relative(local, where)
    return errors


def _check_app_armor(profile: Document, path: str) -> list[FieldError]:
    kind, local, where = profile.get("type", ""), profile.get("localhostProfile"), f"{path}.localhostProfile"
    if not kind:
        return [required(f"{path}.type", "type is required when appArmorProfile is set")]
    if kind not in _PROFILES:
        return [not_supported(f"{path}.type", kind, _PROFILES)]
    if kind != "Localhost":
        return [] if local is None else [invalid(where, local, "can only be set when AppArmor type is Localhost")]
    if not local:
        return [required(where, "must be set when AppArmor type is Localhost")]
    errors = [] if local == local.strip() else [invalid(where, local, "must not be padded with whitespace")]
    if len(local.encode()) > _LONGEST_PROFILE:
        errors.append(too_long(where, _LONGEST_PROFILE))
    return errors


def _check_windows_options(options: Document, path: str) -> list[FieldError]:
    errors = []
    spec_name, user = options.get("gmsaCredentialSpecName"), options.get("runAsUserName")
    if spec_name is not None:
        where = f"{path}.gmsaCredentialSpecName"
        errors += [invalid(where, spec_name, said) for said in names.dns_subdomain(spec_name)]
    if options.get("gmsaCredentialSpec") == "":
        errors.append(invalid(f"{path}.gmsaCredentialSpec", "", "gmsaCredentialSpec cannot be an empty string"))
    if user is not None:
        errors += [invalid(f"{path}.runAsUserName", user, said) for said in _user_name_troubles(user)]
    return errors


def _user_name_troubles(text: str) -> list[str]:
    if not text:
        return ["runAsUserName cannot be an empty string"]
    if re.search(r"[\x00-\x1f\x7f]", text):
        return ["runAsUserName cannot contain control characters"]
    if text.count("\\") > 1:
        return ["runAsUserName cannot contain more than one backslash"]
    user = text.rpartition("\\")[2]
    said = [] if user else ["runAsUserName's User cannot be empty"]
    if re.fullmatch(r"[. ]+", user):
        said.append("runAsUserName's User cannot contain only periods or spaces")
    if re.search(r'["/\\:;|=,+*?<>@\[\]]', user):
        said.append("runAsUserName's User cannot contain the following characters: \"/\\:;|=,+*?<>@[]")
    return said


def _check_sysctls(sysctls: list[Document], path: str) -> list[FieldError]:
    errors, seen = list[FieldError](), set[str]()
    for index, one in enumerate(sysctls):
        where, name = f"{path}[{index}].name", one.get("name", "")
        if not name:
            errors.append(required(where))
        elif len(name) > _LONGEST_SYSCTL or not _match_sysctl(name):
            said = f"must have at most {_LONGEST_SYSCTL} characters and match regex ^{_SYSCTL}$"
            errors.append(invalid(where, name, said))
        elif name in seen:
            errors.append(duplicate(where, name))
        seen.add(name)
    return errors
