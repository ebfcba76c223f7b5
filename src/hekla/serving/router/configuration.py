"""Read Kthena's routerConfiguration.yaml as it is: plug-ins with their arguments, filters, weighted scores, and whose tokens are taken.

A plug-in that is not known, or a value that cannot be right, is refused with a sentence and its line; an argument that nobody
reads is told and left out, as Kthena does. A file without plug-ins gets our default policy. `scheduler.policy` is ours: the name
of a policy as a whole, instead of plug-ins. While a router runs, a file that is refused changes nothing (`Configured`).
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from hekla.lib.yaml_lines import Lines, YamlError, read_mapping
from hekla.serving.router.choosing import Chain, Filter, Scorer
from hekla.serving.router.limits import Limit, TenantLimitError, read_tenants
from hekla.serving.router.policies.kv_cache_usage import KvCacheUsage
from hekla.serving.router.policies.kvcache_aware import KvCacheAware
from hekla.serving.router.policies.least_latency import LeastLatency
from hekla.serving.router.policies.least_request import LeastRequest
from hekla.serving.router.policies.lora_affinity import LoraAffinity
from hekla.serving.router.policies.prefix import Prefix
from hekla.serving.router.policies.prefix_affinity import PrefixAffinity
from hekla.serving.router.policies.random import Random
from hekla.serving.router.policies.token_load import TokenLoad
from hekla.serving.router.prefix.recorded import RecordFormat
from hekla.serving.router.recipes import DEFAULT, KTHENA_SIGHT, RECIPES, Recipe, Sight, seen_tokens

Arguments = Mapping[str, Any]


USUAL_FILE: Final = "routerConfiguration.yaml"


class ConfigurationError(ValueError):
    """A file that cannot be used; the text is a sentence with its line."""


@dataclass(frozen=True)
class Auth:
    """Whose bearer tokens are taken: the section `auth`."""

    issuer: str
    audiences: tuple[str, ...] = ()
    jwks_uri: str = ""


@dataclass(frozen=True)
class Configuration:
    """A file that can be used."""

    recipe: Recipe = DEFAULT
    auth: Auth | None = None
    warnings: tuple[str, ...] = ()
    records: RecordFormat | None = None
    """How prompts are cut to be looked up in Redis, where the score `kvcache-aware` is enabled."""
    tenants: Mapping[str, Limit] = field(default_factory=dict)
    """Budgets of users, `*` for everybody else: the section `tenants`, which is ours."""


class Configured:
    """The configuration in use; the last good one stays when a newer text is refused."""

    def __init__(self, text: str = "", file: str = "") -> None:
        """Raises ConfigurationError when the first text cannot be used; `file` is where it stands."""
        self._file = file or USUAL_FILE
        self.text = text
        self.current = read_configuration(text, self._file)
        self.refusal = ""
        """Why the newest text is not in use; empty if it is."""

    def offer(self, text: str) -> bool:
        """Take a newer text, if it can be used; True if something changed."""
        if text == self.text:
            self.refusal = ""
            return False
        try:
            self.current = read_configuration(text, self._file)
        except ConfigurationError as error:
            self.refuse(error)
            return False
        self.text, self.refusal = text, ""
        return True

    def refuse(self, error: ConfigurationError) -> None:
        """Note why the newest text is not taken."""
        self.refusal = f"{error}; the configuration before it stays in use"


def read_configuration(text: str, file: str = USUAL_FILE) -> Configuration:
    """The configuration that a text says; ConfigurationError if it cannot be used."""
    if not text.strip():
        return Configuration()
    try:
        return _Reader().read(read_mapping(text, "expected a mapping with `scheduler` and `auth`"))
    except YamlError as error:
        where = f"line {error.line}: " if error.line else ""
        raise ConfigurationError(f"{file}: {where}{error}") from None


def _tenants(file: Lines) -> Mapping[str, Limit]:
    entries = _list(file, "tenants")
    for entry in entries:
        if not isinstance(entry, Lines):
            raise YamlError(
                file.line_of("tenants"), "an entry of tenants is {user: ..., requestsPerUnit: ..., unit: ...}"
            )
    try:
        return read_tenants(entries)
    except TenantLimitError as error:
        raise YamlError(file.line_of("tenants"), str(error)) from None


def _number(low: float, high: float, *, whole: bool = False) -> Callable[[Any], float | None]:
    def check(value: Any) -> float | None:
        is_number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        return value if is_number and low <= value <= high else None

    return check


_COUNT = _number(1, 1 << 31, whole=True)
_PORT = _number(1, 65_535, whole=True)
_ARGUMENTS: Mapping[str, Mapping[str, tuple[Callable[[Any], float | None], str]]] = {
    "least-request": {"maxWaitingRequests": (_COUNT, "a whole number of 1 or more")},
    "least-latency": {"TTFTTPOTWeightFactor": (_number(0, 1), "a number from 0 to 1")},
    "prefix-cache": {
        "blockSizeToHash": (_COUNT, "a number of bytes of 1 or more"),
        "maxBlocksToMatch": (_COUNT, "a whole number of 1 or more"),
        "maxHashCacheSize": (_COUNT, "a whole number of 1 or more"),
        "topKMatches": (_COUNT, "a whole number of 1 or more"),
    },
    "kvcache-aware": {
        "blockSizeToHash": (_COUNT, "a number of tokens of 1 or more"),
        "maxBlocksToMatch": (_COUNT, "a whole number of 1 or more"),
        "vllmTokenizerPort": (_PORT, "a port"),
        "sglangTokenizerPort": (_PORT, "a port"),
    },
    "prefix-affinity": {
        "share": (_number(0, 1), "a number from 0 to 1"),
        "patienceSeconds": (_number(0, 86_400), "a number of seconds"),
    },
    "gpu-usage": {},
    "random": {},
    "lora-affinity": {},
    "token-load": {},
}
"""By plug-in: what it takes, how it is checked, and what is said when it is not that."""
_WITHOUT_EFFECT = {
    ("kvcache-aware", "vllmTokenizerPort"): "an engine is asked to tokenize at the port that it serves at",
    ("kvcache-aware", "sglangTokenizerPort"): "an engine is asked to tokenize at the port that it serves at",
}

_FILTERS: Mapping[str, Callable[[Arguments], Filter]] = {
    "least-request": lambda given: LeastRequest(max_waiting=given.get("maxWaitingRequests", 10)),
    "lora-affinity": lambda given: LoraAffinity(),
    "prefix-affinity": lambda given: PrefixAffinity(
        share=given.get("share", 0.8), patience_s=given.get("patienceSeconds", 18.0)
    ),
}
_SCORES: Mapping[str, Callable[[Arguments], Scorer]] = {
    "least-request": lambda given: LeastRequest(max_waiting=given.get("maxWaitingRequests", 10)),
    "gpu-usage": lambda given: KvCacheUsage(),
    "least-latency": lambda given: LeastLatency(ttft_weight=given.get("TTFTTPOTWeightFactor", 0.5)),
    "prefix-cache": lambda given: Prefix(top_k=given.get("topKMatches", 5), seen_tokens=seen_tokens(_sight(given))),
    "kvcache-aware": lambda given: KvCacheAware(),
    "random": lambda given: Random(),
    "token-load": lambda given: TokenLoad(),
    "lora-affinity": lambda given: LoraAffinity(),
}


def _sight(given: Arguments) -> Sight:
    return Sight(
        block_bytes=given.get("blockSizeToHash", KTHENA_SIGHT.block_bytes),
        most_blocks=given.get("maxBlocksToMatch", KTHENA_SIGHT.most_blocks),
        capacity=given.get("maxHashCacheSize", KTHENA_SIGHT.capacity),
        follows_cache=False,
    )


def _record_format(given: Arguments) -> RecordFormat:
    return RecordFormat(
        block_tokens=given.get("blockSizeToHash", RecordFormat().block_tokens),
        most_blocks=given.get("maxBlocksToMatch", RecordFormat().most_blocks),
    )


class _Reader:
    """Goes through one file; every complaint is a YamlError with its line."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.records: RecordFormat | None = None

    def read(self, file: Lines) -> Configuration:
        self._leave_out(file, ("scheduler", "auth", "tenants"), "the file")
        scheduler = _section(file, "scheduler")
        recipe = self._recipe(scheduler) if scheduler is not None else DEFAULT
        auth = _section(file, "auth")
        expected = self._auth(auth) if auth else None
        return Configuration(recipe, expected, tuple(self.warnings), self.records, _tenants(file))

    def _recipe(self, scheduler: Lines) -> Recipe:
        self._leave_out(scheduler, ("pluginConfig", "plugins", "policy"), "scheduler")
        arguments = self._arguments(scheduler)
        plugins = _section(scheduler, "plugins")
        if "policy" in scheduler:
            if plugins:
                raise YamlError(scheduler.line_of("policy"), "scheduler has both policy and plugins; keep one")
            return _named(scheduler)
        if not plugins:
            return DEFAULT
        self._leave_out(plugins, ("Filter", "Score"), "scheduler.plugins")
        filters = [(name, _FILTERS[name]) for name, _ in self._enabled(plugins, "Filter", _FILTERS)]
        scores = self._enabled(plugins, "Score", _SCORES)
        if len(scores) > 1 and any(name == "random" for name, _ in scores):
            self.warnings.append('the score "random" is left out, as it stands beside others')
            scores = [(name, weight) for name, weight in scores if name != "random"]

        def make() -> Chain:
            return Chain(
                filters=tuple(one(arguments.get(name, {})) for name, one in filters),
                scorers=tuple((_SCORES[name](arguments.get(name, {})), weight) for name, weight in scores),
            )

        names = {name for name, _ in scores}
        if "kvcache-aware" in names:
            self.records = _record_format(arguments.get("kvcache-aware", {}))
        sight = _sight(arguments.get("prefix-cache", {})) if "prefix-cache" in names else Sight()
        return Recipe(name="configured", make=make, sight=sight)

    def _arguments(self, scheduler: Lines) -> dict[str, Arguments]:
        arguments: dict[str, Arguments] = {}
        for entry in _list(scheduler, "pluginConfig"):
            if not isinstance(entry, Lines):
                raise YamlError(
                    scheduler.line_of("pluginConfig"), "an entry of pluginConfig is {name: ..., args: {...}}"
                )
            name = entry.get("name")
            if not isinstance(name, str) or name not in _ARGUMENTS:
                raise YamlError(entry.line_of("name"), f"there is no plug-in {name!r}; there are {_words(_ARGUMENTS)}")
            arguments[name] = self._checked(name, _section(entry, "args"))
        return arguments

    def _checked(self, name: str, given: Lines | None) -> Arguments:
        if given is None:
            return {}
        known = _ARGUMENTS[name]
        self._leave_out(given, tuple(known), f"the arguments of {name}")
        for key in known:
            if key in given and (name, key) in _WITHOUT_EFFECT:
                line = given.line_of(key)
                self.warnings.append(f"line {line}: {key} of {name} has no effect: {_WITHOUT_EFFECT[name, key]}")
        for key, (check, expected) in known.items():
            if key in given and check(given[key]) is None:
                raise YamlError(given.line_of(key), f"{key} of {name} is {given[key]!r}; expected {expected}")
        return {key: given[key] for key in known if key in given}

    def _enabled(self, plugins: Lines, point: str, known: Mapping[str, object]) -> list[tuple[str, float]]:
        section = _section(plugins, point)
        if section is None:
            return []
        self._leave_out(section, ("enabled", "disabled"), point)
        disabled = {_name_of(one, section, point) for one in _list(section, "disabled")}
        enabled: dict[str, float] = {}
        for entry in _list(section, "enabled"):
            name = _name_of(entry, section, point)
            line = entry.line if isinstance(entry, Lines) else section.line_of("enabled")
            if name not in known:
                raise YamlError(line, f"there is no {point} plug-in {name!r}; there are {_words(known)}")
            weight = entry.get("weight", 1) if isinstance(entry, Lines) else 1
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= sys.float_info.max:
                raise YamlError(line, f"the weight of {name} is {weight!r}; expected a number of 0 or more")
            if name not in disabled and "*" not in disabled:
                enabled[name] = float(weight)
        return list(enabled.items())

    def _auth(self, auth: Lines) -> Auth:
        self._leave_out(auth, ("issuer", "audiences", "jwksUri"), "auth")
        issuer, uri, audiences = auth.get("issuer", ""), auth.get("jwksUri", ""), auth.get("audiences") or ()
        if not isinstance(issuer, str) or not issuer:
            raise YamlError(auth.line_of("issuer"), "auth has no issuer; expected the `iss` of the tokens to take")
        if not isinstance(uri, str) or not uri.startswith(("https://", "http://")):
            raise YamlError(auth.line_of("jwksUri"), f"auth.jwksUri is {uri!r}; expected the URL of the issuer's keys")
        if not isinstance(audiences, list | tuple) or not all(isinstance(one, str) for one in audiences):
            raise YamlError(auth.line_of("audiences"), "auth.audiences is a list of names")
        return Auth(issuer, tuple(audiences), uri)

    def _leave_out(self, given: Lines, known: Sequence[str], where: str) -> None:
        for key in given:
            if key not in known:
                line = given.line_of(key)
                self.warnings.append(f'line {line}: {where} has "{key}", which nobody reads; known are {_words(known)}')


def _named(scheduler: Lines) -> Recipe:
    name = scheduler["policy"]
    if not isinstance(name, str) or name not in RECIPES:
        raise YamlError(scheduler.line_of("policy"), f"there is no policy {name!r}; there are {_words(RECIPES)}")
    return RECIPES[name]


def _section(parent: Lines, key: str) -> Lines | None:
    value = parent.get(key)
    if value is not None and not isinstance(value, Lines):
        raise YamlError(parent.line_of(key), f"{key} is {value!r}; expected a mapping")
    return value


def _list(parent: Lines, key: str) -> list[Any]:
    value = parent.get(key)
    if value is not None and not isinstance(value, list):
        raise YamlError(parent.line_of(key), f"{key} is {value!r}; expected a list")
    return value or []


def _name_of(entry: Any, section: Lines, point: str) -> str:
    name = entry.get("name") if isinstance(entry, Lines) else entry
    if not isinstance(name, str):
        line = entry.line if isinstance(entry, Lines) else section.line
        raise YamlError(line, f"a plug-in of {point} is {name!r}; expected its name")
    return name


def _words(names: Mapping[str, object] | Sequence[str]) -> str:
    return ", ".join(names)
