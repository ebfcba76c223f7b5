"""Whether v1alpha1 and v1beta1 of agent-sandbox's kinds become each other without a loss, either way round."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.api.agents import AGENT_KINDS, names
from hekla.api.agents.v1alpha1_conversion import OLDER_KINDS
from hekla.api.crd import crd_document
from hekla.api.meta import Document

SANDBOX, CLAIM = "sandboxes.agents.x-k8s.io", "sandboxclaims.extensions.agents.x-k8s.io"
TEMPLATE, POOL = "sandboxtemplates.extensions.agents.x-k8s.io", "sandboxwarmpools.extensions.agents.x-k8s.io"
STATE = "api.agents.x-k8s.io/v1alpha1-sandbox-state"

NAMES = st.sampled_from(["default", "none", "python", "p", "shadow-pool-python", "shadow-pool-none"])
NOTES = st.dictionaries(st.sampled_from(["a", "example.com/b"]), st.text(max_size=3), min_size=1)
BLUEPRINT = st.fixed_dictionaries(
    {"podTemplate": st.just({"spec": {"containers": [{"name": "main", "image": "python"}]}})},
    optional={"service": st.booleans(), "volumeClaimTemplates": st.just([{"metadata": {"name": "v"}, "spec": {}}])},
)
CONDITIONS = st.just([{"type": "Ready", "status": "True"}])


def objects(spec: Any, status: Any = None) -> Any:
    """Objects with these parts, with and without annotations and a status."""
    metadata = st.fixed_dictionaries({"name": st.just("one")}, optional={"annotations": NOTES})
    parts = {"metadata": metadata, "spec": spec}
    return st.fixed_dictionaries(parts, optional={"status": status} if status is not None else {})


def both(one: Any, other: Any) -> Any:
    return st.tuples(one, other).map(lambda pair: {**pair[0], **pair[1]})


LIFE = st.fixed_dictionaries(
    {}, optional={"shutdownTime": st.just("2030-01-01T00:00:00Z"), "shutdownPolicy": st.just("Delete")}
)
OLDER = {
    SANDBOX: objects(
        both(both(BLUEPRINT, LIFE), st.fixed_dictionaries({"replicas": st.integers(0, 1)})),
        st.fixed_dictionaries({"conditions": CONDITIONS}, optional={"replicas": st.integers(0, 1)}),
    ),
    TEMPLATE: objects(both(BLUEPRINT, st.fixed_dictionaries({"envVarsInjectionPolicy": st.just("Allowed")}))),
    POOL: objects(
        st.fixed_dictionaries({"replicas": st.integers(0, 3), "sandboxTemplateRef": st.just({"name": "python"})}),
        st.fixed_dictionaries({"readyReplicas": st.integers(0, 3)}),
    ),
    CLAIM: objects(
        st.fixed_dictionaries(
            {"sandboxTemplateRef": st.fixed_dictionaries({"name": NAMES})},
            optional={"warmpool": NAMES, "env": st.just([{"name": "A", "value": "1"}]), "lifecycle": LIFE},
        ),
        st.fixed_dictionaries({"sandbox": st.just({"name": "box"})}),
    ),
}
NEWER = {
    SANDBOX: objects(
        both(
            both(BLUEPRINT, LIFE), st.fixed_dictionaries({"operatingMode": st.sampled_from(["Running", "Suspended"])})
        ),
        st.fixed_dictionaries({"conditions": CONDITIONS}, optional={"nodeName": st.just("n1")}),
    ),
    TEMPLATE: objects(
        both(
            BLUEPRINT, st.fixed_dictionaries({"volumeClaimTemplatesPolicy": st.sampled_from(["Allowed", "Disallowed"])})
        )
    ),
    POOL: objects(
        st.fixed_dictionaries({"replicas": st.integers(0, 3), "sandboxTemplateRef": st.just({"name": "python"})}),
        st.fixed_dictionaries({"observedGeneration": st.integers(1, 9)}),
    ),
    CLAIM: objects(
        st.fixed_dictionaries(
            {"warmPoolRef": st.fixed_dictionaries({"name": NAMES})},
            optional={"volumeClaimTemplates": st.just([{"metadata": {"name": "v"}, "spec": {}}])},
        )
    ),
}


def without_state(document: Document) -> Document:
    """What is remembered of the other version is no field of this one."""
    found = copy.deepcopy(document)
    notes = found["metadata"].get("annotations") or {}
    kept = {key: text for key, text in notes.items() if not key.endswith("-state")}
    found["metadata"]["annotations"] = kept
    if not kept:
        del found["metadata"]["annotations"]
    return found


@pytest.mark.parametrize("resource", OLDER)
@settings(max_examples=30)
@given(data=st.data())
def test_v1alpha1_comes_back_as_it_was(resource: str, data: Any) -> None:
    ways, document = OLDER_KINDS[resource], data.draw(OLDER[resource])
    given_one = copy.deepcopy(document)
    assert ways.to_older(ways.to_newer(document)) == given_one
    assert document == given_one, "what is given is not changed"


@pytest.mark.parametrize("resource", NEWER)
@settings(max_examples=30)
@given(data=st.data())
def test_v1beta1_survives_a_client_of_v1alpha1_that_writes_what_it_read(resource: str, data: Any) -> None:
    ways, document = OLDER_KINDS[resource], data.draw(NEWER[resource])
    given_one = copy.deepcopy(document)
    assert without_state(ways.to_newer(ways.to_older(document))) == given_one
    again = ways.to_newer(ways.to_older(ways.to_newer(ways.to_older(document))))
    assert without_state(again) == given_one
    assert document == given_one, "what is given is not changed"


@pytest.mark.parametrize(("replicas", "mode"), [(0, "Suspended"), (1, "Running")])
def test_what_v1beta1_changes_is_what_v1alpha1_shows(replicas: int, mode: str) -> None:
    ways = OLDER_KINDS[SANDBOX]
    stored = ways.to_newer(
        {"metadata": {"name": "one"}, "spec": {"replicas": 1 - replicas}, "status": {"replicas": 1 - replicas}}
    )
    assert json.loads(stored["metadata"]["annotations"][STATE])["spec"] == {"replicas": 1 - replicas}
    changed = {**stored, "spec": {**stored["spec"], "operatingMode": mode}}
    shown = ways.to_older(changed)
    assert (shown["spec"], shown["status"]) == ({"replicas": replicas}, {"replicas": replicas})


@pytest.mark.parametrize(
    ("spec", "pool", "wants_none"),
    [
        ({"warmpool": "fast"}, "fast", False),
        ({"warmpool": "default"}, "shadow-pool-python", False),
        ({}, "shadow-pool-python", False),
        ({"warmpool": "none"}, "shadow-pool-python", True),
    ],
)
def test_a_template_becomes_a_pool(spec: Document, pool: str, wants_none: bool) -> None:
    claim = {"metadata": {"name": "one"}, "spec": {"sandboxTemplateRef": {"name": "python"}, **spec}}
    stored = OLDER_KINDS[CLAIM].to_newer(claim)
    assert stored["spec"] == {"warmPoolRef": {"name": pool}}
    assert (names.POOL_NONE in stored["metadata"]["annotations"]) is wants_none


@pytest.mark.parametrize("text", ["{", "[]", "7", ""])
def test_a_state_that_nobody_can_read_costs_nothing(text: str) -> None:
    stored = {"metadata": {"name": "one", "annotations": {STATE: text}}, "spec": {"operatingMode": "Suspended"}}
    assert OLDER_KINDS[SANDBOX].to_older(stored)["spec"] == {"replicas": 0}


def test_a_policy_that_is_none_is_not_stored() -> None:
    note = {"api.agents.x-k8s.io/v1beta1-volume-claim-templates-policy": "Everything"}
    stored = OLDER_KINDS[TEMPLATE].to_newer({"metadata": {"name": "one", "annotations": note}, "spec": {}})
    assert "volumeClaimTemplatesPolicy" not in stored["spec"]


OWN = {
    "Sandbox": ({"replicas"}, {"operatingMode"}, {"status", "scale"}),
    "SandboxTemplate": (set(), {"volumeClaimTemplatesPolicy"}, set()),
    "SandboxWarmPool": ({"replicas"}, set(), {"status", "scale"}),
    "SandboxClaim": ({"sandboxTemplateRef", "warmpool"}, {"warmPoolRef", "volumeClaimTemplates"}, {"status"}),
}


@pytest.mark.parametrize(
    "kind", [one for one in AGENT_KINDS if one.kind_info.resource in OLDER_KINDS], ids=lambda one: one.__name__
)
def test_the_definition_has_both_versions_where_a_server_converts_and_one_elsewhere(kind: Any) -> None:
    assert [one["name"] for one in crd_document(kind)["spec"]["versions"]] == ["v1beta1"]
    newer, older = crd_document(kind, with_older=True)["spec"]["versions"]
    assert (newer["storage"], older["storage"], older["served"], older["name"]) == (True, False, True, "v1alpha1")
    assert older["deprecationWarning"].startswith(f"{kind.kind_info.group}/v1alpha1 {kind.__name__} is deprecated")
    has, lacks, parts = OWN[kind.__name__]
    spec = older["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert has <= spec.keys()
    assert not lacks & spec.keys()
    assert set(older.get("subresources", ())) == parts
