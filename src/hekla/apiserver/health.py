"""/healthz, /livez, /readyz and /metrics."""

from collections import Counter

from prometheus_client import REGISTRY, generate_latest

from hekla.apiserver.backend import Backend
from hekla.wire.messages import Request, Response

TEXT = "text/plain; charset=utf-8"
CHECKS = ("ping", "store")


class Health:
    """Answers whether the server lives and takes requests."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.is_ready = False
        self._answered: Counter[tuple[str, str, int]] = Counter()

    def count(self, verb: str, resource: str, code: int) -> None:
        """One request was answered; verbs, served resources and codes are few, so the counters are too."""
        self._answered[verb, resource, code] += 1

    def answer(self, request: Request, path: str) -> Response | None:
        """The answer at a path; None if it is not about health."""
        head, _, check = path[1:].partition("/")
        if head == "metrics" and not check:
            return Response(
                200, generate_latest(REGISTRY) + self._own_metrics(), "text/plain; version=0.0.4; charset=utf-8"
            )
        if head not in {"healthz", "livez", "readyz"} or (check and check not in CHECKS):
            return None
        if head == "readyz" and not self.is_ready:
            return Response(500, b"the server is starting or stopping", TEXT)
        if "verbose" in request.raw_query and not check:
            lines = "".join(f"[+]{name} ok\n" for name in CHECKS)
            return Response(200, f"{lines}{head} check passed\n".encode(), TEXT)
        return Response(200, b"ok", TEXT)

    def _own_metrics(self) -> bytes:
        store = self._backend.store
        lines = [
            "# HELP apiserver_storage_objects Objects stored, by resource.",
            "# TYPE apiserver_storage_objects gauge",
            *(f'apiserver_storage_objects{{resource="{name}"}} {store.count(name)}' for name in store.resources()),
            "# HELP apiserver_request_total Requests answered, by verb, resource and status code.",
            "# TYPE apiserver_request_total counter",
            *(
                f'apiserver_request_total{{verb="{verb.upper()}",resource="{resource}",code="{code}"}} {count}'
                for (verb, resource, code), count in sorted(self._answered.items())
            ),
            "# HELP hekla_store_revision The newest durable revision.",
            "# TYPE hekla_store_revision counter",
            f"hekla_store_revision {store.revision}",
        ]
        return ("\n".join(lines) + "\n").encode()
