import os
import re
from pathlib import Path

import pytest

from hekla.testing.kubectl import Kubectl

pytestmark = pytest.mark.slow


def config(**data: str) -> str:
    lines = "".join(f'  {key}: "{value}"\n' for key, value in data.items())
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c, labels: {{tier: a}}}}\ndata:\n{lines}"


def value(kubectl: Kubectl, key: str) -> str:
    return kubectl("get", "configmap", "c", "-o", f"jsonpath={{.data.{key}}}").out


def editor(tmp_path: Path, script: str) -> dict[str, str]:
    """An $EDITOR that lets sed work on the file."""
    program = tmp_path / "editor.sh"
    program.write_text(f'#!/bin/sh\nsed -i -e "{script}" "$1"\n')
    program.chmod(0o755)
    return {"EDITOR": str(program), "KUBE_EDITOR": str(program), "TMPDIR": str(tmp_path)}


def test_an_object_is_edited_with_ones_editor(kubectl: Kubectl, tmp_path: Path) -> None:
    kubectl("create", "-f", "-", stdin=config(a="old"))
    said = kubectl("edit", "configmap", "c", env=editor(tmp_path, "s/a: old/a: new/"))
    assert said.out == "configmap/c edited\n"
    assert value(kubectl, "a") == "new"
    said = kubectl("edit", "configmap", "c", env=editor(tmp_path, "s/x/x/"))
    assert "Edit cancelled, no changes made." in said.out + said.err
    kubectl("create", "deployment", "d", "--image=any", "--replicas=0")
    kubectl("edit", "deployment", "d", env=editor(tmp_path, "s/replicas: 0/replicas: -1/"), code=1)
    kept = [one.read_text() for one in tmp_path.glob("kubectl-edit-*.yaml")]  # shown again with the reason
    assert any("# * spec.replicas: Invalid value: -1: must be greater than or equal to 0" in one for one in kept)
    assert kubectl("get", "deployment", "d", "-o", "jsonpath={.spec.replicas}").out == "0"


def test_three_kinds_of_patch_change_what_they_name(kubectl: Kubectl) -> None:
    kubectl("create", "deployment", "d", "--image=any", "--replicas=0")
    strategic = '{"spec":{"template":{"spec":{"containers":[{"name":"any","env":[{"name":"A","value":"1"}]}]}}}}'
    kubectl("patch", "deployment", "d", "-p", strategic)
    kubectl("patch", "deployment", "d", "--type=merge", "-p", '{"metadata":{"labels":{"x":"y","app":null}}}')
    kubectl(
        "patch",
        "deployment",
        "d",
        "--type=json",
        "-p",
        '[{"op":"replace","path":"/spec/revisionHistoryLimit","value":3}]',
    )
    found = kubectl("get", "deployment", "d", "-o", "json").json
    assert found["metadata"]["labels"] == {"x": "y"}
    assert found["spec"]["revisionHistoryLimit"] == 3
    [container] = found["spec"]["template"]["spec"]["containers"]
    assert (container["image"], container["env"]) == ("any", [{"name": "A", "value": "1"}])
    refused = kubectl(
        "patch", "deployment", "d", "--type=json", "-p", '[{"op":"test","path":"/spec/replicas","value":7}]', code=1
    )
    assert "the server rejected our request due to an error in our request" in refused.err
    refused = kubectl("patch", "deployment", "d", "--type=merge", "-p", "{nonsense", code=1)
    assert "BadRequest" in refused.err
    kubectl("patch", "deployment", "d", "--subresource=scale", "--type=merge", "-p", '{"spec":{"replicas":1}}')
    kubectl("wait", "deployment/d", "--for=jsonpath={.spec.replicas}=1", "--timeout=10s")


def test_replacing_asks_for_the_object_and_its_revision(kubectl: Kubectl, tmp_path: Path) -> None:
    assert "not found" in kubectl("replace", "-f", "-", stdin=config(a="1"), code=1).err
    kubectl("create", "-f", "-", stdin=config(a="1", b="2"))
    old = kubectl("get", "configmap", "c", "-o", "yaml").out
    kubectl("replace", "-f", "-", stdin=config(a="3"))
    assert (value(kubectl, "a"), value(kubectl, "b")) == ("3", "")
    refused = kubectl("replace", "-f", "-", stdin=old, code=1)
    assert "the object has been modified; please apply your changes to the latest version and try again" in refused.err
    place = tmp_path / "c.yaml"
    place.write_text(config(a="4"))
    uid = kubectl("get", "configmap", "c", "-o", "jsonpath={.metadata.uid}").out
    kubectl("replace", "--force", "-f", str(place))
    assert kubectl("get", "configmap", "c", "-o", "jsonpath={.metadata.uid}").out != uid


