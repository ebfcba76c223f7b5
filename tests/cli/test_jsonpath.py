"""Templates pick from documents what kubectl's would: the expected texts are what kubectl 1.32 printed."""

import shutil
import subprocess
from typing import Any

import pytest

from hekla.cli.jsonpath import column_rows, path_of, rendered
from hekla.cli.main import CommandError

from .conftest import Volcano


def pod(name: str, phase: str, image: str, restarts: int, **labels: str) -> dict[str, Any]:
    statuses = [{"name": "main", "restartCount": restarts, "ready": restarts == 0}]
    return {
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"volcano.sh/job-name": "train", **labels}},
        "spec": {"containers": [{"name": "main", "image": image, "command": ["sh", "-c"]}, {"name": "side"}]},
        "status": {"phase": phase, "containerStatuses": statuses},
    }


PODS = {
    "kind": "List",
    "items": [
        pod("a", "Running", "python:3", 0, app="web"),
        pod("b", "Pending", "busybox", 3),
        pod("c", "Running", "busybox", 1),
    ],
}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{.items[*].metadata.name}", "a b c"),
        ("{.items[0].metadata.name}", "a"),
        ("{.items[-1].metadata.name}", "c"),
        ("{.items[0:2].metadata.name}", "a b"),
        ("{.items[0:3:2].metadata.name}", "a c"),
        ("{.items[-1:].metadata.name}", "c"),
        ("{.items[0,2].metadata.name}", "a c"),
        ("{$.items[0].metadata.name}{@.kind}", "aList"),
        ('{range .items[*]}{.metadata.name}{"\\t"}{.status.phase}{"\\n"}{end}', "a\tRunning\nb\tPending\nc\tRunning\n"),
        (
            "{range .items[*]}{range .spec.containers[*]}{.name}{','}{end}{';'}{end}",
            "main,side,;main,side,;main,side,;",
        ),
        ('{.items[?(@.status.phase=="Running")].metadata.name}', "a c"),
        ("{.items[?(@.status.phase!='Running')].metadata.name}", "b"),
        ("{.items[?(@.status.containerStatuses[0].restartCount>0)].metadata.name}", "b c"),
        ("{.items[?(@.status.containerStatuses[0].restartCount <= 1)].metadata.name}", "a c"),
        ("{.items[?(@.status.containerStatuses[0].ready==true)].metadata.name}", "a"),
        ("{.items[?(@.metadata.labels.app)].metadata.name}", "a"),
        ("{.items[?(@.metadata.name>1)].metadata.name}", ""),
        ("{.items[0].metadata.labels.volcano\\.sh/job-name}", "train"),
        ("{.items[0].metadata.labels['volcano\\.sh/job-name']}", "train"),
        ("{.items[0].metadata['name','labels']}", 'a {"app":"web","volcano.sh/job-name":"train"}'),
        ("{.items[*]['metadata.name','status.phase']}", "a b c Running Pending Running"),
        ("{.items[0].spec.containers[*].command}", '["sh","-c"]'),
        ("{.items[1].status.containerStatuses[0].restartCount}", "3"),
        ("{.items[1].status.containerStatuses[0].ready}", "false"),
        ("{.items[0].status.containerStatuses[*].*}", "main 0 true"),
        ("{..restartCount}", "0 3 1"),
        ("{.nothing.at.all}", ""),
        ("{.items.metadata}", ""),
        ("plain .text", "plain .text"),
        ("name={.items[0].metadata.name}, {'quoted \\'text\\''}", "name=a, quoted 'text'"),
    ],
)
def test_a_template_prints_what_it_names(template: str, expected: str) -> None:
    assert rendered(template, PODS) == expected


