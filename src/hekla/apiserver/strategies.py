"""Builds the strategies: one for every built-in kind, one for every version of a custom resource."""

from hekla.api.kubernetes.served import SERVED
from hekla.api.meta import Document
from hekla.apiserver.builtin_strategy import BuiltinStrategy
from hekla.apiserver.conversions import OF_VERSIONS
from hekla.apiserver.converted_strategy import ConvertedStrategy
from hekla.apiserver.custom_strategy import CustomStrategy
from hekla.apiserver.kind_rules import KIND_RULES, PLAIN
from hekla.apiserver.registry import STORED_AS
from hekla.apiserver.strategy import Strategy


def builtin_strategies() -> dict[str, Strategy]:
    """One for every built-in resource, by `plural.group/version`."""
    made: dict[str, Strategy] = {
        f"{one.kind.resource}/{one.kind.version}": BuiltinStrategy(one.kind, KIND_RULES.get(one.kind.resource, PLAIN))
        for one in SERVED
    }
    for (resource, version), conversion in OF_VERSIONS.items():
        own, stored = made[f"{resource}/{version}"], made[f"{resource}/{STORED_AS[resource]}"]
        made[f"{resource}/{version}"] = ConvertedStrategy(own, stored, conversion)
    return made


def for_custom_resource(definition: Document, version: str) -> Strategy:
    """One for a version of a stored definition; KeyError if it has no such version."""
    for one in definition["spec"]["versions"]:
        if one["name"] == version:
            return CustomStrategy(definition, one)
    raise KeyError(version)
