"""The router's settings in the environment, as Kthena's deployments give them: numbers and Go durations, within bounds."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from hekla.lib.go_duration import DurationError, parse_duration

DAY_S = 86_400.0


class VariableError(Exception):
    """A variable that cannot be read; the sentence names it, its value and what is expected."""


@dataclass(frozen=True)
class Reader:
    """Reads variables that begin with a prefix; an empty one counts as absent."""

    environment: Mapping[str, str]
    prefix: str = ""

    def text(self, name: str, default: str) -> str:
        """A variable as it stands."""
        return self.environment.get(self.prefix + name, "") or default

    def number(self, name: str, default: float, *, least: float = 0.0, most: float = 1e12) -> float:
        """A number within bounds."""
        text = self.text(name, "")
        try:
            value = float(text) if text else default
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise VariableError(f'{self.prefix}{name} "{text}" must be a number from {least:g} to {most:g}')
        return value

    def seconds(self, name: str, default: float, *, least: float = 0.0, most: float = DAY_S) -> float:
        """A duration within bounds, in seconds."""
        text = self.text(name, "")
        try:
            value = parse_duration(text) if text else timedelta(seconds=default)
        except DurationError as error:
            raise VariableError(f"{self.prefix}{name}: {error}") from error
        if not least <= value.total_seconds() <= most:
            raise VariableError(f'{self.prefix}{name} "{text}" must be a duration of {least:g}s to {most:g}s')
        return value.total_seconds()

    def flag(self, name: str, *, default: bool = False) -> bool:
        """True or false, as Go reads it."""
        text = self.text(name, "").lower()
        if text not in _FLAGS:
            raise VariableError(f'{self.prefix}{name} "{text}" must be "true" or "false"')
        return _FLAGS[text] if text else default


_FLAGS = {"": False, "1": True, "t": True, "true": True, "0": False, "f": False, "false": False}
