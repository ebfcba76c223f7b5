"""Reads Volcano's scheduler configuration: actions, and plug-ins in tiers with their arguments.

The file is taken as it is. What cannot be right is refused with a sentence and its line; what has no effect (a plug-in
that this build does not have, an argument that nobody reads, a switch of what is none here) is told. `check_text` says
everything that there is to say about a file, `parse_configuration` makes one that can be used; `reload.py` watches it.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from hekla.lib.go_duration import DurationError, parse_duration
from hekla.lib.yaml_lines import Lines, YamlError, read_mapping
from hekla.placement.action import ACTIONS
from hekla.placement.framework import PLUGINS
from hekla.placement.registry import ArgumentError, load
from hekla.scheduler.configuration_plugins import (
    CANNOT_BE_SWITCHED_OFF,
    FLAGS,
    NO_EFFECT,
    SWITCHED_ON,
    VOLCANO_ARGUMENTS,
    VOLCANO_PLUGINS,
    built,
    hint,
    switched,
)
from hekla.scheduler.foot_guns import Layout, Placed, foot_guns
from hekla.scheduler.usage_readings import TYPES, MetricsSettings, metrics_settings, section_keys

DEFAULT_TEXT = """\
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: conformance
- plugins:
  - name: overcommit
  - name: drf
  - name: predicates
  - name: proportion
  - name: nodeorder
  - name: binpack
    arguments:
      binpack.resources: nvidia.com/gpu, amd.com/gpu
