"""YAML from strangers: whatever is wrong with it is a YAMLError, of which PyYAML keeps only most of its own promises.

A value that is not what its tag says (`!!bool x`, `!!timestamp x`, `!!int ''`) leaves PyYAML as KeyError, AttributeError or IndexError, and one
that is nested a hundred thousand deep takes the process with it.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import yaml

from hekla.lib.yaml_depth import is_too_deep

Result = TypeVar("Result")

PLAIN: type[yaml.CSafeLoader | yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(text: str | bytes, loader: Any = PLAIN) -> Any:
    """The one document of a text; yaml.YAMLError if it cannot be read."""
    return _kept(text, lambda: yaml.load(text, Loader=loader))


def load_all(text: str | bytes, loader: Any = PLAIN) -> list[Any]:
    """All documents of a text; yaml.YAMLError if one cannot be read."""
    return _kept(text, lambda: list(yaml.load_all(text, Loader=loader)))


def _kept(text: str | bytes, read: Callable[[], Result]) -> Result:
    if is_too_deep(text if isinstance(text, bytes) else text.encode(errors="replace")):
        raise yaml.YAMLError("it is nested too deeply")
    try:
        return read()
    except UnicodeDecodeError:
        raise yaml.YAMLError("it is not text in UTF-8") from None
    except ValueError as error:
        raise yaml.YAMLError(str(error)) from None
    except (LookupError, AttributeError, TypeError, OverflowError):
        raise yaml.YAMLError("a value is not what its tag says; leave tags such as !!bool out") from None
