"""Subnormal numbers taken for zero while a kernel runs, which on x86 are slow to compute with."""

import platform
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_operation: Any = intrinsic  # a call of one, seen by a type checker, is that of the function it decorates
_X86 = platform.machine().lower() in ("x86_64", "amd64")


@_operation
def flush_subnormals(typingctx: Any) -> Any:
    """Have this thread take numbers below the normal range for zero; what `restore` needs to undo it.

    Elsewhere than on x86 this does nothing.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if not _X86:
            return ir.Constant(ir.IntType(32), 0)
        place = _control_word(builder, "stmxcsr")
        before = builder.load(place)
        builder.store(builder.or_(before, ir.Constant(before.type, 0x8040)), place)
        _control_word(builder, "ldmxcsr", place)
        return before

    return types.uint32(), generate


@_operation
def restore(typingctx: Any, word: Any) -> Any:
    """Undo `flush_subnormals`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if _X86:
            place = builder.alloca(ir.IntType(32))
            builder.store(arguments[0], place)
            _control_word(builder, "ldmxcsr", place)
        return context.get_dummy_value()

    return types.void(types.uint32), generate


def _control_word(builder: Any, instruction: str, place: Any = None) -> Any:
    place = builder.alloca(ir.IntType(32)) if place is None else place
    byte = ir.IntType(8).as_pointer()
    name = f"llvm.x86.sse.{instruction}"
    function = builder.module.globals.get(name) or ir.Function(
        builder.module, ir.FunctionType(ir.VoidType(), [byte]), name
    )
    builder.call(function, [builder.bitcast(place, byte)])
    return place
