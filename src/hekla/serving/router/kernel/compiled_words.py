# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# numba types what it compiles; annotations would be ignored.
"""Numbers at addresses, for the compiled decision: read and written where they stand.

No arrays, whose counting of references would be calls into numba's own library, which is not there where the code runs.
"""

from typing import Any, Final

from llvmlite import ir
from numba import float64, int64, types, uint64
from numba.extending import intrinsic

OPTIONS: Final[dict[str, Any]] = {"error_model": "numpy", "_nrt": False}
"""Of all that is compiled: a division by zero is infinite, and nothing is allocated."""


def _reader(kind, llvm, bits, shift):
    """A function that reads the number at an address plus an index; narrower ones are widened."""

    @intrinsic
    def read(typingctx, address, index):
        def code(context, builder, signature, arguments):
            place = builder.inttoptr(_place(builder, arguments, shift), llvm.as_pointer())
            found = builder.load(place, align=1)
            return builder.sext(found, ir.IntType(64)) if bits == 32 else found

        return kind(int64, int64), code

    return read


def _writer(kind, llvm, bits, shift):
    """A function that writes a number at an address plus an index."""

    @intrinsic
    def write(typingctx, address, index, value):
        def code(context, builder, signature, arguments):
            place = builder.inttoptr(_place(builder, arguments, shift), llvm.as_pointer())
            value = arguments[2]
            builder.store(builder.trunc(value, llvm) if bits == 32 else value, place, align=1)
            return context.get_dummy_value()

        return types.void(int64, int64, kind), code

    return write


def _place(builder, arguments, shift):
    return builder.add(arguments[0], builder.shl(arguments[1], ir.Constant(ir.IntType(64), shift)))


word, set_word = (make(int64, ir.IntType(64), 64, 3) for make in (_reader, _writer))
double, set_double = (make(float64, ir.DoubleType(), 64, 3) for make in (_reader, _writer))
half, set_half = (make(int64, ir.IntType(32), 32, 2) for make in (_reader, _writer))
at_byte, set_at_byte = (make(uint64, ir.IntType(64), 64, 0) for make in (_reader, _writer))
