import pytest

from hekla.placement.actions.allocate import allocate
from hekla.placement.cluster import Cluster
from hekla.placement.framework import PLUGINS, Filter, JobOrder, LiveFilter, Ready, Scorer
from hekla.placement.policy import Policy
from hekla.placement.registry import ArgumentError, load
from hekla.placement.session import Session
from hekla.scheduler.configuration import (
    DEFAULT_TEXT,
    ConfigurationError,
    Finding,
    Severity,
    check_text,
    parse_configuration,
)
from hekla.scheduler.configuration_plugins import built

HELM_DEFAULT = """\
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
  - name: conformance
- plugins:
  - name: overcommit
  - name: drf
    enablePreemptable: false
  - name: predicates
  - name: proportion
  - name: nodeorder
  - name: binpack
"""


def test_the_default_is_a_configuration_without_warnings() -> None:
    configuration = parse_configuration(DEFAULT_TEXT)
    assert configuration.actions == ("enqueue", "allocate", "backfill")
    assert not configuration.warnings


def test_volcanos_own_default_is_taken_as_it_is() -> None:
    configuration = parse_configuration(HELM_DEFAULT)
    assert [type(p).__name__ for tier in configuration.tiers for p in tier] == [
        "Priority", "_Muted", "Conformance", "Overcommit", "_Muted", "Predicates", "Proportion", "NodeOrder", "Binpack",
    ]  # fmt: skip
    assert not configuration.warnings


def test_arguments_reach_the_plug_in_as_numbers_or_text() -> None:
    text = """\
actions: allocate
tiers:
- plugins:
  - name: binpack
    arguments: {binpack.weight: 10, binpack.cpu: "2", binpack.resources: "nvidia.com/gpu, foo", binpack.resources.foo: 8}
"""
    ((binpack,),) = parse_configuration(text).tiers
    assert binpack.weight == 10.0
    assert binpack.weights == {"cpu": 2.0, "memory": 1.0, "nvidia.com/gpu": 1.0, "foo": 8.0}


def test_a_cycle_runs_with_points_switched_off() -> None:
    policy = Policy(Cluster(), parse_configuration(HELM_DEFAULT).tiers)
    assert list(allocate(Session(policy))) == []


def test_switched_off_points_do_not_answer() -> None:
    text = """\
actions: allocate
tiers:
- plugins:
  - name: gang
    enableJobOrder: false
  - name: predicates
    enablePredicate: false
  - name: nodeorder
    enableNodeOrder: false
"""
    ((gang, predicates, nodeorder),) = parse_configuration(text).tiers
    assert not isinstance(gang, JobOrder)
    assert isinstance(gang, Ready)
    assert not isinstance(predicates, Filter | LiveFilter)
    assert not isinstance(nodeorder, Scorer)


def test_both_spellings_of_the_gang_actions_are_known() -> None:
    text = 'actions: "allocate, gangPreempt, gangreclaim"\ntiers:\n- plugins:\n  - name: gang\n'
    configuration = parse_configuration(text)
    assert configuration.actions == ("allocate", "gangpreempt", "gangreclaim")
    assert not configuration.warnings


GANG = "tiers:\n- plugins:\n  - name: gang\n"
HARDLY_MEANT = {
    "both kinds of preemption": (
        f"actions: preempt, gangPreempt\n{GANG}",
        "line 1: gangpreempt and preempt both evict for gangs that have no wish to be close; keep one of them",
    ),
    "both kinds of reclaim": (
        f"actions: gangReclaim, reclaim\n{GANG}",
        "line 1: gangreclaim and reclaim both evict for gangs that have no wish to be close; keep one of them",
    ),
    "no domains": (
        f"actions: gangpreempt\n{GANG}configurations:\n- name: gangPreempt\n  arguments: {{maxDomains: 0}}\n",
        "line 7: action gangpreempt: argument maxDomains is 0; 8 domains are tried, as if it was left out",
    ),
    "arguments of an action that is not there": (
        f"actions: allocate\n{GANG}configurations:\n- name: gangreclaim\n  arguments: {{allowWholeBundle: false}}\n",
        "line 6: action gangreclaim is not among the actions; its arguments have no effect",
    ),
}


