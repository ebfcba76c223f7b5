"""Keeps the scheduler's configuration up to date while it runs: a file is looked at every second, a ConfigMap followed.

What is right takes effect at the next cycle. What is wrong changes nothing: the last good configuration stays, and a
sentence says why, in the log and, for a ConfigMap, as an event on it. A ConfigMap that exists goes before the file.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import structlog

from hekla.api.core import ConfigMap
from hekla.kube.commands import Event, target_of
from hekla.kube.informer import Informers
from hekla.lib.yaml_lines import MOST_BYTES
from hekla.scheduler.configuration import Configuration, ConfigurationError, parse_configuration

log = structlog.get_logger()

CONFIG_MAP, KEY = "volcano-scheduler-configmap", "volcano-scheduler.conf"
"""Where Volcano's charts keep the configuration, and under which key."""

PERIOD_S = 1.0
"""How often the file is looked at."""

REFUSED, TAKEN = "ConfigurationRefused", "ConfigurationTaken"

BUILT_IN = "the built-in default"


class LiveConfiguration:
    """The configuration in use, and where it comes from."""

    def __init__(
        self, text: str, *, file: Path | None = None, on_change: Callable[[], None] = lambda: None,
        record: Callable[[Event], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """`file`, if given, goes before `text`; raises ConfigurationError when what there is at first cannot be used."""
        self._file, self._on_change, self._record = file, on_change, record
        self._map: ConfigMap | None = None
        self._last = (text, BUILT_IN)
        if file is not None:
            self._last = read_file(file), str(file)
        self.current: Configuration = parse_configuration(self._last[0])
        self.source = self._last[1]
        """What the configuration in use was read from."""

        self.refusal = ""
        """Why the newest text is not in use; empty if it is."""

        self._tell_warnings()

    async def run(self, informers: Informers, namespace: str) -> None:
        """Follow the file and the ConfigMap of a namespace until cancelled."""
        chosen = informers.of(ConfigMap, namespace=namespace, field_selector=f"metadata.name={CONFIG_MAP}")
        chosen.add_handler(self._on_map)
        while self._file is not None:
            await asyncio.sleep(PERIOD_S)
            self.look()

    def look(self) -> None:
        """Take the file as it is now; where a ConfigMap has the word, what the file says is kept for later."""
        assert self._file is not None
        try:
            text = read_file(self._file)
        except ConfigurationError as error:
            if self._map is None:
                self._refuse(str(self._file), str(error))
            return
        if text == self._last[0]:
            return
        self._last = text, str(self._file)
        if self._map is None:
            self._take(*self._last)

    def _on_map(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        before = self._map.data.get(KEY) if self._map is not None else None
        self._map = new if new is not None and KEY in new.data else None
        if self._map is None:
            if before is not None:
                self._take(*self._last)
        elif self._map.data[KEY] != before:
            self._take(self._map.data[KEY], f"configmap {self._map.metadata.namespace}/{CONFIG_MAP}")

    def _take(self, text: str, source: str) -> None:
        """Put a text to use, if it can be used."""
        try:
            found = parse_configuration(text)
        except ConfigurationError as error:
            self._refuse(source, str(error))
            return
        is_news = (found.text, source) != (self.current.text, self.source)
        self.current, self.source, self.refusal = found, source, ""
        if is_news:
            log.info("scheduler configuration taken", source=source, actions=list(found.actions))
            self._tell_warnings()
            self._tell(TAKEN, f"in use from the next cycle on: {', '.join(found.actions)}", "Normal")
            self._on_change()

    def _refuse(self, source: str, why: str) -> None:
        """Leave everything as it is, and say why; once for each reason."""
        said = f"{source}: {why}; {self.source} stays in use"
        if said != self.refusal:
            self.refusal = said
            log.error("scheduler configuration refused", source=source, why=why, stays=self.source)
            self._tell(REFUSED, said, "Warning")

    def _tell(self, reason: str, message: str, kind: str) -> None:
        if self._map is not None:
            self._record(Event(target_of(self._map), reason, message, kind))

    def _tell_warnings(self) -> None:
        for warning in self.current.warnings:
            log.warning("scheduler configuration", source=self.source, warning=warning)


def read_file(file: Path) -> str:
    """A configuration file's text; ConfigurationError if it cannot be read."""
    try:
        with file.open(encoding="utf-8") as opened:
            return read_stream(opened)
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror}") from None


def read_stream(opened: TextIO) -> str:
    """The same of a file that is open; of an endless one no more than tells that it is too long."""
    try:
        return opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError("cannot be read: it is not text in UTF-8") from None
