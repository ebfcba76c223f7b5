import asyncio
import json
import select
import shlex
import subprocess
import sys
import urllib.request
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import yaml

from hekla.api.apps import Deployment
from hekla.apiserver.status import bad_request
from hekla.app.data_directory import DataDirectory
from hekla.app.settings import Settings
from hekla.cli.commands.logs import _lines
from hekla.cli.commands.up import missing_nodes
from hekla.cli.connection import run_connected
from hekla.cli.main import main
from hekla.cli.output import as_yaml
from hekla.cli.refused_fields import _sentence
from hekla.cli.schemas import Schemas
from hekla.cli.what_keeps import gone_by, what_keeps
from hekla.kube.api_client import ApiClient
from hekla.kube.client import EventType, WatchEvent
from hekla.testing.api_server import LiveApiServer
from hekla.testing.programs import started
from hekla.wire.messages import Response

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: busybox}]}
"""
WIDGETS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList, categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, description: What is wished for.,
      properties: {size: {type: integer, description: How big it is to be.}}}}}}
---
apiVersion: example.com/v1
kind: Widget
metadata: {name: w}
spec: {size: 3}
"""


class Cluster:
    def __init__(self, server, folder, capsys):
        self.server, self.folder, self.capsys = server, folder, capsys
        self.kubeconfig = folder / "kubeconfig"
        context = {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "default"}}
        self.kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "c",
                    "contexts": [context],
                    "clusters": [{"name": "c", "cluster": {"server": server.url}}],
                    "users": [{"name": "u", "user": {}}],
                }
            )
        )

    def run(self, *arguments):
        code = main([*arguments, "--kubeconfig", str(self.kubeconfig)])
        said = self.capsys.readouterr()
        return code, said.out, said.err

    def file(self, text, name="f.yaml"):
        (self.folder / name).write_text(text)
        return str(self.folder / name)

    def document(self, path):
        return json.loads(urllib.request.urlopen(self.server.url + path).read())


@pytest.fixture
def cluster(tmp_path, capsys):
    with LiveApiServer() as server:
        yield Cluster(server, tmp_path, capsys)


@pytest.fixture
def web(cluster):
    assert cluster.run("create", "-f", cluster.file(DEPLOYMENT)) == (0, "deployment.apps/web created\n", "")
    return cluster


WEB = "/apis/apps/v1/namespaces/default/deployments/web"


def test_a_definition_and_its_first_object_are_applied_in_one_go(cluster):
    code, out, err = cluster.run("apply", "-f", cluster.file(WIDGETS))
    assert (code, err) == (0, "")
    assert out.splitlines()[1] == "widget.example.com/w created"
    code, out, _ = cluster.run("explain", "widget.spec.size")
    assert code == 0
    assert "FIELD:    spec.size <integer>" in out
    assert "How big it is to be." in out
    assert cluster.run("explain", "widget.spec.sise")[::2] == (
        2,
        'hekla: widget.spec has no field "sise"; did you mean "size"?\n',
    )


def test_get_all_shows_what_belongs_to_the_category_with_its_type(web):
    web.run("apply", "-f", web.file(WIDGETS))
    code, out, _ = web.run("get", "all")
    assert code == 0
    names = [line.split()[0] for line in out.splitlines() if line and not line.startswith("NAME")]
    assert names == ["deployment.apps/web", "widget.example.com/w"]
    code, out, _ = web.run("get", "all", "-o", "name")
    assert (code, out.split()) == (0, ["deployment.apps/web", "widget.example.com/w"])
    assert web.run("get", "all", "-n", "nowhere")[2] == (
        'No resources found in nowhere namespace.\nhekla: there is no namespace "nowhere"\n'
    )


def test_what_the_server_warns_of_is_told_apart_from_the_answer(cluster):
    code, out, err = cluster.run("create", "-f", cluster.file(DEPLOYMENT.replace("{name: web}", "{name: web.v1}")))
    assert (code, out) == (0, "deployment.apps/web.v1 created\n")
    assert err.startswith("Warning: metadata.name: this is used in Pod names and hostnames")
    assert err.count("\n") == 1


