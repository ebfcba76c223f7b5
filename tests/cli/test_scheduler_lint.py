import json
from pathlib import Path

import pytest

from hekla.cli.main import main
from hekla.scheduler.configuration import DEFAULT_TEXT


def test_a_file_that_is_right_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "right.conf"
    file.write_text(DEFAULT_TEXT)
    assert main(["scheduler", "lint", str(file)]) == 0
    assert capsys.readouterr().out == f"{file} is right\n"


def test_findings_say_where_to_look_errors_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "wrong.conf"
    file.write_text("tiers:\n- plugins:\n  - name: gng\nactions: alocate\n")
    assert main(["scheduler", "lint", str(file)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{file}:4: error: failed to find Action alocate; did you mean allocate?",
        f"{file}:3: warning: there is no plug-in gng; did you mean gang?; it is left out",
    ]


def test_what_is_only_not_built_yet_is_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "later.conf"
    file.write_text(DEFAULT_TEXT + "  - name: numa-aware\n")
    assert main(["scheduler", "lint", str(file), "-o", "json"]) == 0
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["line"], finding["severity"]) == (16, "note")


def test_a_switch_that_changes_nothing_is_told_and_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "switch.conf"
    file.write_text(DEFAULT_TEXT + "    enabledBestNode: false\n")
    assert main(["scheduler", "lint", str(file)]) == 0
    assert capsys.readouterr().out == (
        f"{file}:16: note: enabledBestNode: false at binpack changes nothing: no plug-in picks a node by itself, here as in "
        "Volcano; the sum of all scores does (enableNodeOrder)\n"
    )


@pytest.mark.parametrize("words", [["scheduler", "lint"], ["scheduler", "mend", "x"]], ids=" ".join)
def test_other_words_are_wrong_usage(words: list[str]) -> None:
    assert main(words) == 2


@pytest.mark.parametrize("file", ["/dev/zero", "/dev/full"])
def test_a_file_without_end_is_not_read_for_ever(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scheduler", "lint", file]) == 1
    assert f"{file}:1: error: the file has more than 1048576 characters; no more are read" in capsys.readouterr().out


def test_standard_input_without_end_is_not_read_for_ever(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/zero", encoding="utf-8") as endless:
        monkeypatch.setattr("sys.stdin", endless)
        assert main(["scheduler", "lint", "-"]) == 1
    assert "the file has more than 1048576 characters" in capsys.readouterr().out


def test_bytes_that_are_no_text_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.conf").write_bytes(b"\xff\xfe")
    assert main(["scheduler", "lint", str(tmp_path / "x.conf")]) == 1
    assert "cannot be read: it is not text in UTF-8" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scheduler", "lint", str(tmp_path / "none.conf")]) == 1
    assert "none.conf cannot be read: No such file or directory" in capsys.readouterr().err
