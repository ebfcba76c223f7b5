"""The package `cel`, without its command line.

Importing `cel` imports `cel.cli`, and with it prompt_toolkit and pygments: 100 ms of a start that may take 1500, for
something a server never uses. An empty module in its place costs nothing. Everything here imports `cel` from this
module; `cel_rules.py` compiles and runs rules, `cel_library.py` has Kubernetes' functions.
"""

import sys
from types import ModuleType

_was_absent = "cel" not in sys.modules and "cel.cli" not in sys.modules
if _was_absent:
    sys.modules["cel.cli"] = ModuleType("cel.cli")

import cel  # noqa: E402 - only now is the command line out of the way
from cel import stdlib  # noqa: E402 - likewise

if _was_absent:
    del sys.modules["cel.cli"]  # who wants the command line still gets the real one

__all__ = ["cel", "stdlib"]