def test_creating_what_is_there_is_refused_and_the_rest_is_created(web):
    code, out, err = web.run("create", "-f", web.file(DEPLOYMENT + "---" + DEPLOYMENT.replace("web", "other")))
    assert (code, out) == (1, "deployment.apps/other created\n")
    assert 'deployments.apps "web" already exists' in err
    assert err.endswith("1 of 2 objects were refused; the reasons are above\n")


def test_scale_changes_replicas_of_what_has_a_scale_and_names_what_has_none(web):
    assert web.run("scale", "deployment/web", "--replicas", "3")[:2] == (0, "deployment.apps/web scaled\n")
    assert web.document(WEB)["spec"]["replicas"] == 3
    code, _, err = web.run("scale", "deploy", "web", "--replicas", "5", "--current-replicas", "1")
    assert (code, err) == (1, "hekla: deployment.apps/web has 3 replicas, not 1\n")
    code, _, err = web.run("scale", "namespace", "default", "--replicas", "3")
    assert (code, "has no scale subresource" in err) == (1, True)
    assert web.run("scale", "deploy", "--replicas", "3")[0] == 2


@pytest.mark.parametrize("has_bookmark", [False, True])
def test_a_wait_whose_time_is_up_says_what_it_saw_last(web, monkeypatch, has_bookmark):
    async def time_is_up(*_, **__):
        raise TimeoutError
        yield

    async def bookmark_at_the_end(*_, **__):
        yield WatchEvent(EventType.BOOKMARK, {"kind": "Deployment", "metadata": {"resourceVersion": "9"}}, "9")
        raise TimeoutError

    monkeypatch.setattr(ApiClient, "watch_documents", bookmark_at_the_end if has_bookmark else time_is_up)
    code, out, err = web.run("wait", "deploy/web", "--for=jsonpath={.spec.replicas}=7", "--timeout=60s")
    assert (code, out) == (124, "")
    assert err == (
        "hekla: timed out after 60s waiting for jsonpath={.spec.replicas}=7 on deploy/web; "
        'deployment.apps/web has "1" at {.spec.replicas}\n'
    )
    code, _, err = web.run("wait", "deploy/wed", "--for=condition=Available")
    assert code == 124
    assert err.endswith('; deployment.apps/wed does not exist; did you mean "web"?\n')


def test_labels_are_set_kept_replaced_and_removed(web):
    assert web.run("label", "deploy", "web", "tier=gold", "a=")[:2] == (0, "deployment.apps/web labeled\n")
    code, _, err = web.run("label", "deploy/web", "tier=iron")
    assert (code, err) == (
        1,
        'hekla: deployment.apps/web has labels tier="gold" already; --overwrite replaces it\n',
    )
    assert web.run("label", "deploy", "-l", "tier=gold", "tier=iron", "a-", "--overwrite")[0] == 0
    assert web.document(WEB)["metadata"]["labels"] == {"tier": "iron"}
    assert web.run("label", "deploy", "--all", "tier=iron")[1] == "deployment.apps/web not labeled\n"
    assert web.run("label", "deploy", "web")[0] == 2
    assert web.run("label", "deploy", "--all", "x=y", "web")[0] == 2


def test_annotations_are_set_and_removed(web):
    assert web.run("annotate", "deploy/web", "owner=ann")[:2] == (0, "deployment.apps/web annotated\n")
    assert web.document(WEB)["metadata"]["annotations"] == {"owner": "ann"}
    web.run("annotate", "deploy/web", "owner-")
    assert "annotations" not in web.document(WEB)["metadata"]


def test_patches_of_every_form_change_the_object(web):
    container = '{"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i:2"}]}}}}'
    assert web.run("patch", "deploy", "web", "-p", container)[:2] == (0, "deployment.apps/web patched\n")
    web.run("patch", "deploy", "web", "--type", "merge", "--patch-file", web.file("spec: {replicas: 4}", "p"))
    web.run("patch", "deploy", "web", "-p", '[{"op": "add", "path": "/spec/paused", "value": true}]')
    spec = web.document(WEB)["spec"]
    assert (spec["replicas"], spec["paused"], spec["template"]["spec"]["containers"][0]["image"]) == (4, True, "i:2")
    assert web.run("patch", "deploy", "web", "-p", "spec: {replicas: 9}", "--dry-run", "-o", "name") == (
        0,
        "deployment.apps/web\n",
        "",
    )
    assert web.document(WEB)["spec"]["replicas"] == 4
    for wrong in (["-p", "x: ["], ["-p", "3"], [], ["-p", "a: 1", "--type", "odd"], ["--patch-file", "/none"]):
        code, _, err = web.run("patch", "deploy", "web", *wrong)
        assert code in (1, 2)
        assert err.startswith("hekla: ")
        assert "Traceback" not in err


