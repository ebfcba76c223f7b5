import pytest
from kubernetes import client
from kubernetes.client.exceptions import ApiException


def pod(name="p", **spec):
    container = client.V1Container(name="main", image="trainer:1")
    return client.V1Pod(
        metadata=client.V1ObjectMeta(name=name, labels={"app": "a"}),
        spec=client.V1PodSpec(containers=[container], **spec),
    )


def config_map(name, **data):
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name, labels={"app": "a"}), data=data)


def test_a_pod_is_created_read_replaced_patched_and_deleted(core, namespace):
    created = core.create_namespaced_pod(namespace, pod())
    assert created.status.phase == "Pending"
    assert created.metadata.uid
    read = core.read_namespaced_pod("p", namespace)
    assert read.spec.containers[0].termination_message_path == "/dev/termination-log"
    read.metadata.labels["app"] = "b"
    assert core.replace_namespaced_pod("p", namespace, read).metadata.labels == {"app": "b"}
    patched = core.patch_namespaced_pod("p", namespace, {"metadata": {"annotations": {"note": "x"}}})
    assert patched.metadata.annotations == {"note": "x"}
    core.delete_namespaced_pod("p", namespace, grace_period_seconds=0)
    with pytest.raises(ApiException) as caught:
        core.read_namespaced_pod("p", namespace)
    assert caught.value.status == 404


def test_a_stale_replacement_is_a_conflict(core, namespace, sentence):
    first = core.create_namespaced_config_map(namespace, config_map("c", a="1"))
    core.patch_namespaced_config_map("c", namespace, {"data": {"a": "2"}})
    first.data = {"a": "3"}
    with pytest.raises(ApiException) as caught:
        core.replace_namespaced_config_map("c", namespace, first)
    assert caught.value.status == 409
    assert "the object has been modified" in sentence(caught)
    assert core.read_namespaced_config_map("c", namespace).data == {"a": "2"}


def test_a_second_creation_is_refused_with_kubernetes_sentence(core, namespace, sentence):
    core.create_namespaced_config_map(namespace, config_map("c"))
    with pytest.raises(ApiException) as caught:
        core.create_namespaced_config_map(namespace, config_map("c"))
    assert (caught.value.status, caught.value.reason) == (409, "Conflict")
    assert sentence(caught) == 'configmaps "c" already exists'


def test_a_secret_is_bytes_in_base64_and_string_data_is_merged_into_it(core, namespace):
    secret = client.V1Secret(metadata=client.V1ObjectMeta(name="s"), string_data={"password": "open sesame"})
    core.create_namespaced_secret(namespace, secret)
    read = core.read_namespaced_secret("s", namespace)
    assert (read.type, read.data, read.string_data) == ("Opaque", {"password": "b3BlbiBzZXNhbWU="}, None)


def test_a_generated_name_is_told_in_the_answer(core, namespace):
    made = [
        core.create_namespaced_config_map(
            namespace, client.V1ConfigMap(metadata=client.V1ObjectMeta(generate_name="x-"))
        )
        for _ in range(3)
    ]
    assert len({one.metadata.name for one in made}) == 3
    assert all(one.metadata.name.startswith("x-") for one in made)


def test_a_dry_run_stores_nothing(core, namespace):
    answered = core.create_namespaced_config_map(namespace, config_map("c"), dry_run="All")
    assert answered.metadata.uid
    assert core.list_namespaced_config_map(namespace, field_selector="metadata.name=c").items == []


def test_a_deployment_is_scaled_through_its_subresource(admin, namespace):
    apps = client.AppsV1Api(admin)
    labels = {"app": "web"}
    template = client.V1PodTemplateSpec(
        metadata=client.V1ObjectMeta(labels=labels),
        spec=client.V1PodSpec(containers=[client.V1Container(name="c", image="i")]),
    )
    spec = client.V1DeploymentSpec(selector=client.V1LabelSelector(match_labels=labels), template=template, replicas=1)
    apps.create_namespaced_deployment(
        namespace, client.V1Deployment(metadata=client.V1ObjectMeta(name="web"), spec=spec)
    )
    apps.patch_namespaced_deployment_scale("web", namespace, {"spec": {"replicas": 4}})
    assert apps.read_namespaced_deployment_scale("web", namespace).spec.replicas == 4
    found = apps.read_namespaced_deployment("web", namespace)
    assert (found.spec.replicas, found.metadata.generation) == (4, 2)


def test_status_is_written_through_its_subresource_only(core, namespace):
    core.create_namespaced_pod(namespace, pod())
    core.patch_namespaced_pod("p", namespace, {"status": {"phase": "Running"}})
    assert core.read_namespaced_pod("p", namespace).status.phase == "Pending"
    core.patch_namespaced_pod_status("p", namespace, {"status": {"phase": "Running"}})
    assert core.read_namespaced_pod("p", namespace).status.phase == "Running"


def test_a_binding_gives_a_pod_its_node_once(core, namespace, sentence):
    core.create_namespaced_pod(namespace, pod())
    target = client.V1ObjectReference(api_version="v1", kind="Node", name="n1")
    binding = client.V1Binding(metadata=client.V1ObjectMeta(name="p"), target=target)
    core.create_namespaced_pod_binding("p", namespace, binding, _preload_content=False)
    assert core.read_namespaced_pod("p", namespace).spec.node_name == "n1"
    with pytest.raises(ApiException) as caught:
        core.create_namespaced_pod_binding("p", namespace, binding, _preload_content=False)
    assert caught.value.status == 409
    assert "already assigned to node" in sentence(caught)


