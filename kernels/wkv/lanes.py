"""Vectors of LANES float64 for compiled loops: what numba would find by itself if it could tell its arrays apart.

Every array of a kernel may overlap every other as far as the compiler knows, so it neither keeps a row of the state
in registers from step to step nor turns a short loop into vector instructions. These few operations say both.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

LANES = 16
_operation: Any = intrinsic  # a call of one, seen by a type checker, is that of the function it decorates
_VECTOR = ir.VectorType(ir.DoubleType(), LANES)


class _Lanes(types.Type):
    def __init__(self) -> None:
        super().__init__(name=f"Lanes{LANES}")


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _VECTOR)


_LANES = _Lanes()


def _address(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), _VECTOR.as_pointer())


@_operation
def load(typingctx: Any, array: Any, index: Any) -> Any:
    """The vector at array.flat[index:index + LANES], of a contiguous float64 array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_address(context, builder, signature.args[0], *arguments), align=8)

    return _LANES(array, types.intp), generate


@_operation
def store(typingctx: Any, array: Any, index: Any, x: Any) -> Any:
    """array.flat[index:index + LANES] = x"""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[2], _address(context, builder, signature.args[0], *arguments[:2]), align=8)
        return context.get_dummy_value()

    return types.void(array, types.intp, _LANES), generate


@_operation
def spread(typingctx: Any, number: Any) -> Any:
    """The number in every lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), arguments[0], ir.Constant(ir.IntType(32), 0))
        mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return builder.shuffle_vector(one, ir.Constant(_VECTOR, ir.Undefined), mask)

    return _LANES(types.float64), generate


@_operation
def multiply(typingctx: Any, x: Any, y: Any) -> Any:
    """x * y"""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fmul(*arguments)

    return _LANES(_LANES, _LANES), generate


@_operation
def multiply_add(typingctx: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z, in one rounding where the processor has such an instruction."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, y, z = arguments
        return builder.fadd(builder.fmul(x, y, flags=("contract",)), z, flags=("contract",))

    return _LANES(_LANES, _LANES, _LANES), generate


@_operation
def total(typingctx: Any, x: Any) -> Any:
    """The sum of all lanes, halves first: always in the same order."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, count = arguments[0], LANES
        while count > 1:
            count //= 2
            low, high = (
                builder.shuffle_vector(x, x, ir.Constant(ir.VectorType(ir.IntType(32), count), list(part)))
                for part in (range(count), range(count, 2 * count))
            )
            x = builder.fadd(low, high)
        return builder.extract_element(x, ir.Constant(ir.IntType(32), 0))

    return types.float64(_LANES), generate