def test_what_tasks_were_refused_together_is_one_sentence(web):
    code, _, err = web.run("get", "deploy,namespaces", "-w", "--field-selector", "spec.none=1")
    assert code == 1
    assert err.startswith("hekla: Error from server (BadRequest)")
    assert "Traceback" not in err


@pytest.fixture
def logs(tmp_path, capsys):
    """Two pods of a replica set, of which only those named in the list have a log."""
    having = []

    def answer(call):
        if call.target.name not in having:
            raise bad_request(f'container "c" in pod "{call.target.name}" is waiting to start: ContainerCreating')
        return Response(200, b"one\n\n  \ntwo", "text/plain")

    with LiveApiServer(proxy=answer) as server:
        cluster = Cluster(server, tmp_path, capsys)
        replicas = DEPLOYMENT.replace("Deployment", "ReplicaSet")
        cluster.run("create", "-f", cluster.file(replicas))
        uid = cluster.document("/apis/apps/v1/namespaces/default/replicasets/web")["metadata"]["uid"]
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": uid}
        for name in ("a", "b"):
            spec = {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}
            pod = {"apiVersion": "v1", "kind": "Pod", "spec": spec}
            pod["metadata"] = {"name": name, "ownerReferences": [owner]}
            cluster.run("create", "-f", cluster.file(yaml.safe_dump(pod)))
        yield cluster, having


def test_a_pod_that_waits_for_a_node_has_no_log_and_says_whom_to_ask(cluster):
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a"},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    cluster.run("create", "-f", cluster.file(yaml.safe_dump(pod)))
    code, out, err = cluster.run("logs", "a")
    assert (code, out) == (1, "")
    assert err == ("hekla: pod a has no log yet, for it waits for a node; `hekla why pod/a -n default` says why\n")


def test_a_pod_without_a_log_is_told_of_and_the_others_logs_are_shown(logs):
    cluster, having = logs
    having.append("b")
    code, out, err = cluster.run("logs", "rs/web")
    assert (code, out) == (0, "[b] one\n[b] \n[b]   \n[b] two\n")  # empty lines are somebody's too
    assert err == ('hekla: pod a has no log to show: container "c" in pod "a" is waiting to start: ContainerCreating\n')
    having.clear()
    code, out, err = cluster.run("logs", "rs/web")
    assert (code, out) == (1, "")
    assert err.splitlines()[-1] == "hekla: rs/web: none of its 2 pods has a log; the reasons are above"
    code, _, err = cluster.run("logs", "a")
    assert (code, err.startswith("hekla: Error from server (BadRequest)")) == (1, True)


def test_a_line_of_a_log_that_never_ends_is_shown_in_parts_and_a_cut_one_whole():
    async def told(*pieces):
        async def stream():
            for piece in pieces:
                yield piece

        return [line async for line in _lines(stream())]

    assert asyncio.run(told(b"a\n\nb", b"c\n", b"")) == [b"a", b"", b"bc"]
    progress = [b"\rstep" * 8192] * 3
    parts = asyncio.run(told(*progress, b"\nend"))
    assert (b"".join(parts), len(parts)) == (b"".join(progress) + b"end", 3)


def test_a_watch_shows_later_changes_in_the_columns_of_the_first(web):
    command = ["get", "deploy", "-A", "-w", "--no-headers", "--kubeconfig", str(web.kubeconfig)]
    with started([sys.executable, "-m", "hekla.cli.main", *command], stdout=subprocess.PIPE, text=True) as watching:
        first = watching.stdout.readline()
        # the watch begins at some moment after the list; what it has not seen is told again until it has
        for replicas in range(2, 200):
            web.run("scale", "deploy", "web", "--replicas", str(replicas))
            if select.select([watching.stdout], [], [], 0.05)[0]:
                break
        later = watching.stdout.readline()
        web.run("scale", "deploy", "web", "--replicas", "1000")
        while "/1000" not in later:
            last, later = later, watching.stdout.readline()
    assert [len(line.split()) for line in (first, last, later)] == [6, 6, 6]


