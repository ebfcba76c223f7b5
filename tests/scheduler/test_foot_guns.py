"""Parts of a configuration that are right by themselves and hardly meant beside one another: `hekla scheduler lint` says so."""

import pytest

from hekla.scheduler.configuration import DEFAULT_TEXT, Severity, check_text, parse_configuration

TIERS = (("priority", "gang", "conformance"), ("overcommit", "drf", "predicates", "proportion", "nodeorder"))


def told(actions: str, *tiers: tuple[str, ...], more: str = "") -> list[tuple[int, str, str]]:
    lines = [f'actions: "{actions}"', "tiers:"]
    for tier in tiers:
        lines += ["- plugins:", *(f"  - {{name: {name}}}" for name in tier)]
    text = "\n".join([*lines, more, ""])
    parse_configuration(text)
    return [(one.line, one.severity.value, one.sentence) for one in check_text(text)]


def test_the_built_in_configuration_and_volcanos_usual_ones_are_right() -> None:
    assert not check_text(DEFAULT_TEXT)
    assert told("enqueue, allocate, backfill", *TIERS) == []
    assert told("enqueue, allocate, preempt, reclaim, backfill", ("priority", "gang", "sla"), TIERS[1]) == []


@pytest.mark.parametrize(
    ("actions", "tiers", "line", "words"),
    [
        ("enqueue, backfill", TIERS, 1, "there is no action allocate"),
        ("allocate, enqueue, backfill", TIERS, 1, "enqueue stands after allocate"),
        ("enqueue, preempt, allocate, backfill", TIERS, 1, "preempt stands before allocate"),
        ("allocate, backfill", TIERS, 8, "overcommit has a say in who is let in, and there is no action enqueue"),
        ("enqueue, allocate, backfill", (TIERS[0], (*TIERS[1], "sla")), 13, "sla stands in tier 2, and overcommit in tier 2"),
        ("enqueue, allocate, reclaim, backfill", (("priority", "gang", "predicates"),), 1, "add proportion or capacity"),
        ("enqueue, allocate, backfill", (*TIERS, ("capacity",)), 14, "capacity and proportion (line 11) both say"),
        ("enqueue, allocate, preempt, backfill", (("drf", "predicates"),), 1, "nobody is ever evicted; add gang or priority"),
        ("enqueue, allocate, preempt, backfill", (("priority", "predicates"),), 1, "preempt without plug-in gang"),
        ("enqueue, allocate, backfill, shuffle", TIERS, 1, "shuffle evicts whom tdm or rescheduling name"),
        ("enqueue, allocate, backfill", (*TIERS, ("rescheduling",)), 14, "there is no action shuffle that moves them"),
        ("enqueue, allocate, backfill", (("priority", "gang"),), 0, "there is no plug-in predicates"),
    ],
)  # fmt: skip
def test_what_is_hardly_meant_is_a_warning_with_its_line(
    actions: str, tiers: tuple[tuple[str, ...], ...], line: int, words: str
) -> None:
    found = told(actions, *tiers)
    assert any(at == line and kind == Severity.WARNING and words in sentence for at, kind, sentence in found), found


@pytest.mark.parametrize(
    ("actions", "tiers", "words"),
    [
        ("enqueue, allocate", TIERS, "there is no action backfill"),
        ("enqueue, allocate, backfill", (("priority", "predicates"),), "there is no plug-in gang"),
        ("enqueue, allocate, backfill", (*TIERS, ("usage",)), "usage goes by measurements"),
        ("enqueue, allocate, backfill", (*TIERS, ("tdm",)), "pods stay on revocable nodes"),
    ],
)
def test_what_is_worth_knowing_is_a_note(actions: str, tiers: tuple[tuple[str, ...], ...], words: str) -> None:
    found = told(actions, *tiers)
    assert any(kind == Severity.NOTE and words in sentence for _, kind, sentence in found), found
    assert not any(kind == Severity.WARNING for _, kind, _ in found), found


def test_who_is_switched_off_has_no_say() -> None:
    text = DEFAULT_TEXT.replace("allocate,", "allocate, preempt,").replace(
        "- name: priority", "- name: priority\n    enableJobStarving: false"
    )
    text = text.replace("- name: gang", "- name: gang\n    enableJobStarving: false")
    assert any("nobody is ever evicted" in one.sentence for one in check_text(text))


def test_an_extender_that_is_asked_nothing_is_told() -> None:
    text = DEFAULT_TEXT + "  - name: extender\n    arguments: {extender.urlPrefix: 'http://x'}\n"
    assert any("extender is asked nothing" in one.sentence for one in check_text(text))


def test_a_source_of_measurements_is_enough_for_usage() -> None:
    more = "metrics: {type: prometheus, address: 'http://p'}"
    assert told("enqueue, allocate, backfill", *TIERS, ("usage",), more=more) == []


def test_what_cannot_be_used_is_told_alone() -> None:
    found = check_text("actions: alocate\ntiers:\n- plugins:\n  - name: sla\n")
    assert [one.severity for one in found] == [Severity.ERROR]
