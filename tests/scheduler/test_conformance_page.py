"""The page of conformance answers for every case of the peer, and what it names is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/reference/scheduler-conformance.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in PAGE.splitlines() if line.startswith("| ")]
NUMBERED = {row[0]: row[-1].rstrip(" |") for row in ROWS if re.fullmatch(r"[A-Z]?\d+", row[0])}
FIXTURES = {"A": 5, "B": 3, "H": 2, "P": 7, "R": 4, "C": 10, "E": 1, "G": 8}


def test_every_case_and_every_fixture_has_a_row() -> None:
    wanted = {str(number) for number in range(1, 62)}
    wanted |= {f"{letter}{number}" for letter, most in FIXTURES.items() for number in range(1, most + 1)}
    assert NUMBERED.keys() == wanted


@pytest.mark.parametrize("number", NUMBERED)
def test_every_answer_is_a_file_or_a_reason(number: str) -> None:
    answer = NUMBERED[number]
    assert "`" in answer or answer.startswith(("open", "not applicable: ")), answer


def test_every_file_that_is_named_is_there() -> None:
    named = re.findall(r"`([\w/.]+)(?:::\w+)?`", PAGE)
    stories = {f"tests/scenarios/{name}.yaml" for name in named if re.fullmatch(r"[a-z_]+/\w+", name)}
    tests = {name for name in named if name.startswith("tests/") and name.endswith(".py")}
    missing = sorted(name for name in stories | tests if not (ROOT / name).exists())
    assert stories, "the page names stories"
    assert not missing, f"name these as they are called now: {missing}"


def test_every_test_that_is_named_is_in_its_file() -> None:
    for file, name in re.findall(r"`(tests/[\w/.]+\.py)::(\w+)`", PAGE):
        assert f"def {name}(" in (ROOT / file).read_text(), f"{file} has no {name}"
