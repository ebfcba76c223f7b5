import asyncio

import pytest

from hekla.apiserver.auth.rbac import RbacAuthorizer
from hekla.apiserver.auth.rbac_source import StoredRoles
from hekla.apiserver.memory_store import MemoryStore
from hekla.testing.api_server import ApiCaller, api_server

RULE = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["mine"], "verbs": ["list"]}
ROLES = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
BINDING = {
    "metadata": {"name": "r"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
    "subjects": [{"kind": "User", "name": "ann", "apiGroup": "rbac.authorization.k8s.io"}],
}
MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.mark.parametrize(
    ("selector", "status"),
    [
        ("", 403),
        ("?fieldSelector=metadata.name%3Dmine", 200),
        ("?fieldSelector=metadata.name%3Dmine&fieldSelector=metadata.name%3Dother", 200),
        ("?fieldSelector=metadata.name%3Dother", 403),
        ("?fieldSelector=metadata.name%21%3Dmine", 403),
        ("?fieldSelector=metadata.namespace%3Dmine", 403),
    ],
)
def test_who_may_list_one_name_may_list_by_it(selector, status):
    async def play():
        store = MemoryStore()
        async with ApiCaller(api_server(store, authorizer=RbacAuthorizer(StoredRoles(store)))) as api:
            await api.post(f"{ROLES}/roles", {"metadata": {"name": "r"}, "rules": [RULE]})
            await api.post(f"{ROLES}/rolebindings", BINDING)
            for name in ("mine", "other"):
                await api.post(MAPS, {"metadata": {"name": name}})
            return await api.get(MAPS + selector, impersonate_user="ann")

    found, document = asyncio.run(play())
    assert found == status
    if status == 200:
        assert [one["metadata"]["name"] for one in document["items"]] == ["mine"]
