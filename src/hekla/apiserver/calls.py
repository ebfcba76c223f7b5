"""One request about one resource, with everything that was found out about it on its way in."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from hekla.apiserver.admission import User
from hekla.apiserver.negotiation import Wanted
from hekla.apiserver.registry import Served
from hekla.apiserver.routing import Target
from hekla.apiserver.status import bad_request
from hekla.wire.messages import Request

LONGEST_KEPT_QUERY = 64
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")

FALSE = frozenset({"false", "0"})
"""What a boolean of the query says no with, in small letters; whatever else is there says yes, as in Kubernetes."""


def is_true(values: Sequence[str]) -> bool:
    """A boolean of the query, by its values there."""
    return bool(values) and values[0].lower() not in FALSE


@dataclass(eq=False)
class Call:
    """A request, its user, and the resource it names."""

    request: Request
    user: User
    target: Target
    served: Served
    verb: str
    wanted: Wanted

    # Most calls have no query and each is asked once or twice: a cached_property, which takes a lock when it is filled,
    # was 2 % of creating and binding.
    _query: dict[str, list[str]] | None = None

    @property
    def query(self) -> dict[str, list[str]]:
        """The query's values by name."""
        if self._query is None:
            raw = self.request.raw_query
            self._query = _short_query(raw) if len(raw) <= LONGEST_KEPT_QUERY else self.request.query()
        return self._query

    def option(self, name: str, default: str = "") -> str:
        """One value of the query."""
        values = self.query.get(name)
        return values[0] if values else default

    def flag(self, name: str) -> bool:
        """A boolean of the query."""
        return is_true(self.query.get(name, ()))

    def number(self, name: str, default: int = 0) -> int:
        """A whole number of the query; raises 400 for anything else."""
        text = self.option(name)
        if not text:
            return default
        if not _NUMBER.fullmatch(text):
            raise bad_request(f'strconv.ParseInt: parsing "{text[:60]}": invalid syntax')
        return int(text)

    @property
    def is_dry_run(self) -> bool:
        """Whether nothing may be stored; raises 400 for what is neither `All` nor empty, which `options.py` says better."""
        asked = self.query.get("dryRun", [])
        if any(value and value != "All" for value in asked):
            raise bad_request(f'dryRun: Unsupported value: "{asked[0][:60]}": supported values: "All"')
        return "All" in asked

    @property
    def manager(self) -> str:
        """Who is recorded as the owner of what this call sets."""
        named = self.option("fieldManager")
        if named:
            return named
        agent = self.request.headers.get("user-agent", "")
        return agent.partition("/")[0][:128] or "unknown"

    @property
    def field_validation(self) -> str:
        """`Strict`, `Warn` or `Ignore`."""
        return self.option("fieldValidation") or "Warn"

    @property
    def content_type(self) -> str:
        """As it was sent."""
        return self.request.headers.get("content-type", "")


@lru_cache(maxsize=256)
def _short_query(raw: str) -> dict[str, list[str]]:
    # what clients ask again and again, `fieldManager` most of all; nobody changes what a query says
    return Request("GET", f"?{raw}").query()