"""
"""Neither of Volcano's two defaults: its built-in one has no `binpack`, and its charts', which has, does not count GPUs (pods
that ask for nothing else would be spread) and sets `enablePreemptable: false` on `gang` and `drf`; here both say who may be
evicted once an action evicts.
"""

_SPELLINGS = {"gangPreempt": "gangpreempt", "gangReclaim": "gangreclaim"}
_PASSWORD = re.compile(r"""(\bpassword["']?\s*:\s*)("[^"]*"|'[^']*'|[^\s,}]+)""", re.IGNORECASE)
_SECTIONS = ("actions", "tiers", "configurations", "metrics")
_ENTRY_KEYS = ("name", "arguments", *FLAGS)
_METRICS_KEYS = (
    "type", "address", "interval", "tls.insecureSkipVerify", "elasticsearch.index", "elasticsearch.username",
    "elasticsearch.password", "elasticsearch.hostnameFieldName",
)  # fmt: skip

ACTION_ARGUMENTS: Mapping[str, Mapping[str, type]] = {
    "enqueue": {},
    "allocate": {"predicateErrorCacheEnable": bool},
    "backfill": {"predicateErrorCacheEnable": bool},
    "preempt": {
        "predicateErrorCacheEnable": bool, "enableTopologyAwarePreemption": bool, "topologyAwarePreemptWorkerNum": int,
        "minCandidateNodesPercentage": int, "minCandidateNodesAbsolute": int, "maxCandidateNodesAbsolute": int,
        "keepGangsWhole": bool, "heedDisruptionBudgets": bool,
    },
    "reclaim": {"predicateErrorCacheEnable": bool, "keepGangsWhole": bool, "heedDisruptionBudgets": bool},
    "gangpreempt": {
        "predicateErrorCacheEnable": bool, "maxDomains": int, "allowWholeBundle": bool, "heedDisruptionBudgets": bool,
    },
    "gangreclaim": {
        "predicateErrorCacheEnable": bool, "maxDomains": int, "allowWholeBundle": bool, "heedDisruptionBudgets": bool,
    },
    "shuffle": {},
}  # fmt: skip
"""Volcano's actions, with the arguments that each takes under `configurations`, and ours (`keepGangsWhole`...)."""

_WITHOUT_EFFECT: Mapping[str, tuple[int, str]] = {
    "predicateErrorCacheEnable": (
        True, "which nodes refuse a pod is found once for all pods of its shape, and again as nodes change",
    ),
    "topologyAwarePreemptWorkerNum": (
        1, "nodes are tried one after another; how many is up to minCandidateNodesPercentage, minCandidateNodesAbsolute and "
        "maxCandidateNodesAbsolute",
    ),
}  # fmt: skip
"""Arguments of actions that change nothing: the value that says what happens anyway, and why."""


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    """The file cannot be used."""

    WARNING = "warning"
    """It can be used, and something in it is hardly meant."""

    NOTE = "note"
    """Right for Volcano, without effect here yet."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to say about a file."""

    line: int
    """From 1; 0 if it is about the file as a whole."""

    severity: Severity
    sentence: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.sentence}" if self.line else self.sentence


class ConfigurationError(ValueError):
    """The file cannot be used; the text is a sentence with the line it is about."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """A configuration that can be used."""

    actions: tuple[str, ...]
    tiers: tuple[tuple[object, ...], ...]
    """Plug-ins, built with their arguments."""

    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Arguments by action."""

    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    """Where measurements of nodes come from."""

    findings: tuple[Finding, ...] = ()
    text: str = ""
    """What it was read from."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was left out, or is hardly meant, in sentences."""
        return tuple(str(finding) for finding in self.findings)


def without_secrets(text: str) -> str:
    """A configuration as others may see it: passwords are left out, and everything that decides is there."""
    return _PASSWORD.sub(r'\1"left out"', text)


def parse_configuration(text: str) -> Configuration:
    """Read a file's text; raises ConfigurationError."""
    reader = _Reader(text)
    errors = [finding for finding in reader.findings if finding.severity is Severity.ERROR]
    if errors:
        raise ConfigurationError(str(errors[0]))
    return Configuration(
        actions=tuple(reader.actions), tiers=tuple(reader.tiers), arguments=reader.arguments,
        findings=tuple(reader.findings), text=text, metrics=reader.metrics,
    )  # fmt: skip


def check_text(text: str) -> tuple[Finding, ...]:
    """Everything that there is to say about a file, in order of lines; nothing for one that is right."""
    reader = _Reader(text)
    reader.look_for_foot_guns()
    return tuple(sorted(reader.findings, key=lambda finding: finding.line))


class _Reader:
    """Reads one document, part by part; every part notes what is wrong with it and the next is read all the same."""

    def __init__(self, text: str) -> None:
        load()
        self.findings: list[Finding] = []
        self.actions: list[str] = []
        self.tiers: list[tuple[object, ...]] = []
        self.arguments: dict[str, Mapping[str, Any]] = {}
        self.metrics = MetricsSettings()
        self._plugins: dict[str, Placed] = {}
        try:
            self._document = read_mapping(text, "the file has no actions and tiers; it should be a mapping with both")
        except YamlError as error:
            self._error(error.line, str(error))
            return
        self._sections()
        self._read_actions()
        self._read_tiers()
        self._read_arguments()

    # Sections

    def _sections(self) -> None:
        for key, line in self._document.lines.items():
            if key not in _SECTIONS:
                self._warn(line, f"nobody reads {key}{hint(key, _SECTIONS)}")
        metrics = self._document.get("metrics")
        if metrics is not None and not isinstance(metrics, Lines):
            self._error(
                self._line("metrics"), "metrics should be a mapping, like {type: prometheus, address: http://...}"
            )
        elif metrics is not None:
            self._read_metrics(metrics)

    def _read_metrics(self, section: Lines) -> None:
        """Where measurements come from: Volcano's three types."""
        for key, top in section_keys(section):
            if key not in _METRICS_KEYS:
                self._warn(section.line_of(top), f"metrics has no {key}{hint(key, _METRICS_KEYS)}; it has no effect")
        kind, address = str(section.get("type", "")), str(section.get("address") or "")
        if kind not in TYPES:
            self._error(section.line_of("type"), f"metrics.type is {kind!r}; one of {', '.join(TYPES)} is expected")
        elif kind == "prometheus_adaptor":
            if address:
                sentence = "metrics.address has no effect: the adapter of Prometheus is asked by way of the API server"
                self._note(section.line_of("address"), sentence)
        elif not address.startswith(("http://", "https://")):
            example = "http://prometheus:9090" if kind == "prometheus" else "http://elasticsearch:9200"
            self._error(section.line_of("address"), f"metrics.address is {address!r}; a url like {example} is expected")
        try:
            interval_s = parse_duration(str(section.get("interval", "30s"))).total_seconds()
        except DurationError as error:
            self._error(section.line_of("interval"), f"metrics.interval: {error}")
            return
        if interval_s <= 0:
            self._error(section.line_of("interval"), "metrics.interval should be above 0")
        else:
            self.metrics = metrics_settings(section, interval_s)

    def _read_actions(self) -> None:
        line, text = self._line("actions"), self._document.get("actions")
        names = [part.strip() for part in text.split(",") if part.strip()] if isinstance(text, str) else []
        if not names:
            self._error(line, 'actions should be names with commas between, like "enqueue, allocate"')
        for name in names:
            self._read_action(name, line)
        for gang, single in (("gangpreempt", "preempt"), ("gangreclaim", "reclaim")):
            if gang in self.actions and single in self.actions:
                self._warn(
                    line, f"{gang} and {single} both evict for gangs that have no wish to be close; keep one of them"
                )

    def _read_action(self, name: str, line: int) -> None:
        known = _SPELLINGS.get(name, name)
        if known in self.actions:
            self._warn(line, f"action {name} stands here a second time; it runs twice in each cycle")
        if known in ACTIONS:
            self.actions.append(known)
        elif known in ACTION_ARGUMENTS:
            self._note(line, f"action {name} is not built yet and is left out")
        else:
            self._error(line, f"failed to find Action {name}{hint(name, ACTION_ARGUMENTS)}")

    def _read_tiers(self) -> None:
        tiers = self._document.get("tiers")
        if not isinstance(tiers, list) or not tiers:
            self._error(self._line("tiers"), "tiers should be a list of plug-in lists; there is none")
            return
        for number, tier in enumerate(tiers, start=1):
            entries = tier.get("plugins") if isinstance(tier, Lines) else None
            line = tier.line if isinstance(tier, Lines) else self._line("tiers")
            if not isinstance(entries, list) or not entries:
                self._error(line, f"tier {number} has no plugins; name one or remove the tier")
                continue
            self._check_neighbours(entries, number)
            self.tiers.append(tuple(plugin for entry in entries for plugin in self._plugin(entry, number, line)))

    def _check_neighbours(self, entries: list[Any], tier: int) -> None:
        """Volcano refuses hierarchical drf beside proportion: both would say what a queue deserves."""
        named = {entry.get("name"): entry for entry in entries if isinstance(entry, Lines)}
        drf = named.get("drf")
        if drf is not None and drf.get("enableHierarchy") is True and "proportion" in named:
            sentence = f"drf with enableHierarchy and proportion stand both in tier {tier}; remove one"
            self._error(drf.line_of("enableHierarchy"), sentence)

    # Plug-ins

    def _plugin(self, entry: Any, tier: int, tier_line: int) -> Iterator[object]:
        """The plug-in of an entry, if it can be built."""
        name = entry.get("name") if isinstance(entry, Lines) else None
        line = entry.line if isinstance(entry, Lines) else tier_line
        if not isinstance(name, str) or not isinstance(entry, Lines):
            self._error(line, f"a plug-in of tier {tier} has no name")
            return
        if name in self._plugins:  # a file that Volcano takes
            before = self._plugins[name].line
            self._warn(line, f"plug-in {name} stands in line {before} already; keep one, for its opinion counts twice")
        switches, arguments = self._switches(entry), entry.get("arguments") or {}
        placed = Placed(line, tier, switches, frozenset(arguments if isinstance(arguments, dict) else ()))
        self._plugins.setdefault(name, placed)
        if not isinstance(arguments, dict):
            self._error(entry.line_of("arguments"), f"the arguments of {name} should be a mapping")
        elif name in PLUGINS:
            yield from self._built(name, arguments, switches, line)
        elif name in VOLCANO_PLUGINS:
            self._note(line, f"plug-in {name} is not built yet and is left out")
        else:
            self._warn(line, f"there is no plug-in {name}{hint(name, [*PLUGINS, *VOLCANO_PLUGINS])}; it is left out")

    def _built(self, name: str, arguments: Any, switches: Mapping[str, bool], line: int) -> Iterator[object]:
        given = {**arguments, "hierarchy": True} if switches.get("Hierarchy") else arguments
        if getattr(PLUGINS[name], "reads_metrics", False):
            given = {**given, "metrics.interval": f"{self.metrics.interval_s:g}s"}
        try:
            plugin, read = built(name, given)
        except ArgumentError as error:
            self._error(_argument_line(arguments, str(error), line), f"plug-in {name}: {error}")
            return
        for key in arguments:
            if read is not None and key not in read:
                at = arguments.line_of(key) if isinstance(arguments, Lines) else line
                if key in VOLCANO_ARGUMENTS.get(name, ()):
                    self._note(at, f"plug-in {name} has no use for {key} yet; it has no effect")
                    continue
                self._warn(at, f"plug-in {name} has no argument {key}{hint(key, sorted(read))}; it has no effect")
        yield switched(plugin, switches)

    def _switches(self, entry: Lines) -> Mapping[str, bool]:
        """The plug-in's enabled flags, in both of Volcano's spellings, without the prefix."""
        switches: dict[str, bool] = {}
        for key, value in entry.items():
            flag = key.removeprefix("enabled").removeprefix("enable") if key.startswith("enable") else ""
            if flag in SWITCHED_ON and isinstance(value, bool):
                switches[flag] = value
                if not value and flag in CANNOT_BE_SWITCHED_OFF:
                    sentence = f"{key}: false at {entry.get('name')} changes nothing: {CANNOT_BE_SWITCHED_OFF[flag]}"
                    self._note(entry.line_of(key), sentence)
                if flag in NO_EFFECT:
                    sentence = f"{key} at {entry.get('name')} changes nothing: {NO_EFFECT[flag]}"
                    self._note(entry.line_of(key), sentence)
            elif flag in SWITCHED_ON:
                self._error(entry.line_of(key), f"{key} is {value!r}; true or false is expected")
            elif key not in _ENTRY_KEYS:
                self._warn(entry.line_of(key), f"a plug-in has no {key}{hint(key, _ENTRY_KEYS)}; it has no effect")
        return switches

    # Arguments of actions

    def _read_arguments(self) -> None:
        entries = self._document.get("configurations") or []
        line = self._line("configurations")
        if not isinstance(entries, list):
            self._error(line, "configurations should be a list of names with arguments")
            return
        for entry in entries:
            if not isinstance(entry, Lines) or not isinstance(entry.get("name"), str):
                self._error(getattr(entry, "line", line), "configurations should be a list of names with arguments")
                continue
            name = _SPELLINGS.get(entry["name"], entry["name"])
            arguments = entry.get("arguments") or Lines()
            if not isinstance(arguments, Lines):
                self._error(entry.line_of("arguments"), f"the arguments of action {name} should be a mapping")
            elif name not in ACTION_ARGUMENTS:
                self._warn(entry.line_of("name"), f"there is no action {name}{hint(name, ACTION_ARGUMENTS)}")
            else:
                self.arguments[name] = self._action_arguments(name, arguments)
                if self.actions and name in ACTIONS and name not in self.actions:
                    self._warn(
                        entry.line_of("name"), f"action {name} is not among the actions; its arguments have no effect"
                    )

    def _action_arguments(self, name: str, arguments: Lines) -> Mapping[str, Any]:
        kinds, values = ACTION_ARGUMENTS[name], dict[str, Any]()
        for key, value in arguments.items():
            line = arguments.lines[key]
            if key not in kinds:
                self._warn(line, f"action {name} has no argument {key}{hint(key, kinds)}; it has no effect")
            elif (number := _as_kind(kinds[key], value)) is None:
                expected = "true or false" if kinds[key] is bool else "a whole number from 0 up"
                self._error(line, f"action {name}: argument {key} is {value!r}; {expected} is expected")
            elif key == "maxDomains" and not number:
                self._warn(line, f"action {name}: argument maxDomains is 0; 8 domains are tried, as if it was left out")
            else:
                values[key] = number
                same, why = _WITHOUT_EFFECT.get(key, (number, ""))
                if number != same:
                    self._note(line, f"action {name}: argument {key} changes nothing: {why}")
        return values

    def look_for_foot_guns(self) -> None:
        """What parts have to say of one another, once each is right by itself."""
        if any(finding.severity is Severity.ERROR for finding in self.findings):
            return
        layout = Layout(
            actions=self.actions, actions_line=self._line("actions"), plugins=self._plugins,
            has_metrics="metrics" in self._document,
        )  # fmt: skip
        for advice in foot_guns(layout):
            (self._warn if advice.is_harmful else self._note)(advice.line, advice.sentence)

    # How it is told

    def _line(self, key: str) -> int:
        return self._document.lines.get(key, 1)

    def _error(self, line: int, sentence: str) -> None:
        self.findings.append(Finding(line, Severity.ERROR, sentence))

    def _warn(self, line: int, sentence: str) -> None:
        self.findings.append(Finding(line, Severity.WARNING, sentence))

    def _note(self, line: int, sentence: str) -> None:
        self.findings.append(Finding(line, Severity.NOTE, sentence))


def _as_kind(kind: type, value: Any) -> bool | int | None:
    """A value, also written as text; None if it is not of this kind."""
    text = str(value).strip().lower()
    if kind is bool:
        return {"true": True, "false": False}.get(text)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _argument_line(arguments: Any, sentence: str, line: int) -> int:
    """The line of the argument that a sentence is about."""
    if isinstance(arguments, Lines):
        return next((at for key, at in arguments.lines.items() if f"argument {key} " in sentence), line)
    return line