def test_texts_of_several_lines_are_shown_under_a_bar_and_read_back_the_same():
    texts = {"run.sh": "set -e\necho hi\n", "trailing": "a \nb", "tab": "a\n\tb\n", "one": "x", "number": "1", "": "\n"}
    shown = as_yaml(texts)
    assert "run.sh: |\n  set -e\n  echo hi\n" in shown
    assert yaml.safe_load(shown) == texts
    assert "&id" not in as_yaml([texts, texts])


def test_describe_shows_scripts_as_they_are(cluster):
    script = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: s}\ndata:\n  run.sh: |\n    set -e\n    echo hi\n"
    cluster.run("apply", "-f", cluster.file(script))
    assert "run.sh: |\n    set -e\n    echo hi\n" in cluster.run("describe", "cm", "s")[1]


def test_the_completion_of_a_shell_is_printed():
    done = subprocess.run(
        # the shell is found by looking at who started us, so a bash must stay there while we run
        ["bash", "-c", f"{shlex.quote(sys.executable)} -m hekla.cli.main --show-completion; exit $?"],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "SHELL": "/bin/bash"},
    )
    assert (done.returncode, "complete" in done.stdout) == (0, True), done


def test_switches_may_be_spelled_as_kubectl_spells_them(web):
    code, out, err = web.run("delete", "deployment", "nope", "--ignore-not-found=true", "--wait=false")
    assert (code, out, err) == (0, "", "")
    assert web.run("delete", "deployment", "nope", "--ignore-not-found=false")[0] == 1


def test_one_name_that_is_gone_keeps_nothing_else_from_being_deleted(web, tmp_path):
    """It stopped there: of a file of five objects, of which one had been deleted by hand, four stayed and none was told."""
    file = tmp_path / "three.yaml"
    one = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\n"
    file.write_text("---\n".join(one % name for name in ("left", "gone", "right")))
    assert web.run("apply", "-f", str(file))[0] == 0
    assert web.run("delete", "configmap", "gone")[0] == 0
    code, out, err = web.run("delete", "-f", str(file))
    assert code == 1
    assert out.split() == ["configmap", '"right"', "deleted", "configmap", '"left"', "deleted"]
    assert 'configmaps "gone" not found' in err
    code, out, err = web.run("delete", "configmap", "left", "right")
    assert (code, out) == (1, "")
    assert "left" in err
    assert "right" in err


def test_an_empty_name_deletes_nothing(web, tmp_path):
    """The path without a name is that of all objects: `hekla delete configmap "$UNSET"` deleted every one of the namespace."""
    assert web.run("apply", "-f", web.file("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kept}\n"))[0] == 0
    for words in (("configmap", ""), ("configmap", "other", ""), ("configmap/",)):
        code, out, err = web.run("delete", *words)
        assert (code, out) == (2, ""), err
    code, _, err = web.run("delete", "-f", web.file("apiVersion: v1\nkind: ConfigMap\nmetadata: {generateName: ke}\n"))
    assert (code, "has no metadata.name, only a generateName" in err) == (1, True)
    code, _, err = web.run("job", "delete", "")
    assert (code, "resource name may not be empty" in err) == (1, True)
    assert web.run("get", "configmap", "kept")[0] == 0


@pytest.mark.parametrize("name", ["a b", "a\nb", "a?b", "a#b", "a%zz", "\xe9"])
def test_a_name_that_nothing_can_have_is_not_found(web, name):
    """Blanks ended in a traceback, and what stood behind a question mark went to the server as a parameter."""
    for words in (
        ("get", "pod", name), ("delete", "pod", name), ("label", f"pod/{name}", "a=b"), ("logs", name),
        ("scale", f"deployment/{name}", "--replicas", "1"), ("patch", "pod", name, "-p", "{}"),
    ):  # fmt: skip
        code, _, err = web.run(*words)
        assert (code, "not found" in err) == (1, True), (words, err)


