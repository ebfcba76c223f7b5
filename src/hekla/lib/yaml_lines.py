"""YAML whose mappings know the lines of their keys, so that a complaint about a file can say where to look."""

from typing import Any

import yaml

MOST_BYTES = 1 << 20
"""A configuration file is a few dozen lines; a larger one is not read."""


class YamlError(ValueError):
    """Text that is not the YAML we take; the sentence goes with `line`."""

    def __init__(self, line: int, sentence: str) -> None:
        super().__init__(sentence)
        self.line = line


class Lines(dict[str, Any]):
    """A YAML mapping that knows the lines of itself and of its keys."""

    line = 0
    lines: dict[str, int]

    def line_of(self, key: str) -> int:
        """The line of a key; the mapping's own where there is no such key."""
        return self.lines.get(key, self.line)


class _Loader(yaml.SafeLoader):
    """SafeLoader that keeps lines, and refuses a key that stands twice."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> Lines:
    result = Lines()
    result.line, result.lines = node.start_mark.line + 1, {}
    for key_node, value_node in node.value:
        key = str(loader.construct_object(key_node, deep=True))
        line = key_node.start_mark.line + 1
        if key in result:
            raise YamlError(line, f'"{key}" stands here a second time; keep one')
        result[key] = loader.construct_object(value_node, deep=True)
        result.lines[key] = line
    return result


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_mapping(text: str, expected: str) -> Lines:
    """The mapping that a text is; YamlError, with a sentence that ends in `expected`, if it is none."""
    if len(text) > MOST_BYTES:
        raise YamlError(1, f"the file has more than {MOST_BYTES} characters; no more are read")
    try:
        document = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        raise YamlError(line, f"not readable as YAML: {getattr(error, 'problem', None) or error}") from error
    except RecursionError:
        raise YamlError(1, "the file is nested too deeply") from None
    except ValueError as error:  # a YamlError, or a value such as the date 2026-02-31
        raise error if isinstance(error, YamlError) else YamlError(1, f"not readable as YAML: {error}") from None
    except (LookupError, AttributeError, TypeError, OverflowError):  # so PyYAML says that `!!bool x` is no bool
        raise YamlError(
            1, "not readable as YAML: a value is not what its tag says; leave tags such as !!bool out"
        ) from None
    if not isinstance(document, Lines):
        raise YamlError(0, expected)
    return document
