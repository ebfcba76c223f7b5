import asyncio
import json
import re
from pathlib import Path

import pytest

from hekla.api.meta import Kind, Scope
from hekla.cli import commands
from hekla.cli.commands import why
from hekla.cli.commands.wait import Latest, parse_condition, what_is_there
from hekla.cli.connection import Connection
from hekla.cli.durations import parse_duration
from hekla.cli.main import ON_UNLESS_TOLD, CommandError, _without_values, command_names, main
from hekla.cli.manifests import parse_manifests, read_manifests
from hekla.cli.output import as_yaml, columns_text, resource_name
from hekla.cli.resources import Catalogue, Served, discover, parse_selection
from hekla.cli.tables import table_text
from hekla.cli.terminal import harmless
from hekla.kube.api_client import ApiClient
from hekla.wire.messages import Request, Response

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}


HOSTILE = "\x1b]0;all is well\x07\x1b[2K\rdone\x9b2J\x7f"
WRITTEN_OUT = "^[]0;all is well^G^[[2K^Mdone\\x9b2J^?"


def test_what_others_wrote_moves_no_cursor_of_ours():
    """kubectl lets it since 1.26 as little (CVE-2021-25743)."""
    assert harmless(f"{HOSTILE}\n\tjosé 漢字") == f"{WRITTEN_OUT}\n\tjosé 漢字"
    table = columns_text(["name", "message"], [["a", HOSTILE]])
    assert table.splitlines()[1] == f"a      {WRITTEN_OUT}"


def test_why_shows_last_words_without_obeying_them(monkeypatch, capsys):
    monkeypatch.setattr("hekla.cli.connection.run_connected", lambda *_: {"items": []})
    monkeypatch.setattr("hekla.cli.why_below.text", lambda _: HOSTILE)
    why.run(["modelserving/llama"])
    assert capsys.readouterr().out == f"{WRITTEN_OUT}\n"


def refusal(text, source="job.yaml"):
    with pytest.raises(CommandError) as refused:
        list(parse_manifests(text, source))
    return str(refused.value)


def test_a_text_that_is_no_yaml_is_refused_with_its_line():
    assert refusal("a: [1, 2\nb: }") == "job.yaml: is no YAML: line 2, column 2: did not find expected ',' or ']'"
    assert (
        refusal("a: !!bool x")
        == "job.yaml: is no YAML: a value is not what its tag says; leave tags such as !!bool out"
    )


def test_an_indentation_by_tabs_is_named():
    assert refusal("a:\n\tb: 1").endswith("cannot start any token; a tab may not indent, spaces do")
    assert "tab" not in refusal("a: @b\n\tc: 1")


def test_an_address_is_not_taken_for_a_file():
    with pytest.raises(CommandError, match=r"https://a/b.yaml: is an address.*curl -fsSL 'https://a/b.yaml'"):
        read_manifests(["https://a/b.yaml"])


def test_a_yaml_that_is_no_object_is_refused():
    assert "is a list, not an object" in refusal("- a\n- b")
    assert "is a str, not an object" in refusal("hello")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("kind: Pod", "apiVersion is missing"),
        ("apiVersion: v1", "kind is missing"),
        ("{apiVersion: v1, kind: Pod}", "Pod has no metadata.name"),
        ("{apiVersion: v1, kind: 3, metadata: {name: a}}", "kind is missing"),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: 5}}",
            "metadata.name of Pod is 5, which is no text; put it in quotes",
        ),
        ("{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: [b]}}", "metadata.namespace of Pod is ['b']"),
    ],
)
def test_what_an_object_lacks_is_named(text, sentence):
    assert sentence in refusal(text)


def test_the_wrong_document_of_many_is_named():
    assert refusal("{apiVersion: v1, kind: Pod, metadata: {name: a}}\n---\nkind: Pod").startswith(
        "job.yaml (document 2): "
    )


def test_empty_documents_are_skipped_and_lists_are_opened():
    text = "---\n---\n{apiVersion: v1, kind: PodList, items: [{apiVersion: v1, kind: Pod, metadata: {name: a}}]}\n---\n"
    assert [m.document for m in parse_manifests(text, "f")] == [POD]


def test_a_folder_is_read_in_order_and_other_files_are_left_alone(tmp_path):
    for name, pod in [("b.yaml", "b"), ("a.json", "a"), ("notes.txt", "x")]:
        (tmp_path / name).write_text(f'{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "{pod}"}}}}')
    assert [m.document["metadata"]["name"] for m in read_manifests([str(tmp_path)])] == ["a", "b"]


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(CommandError, match="no such file or directory"):
        read_manifests([str(tmp_path / "gone.yaml")])
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CommandError, match="is not text in UTF-8"):
        read_manifests([str(tmp_path / "binary.yaml")])
    with pytest.raises(CommandError, match="no objects found"):
        read_manifests([str((tmp_path.joinpath("empty.yaml").write_text("") and "") or tmp_path / "empty.yaml")])


def served(plural, kind, group="", short=()):
    return Served(
        Kind(
            group=group,
            version="v1",
            kind=kind,
            plural=plural,
            singular=kind.lower(),
            scope=Scope.NAMESPACED,
            short_names=short,
        ),
        frozenset(),
        frozenset({"get"}),
    )