def test_a_key_with_dots_may_stand_in_quotes_as_it_is() -> None:
    assert rendered("{.items[0].metadata.labels['volcano.sh/job-name']}", PODS) == "train"


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("{.items[9].kind}", "jsonpath '{.items[9].kind}': array index out of bounds: index 9, length 3"),
        ("{.a", "jsonpath '{.a': \"{\" is not closed"),
        ("{.a[0}", "jsonpath '{.a[0}': \"{\" is not closed"),
        ("{end}", "jsonpath '{end}': {end} ends nothing; write {range PATH} before it"),
        (
            "{range .a}x",
            "jsonpath '{range .a}x': {range} is not ended; write {end} after what is to be repeated",
        ),
        ("{a}", "jsonpath '{a}': \"a\" is no step of a path; write .name, [number] or [*]"),
        ("{.a.}", None),
        ("{.a.[x]}", "jsonpath '{.a.[x]}': a name is missing before \"[x]\""),
        (
            "{.a[x]}",
            "jsonpath '{.a[x]}': \"[x]\" is no step of a path; write [number], [from:to], [*], ['name'] or [?(...)]",
        ),
        ("{.a[?(@.b==c)]}", "jsonpath '{.a[?(@.b==c)]}': \"c\" is neither a path nor a value; quote texts"),
    ],
)
def test_what_is_no_template_is_told(template: str, sentence: str | None) -> None:
    if sentence is None:
        assert rendered(template, PODS) == ""
        return
    with pytest.raises(CommandError) as raised:
        rendered(template, PODS)
    assert str(raised.value) == sentence


def test_columns_are_picked_by_paths_with_or_without_their_dot() -> None:
    columns = "NAME:.metadata.name,IMAGES:spec.containers[*].image,LABELS:{.metadata.labels},NO:.a.b"
    assert column_rows(columns, PODS["items"][:2]) == [
        ["NAME", "IMAGES", "LABELS", "NO"],
        ["a", "python:3", "map[app:web volcano.sh/job-name:train]", "<none>"],
        ["b", "busybox", "map[volcano.sh/job-name:train]", "<none>"],
    ]
    assert column_rows("C:.spec.containers[0].command", PODS["items"][:1])[1] == ["[sh -c]"]
    for wrong in ("NAME", ":.a", "NAME:"):
        with pytest.raises(CommandError, match="is no column; write NAME:PATH"):
            column_rows(wrong, [])


def test_a_path_may_stand_without_braces() -> None:
    assert [path_of(text).render(PODS) for text in (".kind", "kind", "{.kind}")] == ["List"] * 3


def test_get_prints_templates_columns_and_what_stands_behind_an_equals_sign(volcano: Volcano) -> None:
    path = "jsonpath={range .items[*]}{.metadata.name}={.spec.weight}{'\\n'}{end}"
    assert volcano.out("get", "queues", "-o", path) == "default=1\nroot=1\n"
    assert volcano.out("get", "queue", "default", "-o=jsonpath={.status.state}") == "Open"
    columns = "custom-columns=NAME:.metadata.name,State:.status.state"
    assert volcano.out("get", "queues", "-o", columns) == "NAME      State\ndefault   Open\nroot      Open\n"
    assert volcano.out("get", "queues", "-o", columns, "--no-headers") == "default   Open\nroot      Open\n"
    assert volcano.out("get", "queues", "-o=name").split() == [
        "queue.scheduling.volcano.sh/default", "queue.scheduling.volcano.sh/root",
    ]  # fmt: skip
    said = volcano.refusal("get", "queues", "-o", "toml", code=2)
    assert said == '-o "toml" is not known; use json, yaml, name, wide, jsonpath={PATH} or custom-columns=NAME:PATH'


@pytest.mark.parametrize(
    "form",
    [
        "jsonpath={.items[*].metadata.name}",
        'jsonpath={range .items[*]}{.metadata.name}/{.spec.weight}{"\\n"}{end}',
        "jsonpath={.items[?(@.metadata.name=='root')].spec}",
        "jsonpath={.items[*]['metadata.name','status.state']}",
        "custom-columns=NAME:.metadata.name,SPEC:.spec,NO:.nothing",
    ],
)
def test_kubectl_prints_the_same(volcano: Volcano, form: str) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    command = ["kubectl", "--kubeconfig", str(volcano.kubeconfig), "get", "queues", "-o", form]
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(volcano.folder)}
    theirs = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment).stdout
    assert volcano.out("get", "queues", "-o", form).rstrip("\n") == theirs.rstrip("\n")
