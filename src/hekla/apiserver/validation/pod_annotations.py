"""What is wrong with the annotations of a pod that mean something."""

import re

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import FieldError, invalid
from hekla.apiserver.validation.paths import check_relative

_MIRROR = "kubernetes.io/config.mirror"
_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_SECCOMP_POD, _SECCOMP_CONTAINER = (
    "seccomp.security.alpha.kubernetes.io/pod",
    "container.seccomp.security.alpha.kubernetes.io/",
)
_APP_ARMOR = "container.apparmor.security.beta.kubernetes.io/"
_SECCOMP_PROFILES = ("runtime/default", "docker/default", "unconfined")
_APP_ARMOR_PROFILES = ("", "runtime/default", "unconfined")
_match_cost = re.compile(r"(0|-?[1-9][0-9]{0,9})\Z").match


def check_pod_annotations(pod: Document, path: str) -> list[FieldError]:
    """Those of Kubernetes itself; most pods have none."""
    annotations: dict[str, str] = pod.get("metadata", {}).get("annotations") or {}
    spec, errors = pod.get("spec", {}), list[FieldError]()
    for key, value in sorted(annotations.items()):
        if key == _MIRROR and not spec.get("nodeName"):
            said = "must set spec.nodeName if mirror pod annotation is set"
            errors.append(invalid(f"{path}[{key}]", value, said))
        elif key == _DELETION_COST and not (_match_cost(value) and -(2**31) <= int(value) < 2**31):
            errors.append(invalid(f"{path}[{key}]", value, "must be a 32bit integer"))
        elif key == _SECCOMP_POD:
            errors += _check_seccomp(value, f"{path}.{key}")
        elif key.startswith(_SECCOMP_CONTAINER):
            errors += _check_seccomp(value, f"{path}[{key}]")
        elif key.startswith(_APP_ARMOR):
            errors += _check_app_armor(key, value, spec, f"{path}[{key}]")
    return errors


def _check_seccomp(profile: str, path: str) -> list[FieldError]:
    if profile in _SECCOMP_PROFILES:
        return []
    if profile.startswith("localhost/"):
        return check_relative(profile.removeprefix("localhost/"), path)
    return [invalid(path, profile, "must be a valid seccomp profile")]


def _check_app_armor(key: str, profile: str, spec: Document, path: str) -> list[FieldError]:
    name = key.removeprefix(_APP_ARMOR)
    known = {one.get("name") for lists in ("initContainers", "containers", "ephemeralContainers") for one in spec.get(lists) or ()}  # fmt: skip
    errors = [] if name in known else [invalid(path, name, "container not found")]
    if profile not in _APP_ARMOR_PROFILES and not profile.startswith("localhost/"):
        errors.append(invalid(path, profile, f'invalid AppArmor profile name: "{profile}"'))
    return errors