CATALOGUE = Catalogue(
    [
        served("pods", "Pod", short=("po",)),
        served("jobs", "Job", "batch"),
        served("jobs", "Job", "batch.volcano.sh", ("vcjob", "vj")),
    ]
)


def test_words_mean_what_the_server_says():
    assert CATALOGUE.find("po").kind.plural == "pods"
    assert CATALOGUE.find("Job").kind.group == "batch"
    assert CATALOGUE.find("vj").kind.group == "batch.volcano.sh"
    assert CATALOGUE.find("jobs.batch.volcano.sh").kind.group == "batch.volcano.sh"


def test_an_unknown_word_is_answered_with_the_nearest():
    with pytest.raises(CommandError, match='did you mean "vcjob"'):
        CATALOGUE.find("vcjobb")


def test_selections_are_read_as_kubectl_reads_them():
    def words(*given):
        return [(s.served.kind.plural, s.names) for s in parse_selection(given, CATALOGUE)]

    assert words("pods") == [("pods", ())]
    assert words("pod", "a", "b") == [("pods", ("a", "b"))]
    assert words("pod/a", "vj/t") == [("pods", ("a",)), ("jobs", ("t",))]
    assert words("pods,vj") == [("pods", ()), ("jobs", ())]
    for wrong in [("pods,vj", "a"), ("pod/a", "b"), ("pod/",), (), ("pod", ""), ("pod", "a", ""), ("",),
                  ("pod", ".."), ("pod", "a", "."), ("pod/..",)]:  # fmt: skip
        with pytest.raises(CommandError):
            words(*wrong)


STALE = {"version": "v1beta1", "freshness": "Stale"}
PODS = {"resource": "pods", "scope": "Namespaced", "responseKind": {"kind": "Pod"}, "verbs": ["get"]}


class Discovering:
    """A server behind which one of two groups has no API server that answers."""

    async def send(self, request: Request) -> Response:
        core, away = {"version": "v1", "resources": [PODS]}, STALE
        groups = {"/api": ("", core), "/apis": ("metrics.k8s.io", away)}
        name, version = groups[request.path]
        found = {"items": [{"metadata": {"name": name}, "versions": [version]}]}
        return Response(200, body=json.dumps(found).encode())


def test_a_group_whose_server_is_away_takes_nothing_else_along():
    """A scheduler of ours or a metrics server that is down ended `hekla get` with a traceback: KeyError 'resources'."""
    transport = Discovering()
    link = Connection(transport, ApiClient(transport), "default")
    catalogue = asyncio.run(discover(link))
    assert catalogue.find("pods").kind.kind == "Pod"
    with pytest.raises(CommandError, match=r"nobody answers for metrics.k8s.io/v1beta1"):
        catalogue.find("podmetrics")


TABLE = {
    "kind": "Table",
    "columnDefinitions": [{"name": "Name"}, {"name": "IP", "priority": 1}],
    "rows": [{"cells": ["a", None], "object": {"metadata": {"namespace": "ns"}}}],
}


def test_tables_are_printed_as_kubectl_does():
    assert table_text([TABLE], wide=False, namespaces=False, headers=True) == "NAME\na"
    assert (
        table_text([TABLE], wide=True, namespaces=True, headers=True)
        == "NAMESPACE   NAME   IP\nns          a      <none>"
    )
    assert table_text([{**TABLE, "rows": []}], wide=True, namespaces=False, headers=True) == ""


def test_names_are_printed_with_their_group():
    assert resource_name({**POD, "apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job"}) == "job.batch.volcano.sh/a"
    assert resource_name(POD) == "pod/a"


def test_columns_are_aligned_and_yaml_keeps_its_order():
    assert columns_text(["A", "B"], [["long", 1]]) == "A      B\nlong   1"
    assert as_yaml({"b": 1, "a": [1]}) == "b: 1\na:\n- 1\n"


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("1h30m", 5400), ("5", 5), ("250ms", 0.25), ("1.5m", 90)])
def test_durations_are_read(text, seconds):
    assert parse_duration(text, "--timeout") == seconds


