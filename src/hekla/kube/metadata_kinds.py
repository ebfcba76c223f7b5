"""Any kind at all, seen by its metadata alone: for work on kinds that are known only at run time. Pure.

`discovery.py` finds out which kinds a server has.
"""

import types
from functools import lru_cache
from typing import Any, cast

from hekla.api.meta import Kind, Resource


@lru_cache(maxsize=4096)
def metadata_only(kind: Kind) -> type[Resource]:
    """A class for any kind that decodes type and metadata, and nothing else."""
    made = types.new_class(kind.kind, (Resource,), {}, lambda namespace: namespace.update(kind_info=kind))
    return cast(Any, made)  # type: ignore[no-any-return]  # a class made at run time
