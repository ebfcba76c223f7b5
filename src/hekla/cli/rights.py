"""Which role to ask for, where an API server refused what a command asked because the user may not.

Read from the server's own sentence, which names the user, the verb, the resource and the place.
"""

import re
from typing import NamedTuple

_REFUSED = re.compile(
    r'User "(?P<user>[^"]+)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)" '
    r'(?:at the cluster scope|in the namespace "(?P<namespace>[^"]+)")'
)
_ACCOUNT = "system:serviceaccount:"


class _Kind(NamedTuple):
    group: str
    plural: str


def rights_hint(message: str) -> str:
    """`; ask for the role ...` with the command that gives it; empty where no role of ours or of Kubernetes' users has the right."""
    found = _REFUSED.search(message)
    if found is None:
        return ""
    kind = _Kind(found["group"], found["resource"].partition("/")[0])
    # a snapshot holds everybody's objects, so that looking is not enough
    is_look = found["verb"] in ("get", "list", "watch") and kind.plural != "snapshots"
    if kind in _of_the_cluster():
        role = "hekla-cluster-view" if is_look else "hekla-cluster-edit"
    elif kind in _of_namespaces():
        role = "view" if is_look else "edit"
    else:
        return ""
    return f"; an administrator gives the right with `{_binding(role, found['user'], found['namespace'] or '')}`" + (
        ""
        if found["namespace"] or kind in _of_the_cluster()
        else ", or of one namespace with a rolebinding there: ask with -n"
    )


def _binding(role: str, user: str, namespace: str) -> str:
    what, where = ("rolebinding", f" -n {namespace}") if namespace else ("clusterrolebinding", "")
    if user.startswith(_ACCOUNT):
        whom = f"--serviceaccount={user.removeprefix(_ACCOUNT)}"
        name = user.rpartition(":")[2]
    else:
        whom, name = f"--user={user}", re.sub(r"[^a-z0-9.-]+", "-", user.lower()).strip("-.") or "user"
    return f"kubectl create {what} {name}-{role} --clusterrole={role} {whom}{where}"


def _of_the_cluster() -> set[_Kind]:
    from hekla.api.crd import CUSTOM_KINDS
    from hekla.api.explanation import SCHEDULER, SNAPSHOT

    kinds = [one.kind_info for one in CUSTOM_KINDS if not one.kind_info.is_namespaced]
    return {_Kind(one.group, one.plural) for one in (*kinds, SCHEDULER, SNAPSHOT)}


def _of_namespaces() -> set[_Kind]:
    from hekla.api.crd import CUSTOM_KINDS
    from hekla.api.explanation import EXPLANATION

    kinds = [one.kind_info for one in CUSTOM_KINDS if one.kind_info.is_namespaced]
    return {_Kind(one.group, one.plural) for one in (*kinds, EXPLANATION)} | {_Kind("", "pods"), _Kind("", "events")}
