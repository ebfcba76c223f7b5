"""Runs the commands of the how-tos and tutorials as they stand, on one embedded platform, and names those that fail.

    python tools/run_howtos.py [PAGE...]

What a page shows below a command is what it is held to: the command ends well unless a refusal is shown, and lines that tell of a change
(`... created`) come. What stands there for something that is drawn anew (a session's id, a key, a port) is taken from what really came.
`PAGES` says what a page presumes and which of its commands need more than a platform. `run_readme.py` does the same for README.
"""

import os
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 60
TOLD = re.compile(
    r"^\S+ (created|deleted|configured|exposed|condition met|unchanged)$|^\S.* (successfully|is paused|is published.*)$"
)
REFUSED = re.compile(r"^(Error|error|hekla: |vcctl: |\S+: error: )")

JOB = """\
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: train}
spec:
  minAvailable: 2
  queue: research
  tasks:
  - {name: worker, replicas: 2, template: {spec: {containers: [{name: c, image: busybox, command: [sleep, "600"]}]}}}
"""
TYPO = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: unknown}\ndate: {a: b}\n"
LINTED = 'actions: "enqueue, alocate, backfill"\ntiers:\n- plugins:\n  - name: gng\n  - name: numa-aware\n'
LOOSE = 'actions: "enqueue, allocate, backfill"\ntiers:\n- plugins:\n  - name: priority\n  - name: predicates\n'
GANG = """\
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: GROUP}
spec: {minMember: COUNT}
"""
MEMBER = """\
---
apiVersion: v1
kind: Pod
metadata: {name: GROUP-NUMBER, annotations: {scheduling.k8s.io/group-name: GROUP}}
spec:
  schedulerName: volcano
  containers: [{name: c, image: busybox, command: [sleep, "600"], resources: {limits: {nvidia.com/gpu: GPUS}}}]
"""
ROUTE = """\
apiVersion: networking.serving.volcano.sh/v1alpha1
kind: ModelRoute
metadata: {name: chat}
spec:
  modelName: chat
  rules: [{targetModels: [{modelServerName: nobody}]}]
"""


def gang(group: str, count: int, gpus: int) -> str:
    """A PodGroup and its pods."""
    members = (MEMBER.replace("NUMBER", str(number)) for number in range(count))
    text = "".join((GANG, *members)).replace("GROUP", group)
    return text.replace("COUNT", str(count)).replace("GPUS", str(gpus))


