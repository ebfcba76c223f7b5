import pytest
from kubernetes import client, dynamic
from kubernetes.dynamic.exceptions import ConflictError, NotFoundError, UnprocessibleEntityError

JOB = {
    "apiVersion": "batch.volcano.sh/v1alpha1",
    "kind": "Job",
    "metadata": {"name": "train"},
    "spec": {
        "minAvailable": 2,
        "queue": "default",
        "tasks": [
            {
                "name": "worker",
                "replicas": 2,
                "template": {"spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}},
            }
        ],
    },
}


@pytest.fixture
def anything(admin):
    return dynamic.DynamicClient(admin)


def test_discovery_finds_custom_resources_beside_built_in_ones_of_the_same_kind(anything):
    volcano = anything.resources.get(api_version="batch.volcano.sh/v1alpha1", kind="Job")
    assert (volcano.name, volcano.namespaced) == ("jobs", True)
    assert anything.resources.get(api_version="batch/v1", kind="Job").group == "batch"


def test_a_volcano_job_lives_its_life(anything, namespace):
    jobs = anything.resources.get(api_version="batch.volcano.sh/v1alpha1", kind="Job")
    created = jobs.create(body=JOB, namespace=namespace)
    assert created.spec.minAvailable == 2
    patched = jobs.patch(
        name="train",
        namespace=namespace,
        body={"spec": {"minAvailable": 1}},
        content_type="application/merge-patch+json",
    )
    assert (patched.spec.minAvailable, patched.metadata.generation) == (1, 2)
    assert [one.metadata.name for one in jobs.get(namespace=namespace).items] == ["train"]
    jobs.delete(name="train", namespace=namespace)
    with pytest.raises(NotFoundError):
        jobs.get(name="train", namespace=namespace)


def test_a_queue_is_watched_while_it_changes(anything, namespace):
    queues = anything.resources.get(api_version="scheduling.volcano.sh/v1beta1", kind="Queue")
    assert not queues.namespaced
    since = queues.get().metadata.resourceVersion
    queues.create(body={**queue(namespace), "spec": {"weight": 3}})
    queues.delete(name=namespace)
    seen = []
    for event in queues.watch(resource_version=since, timeout=20):
        if event["object"].metadata.name == namespace:
            seen.append(event["type"])
        if seen[-1:] == ["DELETED"]:
            break
    assert seen == ["ADDED", "DELETED"]


def queue(name):
    return {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": name}}


def test_a_custom_object_of_a_wrong_type_is_refused_by_its_schema(anything, namespace):
    jobs = anything.resources.get(api_version="batch.volcano.sh/v1alpha1", kind="Job")
    with pytest.raises(UnprocessibleEntityError) as caught:
        jobs.create(body={**JOB, "spec": {**JOB["spec"], "minAvailable": "two"}}, namespace=namespace)
    assert "spec.minAvailable" in caught.value.body


def test_apply_merges_what_two_managers_say_and_refuses_what_both_claim(anything, namespace):
    maps = anything.resources.get(api_version="v1", kind="ConfigMap")
    head = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    maps.server_side_apply(body={**head, "data": {"a": "1"}}, namespace=namespace, field_manager="one")
    both = maps.server_side_apply(body={**head, "data": {"b": "2"}}, namespace=namespace, field_manager="two")
    assert both.data.to_dict() == {"a": "1", "b": "2"}
    with pytest.raises(ConflictError) as caught:
        maps.server_side_apply(body={**head, "data": {"a": "9"}}, namespace=namespace, field_manager="two")
    assert r"conflict with \"one\": .data.a" in caught.value.body
    forced = maps.server_side_apply(
        body={**head, "data": {"a": "9"}}, namespace=namespace, field_manager="two", force_conflicts=True
    )
    # "two" said nothing of b this time, so b is gone
    assert forced.data.to_dict() == {"a": "9"}
    assert [one.manager for one in forced.metadata.managedFields] == ["two"]


def test_apply_works_for_custom_resources(anything, namespace):
    jobs = anything.resources.get(api_version="batch.volcano.sh/v1alpha1", kind="Job")
    jobs.server_side_apply(body=JOB, namespace=namespace, field_manager="one")
    head = {key: JOB[key] for key in ("apiVersion", "kind", "metadata")}
    more = jobs.server_side_apply(body={**head, "spec": {"maxRetry": 7}}, namespace=namespace, field_manager="two")
    assert (more.spec.maxRetry, more.spec.minAvailable) == (7, 2)


def test_a_definition_made_at_run_time_is_served_at_once(admin, platform, namespace):
    group = f"{namespace}.example.com"
    schema = {
        "type": "object",
        "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
    }
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"widgets.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }
    client.ApiextensionsV1Api(admin).create_custom_resource_definition(definition)
    custom = client.CustomObjectsApi(admin)
    body = {"apiVersion": f"{group}/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 3}}
    custom.create_namespaced_custom_object(group, "v1", namespace, "widgets", body)
    assert custom.get_namespaced_custom_object(group, "v1", namespace, "widgets", "w")["spec"] == {"size": 3}
    client.ApiextensionsV1Api(admin).delete_custom_resource_definition(f"widgets.{group}")
    # its objects go first; asking is what takes the time here
    answers = (platform.ask("GET", f"/apis/{group}/v1/namespaces/{namespace}/widgets").status for _ in range(500))
    assert 404 in answers