def test_the_version_is_told_as_other_programs_tell_it(capsys):
    assert main(["--version"]) == main(["version"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second


def test_apply_without_a_file_is_wrong_usage(capsys):
    assert main(["apply"]) == 2
    assert "name a manifest with -f FILE" in capsys.readouterr().err


WEBS = """
apiVersion: v1
kind: Namespace
metadata: {name: research}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: crawler, namespace: research}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: busybox}]}
"""


@pytest.mark.parametrize(
    "command",
    [
        ["get"], ["get", "-o", "yaml"], ["describe"], ["delete"], ["logs"], ["why"], ["scale", "--replicas", "2"],
        ["patch", "-p", "{}"], ["label"],
    ],
)  # fmt: skip
def test_a_misspelt_name_is_answered_with_the_nearest(web, command):
    words = ["a=b"] if command == ["label"] else []
    code, _, err = web.run(command[0], "deploy/wbe", *words, *command[1:])
    assert (code, err.strip().endswith('deployments.apps "wbe" not found; did you mean "web"?')) == (1, True), err


def test_a_name_that_is_in_another_namespace_is_found_there_and_a_misspelt_namespace_named(web):
    web.run("apply", "-f", web.file(WEBS))
    missing = 'hekla: Error from server (NotFound): deployments.apps "crawler" not found; '
    found = web.run("get", "deploy", "crawler")[2]
    assert found == missing + 'there is one in namespace "research": add -n research\n'
    found = web.run("get", "deploy", "crawler", "-n", "reserch")[2]
    assert found == missing + 'there is no namespace "reserch"; did you mean "research"?\n'
    assert web.run("get", "deploy", "-n", "reserch") == (
        0, "", 'No resources found in reserch namespace.\nhekla: there is no namespace "reserch"; did you mean "research"?\n'
    )  # fmt: skip
    assert web.run("get", "deploy", "zzz")[2].endswith('"zzz" not found\n')


def test_explain_shows_every_field_below_and_what_holds_itself_once(cluster):
    cluster.run("apply", "-f", cluster.file(WIDGETS))
    code, out, _ = cluster.run("explain", "widget", "--recursive")
    fields = out.partition("FIELDS:\n")[2]
    assert (code, "  spec  <object>\n    size  <integer>\n" in fields, "How big" in fields) == (0, True, False)
    code, out, _ = cluster.run("explain", "crd.spec.versions.schema", "--recursive")
    assert (code, out.count("\n          additionalProperties  <")) == (0, 0)
    assert "\n  openAPIV3Schema  <" in out
    deployment = cluster.run("explain", "deploy.spec.template.spec", "--recursive")[1]
    assert "\n  containers  <[]object> -required-\n    args  <[]string>\n" in deployment
    assert "\n      limits  <map[string]" in deployment


def test_explain_names_the_nearest_field(cluster):
    assert cluster.run("explain", "deploy.spec.replica")[2].startswith(
        'hekla: deployment.spec has no field "replica"; did you mean "replicas"?\n'
    )
    assert ' has no field "zzz"; it has: minReadySeconds, paused, ' in cluster.run("explain", "deploy.spec.zzz")[2]


def test_a_misspelt_field_is_named_with_its_object_its_value_and_the_nearest(cluster):
    wrong = DEPLOYMENT.replace("replicas: 1", "replica: 1").replace("image: busybox", 'imagee: busybox, tty: "yes"')
    file = cluster.file(wrong)
    code, out, err = cluster.run("apply", "-f", file)
    assert (code, out) == (1, "")
    first = f'hekla: {file}: Deployment "web": spec has no field "replica"; did you mean "replicas"?'
    found = err.splitlines()
    assert found[0].startswith(first)
    assert found[0].endswith(" (written is replica: 1)")
    assert err.count('containers[name="c"] has no field "imagee"; did you mean "image"?') == 1
    assert 'containers[name="c"].tty is "yes": expected boolean' in err
    code, _, err = cluster.run("create", "-f", cluster.file(DEPLOYMENT.replace("replicas: 1", "replica: 1")))
    assert err.startswith(first)


@pytest.mark.parametrize(
    ("manifest", "told"),
    [
        ("kind: Secret\nmetadata: {name: s}\nstringdata: {password: hunter2}", 'did you mean "stringData"?'),
        ("kind: Secret\nmetadata: {name: s}\nstringData: {pin: 81726354}", "stringData.pin: expected string"),
        ("kind: ConfigMap\nmetadata: {name: s}\ndatta: {a: hunter2}", 'did you mean "data"?'),
        ("kind: ConfigMap\nmetadata: {name: s}\ndata: [hunter2]", "data is a list: expected map"),
        ("kind: ConfigMap\nmetadata: {name: s, annotations: {last: 81726354}}", "annotations.last: expected string"),
        (
            "kind: Pod\nmetadata: {name: s}\nspec: {containers: [{name: c, image: i, env: [{name: A, value: 81726354}]}]}",
            'env[name="A"].value: expected string',
        ),
        (
            "kind: Pod\nmetadata: {name: s}\nspec: {containers: [{name: c, image: i, env: [{name: A, valu: hunter2}]}]}",
            'did you mean "value"?',
        ),
    ],
)
def test_what_may_be_secret_is_not_printed_where_a_field_is_refused(cluster, manifest, told):
    file = cluster.file(f"apiVersion: v1\n{manifest}\n")
    for command in ("apply", "create"):
        code, _, err = cluster.run(command, "-f", file)
        assert code == 1
        assert "hunter2" not in err
        assert "81726354" not in err
        assert command == "create" or told in err, err


@pytest.mark.parametrize(
    ("manifest", "told"),
    [
        (
            "metadata: {name: s, labels: {app.kubernetes.io/version: 1.5}}",
            "metadata.labels.app.kubernetes.io/version is 1.5: expected string\n",
        ),
        ("metadata: {name: s}\ndata: {app.conf: 7}", "data.app.conf is 7: expected string\n"),
    ],
)
def test_a_field_whose_name_has_dots_is_found_where_it_is_refused(cluster, manifest, told):
    err = cluster.run("apply", "-f", cluster.file(f"apiVersion: v1\nkind: ConfigMap\n{manifest}\n"))[2]
    assert told in err


def test_what_is_refused_of_an_object_and_is_not_in_the_manifest_is_told_without_a_value():
    what = "expected string, got &value.valueUnstructured{Value:7}"
    schemas = Schemas({"components": {"schemas": {}}})
    assert _sentence(schemas, Deployment.kind_info, {}, "data.a.b", what) == "data.a.b: expected string"


def test_a_misspelt_kind_or_version_is_answered_with_what_is_there(cluster):
    file = cluster.file(DEPLOYMENT.replace("kind: Deployment", "kind: Deploiment"))
    assert 'kind "Deploiment" in version "apps/v1"; did you mean "Deployment"?' in cluster.run("apply", "-f", file)[2]
    file = cluster.file(DEPLOYMENT.replace("apps/v1", "apps/v1beta1"))
    assert 'kind "Deployment" in version "apps/v1beta1"; it is in apps/v1\n' in cluster.run("apply", "-f", file)[2]


def test_a_command_that_only_kubectl_has_is_answered_with_what_does_it_here(cluster, capsys):
    assert main(["top", "pods"]) == 2
    assert capsys.readouterr().err == ('hekla: there is no command "top"; `hekla job top` shows which jobs hold what\n')
    assert main(["cordon", "node-1"]) == 2
    assert capsys.readouterr().err == (
        'hekla: there is no command "cordon"; kubectl has it: export KUBECONFIG=$(hekla kubeconfig)\n'
    )
    assert main(["aply"]) == 2
    assert "Did you mean 'apply'" in capsys.readouterr().err


STRANDED = """
apiVersion: v1
kind: Node
metadata: {name: far}
---
apiVersion: v1
kind: Pod
metadata: {name: stranded}
spec: {nodeName: far, containers: [{name: c, image: busybox}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: held, finalizers: [example.com/wait]}
"""


def test_a_deletion_that_waits_says_what_it_waits_for(cluster, monkeypatch):
    cluster.run("apply", "-f", cluster.file(STRANDED))
    ready = {
        "type": "Ready",
        "status": "Unknown",
        "lastTransitionTime": "2026-11-28T10:00:00Z",
        "message": "it is silent",
    }
    cluster.run("patch", "node/far", "--subresource", "status", "-p", json.dumps({"status": {"conditions": [ready]}}))
    slept = []

    async def sleep(pause_s):
        slept.append(pause_s)
        if sum(slept) > 10:
            raise KeyboardInterrupt

    monkeypatch.setattr("hekla.cli.commands.delete.pause", sleep)
    code, out, err = cluster.run("delete", "pod/stranded")
    assert (code, out) == (130, 'pod "stranded" deleted\n')
    why = 'its node "far" is not ready since 2026-11-28T10:00:00Z (it is silent), so nobody there ends it: bring the node back'
    assert err.startswith(f'hekla: Pod "stranded" is still there: {why}')
    assert err.count("\n") == 1
    code, _, err = cluster.run("why", "pod/stranded")
    assert (code, f": {why}" in err) == (1, True), err
    assert 'pod "stranded" in namespace "default" is to be gone by 2' in err
    slept.clear()
    err = cluster.run("delete", "configmap/held")[2]
    assert "its finalizers keep it until somebody has done what they stand for: example.com/wait" in err


LATER, THEN = datetime(2026, 11, 28, 10, 1, tzinfo=UTC), datetime(2026, 11, 28, 9, 59, 59, tzinfo=UTC)


@pytest.mark.parametrize(
    ("now", "kept", "gone"),
    [
        (THEN, "its containers have until 2026-11-28T10:00:00Z to end", "is to be gone by 2026-11-28T10:00:00Z"),
        (
            LATER,
            "its finalizers keep it until somebody has done what they stand for: example.com/wait",
            "was to be gone by 2026-11-28T10:00:00Z",
        ),
    ],
)
def test_a_pod_in_its_grace_period_is_kept_by_its_containers_and_not_by_finalizers(cluster, now, kept, gone):
    node = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "near"}}
    cluster.run("apply", "-f", cluster.file(json.dumps(node)))
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    cluster.run("patch", "node/near", "--subresource", "status", "-p", json.dumps({"status": status}))
    metadata = {"name": "p", "deletionTimestamp": "2026-11-28T10:00:00Z", "finalizers": ["example.com/wait"]}
    pod = {"kind": "Pod", "metadata": metadata, "spec": {"nodeName": "near"}}
    found = run_connected(str(cluster.kubeconfig), lambda connection: what_keeps(connection, pod, now))
    assert (found, gone_by(pod, now)) == (kept, gone)


