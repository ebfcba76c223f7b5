"""Every page with commands is run by `tools/run_howtos.py`, or says there why it is not."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def howtos():
    where = importlib.util.spec_from_file_location("run_howtos", ROOT / "tools" / "run_howtos.py")
    module = importlib.util.module_from_spec(where)
    sys.modules["run_howtos"] = module  # dataclasses look their module up
    where.loader.exec_module(module)
    yield module
    del sys.modules["run_howtos"]


def test_every_page_is_run_or_says_why_not(howtos):
    pages = {str(path.relative_to(DOCS)) for part in ("howto", "tutorial") for path in (DOCS / part).glob("*.md")}
    assert pages == set(howtos.PAGES) | set(howtos.NOT_RUN)


def test_a_page_that_is_run_has_commands_and_what_is_skipped_of_it_is_there(howtos):
    for page, needs in howtos.PAGES.items():
        commands = [each.text for each in howtos.commands_of((DOCS / page).read_text())]
        assert commands, page
        assert all(commands), page
        for skipped in needs.skipped:
            assert any(each.startswith(skipped) for each in commands), (page, skipped)


def test_commands_are_read_from_every_kind_of_block(howtos):
    text = (
        "# A\n\n```console\n$ hekla get x    # a word\nNAME\n$ for n in 1\n> do\nerror: no\n```\n\n    hekla up\n    hekla down\n\n"
        "text\n\n    actions: none\n\n```sh\na\nb\n```\n```yaml\n$ no\n```\n\n    $ hekla logs a\n    said\n"
    )
    found = [(each.text, each.shown) for each in howtos.commands_of(text)]
    assert found == [
        ("hekla get x", ("NAME",)), ("for n in 1", ("> do", "error: no")), ("hekla up", ()), ("hekla down", ()),
        ("a\nb\n", ()), ("hekla logs a", ("said",)),
    ]  # fmt: skip


def test_a_change_that_does_not_come_and_a_refusal_that_does_are_told(howtos, tmp_path):
    howtos.PAGES["x.md"] = howtos.Page()
    text = (
        "```console\n$ echo pod/a created\npod/a created\n$ echo nothing\npod/b created\n$ false\nhekla: no\n$ true\nhekla: no\n$ exit_7() { return 7; }; exit_7\n"
        "$ echo abcdefghijklmn\nzyxwvutsrqponm\n$ test zyxwvutsrqponm = abcdefghijklmn\n```\n"
    )
    try:
        problems = howtos.run("x.md", text, tmp_path, {"PATH": "/usr/bin:/bin"}, {})
    finally:
        del howtos.PAGES["x.md"]
    assert [each.split("`")[1] for each in problems] == ["echo nothing", "true", "exit_7() { return 7; }; exit_7"]