@pytest.mark.parametrize("case", HARDLY_MEANT, ids=str)
def test_what_is_hardly_meant_is_told_with_its_line(case: str) -> None:
    text, sentence = HARDLY_MEANT[case]
    assert sentence in parse_configuration(text).warnings


def test_the_gang_actions_take_their_arguments() -> None:
    arguments = "{maxDomains: '3', allowWholeBundle: 'false', heedDisruptionBudgets: false}"
    text = f"actions: gangPreempt\n{GANG}configurations:\n- name: gangPreempt\n  arguments: {arguments}\n"
    told = {"maxDomains": 3, "allowWholeBundle": False, "heedDisruptionBudgets": False}
    assert parse_configuration(text).arguments == {"gangpreempt": told}


def takes(plugin: str, key: str, value: object) -> bool:
    try:
        built(plugin, {key: value})
    except ArgumentError:
        return False
    return True


load()
NUMBERS = [
    (plugin, key)
    for plugin in sorted(PLUGINS.keys() - {"extender"})
    for key in sorted(built(plugin, {"": ""})[1] or ())
    if (takes(plugin, key, 1) or takes(plugin, key, 80)) and not takes(plugin, key, "lots")
]


@pytest.mark.parametrize(("plugin", "key"), NUMBERS, ids=str)
def test_a_truth_value_is_no_number(plugin: str, key: str) -> None:
    assert not takes(plugin, key, True)


def test_all_numbers_are_found() -> None:
    assert {("reservation", "depth"), ("capacity", "ancestorReclaimLevel"), ("fgd", "fgd.buckets")} < set(NUMBERS)
    assert len(NUMBERS) > 25


@pytest.mark.parametrize(
    ("plugin", "arguments"),
    [
        ("usage", {"thresholds": {"cpu": True}}),
        ("rescheduling", {"strategies": [{"name": "lowNodeUtilization", "params": {"thresholds": {"cpu": True}}}]}),
        ("fgd", {"fgd.workload": [{"share": True}]}),
        ("fgd", {"fgd.workload": [{"share": 1, "gpus": True}]}),
        ("fgd", {"fgd.workload": [{"share": 1, "gpus": 1.5}]}),
        ("predicates", {"volumebinding.shape": [{"utilization": False, "score": True}]}),
        ("resource-strategy-fit", {"sra": {"enable": True, "weight": True}}),
        ("capacity", {"ancestorReclaimLevel": 1.5}),
        ("reservation", {"depth": 1.5}),
        ("drf", {"hierarchy": "maybe"}),
    ],
    ids=str,
)
def test_what_is_no_number_and_no_truth_value_is_refused_wherever_it_stands(
    plugin: str, arguments: dict[str, object]
) -> None:
    with pytest.raises(ArgumentError, match="expected"):
        built(plugin, arguments)


