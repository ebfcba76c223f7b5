"""Who may change an object may not therefore make it: a PUT or an apply of one that is not there needs both rights."""

import asyncio
from typing import Any

import pytest

from hekla.apiserver.auth.rbac import RbacAuthorizer
from hekla.apiserver.auth.rbac_source import StoredRoles
from hekla.apiserver.memory_store import MemoryStore
from hekla.testing.api_server import APPLY, ApiCaller, api_server

ROLES = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
BINDING = {
    "metadata": {"name": "r"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
    "subjects": [{"kind": "User", "name": "ann", "apiGroup": "rbac.authorization.k8s.io"}],
}
LEASE = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}}
PATH = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l"


def asked(method: str, *rules: dict[str, Any]) -> tuple[int, Any]:
    async def play() -> tuple[int, Any]:
        store = MemoryStore()
        async with ApiCaller(api_server(store, authorizer=RbacAuthorizer(StoredRoles(store)))) as api:
            whole = [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], **rule} for rule in rules]
            await api.post(f"{ROLES}/roles", {"metadata": {"name": "r"}, "rules": whole})
            await api.post(f"{ROLES}/rolebindings", BINDING)
            query, kind = ("?fieldManager=x", APPLY) if method == "PATCH" else ("", "application/json")
            return await api.call(method, PATH + query, LEASE, impersonate_user="ann", content_type=kind)

    return asyncio.run(play())


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_a_change_makes_nothing_without_the_right_to_make(method: str):
    change = {"verbs": ["update", "patch"]}
    status, said = asked(method, change)
    assert status == 403
    assert 'leases.coordination.k8s.io "l" is forbidden: User "ann" cannot create resource "leases"' in said["message"]
    assert asked(method, change, {"verbs": ["create"]})[0] == 201
    assert asked(method, change, {"verbs": ["create"], "resourceNames": ["l"]})[0] == 201
    assert asked(method, change, {"verbs": ["create"], "resourceNames": ["m"]})[0] == 403
