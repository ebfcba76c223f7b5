"""What the Tab key offers, asked for as each shell's own script asks."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Volcano

SHELLS = ("bash", "zsh", "fish")


def ask(shell: str, line: str, **environment: str) -> list[str]:
    """The answers to Tab at the end of a line."""
    program, words = line.split()[0], line.split(" ")
    asking = {f"_{program.upper()}_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        asking |= {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    else:
        asking |= {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    run = "import sys; sys.argv = [sys.argv[1]]; from hekla.cli.peer_programs import run_by_name; run_by_name()"
    done = subprocess.run(
        [sys.executable, "-c", run, program],
        capture_output=True, text=True, timeout=60, check=False,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "HEKLA_COMPLETION_PATIENCE_S": "50", **asking, **environment},
    )  # fmt: skip
    assert done.stderr == "", done
    return [word.split(":")[0].strip('"').split("\t")[0] for word in _answers(shell, done.stdout)]


def _answers(shell: str, said: str) -> list[str]:
    if shell == "zsh":
        said = said.replace("_arguments '*: :((", "").replace("))'", "").replace("_files", "")
    return [line for line in said.split("\n") if line.strip()]


@pytest.mark.parametrize("shell", SHELLS)
def test_commands_and_those_below_them_are_offered(shell: str) -> None:
    assert ask(shell, "hekla que") == ["queue"]
    assert ask(shell, "hekla job sus") == ["suspend"]
    assert ask(shell, "hekla job run --pri") == ["--priority-class"]
    assert ask(shell, "vcctl queue op") == ["operate"]


@pytest.mark.parametrize("shell", SHELLS)
def test_names_come_from_the_server(volcano: Volcano, shell: str) -> None:
    volcano.out("job", "run", "train")
    volcano.out("job", "run", "evaluate")
    where = {"KUBECONFIG": str(volcano.kubeconfig)}
    assert ask(shell, "hekla job view ", **where) == ["evaluate", "train"]
    assert ask(shell, "vsuspend -n tr", **where) == ["train"]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("hekla job run x -q res", ["research"]),
        ("hekla get vcj", ["vcjob"]),
        ("hekla get vcjob tr", ["train"]),
        ("hekla why queue/r", ["queue/research", "queue/root"]),
        ("vcctl job view -N tr", ["train"]),
        ("hekla job view -n kube-n", ["kube-node-lease"]),
    ],
)
def test_each_place_offers_what_belongs_there(volcano: Volcano, line: str, offered: list[str]) -> None:
    volcano.out("job", "run", "train")
    volcano.out("queue", "create", "research")
    assert ask("bash", line, KUBECONFIG=str(volcano.kubeconfig)) == offered


def test_pods_are_offered_where_a_pod_is_wanted(volcano: Volcano) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-0"}}
    volcano.ask(
        "POST", "/api/v1/namespaces/default/pods", pod | {"spec": {"containers": [{"name": "c", "image": "i"}]}}
    )
    where = {"KUBECONFIG": str(volcano.kubeconfig)}
    for command in ("logs", "exec", "port-forward"):
        assert ask("bash", f"hekla {command} w", **where) == ["web-0"]
    assert ask("bash", "hekla logs pod/", **where) == ["pod/web-0"]


@pytest.mark.parametrize("shell", SHELLS)
def test_without_a_server_the_tab_key_says_nothing(tmp_path: Path, shell: str) -> None:
    assert ask(shell, "hekla job view ", KUBECONFIG=str(tmp_path / "none")) == []
    unreachable = tmp_path / "kubeconfig"
    unreachable.write_text(
        "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}], "
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: u, user: {}}]}"
    )
    assert ask(shell, "hekla job view ", KUBECONFIG=str(unreachable)) == []


def test_a_tab_imports_only_the_command_of_its_line() -> None:
    run = (
        "import sys; sys.argv = ['hekla']; from hekla.cli.main import main; code = main();"
        "print(sorted(m for m in sys.modules if m.startswith('hekla.cli.commands.')), file=sys.stderr)"
    )
    asking = {"_HEKLA_COMPLETE": "complete_bash", "COMP_WORDS": "hekla queue ", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", run], capture_output=True, text=True, timeout=60, check=False,
        env={"PATH": os.environ["PATH"], **asking},
    )  # fmt: skip
    assert done.stdout.split() == ["create", "list", "get", "operate", "delete"]
    assert done.stderr.strip() == "['hekla.cli.commands.queue']"


def program(folder: Path, name: str) -> Path:
    """What `pip install` writes for a name of pyproject's [project.scripts]."""
    own = folder / name
    own.write_text(
        f"#!{sys.executable}\nimport sys\nfrom hekla.cli.peer_programs import run_by_name\nsys.exit(run_by_name())\n"
    )
    own.chmod(0o755)
    return own


@pytest.mark.parametrize(
    ("name", "typed", "offered"), [("hekla", "jo", "job"), ("vcctl", "jobf", "jobflow"), ("vsub", "--im", "--image")]
)
def test_bash_completes_with_the_script_that_the_program_prints(
    tmp_path: Path, name: str, typed: str, offered: str
) -> None:
    """The whole way: the script is printed, sourced, and its function asked by a real bash."""
    script = f"""
        {shlex.quote(str(program(tmp_path, name)))} --show-completion > {tmp_path}/script || exit 1
        source {tmp_path}/script
        COMP_WORDS=({name} {typed}) COMP_CWORD=1
        _{name}_completion {name}
        echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, timeout=60, check=False,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "SHELL": "/bin/bash"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert offered in done.stdout.split()


@pytest.mark.parametrize(
    ("shell", "file"),
    [
        ("bash", ".bash_completions/hekla.sh"),
        ("zsh", ".zfunc/_hekla"),
        ("fish", ".config/fish/completions/hekla.fish"),
    ],
)
def test_completion_is_installed_for_the_shell_that_asks(tmp_path: Path, shell: str, file: str) -> None:
    # the shell is told by the name of the process that started us: any shell under that name will do
    bash = shutil.which("bash")
    assert bash is not None
    asking = tmp_path / shell
    shutil.copy(bash, asking)
    line = f"{shlex.quote(str(program(tmp_path, 'hekla')))} --install-completion; exit $?"
    done = subprocess.run(
        [str(asking), "-c", line], capture_output=True, text=True, timeout=60, check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SHELL": str(asking)},
    )  # fmt: skip
    assert done.returncode == 0, done
    assert f"_HEKLA_COMPLETE=complete_{shell}" in (tmp_path / file).read_text()