WRONG = {
    "no yaml": ("actions: [", "line 1: not readable as YAML"),
    "no mapping": ("- allocate\n", "the file has no actions and tiers"),
    "unknown action": (
        "actions: alocate\ntiers: []\n",
        "line 1: failed to find Action alocate; did you mean allocate?",
    ),
    "no actions": ("tiers: []\n", "line 1: actions should be names"),
    "no tiers": ("actions: allocate\n", "line 1: tiers should be a list of plug-in lists"),
    "empty tier": ("actions: allocate\ntiers:\n- plugins: []\n", "line 3: tier 1 has no plugins"),
    "nameless": ("actions: allocate\ntiers:\n- plugins:\n  - nam: gang\n", "line 4: a plug-in of tier 1 has no name"),
    "bad number": (
        "actions: allocate\ntiers:\n- plugins:\n  - name: binpack\n    arguments:\n      binpack.cpu: lots\n",
        "line 6: plug-in binpack: argument binpack.cpu is 'lots'; a number is expected",
    ),
    "a truth value for a number": (
        "actions: allocate\ntiers:\n- plugins:\n  - name: reservation\n    arguments:\n      depth: true\n",
        "line 6: plug-in reservation: argument depth is True; a whole number from 1 to 64 is expected",
    ),
    "negative": (
        "actions: allocate\ntiers:\n- plugins:\n  - name: binpack\n    arguments:\n      binpack.weight: -1\n",
        "line 6: plug-in binpack: argument binpack.weight is -1; a number from 0 up is expected",
    ),
    "bad flag": (
        "actions: allocate\ntiers:\n- plugins:\n  - name: gang\n    enableJobOrder: maybe\n",
        "line 5: enableJobOrder is 'maybe'; true or false is expected",
    ),
    "bad truth": (
        "actions: allocate\ntiers:\n- plugins:\n  - name: predicates\n    arguments:\n      predicate.NodePortsEnable: 7\n",
        "line 6: plug-in predicates: argument predicate.NodePortsEnable is 7; true or false is expected",
    ),
    "two that disagree": (
        "actions: allocate\ntiers:\n- plugins:\n  - name: drf\n    enableHierarchy: true\n  - name: proportion\n",
        "line 5: drf with enableHierarchy and proportion stand both in tier 1; remove one",
    ),
    "bad action argument": (
        "actions: allocate\ntiers:\n- plugins:\n  - name: gang\nconfigurations:\n- name: allocate\n"
        "  arguments: {predicateErrorCacheEnable: often}\n",
        "line 7: action allocate: argument predicateErrorCacheEnable is 'often'; true or false is expected",
    ),
    "twice": ("actions: allocate\nactions: enqueue\n", 'line 2: "actions" stands here a second time; keep one'),
}


def test_a_plug_in_that_stands_twice_counts_twice_as_in_volcano() -> None:
    text = "actions: allocate\ntiers:\n- plugins:\n  - name: gang\n- plugins:\n  - name: gang\n"
    configuration = parse_configuration(text)
    assert [len(tier) for tier in configuration.tiers] == [1, 1]
    assert configuration.warnings == (
        "line 6: plug-in gang stands in line 4 already; keep one, for its opinion counts twice",
    )


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_a_wrong_file_is_refused_with_a_sentence_and_its_line(case: str) -> None:
    text, sentence = WRONG[case]
    with pytest.raises(ConfigurationError) as refused:
        parse_configuration(text)
    assert str(refused.value).startswith(sentence)


def test_an_unknown_plug_in_is_left_out_with_a_hint() -> None:
    text = "actions: allocate\ntiers:\n- plugins:\n  - name: gang\n  - name: binpak\n"
    assert parse_configuration(text).warnings == (
        "line 5: there is no plug-in binpak; did you mean binpack?; it is left out",
    )


def _in_order(text: str) -> list[Finding]:
    """What is said of each part by itself; of parts beside one another see `test_foot_guns.py`."""
    return sorted(parse_configuration(text).findings, key=lambda finding: finding.line)


NOTES = """\
actions: "enqueue, allocate, allocate, shuffle"
colour: blue
tiers:
- plugins:
  - name: gang
    enableJobOder: false
  - name: overcommit
    arguments: {overcommit-faktor: 2}
  - name: tdm
configurations:
- name: allocate
  arguments: {predicateErrorCacheEnabled: true}
- name: preempt
  arguments: {topologyAwarePreemptWorkerNum: "8"}
metrics: {type: prometheus, address: "http://prometheus:9090"}
"""


def test_an_argument_of_volcanos_that_we_have_no_use_for_is_a_note_and_no_misspelling() -> None:
    text = "actions: allocate\ntiers: [{plugins: [{name: predicates, arguments: {predicate.CacheEnable: true}}]}]\n"
    (finding,) = parse_configuration(text).findings
    assert finding.severity is Severity.NOTE
    assert finding.sentence == "plug-in predicates has no use for predicate.CacheEnable yet; it has no effect"


@pytest.mark.parametrize("on", ["true", "false"])
@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("enabledClusterOrder", "there is one cluster to place in, so there is no order of clusters"),
        ("enableTargetJob", "plug-in reservation keeps room for large jobs"),
        ("enableReservedNodes", "plug-in reservation keeps room for large jobs"),
    ],
)
def test_switches_that_nobody_reads_are_noted_on_or_off(key: str, on: str, instead: str) -> None:
    (finding,) = parse_configuration(
        f"actions: allocate\ntiers:\n- plugins:\n  - name: gang\n    {key}: {on}\n"
    ).findings
    assert (finding.severity, finding.line) == (Severity.NOTE, 5)
    assert finding.sentence.startswith(f"{key} at gang changes nothing: ")
    assert finding.sentence.endswith(instead)