@pytest.mark.parametrize("text", ["", "5x", "s", "-3s", "1h 2m"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(CommandError, match="--timeout is"):
        parse_duration(text, "--timeout")


def test_what_to_wait_for_is_read():
    job = {
        "status": {"state": {"phase": "Completed"}, "succeeded": 4, "conditions": [{"type": "Ready", "status": "True"}]}
    }
    assert parse_condition("phase=Completed")(job)
    assert parse_condition("condition=ready")(job)
    assert parse_condition("condition=Ready=True")(job)
    assert not parse_condition("condition=Ready=False")(job)
    assert parse_condition("jsonpath={.status.succeeded}=4")(job)
    assert parse_condition("jsonpath={.status.conditions[0].type}=Ready")(job)
    assert not parse_condition("jsonpath={.status.nothing.here}=4")(job)
    assert parse_condition("jsonpath={.status.succeeded}")(job)
    assert not parse_condition("jsonpath='{.status.nothing}'")(job)
    assert parse_condition("delete")(None)
    assert not parse_condition("phase=Completed")(None)
    for wrong in ["condition", "phase=", "ready", "jsonpath=x"]:
        with pytest.raises(CommandError, match="--for is"):
            parse_condition(wrong)


@pytest.mark.parametrize(
    ("document", "wanted", "is_over"),
    [
        ({"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "status": {"state": {"phase": "Failed"}}}, "Completed", True),
        ({"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "status": {"state": {"phase": "Aborted"}}}, "Completed", False),
        ({"apiVersion": "batch/v1", "kind": "Job", "status": {"phase": "Failed"}}, "Completed", False),
        ({"apiVersion": "v1", "kind": "Pod", "status": {"phase": "Succeeded"}}, "Running", True),
        ({"apiVersion": "v1", "kind": "Pod", "status": {"phase": "Pending"}}, "Running", False),
    ],
)  # fmt: skip
def test_a_phase_that_will_not_come_is_not_waited_for(document, wanted, is_over):
    """A job that had failed was waited for until the time was up, and by what it failed was not said."""
    test = parse_condition(f"phase={wanted}")
    document["metadata"] = {"name": "a", "namespace": "n"}
    if not is_over:
        assert not test(document)
        return
    word = {"Job": "vcjob", "Pod": "pod"}[document["kind"]]
    with pytest.raises(CommandError, match=f'{word} "a" is .* and will not be {wanted}; .*: hekla logs {word}/a -n n'):
        test(document)


@pytest.mark.parametrize("name", command_names())
def test_every_command_explains_itself(name, capsys):
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Examples:" in shown
    assert f"Usage: hekla {name}" in shown


def test_wrong_usage_is_exit_code_2(capsys):
    assert main(["nosuch"]) == 2
    assert main(["version", "--nosuch"]) == 2
    assert main(["get"]) == 2
    capsys.readouterr()


def test_no_cluster_is_exit_code_3(tmp_path, monkeypatch, capsys):
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HEKLA_DATA_DIR", str(tmp_path / "data"))
    assert main(["get", "pods"]) == 3
    assert "start one with `hekla up --detach`" in capsys.readouterr().err


def test_a_switch_that_is_on_can_be_turned_off_as_kubectl_spells_it():
    given = ["run", "all", "--leader-elect=false", "--wait=false", "--all=false", "--all=true", "--", "--wait=false"]
    assert list(_without_values(given)) == [
        "run", "all", "--no-leader-elect", "--no-wait", "--all", "--", "--wait=false",
    ]  # fmt: skip


def test_every_switch_that_is_on_unless_told_can_be_turned_off_so():
    """`--x=false` of a switch that nobody listed would be dropped, and the switch stay on."""
    pairs = {
        pair.partition("/")[0]
        for file in Path(commands.__path__[0]).parent.rglob("*.py")
        for pair in re.findall(r'"(--[a-z-]+/--no-[a-z-]+)"', file.read_text())
    }
    assert pairs == ON_UNLESS_TOLD, "list it in `ON_UNLESS_TOLD` of cli/main.py"


@pytest.mark.parametrize(
    ("condition", "there"),
    [
        ("phase=Complted", 'has the phase "Completed"'),
        ("condition=ready", 'has Ready="False" (Probing: no answer yet)'),
        ("condition=Done", "has no condition Done, but Ready"),
        ("jsonpath={.status.succeeded}=4", 'has "3" at {.status.succeeded}'),
        ("jsonpath={.status.nothing}", 'has "" at {.status.nothing}'),
        ("delete", "is still there"),
    ],
)
def test_a_wait_in_vain_says_what_is_there_instead(condition, there):
    ready = {"type": "Ready", "status": "False", "reason": "Probing", "message": "no answer yet"}
    job = {"status": {"state": {"phase": "Completed"}, "succeeded": 3, "conditions": [ready]}}
    assert what_is_there(condition, job) == there
    assert what_is_there(condition, None) == "does not exist"


def test_a_wait_for_a_condition_of_what_tells_its_phase_says_how_to_ask():
    """The conditions of a Volcano Job are the phases it has had: they have no type."""
    job = {"status": {"state": {"phase": "Running"}, "conditions": [{"status": "Pending"}, {"status": "Running"}]}}
    said = 'has no condition Ready, but the phase "Running": ask --for=phase=PHASE'
    assert what_is_there("condition=Ready", job) == said
    assert what_is_there("condition=Ready", {"status": {}}) == "has no condition Ready"
    assert what_is_there("phase=Completed", {}) == "has no phase yet"


def test_a_wait_in_vain_shows_no_more_than_a_line_of_a_long_value():
    assert len(what_is_there("jsonpath={.data}=x", {"data": "y" * 5000})) < 250


def test_an_object_that_was_not_looked_at_yet_is_not_told_of_as_the_one_before_it():
    latest = Latest()
    latest.noting("pod/a", "/api/v1/namespaces/default/pods", bool)({"status": {}})
    assert latest.name == "pod/a"
    latest.noting("pod/b", "/api/v1/namespaces/default/pods", bool)
    assert (latest.name, latest.document) == ("", None)
