"""What the ordinary commands say of models: who scales them, which of the objects a webhook refused, whose log is meant."""

import pytest
import yaml

from cli.test_commands import Cluster
from hekla.api.crd import CUSTOM_KINDS
from hekla.serving.admission import ADMISSION_RULES
from hekla.testing.api_server import RULES, LiveApiServer
from hekla.testing.serving_world import role, serving
from hekla.wire.messages import Response

GROUP = "serving.volcano.sh"


@pytest.fixture
def models(tmp_path, capsys):
    """A server that knows Kthena's kinds, and whose pods' logs are the name of their container."""

    def answer(call):
        return Response(200, (call.request.query()["container"][0] + "\n").encode(), "text/plain")

    kinds = [kind for kind in CUSTOM_KINDS if kind.kind_info.group.endswith(GROUP)]
    with LiveApiServer(proxy=answer, rules=[*RULES, *ADMISSION_RULES], kinds=kinds) as server:
        yield Cluster(server, tmp_path, capsys)


def policy(name="busy", target="llama"):
    of = {"targetRef": {"kind": "ModelServing", "name": target}}
    metrics = [{"metricName": "waiting", "targetValue": "10"}]
    return {
        "apiVersion": f"workload.{GROUP}/v1alpha1", "kind": "AutoscalingPolicy", "metadata": {"name": name},
        "spec": {"metrics": metrics, "homogeneousTarget": {"target": of, "minReplicas": 1, "maxReplicas": 4}},
    }  # fmt: skip


def test_scaling_what_an_autoscaler_scales_says_who_will_change_it_again_and_what_to_change(models):
    objects = [serving(roles=[role("server")]), policy(), policy("other", "elsewhere")]
    assert models.run("create", "-f", models.file(yaml.safe_dump_all(objects)))[0] == 0
    code, out, err = models.run("scale", "modelserving/llama", "--replicas", "3")
    assert (code, out.endswith("/llama scaled\n")) == (0, True)
    assert err.count("Warning: ") == 1
    assert 'autoscalingpolicy "busy" scales' in err
    assert "set minReplicas and maxReplicas of the policy to 3" in err


def test_what_a_webhook_refuses_is_named(models):
    wrong = policy("lopsided")
    wrong["spec"]["homogeneousTarget"]["minReplicas"] = 9
    for command in ("create", "apply"):
        code, _, err = models.run(command, "-f", models.file(yaml.safe_dump(wrong)))
        assert code == 1
        assert 'AutoscalingPolicy "lopsided": admission webhook "validate-autoscalingpolicy.volcano.sh" denied' in err


@pytest.mark.parametrize(("said", "container"), [({}, "runtime"), ({"default-container": "engine"}, "engine")])
def test_the_log_of_a_pod_of_several_containers_is_that_of_its_default_one(models, said, container):
    annotations = {f"kubectl.kubernetes.io/{name}": value for name, value in said.items()}
    containers = [{"name": name, "image": "i"} for name in ("runtime", "engine")]
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "n", "containers": containers}}
    pod["metadata"] = {"name": "p", "annotations": annotations}
    models.run("create", "-f", models.file(yaml.safe_dump(pod)))
    code, out, err = models.run("logs", "p")
    assert (code, out) == (0, f"{container}\n")
    assert err == ("" if said else 'Defaulted container "runtime" out of: runtime, engine\n')
    assert models.run("logs", "p", "-c", "engine")[1] == "engine\n"


def test_a_booster_of_kthena_03_is_taken_with_a_warning_that_says_how_to_write_it_today(models):
    worker = {"type": "server", "image": "vllm", "replicas": 1, "pods": 1}
    backend = {
        "name": "b",
        "type": "vLLM",
        "modelURI": "hf://org/m",
        "minReplicas": 1,
        "maxReplicas": 4,
        "workers": [worker],
    }
    booster = {
        "apiVersion": f"workload.{GROUP}/v1alpha1", "kind": "ModelBooster", "metadata": {"name": "m"},
        "spec": {"backend": backend},
    }  # fmt: skip
    code, _, err = models.run("apply", "-f", models.file(yaml.safe_dump(booster)))
    assert (code, "write replicas: 1" in err) == (0, True), err
    made = models.document(f"/apis/workload.{GROUP}/v1alpha1/namespaces/default/modelboosters/m")
    assert made["spec"]["backend"]["replicas"] == 1
    assert made["metadata"]["annotations"]["serving.hekla.dev/max-replicas"] == "4"