SWITCHES = """\
actions: "allocate, preempt"
tiers:
- plugins:
  - name: gang
    enabledSubJobReady: {on}
    enabledSubJobPipelined: {on}
    enabledSubJobOrder: {on}
  - name: nodeorder
    enableBestNode: {on}
    enabledHyperNodeGradient: {on}
configurations:
- name: allocate
  arguments: {{predicateErrorCacheEnable: {on}}}
- name: preempt
  arguments:
    predicateErrorCacheEnable: {on}
    topologyAwarePreemptWorkerNum: {workers}
"""


def test_switches_and_arguments_that_change_nothing_are_noted_with_their_lines() -> None:
    findings = parse_configuration(SWITCHES.format(on="false", workers=16)).findings
    assert {finding.severity for finding in findings} == {Severity.NOTE}
    assert [(finding.line, finding.sentence.split(":")[0]) for finding in findings[:5]] == [
        (5, "enabledSubJobReady"), (6, "enabledSubJobPipelined"), (7, "enabledSubJobOrder"),
        (9, "enableBestNode"), (10, "enabledHyperNodeGradient"),
    ]  # fmt: skip
    assert [str(finding).split(" changes nothing: ")[0] for finding in findings[5:]] == [
        "line 13: action allocate: argument predicateErrorCacheEnable",
        "line 16: action preempt: argument predicateErrorCacheEnable",
        "line 17: action preempt: argument topologyAwarePreemptWorkerNum",
    ]
    assert str(findings[2]) == (
        "line 7: enabledSubJobOrder: false at gang changes nothing: sub-groups that the minimum needs go first, "
        "then by policy and name; no plug-in has a say in it"
    )


def test_values_that_say_what_happens_anyway_are_not_noted() -> None:
    assert not parse_configuration(SWITCHES.format(on="true", workers=1)).findings


def test_what_has_no_effect_is_told_with_its_line_and_the_nearest_name() -> None:
    assert [str(finding) for finding in _in_order(NOTES) if "not built yet" not in finding.sentence] == [
        "line 1: action allocate stands here a second time; it runs twice in each cycle",
        "line 2: nobody reads colour",
        "line 6: a plug-in has no enableJobOder; did you mean enableJobOrder?; it has no effect",
        "line 8: plug-in overcommit has no argument overcommit-faktor; did you mean overcommit-factor?; it has no effect",
        "line 12: action allocate has no argument predicateErrorCacheEnabled; did you mean predicateErrorCacheEnable?; "
        "it has no effect",
        "line 13: action preempt is not among the actions; its arguments have no effect",
        "line 14: action preempt: argument topologyAwarePreemptWorkerNum changes nothing: nodes are tried one after another; "
        "how many is up to minCandidateNodesPercentage, minCandidateNodesAbsolute and maxCandidateNodesAbsolute",
    ]
    assert parse_configuration(NOTES).arguments["preempt"] == {"topologyAwarePreemptWorkerNum": 8}


def test_everything_that_is_wrong_with_a_file_is_told_at_once() -> None:
    text = "actions: alocate\ntiers:\n- plugins: []\n- plugins:\n  - name: gang\n  - name: gang\n"
    assert [(finding.line, finding.severity) for finding in check_text(text)] == [
        (1, Severity.ERROR), (3, Severity.ERROR), (6, Severity.WARNING),
    ]  # fmt: skip


def test_the_file_that_is_right_has_no_findings() -> None:
    assert not check_text(HELM_DEFAULT)


def test_nothing_in_a_file_crashes_the_reader() -> None:
    for text in (
        "",
        "\0",
        "a: &a [*a]",
        "[" * 5000,
        "? {a: 1}\n: 2\n",
        "actions: 2026-02-31\n",
        "tiers: {}\nactions: 7",
    ):
        assert any(finding.severity is Severity.ERROR for finding in check_text(text)), text[:20]
