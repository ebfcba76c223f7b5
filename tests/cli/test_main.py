"""The program itself, in surroundings that few have."""

import os
import subprocess
import sys

import pytest

from hekla import __version__
from hekla.cli.main import main

HEKLA = [sys.executable, "-m", "hekla.cli.main"]
ASCII = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
BUFFERED = {**os.environ, "PYTHONUNBUFFERED": ""}


def run(arguments, **options):
    return subprocess.run([*HEKLA, *arguments], capture_output=True, timeout=60, check=False, **options)


def test_manifests_and_arguments_are_utf8_in_any_locale(tmp_path):
    (tmp_path / "größe.conf").write_text('actions: "größe"\n')
    done = run(["scheduler", "lint", "größe.conf"], cwd=tmp_path, env=ASCII)
    assert "größe.conf:1: error: failed to find Action größe" in done.stdout.decode("utf-8")


def test_python_that_is_told_to_keep_to_the_locale_is_not_started_again_and_again(tmp_path):
    (tmp_path / "größe.conf").write_text('actions: "größe"\n')
    told = [sys.executable, "-X", "utf8=0", *HEKLA[1:], "scheduler", "lint", "größe.conf"]
    done = subprocess.run(told, capture_output=True, timeout=60, check=False, cwd=tmp_path, env=ASCII)
    assert "größe.conf:1: error" in done.stdout.decode("utf-8")


def test_an_argument_that_is_no_text_is_a_sentence():
    done = run(["snapshot", "--kubeconfig", b"/\xff"])
    assert b"Traceback" not in done.stderr
    assert done.returncode in (1, 2, 3)


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_standard_input_that_is_no_text_is_a_sentence(locale):
    done = run(["apply", "-f", "-"], input=b"a: \xff\n", env={**os.environ, "LC_ALL": locale})
    assert (done.returncode, done.stderr) == (1, b"hekla: standard input: is not text in UTF-8\n")


def test_a_key_that_no_header_can_hold_is_named_and_not_shown():
    own = {**os.environ, "HEKLA_AGENTS_URL": "http://127.0.0.1:1", "HEKLA_AGENTS_KEY": "sk-\u201cSECRET\u201d"}
    done = run(["agent", "list"], env=own)
    assert b"SECRET" not in done.stderr
    assert done.stderr.startswith(b"hekla: HEKLA_AGENTS_KEY holds a character")
    assert done.returncode == 2


def test_a_token_that_no_header_can_hold_is_named_and_not_shown(tmp_path):
    own = tmp_path / "config"
    own.write_text(
        "{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}],"
        " contexts: [{name: c, context: {cluster: c, user: c}}], users: [{name: c, user: {token: \u201cSECRET\u201d}}]}"
    )
    done = run(["get", "pods", "--kubeconfig", str(own)])
    assert b"SECRET" not in done.stderr
    assert b"token of user 'c'" in done.stderr
    assert done.returncode == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this host has no /dev/full")
def test_a_full_disk_behind_the_output_is_a_sentence():
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*HEKLA, "version"], stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, b"hekla: the output cannot be written: No space left on device\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this host has no /dev/full")
def test_a_full_disk_behind_what_is_said_of_it_still_gives_the_exit_code():
    with open("/dev/full", "wb") as full:
        lost = subprocess.run([*HEKLA, "version"], stdout=full, stderr=full, timeout=60, check=False, env=BUFFERED)
        refused = subprocess.run([*HEKLA, "why", "nothing"], stderr=full, timeout=60, check=False, env=BUFFERED)
    assert (lost.returncode, refused.returncode) == (1, 2)


def test_a_full_disk_behind_another_file_leaves_what_was_printed():
    body = """
import hekla.cli.main as main

def fill(given, program):
    print("printed")
    raise OSError(28, "No space left on device")

main._invoke = fill
raise SystemExit(main.main())
"""
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, timeout=60, check=False, env=BUFFERED)
    told = b"hekla: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, b"printed\n", told)


@pytest.mark.parametrize(
    ("words", "closed", "code"),
    [("apply -f -", "<&-", "1"), ("version", ">&-", "0"), ("apply -f -", "<&- >&- 2>&-", "1")],
)
def test_closed_standard_streams_are_empty_ones(tmp_path, words, closed, code):
    """What `main` returned is written down, since a traceback ends with 1, too, and goes nowhere where standard error is closed."""
    body = f"import hekla.cli.main as m; code = m.main(); open({str(tmp_path / 'told')!r}, 'w').write(str(code))"
    (tmp_path / "body.py").write_text(body)
    subprocess.run(
        ["sh", "-c", f"{sys.executable} {tmp_path}/body.py {words} {closed}"],
        timeout=60, check=False, stdin=subprocess.DEVNULL, capture_output=True,
    )  # fmt: skip
    assert (tmp_path / "told").read_text() == code


@pytest.mark.parametrize("program", ["hekla", "vcctl", "vsub", "vjobs", "vcancel", "vsuspend"])
def test_every_program_tells_its_version(capsys, program):
    assert main(["--version"], program=program) == 0
    assert f"hekla {__version__}" in capsys.readouterr().out
