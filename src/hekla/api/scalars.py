"""The scalar shapes that Kubernetes' kinds share, and how a field's name is spelled on the wire.

`hekla.lib.quantity` knows what a quantity is worth; here it is text, as in the objects.
"""

from collections.abc import Callable

IntOrString = int | str
"""A number, or a name or a percentage."""


def wire_names(**exceptions: str) -> Callable[[str], str]:
    """A renaming for Structs: camelCase, except for the names given (`pod_ip="podIP"`)."""

    def rename(field: str) -> str:
        return exceptions.get(field) or _camel(field)

    return rename


def _camel(field: str) -> str:
    head, *rest = field.split("_")
    return head + "".join(part.capitalize() for part in rest)
