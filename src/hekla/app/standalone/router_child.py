"""One process of a router that has several: what its parent (`router_crew.py`) says, its ports to the parent, and the end with it."""

import asyncio
import json
import os
import sys

from hekla.app.standalone.process import StandaloneError
from hekla.app.standalone.router_process import RouterSettingsError, router_settings, run_router
from hekla.kube.kubeconfig import KubeconfigError
from hekla.serving.router.running import Router


def main(flags: str, kubeconfig: str, log_level: str, ready_fd: str, lives_while: str) -> int:
    """Route until told to stop, or until the parent is gone."""

    def listening(router: Router) -> None:
        lifeline = int(lives_while)
        asyncio.get_running_loop().add_reader(lifeline, parent_gone, lifeline, router)
        with os.fdopen(int(ready_fd), "w") as parent:
            parent.write(json.dumps({"metrics_port": router.metrics_port}) + "\n")

    def parent_gone(lifeline: int, router: Router) -> None:
        asyncio.get_running_loop().remove_reader(lifeline)
        router.stop()

    try:
        settings = router_settings(json.loads(flags), os.environ)
        run_router(settings, kubeconfig, log_level, lambda _url: None, listening)
    except (KubeconfigError, RouterSettingsError, StandaloneError) as error:
        print(f"hekla: {error}", file=sys.stderr)  # noqa: T201 - the parent's log
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