def test_of_a_pod_whose_node_is_gone_nobody_is_told_to_bring_it_back_or_delete_it(cluster):
    metadata = {"name": "p", "deletionTimestamp": "2026-11-28T10:00:00Z"}
    pod = {"kind": "Pod", "metadata": metadata, "spec": {"nodeName": "nowhere"}}
    found = run_connected(str(cluster.kubeconfig), lambda connection: what_keeps(connection, pod, THEN))
    assert found.startswith('its node "nowhere" is not there any more, so nobody there ends it')
    assert "bring the node back" not in found
    assert "delete the node" not in found


def test_a_start_with_fewer_nodes_than_the_last_one_says_so(tmp_path):
    """After a reboot the flags are easily left out, and the GPUs that jobs wait for are gone without a word."""
    ample = Settings(data_dir=tmp_path, nodes=2, gpus_per_node=8)
    assert missing_nodes(ample) == ""
    DataDirectory(tmp_path).keep_nodes(ample.node_counts)
    assert missing_nodes(ample) == ""
    assert missing_nodes(replace(ample, nodes=3, simulated_nodes=9)) == ""
    for fewer in (
        replace(ample, nodes=1),
        replace(ample, gpus_per_node=0),
        replace(ample, without=frozenset({"node"})),
    ):
        assert "the last start had --nodes 2 --gpus-per-node 8, and this one has less" in missing_nodes(fewer)
    for broken in ("", "[]", '{"--nodes": "two"}'):
        DataDirectory(tmp_path).nodes.write_text(broken)
        assert missing_nodes(ample) == ""
