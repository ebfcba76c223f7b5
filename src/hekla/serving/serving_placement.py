"""Placement classes: which nodes the pods of a role go to, told by annotations of the ModelServing.

    placement.serving.hekla.dev/prefill: pool=h100
    placement.serving.hekla.dev/decode: pool=h20,zone=a

They become node selectors of the role's templates before anything else looks at these, so that a change of class is a new
revision and is rolled out like one. Affinity and tolerations are written into the templates themselves.
"""

import re
from collections.abc import Mapping, Sequence

from hekla.api.meta import Document
from hekla.serving.serving_names import PLACEMENT
from hekla.serving.serving_revision import Roles, RoleTemplate

_PAIR = re.compile(r"([A-Za-z0-9./_-]+)=([A-Za-z0-9._-]*)")


def placed(roles: Roles, annotations: Mapping[str, str]) -> tuple[Roles, Sequence[str]]:
    """The roles with their placement, and sentences about annotations that cannot be followed."""
    problems, names = [], {role.name for role in roles}
    wanted: dict[str, dict[str, str]] = {}
    for key, text in annotations.items():
        if not key.startswith(PLACEMENT):
            continue
        role, pairs = key.removeprefix(PLACEMENT), [_PAIR.fullmatch(part.strip()) for part in text.split(",")]
        if role not in names:
            problems.append(f"annotation {key} names no role; there are {', '.join(sorted(names))}")
        elif None in pairs:
            problems.append(f'annotation {key} is "{text}"; write node labels as key=value,key=value')
        else:
            wanted[role] = {pair[1]: pair[2] for pair in pairs if pair is not None}
    return tuple(_placed(role, wanted[role.name]) if role.name in wanted else role for role in roles), problems


def _placed(role: RoleTemplate, selector: dict[str, str]) -> RoleTemplate:
    document = dict(role.document)
    for key in ("entryTemplate", "workerTemplate"):
        if template := document.get(key):
            spec: Document = template.get("spec") or {}
            merged = {**(spec.get("nodeSelector") or {}), **selector}
            document[key] = {**template, "spec": {**spec, "nodeSelector": merged}}
    return RoleTemplate(document)
