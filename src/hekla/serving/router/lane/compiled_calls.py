# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# numba types what it compiles; annotations would be ignored.
"""What the fast lane's code cannot say in Python: calls of the kernel, bytes at addresses, many of them at once, and copying them.

The kernel is called by its own instruction, so that the code needs no library and errors come as negative numbers. Copying is an
instruction, too, as LLVM makes of a loop that copies a call of `memcpy`, which is not there.
"""

import platform
from typing import Any, Final

from llvmlite import ir
from numba import int64, types
from numba.extending import intrinsic

from hekla.serving.router.lane.compiled_for import why_unknown

_WORD, _BYTE = ir.IntType(64), ir.IntType(8)
IS_ARM: Final = platform.machine() == "aarch64"
IS_KNOWN: Final = why_unknown() is None
"""Whether the lane can be compiled here."""

(EPOLL_WAIT, EPOLL_CTL, CLOSE, WRITEV, RECV, SEND, CLOCK) = (
    (22, 21, 57, 66, 207, 206, 113) if IS_ARM else (232, 233, 3, 20, 45, 44, 228)
)
"""Their numbers: `epoll_pwait`, `recvfrom` and `sendto` where there are no others."""
EVENT_BYTES: Final = 16 if IS_ARM else 12
DATA_AT: Final = 8 if IS_ARM else 4
"""Of an event: its size, and where the number is that was given with the descriptor."""

_CALL: Final = (
    ("svc #0", "={x0},{x8},{x0},{x1},{x2},{x3},{x4},{x5},~{memory}")
    if IS_ARM
    else (
        "syscall",
        "={rax},{rax},{rdi},{rsi},{rdx},{r10},{r8},{r9},~{rcx},~{r11},~{memory},~{dirflag},~{fpsr},~{flags}",
    )
)
_COPY: Final = (
    (
        "1: cbz $2, 2f\nldrb w9, [$1], #1\nstrb w9, [$0], #1\nsub $2, $2, #1\nb 1b\n2:",
        "=r,=r,=r,0,1,2,~{x9},~{memory}",
    )
    if IS_ARM
    else ("rep movsb", "={rdi},={rsi},={rcx},0,1,2,~{memory},~{dirflag},~{fpsr},~{flags}")
)


_MANY_BYTES: Final = 32


@intrinsic
def _call(typingctx, number, a, b, c, d, e, f):
    """Call the kernel; what it returns, an error below 0."""

    def code(context, builder, signature, arguments):
        kind = ir.FunctionType(_WORD, [_WORD] * 7)
        return builder.call(ir.InlineAsm(kind, *_CALL, side_effect=True), arguments)

    return int64(*[int64] * 7), code


@intrinsic
def _copy(typingctx, to, source, count):
    """Copy bytes that do not overlap."""

    def code(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.LiteralStructType([_WORD] * 3), [_WORD] * 3)
        builder.call(ir.InlineAsm(kind, *_COPY, side_effect=True), arguments)
        return context.get_dummy_value()

    return types.void(int64, int64, int64), code


@intrinsic
def _byte(typingctx, address, index):
    """The byte at an address plus an index, as a number from 0 to 255."""

    def code(context, builder, signature, arguments):
        place = builder.inttoptr(builder.add(*arguments), _BYTE.as_pointer())
        return builder.zext(builder.load(place), _WORD)

    return int64(int64, int64), code


@intrinsic
def _set_byte(typingctx, address, index, value):
    """Write it."""

    def code(context, builder, signature, arguments):
        place = builder.inttoptr(builder.add(arguments[0], arguments[1]), _BYTE.as_pointer())
        builder.store(builder.trunc(arguments[2], _BYTE), place)
        return context.get_dummy_value()

    return types.void(int64, int64, int64), code


@intrinsic
def _is_quiet(typingctx, address):
    """Whether none of 32 bytes ends a string of JSON, escapes, is no character or more than ASCII."""

    def code(context, builder, signature, arguments):
        many = ir.VectorType(_BYTE, _MANY_BYTES)
        text = builder.load(builder.inttoptr(arguments[0], many.as_pointer()), align=1)
        loud = builder.icmp_signed("<", text, ir.Constant(many, [32] * _MANY_BYTES))  # from 128 on they are below 0
        for one in b'"\\':
            loud = builder.or_(loud, builder.icmp_signed("==", text, ir.Constant(many, [one] * _MANY_BYTES)))
        return builder.icmp_signed("==", builder.bitcast(loud, ir.IntType(32)), ir.Constant(ir.IntType(32), 0))

    return types.boolean(int64), code


@intrinsic
def _is_dull(typingctx, address):
    """Whether no event ends and no usage is told of in 32 bytes, behind which two more are read: no two line feeds, no `"us`."""

    def code(context, builder, signature, arguments):
        many = ir.VectorType(_BYTE, _MANY_BYTES)

        def has(at, one):
            place = builder.add(arguments[0], ir.Constant(_WORD, at))
            text = builder.load(builder.inttoptr(place, many.as_pointer()), align=1)
            return builder.icmp_signed("==", text, ir.Constant(many, [one] * _MANY_BYTES))

        ends = builder.and_(has(0, 10), has(1, 10))
        tells = builder.and_(builder.and_(has(0, 34), has(1, 117)), has(2, 115))
        found = builder.bitcast(builder.or_(ends, tells), ir.IntType(32))
        return builder.icmp_signed("==", found, ir.Constant(ir.IntType(32), 0))

    return types.boolean(int64), code


call: Any = _call
copy: Any = _copy
byte: Any = _byte
set_byte: Any = _set_byte
is_quiet: Any = _is_quiet
is_dull: Any = _is_dull
"""By names without types: in the code that calls them they have fewer arguments than here."""