def test_a_list_comes_in_pages_that_are_one_snapshot(core, namespace):
    for number in range(25):
        core.create_namespaced_config_map(namespace, config_map(f"c{number:02}"))
    page = core.list_namespaced_config_map(namespace, label_selector="app=a", limit=10)
    names, revision = [one.metadata.name for one in page.items], page.metadata.resource_version
    core.create_namespaced_config_map(namespace, config_map("c99"))
    while page.metadata._continue:
        page = core.list_namespaced_config_map(
            namespace, label_selector="app=a", limit=10, _continue=page.metadata._continue
        )
        assert page.metadata.resource_version == revision
        names += [one.metadata.name for one in page.items]
    assert names == [f"c{number:02}" for number in range(25)]


def test_a_page_token_that_nobody_gave_is_refused(core, namespace, sentence):
    with pytest.raises(ApiException) as caught:
        core.list_namespaced_config_map(namespace, limit=1, _continue="AAAA")
    assert caught.value.status == 400
    assert "continue key is not valid" in sentence(caught)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/merge-patch+json", {"data": {"a": None, "b": "2"}}),
        ("application/json-patch+json", [{"op": "remove", "path": "/data/a"}, {"op": "add", "path": "/data/b", "value": "2"}]),
        ("application/strategic-merge-patch+json", {"data": {"a": None, "b": "2"}}),
    ],
)  # fmt: skip
def test_every_kind_of_patch_does_the_same(core, namespace, kind, body):
    core.create_namespaced_config_map(namespace, config_map("c", a="1"))
    patched = core.patch_namespaced_config_map("c", namespace, body, _content_type=kind)
    assert patched.data == {"b": "2"}


def test_a_strategic_patch_merges_containers_by_name_and_a_merge_patch_replaces_them(core, namespace):
    core.create_namespaced_pod(namespace, pod())
    image = {"spec": {"containers": [{"name": "main", "image": "trainer:2"}]}}
    strategic = core.patch_namespaced_pod("p", namespace, image, _content_type="application/strategic-merge-patch+json")
    assert (strategic.spec.containers[0].image, strategic.spec.containers[0].image_pull_policy) == (
        "trainer:2",
        "IfNotPresent",
    )
    with pytest.raises(ApiException) as caught:
        core.patch_namespaced_pod(
            "p",
            namespace,
            {"spec": {"containers": [{"name": "x", "image": "i"}]}},
            _content_type="application/merge-patch+json",
        )
    assert caught.value.status == 422


def test_a_collection_is_deleted_by_label(core, namespace):
    for number in range(3):
        core.create_namespaced_config_map(namespace, config_map(f"c{number}"))
    core.create_namespaced_config_map(namespace, client.V1ConfigMap(metadata=client.V1ObjectMeta(name="kept")))
    core.delete_collection_namespaced_config_map(namespace, label_selector="app=a")
    left = {one.metadata.name for one in core.list_namespaced_config_map(namespace).items}
    assert "kept" in left
    assert not left & {"c0", "c1", "c2"}


def test_a_finalizer_holds_an_object_until_it_is_gone(core, namespace):
    held = client.V1ConfigMap(metadata=client.V1ObjectMeta(name="c", finalizers=["hekla.dev/hold"]))
    core.create_namespaced_config_map(namespace, held)
    core.delete_namespaced_config_map("c", namespace)
    assert core.read_namespaced_config_map("c", namespace).metadata.deletion_timestamp
    core.patch_namespaced_config_map("c", namespace, {"metadata": {"finalizers": None}})
    with pytest.raises(ApiException) as caught:
        core.read_namespaced_config_map("c", namespace)
    assert caught.value.status == 404


def test_version_and_discovery_answer_as_the_client_expects(admin):
    version = client.VersionApi(admin).get_code()
    assert version.major == "1"
    groups = {group.name for group in client.ApisApi(admin).get_api_versions().groups}
    assert {"apps", "batch", "rbac.authorization.k8s.io", "batch.volcano.sh", "scheduling.volcano.sh"} <= groups
    served = {one.name: one for one in client.CoreV1Api(admin).get_api_resources().resources}
    assert served["pods"].namespaced
    assert served["pods"].short_names == ["po"]


def test_a_mount_of_a_volume_that_is_not_there_is_refused_however_like_a_valid_pod_it_is(core, namespace, sentence):
    # valid specs are remembered, and those of one template differ in the dice of their token's volume only
    def with_volume(name, volume, mounted):
        container = {"name": "c", "image": "i", "volumeMounts": [{"name": mounted, "mountPath": "/x"}]}
        spec = {
            "containers": [container],
            "volumes": [{"name": volume, "emptyDir": {}}],
            "automountServiceAccountToken": False,
        }
        return {"metadata": {"name": name}, "spec": spec}

    core.create_namespaced_pod(namespace, with_volume("a", "kube-api-access-aaaaa", "kube-api-access-aaaaa"))
    core.create_namespaced_pod(namespace, with_volume("b", "kube-api-access-bbbbb", "kube-api-access-bbbbb"))
    with pytest.raises(ApiException) as caught:
        core.create_namespaced_pod(namespace, with_volume("c", "kube-api-access-ccccc", "kube-api-access-ddddd"))
    assert 'volumeMounts[0].name: Not found: "kube-api-access-ddddd"' in sentence(caught)
