"""A platform takes as many open files as the system lets it, whatever its shell allows; what runs in containers has the shell's number."""

import contextlib
import http.client
import json
import resource
from pathlib import Path

from hekla.testing.platform import PlatformProcess

PODS = "/api/v1/namespaces/default/pods"
FOUND, MOST = 512, 4_096
PATIENCE_S = 60.0


def log_of(platform: PlatformProcess, pod: str) -> str:
    """What a pod said, once it has ended."""
    door = http.client.HTTPSConnection("127.0.0.1", platform.port, context=platform.tls(), timeout=PATIENCE_S)
    with contextlib.closing(door):
        door.request("GET", f"{PODS}?watch=true&fieldSelector=metadata.name={pod}")
        for line in door.getresponse():
            phase = json.loads(line)["object"].get("status", {}).get("phase")
            if phase == "Succeeded":
                return platform.ask("GET", f"{PODS}/{pod}/log").body.decode()
            assert phase != "Failed", line
    raise AssertionError(f"{pod} did not end; the platform said\n{platform.log}")


def test_a_platform_has_as_many_files_as_it_may_and_its_containers_what_the_shell_allows(tmp_path: Path) -> None:
    pod = {"name": "main", "image": "base", "command": ["sh", "-c", "ulimit -Sn; ulimit -Hn"]}
    left_out = ("agents", "serving", "router")
    with PlatformProcess(
        tmp_path / "data", without=left_out, flags=("--nodes", "1"), max_files=MOST, found_files=FOUND
    ) as platform:
        assert resource.prlimit(platform.pid, resource.RLIMIT_NOFILE) == (MOST, MOST)
        made = platform.ask(
            "POST", PODS, {"metadata": {"name": "asks"}, "spec": {"restartPolicy": "Never", "containers": [pod]}}
        )
        assert made.status == 201, made.body
        assert log_of(platform, "asks").split() == [f"{FOUND}", f"{MOST}"]
