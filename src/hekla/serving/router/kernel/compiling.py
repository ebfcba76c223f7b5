"""Writes the object code of all that is compiled: the decision (`compiled.py`) and the fast lane (`lane/compiled_pump.py`).

Only the child that compiles imports this (`loading.py`).
"""

import sys
from collections.abc import Iterable
from typing import Any

from llvmlite import binding

from hekla.serving.router.kernel.compiled import EXPORTS
from hekla.serving.router.kernel.functions import LANE_SHAPES, SHAPES
from hekla.serving.router.kernel.loading import machine
from hekla.serving.router.kernel.object_code import undefined_symbols
from hekla.serving.router.lane import compiled_calls


def main(descriptor: int) -> None:
    """Write the object code to an open file, after a line of each function's name in it."""
    exports, shapes = _exports()
    module = binding.parse_assembly(exports[0].inspect_llvm())
    names = [exports[0].native_name]
    for one in exports[1:]:
        names.append(one.native_name)
        module.link_in(binding.parse_assembly(one.inspect_llvm()))
    close(module, names)
    code = machine().emit_object(module)
    if left := {*_declared(module), *undefined_symbols(code)}:
        sys.exit(f"the compiled decision would call {', '.join(sorted(left))}, which a router without numba has not")
    told = "\n".join(f"{one} {name}" for one, name in zip(shapes, names, strict=True))
    with open(descriptor, "wb") as file:
        file.write(told.encode() + b"\n\n" + code)


def _exports() -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """The functions and their names; without the fast lane where it does not know how the kernel is called."""
    if not compiled_calls.IS_KNOWN:
        return EXPORTS, tuple(SHAPES)
    binding.initialize_native_target()
    binding.initialize_native_asmparser()  # the kernel's calls are written in the processor's own words
    from hekla.serving.router.lane.compiled_pump import LANE

    return (*EXPORTS, *LANE), (*SHAPES, *LANE_SHAPES)


def close(module: Any, names: Iterable[str]) -> None:
    """Let nothing but these be called from outside, and optimize once more.

    numba's wrappers look whether a function raised, and raise that by calls into numba and Python. Once each function can be
    called by its wrapper alone, LLVM sees that none ever does, and drops these calls.
    """
    for one in (*module.functions, *module.global_variables):
        if not (one.is_declaration or one.name in names or one.name.startswith("llvm.")):
            one.linkage = "internal"
    passes = binding.create_pass_builder(machine(), binding.create_pipeline_tuning_options(speed_level=2))
    passes.getModulePassManager().run(module, passes)


def _declared(module: Any) -> Iterable[str]:
    """What another module has to bring; LLVM's own functions are instructions."""
    found = (one.name for one in (*module.functions, *module.global_variables) if one.is_declaration)
    return (name for name in found if not name.startswith("llvm."))
