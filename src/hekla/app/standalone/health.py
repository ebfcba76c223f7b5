"""/healthz, /livez, /readyz and /metrics of a process that is no API server.

Alive is who answers. Ready is who has nothing to complain of: each part of the process gives one sentence, or none.
"""

from collections.abc import Callable

from prometheus_client import REGISTRY, generate_latest

from hekla.wire.messages import Request, Response

TEXT = "text/plain; charset=utf-8"
METRICS = "text/plain; version=0.0.4; charset=utf-8"

Check = Callable[[], str]
"""What is missing, as a sentence; empty if nothing is."""


class Health:
    """Answers the kubelet and Prometheus."""

    def __init__(self) -> None:
        self.checks: dict[str, Check] = {}
        """By the name of a part, what it says of itself."""

    def answer(self, request: Request) -> Response:
        """The answer at a path."""
        if request.method not in {"GET", "HEAD"}:
            return Response(405, b"method not allowed\n", TEXT)
        match request.path:
            case "/healthz" | "/livez":
                return Response(200, b"ok", TEXT)
            case "/readyz":
                return self._readiness("verbose" in request.raw_query)
            case "/metrics":
                return Response(200, generate_latest(REGISTRY), METRICS)
        return Response(404, b"404 page not found\n", TEXT)

    def complaints(self) -> dict[str, str]:
        """What every part says that is not ready."""
        return {name: said for name, check in self.checks.items() if (said := check())}

    def _readiness(self, is_verbose: bool) -> Response:
        complaints = self.complaints()
        if not complaints and not is_verbose:
            return Response(200, b"ok", TEXT)
        lines = [
            f"[-]{name}: {complaints[name]}\n" if name in complaints else f"[+]{name} ok\n" for name in self.checks
        ]
        end = "readyz check failed\n" if complaints else "readyz check passed\n"
        return Response(503 if complaints else 200, "".join([*lines, end]).encode(), TEXT)
