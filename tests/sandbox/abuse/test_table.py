"""The table of abuse cases is held to the tests that it names: every case has one, and every one is there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "reference" / "abuse-cases.md"
CASES = {str(number) for number in range(1, 45)} | {f"W{number}" for number in range(1, 25)}
_ROW = re.compile(r"^\| (\d+|W\d+) \|(.*)\|$", re.MULTILINE)
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows():
    return dict(_ROW.findall(PAGE.read_text()))


def test_every_case_is_in_the_table_once():
    found = [case for case, _ in _ROW.findall(PAGE.read_text())]
    assert sorted(found) == sorted(CASES)


@pytest.mark.parametrize("case", sorted(CASES))
def test_a_case_names_what_comes_of_it_and_a_test(case):
    assert _TEST.search(rows()[case]), f"case {case} names no test"
    assert len(rows()[case].split("|")) == 3, f"case {case} has not attack, outcome and tests"


@cache
def defined_in(path):
    return {node.name for node in ast.parse((ROOT / path).read_text()).body if hasattr(node, "name")}


def test_every_test_that_the_page_names_is_there():
    named = set(_TEST.findall(PAGE.read_text()))
    missing = [f"{path}::{name}" for path, name in named if name not in defined_in(path)]
    assert not missing, f"the page names tests that are not there: {sorted(missing)}"