def test_labels_and_annotations_are_set_overwritten_and_removed(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=config(a="1"))
    assert "not labeled" in kubectl("label", "configmap", "c", "tier=a").out
    refused = kubectl("label", "configmap", "c", "tier=b", code=1)
    assert "already has a value (a), and --overwrite is false" in refused.err
    kubectl("label", "configmap", "c", "tier=b", "--overwrite")
    assert kubectl("get", "configmap", "-l", "tier in (b,c)", "-o", "name").out == "configmap/c\n"
    assert kubectl("get", "configmap", "-l", "tier!=b", "-o", "name").out == "configmap/kube-root-ca.crt\n"
    assert "c " in kubectl("get", "configmap", "-L", "tier", "-l", "tier").out
    kubectl("label", "configmap", "c", "tier-")
    assert kubectl("get", "configmap", "-l", "tier", "-o", "name").out == ""
    kubectl("annotate", "configmap", "c", "who=me")
    kubectl("annotate", "configmap", "c", "who-")
    assert kubectl("get", "configmap", "c", "-o", "jsonpath={.metadata.annotations}").out == ""
    bad = kubectl("label", "configmap", "c", "a b=c", code=1)
    assert "name part must consist of alphanumeric characters" in bad.err


def test_diff_shows_what_apply_would_change_and_changes_nothing(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=config(a="1"))
    kubectl("diff", "-f", "-", stdin=config(a="1"))
    shown = kubectl("diff", "-f", "-", stdin=config(a="2"), code=1).out
    assert re.search(r"^- +a: \"1\"$", shown, re.MULTILINE)
    assert re.search(r"^\+ +a: \"2\"$", shown, re.MULTILINE)
    kubectl("diff", "--server-side", "--force-conflicts", "-f", "-", stdin=config(a="2"), code=1)
    assert value(kubectl, "a") == "1"
    kubectl("apply", "-f", "-", "--dry-run=server", stdin=config(a="3"))
    kubectl("apply", "-f", "-", "--dry-run=client", stdin=config(a="3"))
    assert value(kubectl, "a") == "1"


def test_apply_prunes_lists_and_kustomizations(kubectl: Kubectl, tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text(
        "namePrefix: k-\nresources: [c.yaml]\nlabels: [{pairs: {made: here}}]\n"
    )
    (tmp_path / "c.yaml").write_text(config(a="1"))
    assert kubectl("apply", "-k", str(tmp_path)).out == "configmap/k-c created\n"
    two = config(a="1") + "---\n" + config(a="2").replace("name: c", "name: second")
    kubectl("apply", "--prune", "-l", "tier=a", "-f", "-", "--prune-allowlist=core/v1/ConfigMap", stdin=two)
    said = kubectl(
        "apply", "--prune", "-l", "tier=a", "-f", "-", "--prune-allowlist=core/v1/ConfigMap", stdin=config(a="1")
    )
    assert "configmap/second pruned" in said.out
    assert kubectl("delete", "-k", str(tmp_path), "--ignore-not-found", code=None).code == 0


def test_lists_are_sorted_selected_and_shaped(kubectl: Kubectl) -> None:
    for name, weight in (("b", "2"), ("a", "3"), ("c", "1")):
        kubectl("create", "configmap", name, f"--from-literal=weight={weight}")
    kubectl("delete", "configmap", "kube-root-ca.crt")
    by_weight = kubectl(
        "get", "configmap", "--sort-by={.data.weight}", "--field-selector=metadata.name!=kube-root-ca.crt", "-o", "name"
    )
    assert by_weight.out.split() == ["configmap/c", "configmap/b", "configmap/a"]
    shaped = kubectl(
        "get", "configmap", "a", "b", "--no-headers", "-o", "custom-columns=NAME:.metadata.name,W:.data.weight"
    ).out
    assert shaped.split() == ["a", "3", "b", "2"]
    template = "go-template={{range .items}}{{.metadata.name}}{{end}}"
    assert kubectl("get", "configmap", "a", "b", "-o", template).out == "ab"
    assert kubectl("get", "configmap", "a", "-o", "jsonpath-as-json={.data}").json == [{"weight": "3"}]
    everywhere = kubectl("get", "configmap", "-A", "--field-selector", "metadata.name=a")
    assert kubectl.namespace in everywhere.out
    bad = kubectl("get", "configmap", "--field-selector", "data.weight=1", code=1)
    assert '"data.weight" is not a known field selector' in bad.err


def test_secrets_and_configuration_are_made_from_files(kubectl: Kubectl, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("first")
    (tmp_path / "binary").write_bytes(os.urandom(64))
    (tmp_path / "env").write_text("K=v\nL=w\n")
    kubectl("create", "configmap", "files", f"--from-file={tmp_path / 'one.txt'}", f"--from-file={tmp_path / 'binary'}")
    found = kubectl("get", "configmap", "files", "-o", "json").json
    assert found["data"] == {"one.txt": "first"}
    assert list(found["binaryData"]) == ["binary"]
    kubectl("create", "secret", "generic", "s", f"--from-env-file={tmp_path / 'env'}")
    assert re.search(r"^K: +1 bytes$", kubectl("describe", "secret", "s").out, re.MULTILINE)
    kubectl("create", "secret", "docker-registry", "r", "--docker-username=u", "--docker-password=p")
    assert kubectl("get", "secret", "r", "-o", "jsonpath={.type}").out == "kubernetes.io/dockerconfigjson"
    kubectl("create", "serviceaccount", "robot")
    assert "already exists" in kubectl("create", "serviceaccount", "robot", code=1).err
