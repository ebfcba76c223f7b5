"""A server that knows Volcano's kinds and refuses what its webhooks refuse, and the commands against it."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hekla.api.crd import CUSTOM_KINDS
from hekla.cli.main import main
from hekla.testing.api_server import RULES, LiveApiServer
from hekla.workloads.admission import ADMISSION_RULES
from hekla.workloads.queue import DEFAULT_QUEUES

VOLCANOS_KINDS = tuple(kind for kind in CUSTOM_KINDS if "serving" not in kind.kind_info.group)
"""Those that the commands here are about; the schemas of others take their time, for every test."""

JOBS = "/apis/batch.volcano.sh/v1alpha1/namespaces/default/jobs"
QUEUES = "/apis/scheduling.volcano.sh/v1beta1/queues"
GROUPS = "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups"
COMMANDS = "/apis/bus.volcano.sh/v1alpha1/namespaces/default/commands"
PODS = "/api/v1/namespaces/default/pods"


class Volcano:
    """A server without controllers: what commands ask for stays to be looked at."""

    def __init__(self, server: LiveApiServer, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.server, self.folder, self.capsys = server, folder, capsys
        self.kubeconfig = folder / "kubeconfig"
        context = {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "default"}}
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [context],
            "clusters": [{"name": "c", "cluster": {"server": server.url}}], "users": [{"name": "u", "user": {}}],
        }  # fmt: skip
        self.kubeconfig.write_text(yaml.safe_dump(config))

    def run(self, *words: str, program: str = "hekla") -> tuple[int, str, str]:
        """One command; its exit code and what it said."""
        switch = "--" if "--" in words else ""
        before, after = (words[: words.index("--")], words[words.index("--") :]) if switch else (words, ())
        code = main([*before, "--kubeconfig", str(self.kubeconfig), *after], program=program)
        said = self.capsys.readouterr()
        assert "Traceback" not in said.out + said.err
        return code, said.out, said.err

    def out(self, *words: str, program: str = "hekla") -> str:
        """What a command that succeeds prints."""
        code, out, err = self.run(*words, program=program)
        assert (code, err) == (0, ""), (code, out, err)
        return out

    def refusal(self, *words: str, program: str = "hekla", code: int = 1) -> str:
        """The sentence of a command that is refused, without the program's name."""
        found, out, err = self.run(*words, program=program)
        assert (found, out) == (code, ""), (found, out, err)
        assert err.startswith(f"{program}: "), err
        return err.removeprefix(f"{program}: ").rstrip("\n")

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """One request to the server."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.server.url + path, data, {"content-type": kind}, method=method)
        with urllib.request.urlopen(request) as answer:
            return json.loads(answer.read())

    def status(self, path: str, status: dict[str, Any], subresource: str = "/status") -> None:
        """What a controller would write."""
        self.ask("PATCH", path + subresource, {"status": status}, "application/merge-patch+json")

    def group(self, name: str, queue: str, phase: str) -> None:
        """A gang in a queue."""
        kind = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup"}
        self.ask("POST", GROUPS, kind | {"metadata": {"name": name}, "spec": {"queue": queue, "minMember": 1}})
        if phase:
            self.status(f"{GROUPS}/{name}", {"phase": phase}, "")

    def orders(self) -> list[dict[str, Any]]:
        """The Commands that wait to be carried out."""
        return list(self.ask("GET", COMMANDS)["items"])


@pytest.fixture
def volcano(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Volcano]:
    with LiveApiServer(rules=[*RULES, *ADMISSION_RULES], kinds=VOLCANOS_KINDS) as server:
        found = Volcano(server, tmp_path, capsys)
        for queue in DEFAULT_QUEUES:
            found.ask("POST", QUEUES, queue)
            found.status(f"{QUEUES}/{queue['metadata']['name']}", {"state": "Open"})
        yield found