@dataclass(frozen=True)
class Page:
    """What a page presumes."""

    files: Mapping[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Commands that begin so, and why they are not run."""
    after: tuple[str, ...] = ()


ENDLESS = "goes on until it is stopped"
OTHERS = "wants a program that is none of ours"
WAITING = Page(
    files={"old.yaml": gang("old", 1, 5), "train.yaml": gang("train", 4, 4), "loose.conf": LOOSE, "chat.yaml": ROUTE, "volcano-scheduler.conf": LINTED},
    before=(
        "hekla apply -f old.yaml", "hekla wait pod/old-0 --for=phase=Running --timeout=30s",
        "hekla apply -f train.yaml -f chat.yaml", "mkdir -p tests/scenarios/gang",
    ),
    after=("hekla delete -f train.yaml -f old.yaml -f chat.yaml",),
)  # fmt: skip
OUT = """\
apiVersion: v1
kind: Secret
metadata: {name: api}
stringData: {token: sekrit-value-123}
---
apiVersion: runtime.agentcube.volcano.sh/v1alpha1
kind: CodeInterpreter
metadata:
  name: out
  annotations:
    hekla.dev/egress: "pypi.org, *.pythonhosted.org:443"
    hekla.dev/egress-secrets: '[{"host": "pypi.org", "header": "Authorization", "secret": "api", "key": "token", "format": "Bearer {}"}]'
spec: {template: {}}
"""
KEY = "KEY=$(cut -d' ' -f2 ~/.local/share/hekla/agents.key)"
PAGES = {
    "howto/find-out-why.md": Page(
        files={
            "job.yaml": JOB.replace("minAvailable: 2", "minAvailable: 3"),
            "pods.yaml": MEMBER.replace("GROUP-NUMBER", "large").replace("GPUS", "9")
            + MEMBER.replace("GROUP-NUMBER", "typo").replace("GPUS", "1").replace("sleep,", "no-such-program,"),
        },
        before=("hekla apply -f pods.yaml", "hekla wait pod/typo --for=phase=Running --timeout=5s || true"),
        skipped={"hekla why modelbooster/bad": "wants an engine that ends again and again"},
        after=("hekla delete -f pods.yaml",),
    ),
    "howto/use-kubectl.md": Page(
        files={"typo.yaml": TYPO},
        skipped={
            "hekla up": "is up",
            "kubectl logs -f": ENDLESS,
            "kubectl port-forward": ENDLESS,
            "kubectl cp": "presumes a file of the reader's",
        },
        after=("kubectl delete pod/web service/web configmap/unknown --grace-period=1",),
    ),
    "howto/from-vcctl.md": Page(files={"job.yaml": JOB}, after=("hekla delete vcjob --all",)),
    "howto/replay-a-decision.md": WAITING,
    "howto/run-as-an-ordinary-user.md": Page(skipped={"make": "makes the environment anew"}),
    "howto/why-is-it-pending.md": WAITING,
    "howto/use-sandboxes.md": Page(
        files={"out.yaml": OUT},
        before=(KEY,),
        skipped={"hekla agent exec $id -- curl": "wants curl in /usr and the Internet"},
    ),
    "howto/serve-a-model.md": Page(
        skipped={"hekla up": "is up", "hekla run router": ENDLESS},
        after=("hekla delete -f examples/serving/chat.yaml", "hekla wait modelroute/chat --for=delete --timeout=60s"),
    ),
    "howto/guard-the-router.md": Page(),
    "howto/watch-a-platform.md": Page(
        skipped={
            "hekla up": "is up",
            "prometheus": OTHERS,
            "GF_": OTHERS,
            "hekla install": OTHERS,
            "kubectl label": OTHERS,
        }
    ),
}
NOT_RUN = {
    "howto/install-on-kubernetes.md": "wants a cluster of somebody else; tests/e2e and tests/realkube hold it",
    "howto/keep-large-jobs-from-starving.md": "has no commands",
    "howto/run-pytorch-ray-and-mpi.md": "wants frameworks; tests/e2e/test_examples.py holds it",
    "tutorial/autoscaling.md": "takes four minutes: give its name",
    "tutorial/demo.md": "is the demo, which CI runs by itself",
}
ON_DEMAND = {
    "tutorial/autoscaling.md": Page(
        before=("URL=http://127.0.0.1:8080/v1 KEY=sk-hekla-...",),
        skipped={"hekla up": "is up", "hekla down": "others follow"},
    ),
}


@dataclass(frozen=True)
class Command:
    """One command and what the page shows below it."""

    text: str
    shown: tuple[str, ...]


def commands_of(text: str) -> Iterator[Command]:
    """Those of all blocks, in order: after `$ ` in a console, each line where a block is of commands alone."""
    for fence, fenced, indented in re.findall(
        r"^```(\w*)\n(.*?)^```|((?:^    [^\n]*\n)+)", text, re.MULTILINE | re.DOTALL
    ):
        block = fenced or re.sub(r"^    ", "", indented, flags=re.MULTILINE)
        if fence == "sh":
            yield Command(block, ())
        elif fence == "console" or (indented and block.startswith("$ ")):
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, *shown = part.rstrip().split("\n")
                yield Command(_bare(command), tuple(shown))
        elif indented and block.split()[0] in ("hekla", "kubectl", "export"):
            yield from (Command(_bare(line), ()) for line in block.splitlines())


def _bare(line: str) -> str:
    return re.split(r"\s{2,}# ", line)[0].strip()


class Reader:
    """Somebody who types the commands of a page into one shell."""

    def __init__(self, directory: Path, environment: Mapping[str, str], names: Mapping[str, str]) -> None:
        """`names` are what the page writes for what is drawn anew."""
        self._said, self._names = directory / ".said", dict(names)
        self._shell = subprocess.Popen(
            ["bash", "--norc"], cwd=directory, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def type(self, command: Command) -> tuple[int, str]:
        """The status and what was printed; 124 if it took too long."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        text = command.text
        for shown, real in self._names.items():
            text = text.replace(shown, real)
        self._shell.stdin.write(f"{{ {text}\n}} >{self._said} 2>&1 </dev/null; echo $?\n")
        self._shell.stdin.flush()
        is_ready, _, _ = select.select([self._shell.stdout], [], [], PATIENCE_S)
        if not is_ready:
            return 124, self._said.read_text()
        status, said = int(self._shell.stdout.readline()), self._said.read_text()
        first = said.splitlines()[0] if said else ""
        if command.shown and re.fullmatch(r"\w{12,}", command.shown[0]) and re.fullmatch(r"\w{12,}", first):
            self._names[command.shown[0]] = first
        return status, said

    def close(self) -> None:
        """Leave."""
        self._shell.kill()
        self._shell.wait()

    def missing_in(self, command: Command, said: str) -> list[str]:
        """Lines of a change that the page shows and that did not come."""
        wanted = [line for line in command.shown if TOLD.match(line)]
        for shown, real in self._names.items():
            wanted = [line.replace(shown, real) for line in wanted]
        return [line for line in wanted if line not in said]


def run(page: str, text: str, directory: Path, environment: Mapping[str, str], names: Mapping[str, str]) -> list[str]:
    """What fails of a page."""
    needs = (PAGES | ON_DEMAND)[page]
    for name, content in needs.files.items():
        (directory / name).write_text(content)
    problems = []
    reader = Reader(directory, environment, names)
    try:
        for command in (
            *(Command(each, ()) for each in needs.before),
            *commands_of(text),
            *(Command(each, ()) for each in needs.after),
        ):
            if any(command.text.startswith(each) for each in needs.skipped):
                continue
            began = time.monotonic()
            status, said = reader.type(command)
            took_s = time.monotonic() - began
            if VERBOSE:
                print(f"{took_s:5.1f}s {status} {command.text}\n{said}", flush=True)
            is_refusal = any(REFUSED.match(line) for line in command.shown)
            missing = reader.missing_in(command, said)
            if bool(status) != is_refusal or missing:
                problems.append(
                    f"{page}: `{command.text}` ended with {status}: {said.strip()[-400:]}"
                    + (f" (not there: {missing})" if missing else "")
                )
    finally:
        reader.close()
    return problems


VERBOSE = bool(os.environ.get("VERBOSE"))


def main() -> int:
    pages = sys.argv[1:] or sorted(PAGES)
    hekla = ROOT / ".venv" / "bin" / "hekla"
    with tempfile.TemporaryDirectory(prefix="hekla-howtos-") as home:
        environment = {**os.environ, "HOME": home, "PATH": f"{hekla.parent}:{os.environ['PATH']}"}
        for name in ("KUBECONFIG", "HEKLA_DATA_DIR", "XDG_DATA_HOME"):
            environment.pop(name, None)
        try:
            subprocess.run(
                [hekla, "up", "--detach", "--nodes", "2", "--gpus-per-node", "8"],
                env=environment,
                check=True,
                timeout=60,
            )
            environment["KUBECONFIG"] = f"{home}/.local/share/hekla/kubeconfig"
            told = subprocess.run(
                [hekla, "status"], env=environment, check=True, capture_output=True, text=True, timeout=60
            ).stdout
            names = names_in(told)
            for node in ("node-1", "node-2"):  # they join within the first seconds
                subprocess.run(
                    [hekla, "wait", f"node/{node}", "--for=condition=Ready", "--timeout=60s"],
                    env=environment,
                    check=True,
                    capture_output=True,
                )
            problems = []
            for page in pages:
                directory = Path(home) / page.replace("/", "-")
                directory.mkdir()
                (directory / "examples").symlink_to(ROOT / "examples")
                began = time.monotonic()
                problems += run(page, (ROOT / "docs" / page).read_text(), directory, environment, names)
                print(f"{page}: {time.monotonic() - began:.0f} s", flush=True)
        finally:
            subprocess.run([hekla, "down"], env=environment, check=False, capture_output=True, timeout=60)
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        print(f"every command of {len(pages)} pages works as it stands")
    return int(bool(problems))


def names_in(status: str) -> dict[str, str]:
    """Of a platform's status, what pages write for its addresses and keys."""
    names = {}
    for what, shown in (("models", "http://127.0.0.1:8080"), ("sandboxes", "http://127.0.0.1:8090")):
        found = re.search(rf"^{what}: (http://[^/ ]+)\S* \(keys in (.*?)\)", status, re.MULTILINE)
        if found:
            names[shown] = found[1]
            if what == "models":
                names["sk-hekla-..."] = Path(found[2]).read_text().split()[1]
    return names


if __name__ == "__main__":
    sys.exit(main())
