"""Whether the page of wrong input is true: its tests exist, its bounds are the router's, its sentences are said somewhere."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from hekla.serving.router.proxy.bounds import Bounds

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/reference/wrong-input-at-the-router.md"
ROWS = [
    [cell.strip() for cell in line.strip("|\n").split("|")]
    for line in PAGE.read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| input")
]


@cache
def names_in(path: str) -> set[str]:
    return {one.name for one in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(one, ast.FunctionDef)}


@cache
def said() -> str:
    """All that the router's and the door's code says, with its line breaks between pieces of one sentence closed."""
    files = [*(ROOT / "src/hekla/serving").rglob("*.py"), *(ROOT / "src/hekla/edge").rglob("*.py")]
    files += (ROOT / "src/hekla/wire").glob("*.py")
    return re.sub(r"""["']\s*\n\s*f?["']""", "", "\n".join(one.read_text() for one in files))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_of_the_page_is_true(row: list[str]) -> None:
    _, _, sentence, bounds, tests = row
    named = re.findall(r"`([^`]+)::([^`]+)`", tests)
    assert named
    for path, name in named:
        assert name in names_in(path)
    assert not sentence or sentence.strip("`") in said()
    for name, value in re.findall(r"`(\w+)=(\d+)`", bounds):
        assert getattr(Bounds(), name) == float(value)


def test_every_line_of_the_issue_is_on_the_page() -> None:
    asked = ("unknown model", "malformed JSON", "200 MB", "header bomb", "byte a second", "garbage", "closes early")
    asked += ("never answers", "lies", "sum to zero", "route to nothing", "cyclic LoRA", "expired JWT", "forged JWT")
    asked += ("tenant over its limit", "Redis gone", "10,000 idle connections")
    inputs = "\n".join(row[0] for row in ROWS)
    assert [one for one in asked if one not in inputs] == []
