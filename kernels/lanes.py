"""Vectors of LANES numbers for compiled loops: what numba would find by itself if it could tell its
arrays apart.

Every array of a kernel may overlap every other as far as the compiler knows, so it neither keeps
numbers in registers from step to step nor turns a short loop into vector instructions. These few
operations say both. A vector has the type of the array it comes from, float32 or float64, and is
rounded to that of the array it is stored in. Beside them stand a counter that threads share and the
flag by which a processor takes subnormal numbers for zero.
"""

import inspect
import math
import platform
from collections.abc import Callable
from typing import Any, NamedTuple

import numba
from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic, models, register_model

LANES = 16
_INDEX = ir.IntType(32)
_WORD: Any = ir.IntType(types.intp.bitwidth)  # type: ignore[attr-defined]
_TYPES = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}
_config: Any = numba.config
_FEATURES = (_config.CPU_FEATURES or binding.get_host_cpu_features().flatten()).split(",")
"""Of the processor that is compiled for."""
_LN2 = 0.6931471803691238
"""So short that n times it is exact."""
_LN2_REST = 1.9082149292705877e-10
"""log 2 minus _LN2."""


def _tile_bytes() -> int:
    """Bytes of vectors that a tile may keep in registers.

    Half of them all: the others are for what comes and goes.
    """
    if "+avx512f" in _FEATURES:
        return 16 * 64
    if "+avx2" in _FEATURES:
        return 8 * 32
    return 8 * 16


_TILE_BYTES = _tile_bytes()
_X86 = platform.machine().lower() in ("x86_64", "amd64")


class _Lanes(types.Type):
    def __init__(self, element: Any) -> None:
        self.element = element
        super().__init__(name=f"Lanes({element}, {LANES})")


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _vector(fe_type.element))


class _Array(NamedTuple):
    """A contiguous array as an operation sees it."""

    element: Any
    data: Any


def _operation(result: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Make an intrinsic of a function that emits instructions for a builder and the values of its
    arguments.

    result: the numba type of what it gives, by the types of its arguments, each an array, a vector
    or a number; an array reaches the function as an `_Array`.
    """

    def decorate(emit: Callable[..., Any]) -> Any:
        def define(typingctx: Any, *kinds: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                given = [
                    _Array(kind.dtype, context.make_array(kind)(context, builder, value).data)
                    if isinstance(kind, types.Array)
                    else value
                    for kind, value in zip(signature.args, values, strict=True)
                ]
                emitted = emit(builder, *given)
                return context.get_dummy_value() if emitted is None else emitted

            arguments = [types.intp if isinstance(kind, types.Integer) else kind for kind in kinds]
            return result(*kinds)(*arguments), generate

        first, *rest = inspect.signature(emit).parameters.values()
        define.__signature__ = inspect.Signature([first.replace(name="typingctx"), *rest])  # type: ignore[attr-defined]
        define.__name__ = emit.__name__
        define.__doc__ = emit.__doc__
        return intrinsic(define)

    return decorate


def _vector(element: Any) -> Any:
    return ir.VectorType(_TYPES[element], LANES)


def _read(builder: Any, pointer: Any, element: Any) -> Any:
    return builder.load(
        builder.bitcast(pointer, _vector(element).as_pointer()), align=element.bitwidth // 8
    )


def _write(builder: Any, x: Any, pointer: Any, element: Any) -> None:
    place = builder.bitcast(pointer, _vector(element).as_pointer())
    builder.store(_converted(builder, x, element), place, align=element.bitwidth // 8)


def _converted(builder: Any, x: Any, element: Any) -> Any:
    vector = _vector(element)
    if x.type == vector:
        return x
    return builder.fptrunc(x, vector) if element.bitwidth == 32 else builder.fpext(x, vector)


def _everywhere(builder: Any, number: Any) -> Any:
    vector = ir.VectorType(number.type, LANES)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), number, _INDEX(0))
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), _mask([0] * LANES))


def _mask(lanes: Any) -> Any:
    lanes = list(lanes)
    return ir.Constant(ir.VectorType(_INDEX, len(lanes)), lanes)


def _fused(builder: Any, x: Any, y: Any, z: Any) -> Any:
    return builder.fadd(builder.fmul(x, y, flags=("contract",)), z, flags=("contract",))


@_operation(lambda array, *kinds: _Lanes(array.dtype))
def load(builder: Any, array: Any, index: Any) -> Any:
    """The vector at array.flat[index:index + LANES], of a contiguous array."""
    return _read(builder, builder.gep(array.data, [index]), array.element)


@_operation(lambda *kinds: types.void)
def store(builder: Any, array: Any, index: Any, x: Any) -> None:
    """array.flat[index:index + LANES] = x"""
    _write(builder, x, builder.gep(array.data, [index]), array.element)


@_operation(lambda x, array: _Lanes(array.dtype))
def convert(builder: Any, x: Any, array: Any) -> Any:
    """x rounded or widened to the type of the array."""
    return _converted(builder, x, array.element)


@_operation(_Lanes)
def spread(builder: Any, number: Any) -> Any:
    """The number in every lane."""
    return _everywhere(builder, number)


@_operation(lambda array, *kinds: _Lanes(array.dtype))
def spread_from(builder: Any, array: Any, index: Any) -> Any:
    """array.flat[index] in every lane."""
    return _everywhere(builder, builder.load(builder.gep(array.data, [index])))


@_operation(lambda array, *kinds: _Lanes(array.dtype))
def zeros(builder: Any, array: Any) -> Any:
    """0 in every lane, of the type of the array."""
    return ir.Constant(_vector(array.element), [0.0] * LANES)


@_operation(lambda x, *kinds: x)
def multiply_below(builder: Any, x: Any, lane: Any, y: Any) -> Any:
    """x * y in the lanes before `lane`, and x in the others."""
    below = builder.icmp_signed(
        "<", _mask(range(LANES)), _everywhere(builder, builder.trunc(lane, _INDEX))
    )
    # A product that is stored in part would have to be waited for.
    one = ir.Constant(x.type, [1.0] * LANES)
    return builder.fmul(x, builder.select(below, y, one))


@_operation(lambda x, *kinds: x)
def add(builder: Any, x: Any, y: Any) -> Any:
    """x + y"""
    return builder.fadd(x, y)


@_operation(lambda x, *kinds: x)
def multiply(builder: Any, x: Any, y: Any) -> Any:
    """x * y"""
    return builder.fmul(x, y)


@_operation(lambda x, *kinds: x)
def multiply_add(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z, in one rounding where the processor has such an instruction."""
    return _fused(builder, x, y, z)


@_operation(lambda x: x.element)
def total(builder: Any, x: Any) -> Any:
    """The sum of all lanes, halves first: always in the same order."""
    count = LANES
    while count > 1:
        count //= 2
        parts = (_mask(range(count)), _mask(range(count, 2 * count)))
        x = builder.fadd(*(builder.shuffle_vector(x, x, part) for part in parts))
    return builder.extract_element(x, _INDEX(0))


@_operation(lambda x, *kinds: x)
def exponential(builder: Any, x: Any) -> Any:
    """e**x of float64 x <= 0 within some 2e-16 of it; 0 below -708, where float64 ends.

    x = n ln 2 + f with integer n and |f| <= ln 2 / 2, and e**f by its series.
    """

    def number(value: float) -> Any:
        return ir.Constant(_vector(types.float64), [value] * LANES)

    whole = ir.VectorType(ir.IntType(64), LANES)
    least, shift = number(-708.0), number(1.5 * 2.0**52)  # added to n, it leaves n in the last bits
    dead = builder.fcmp_ordered("<", x, least)
    x = builder.select(dead, least, x)
    shifted = builder.fadd(builder.fmul(x, number(math.log2(math.e))), shift)
    n = builder.fsub(shifted, shift)
    f = _fused(builder, n, number(-_LN2), x)
    f = _fused(builder, n, number(-_LN2_REST), f)
    result = number(1 / math.factorial(13))
    for power in range(12, -1, -1):
        result = _fused(builder, result, f, number(1 / math.factorial(power)))
    bits = builder.shl(builder.bitcast(shifted, whole), ir.Constant(whole, [52] * LANES))
    scale = builder.bitcast(builder.add(bits, ir.Constant(whole, [1023 << 52] * LANES)), x.type)
    return builder.select(dead, number(0.0), builder.fmul(result, scale))


@_operation(lambda *kinds: types.void)
def transpose(builder: Any, a: Any, a_at: Any, a_step: Any, b: Any, b_at: Any, b_step: Any) -> None:
    """A square of LANES rows from a.flat[a_at:], a_step apart, into b.flat[b_at:], b_step apart, as
    its columns.
    """
    rows = [
        _read(builder, pointer, a.element) for pointer in _rows(builder, a, a_at, a_step, LANES)
    ]
    distance = LANES // 2
    while distance:
        low = _mask(i if not i & distance else LANES + i - distance for i in range(LANES))
        high = _mask(i + distance if not i & distance else LANES + i for i in range(LANES))
        for i in range(LANES):
            if not i & distance:
                pair = rows[i], rows[i + distance]
                rows[i], rows[i + distance] = (
                    builder.shuffle_vector(*pair, mask) for mask in (low, high)
                )
        distance //= 2
    for x, pointer in zip(rows, _rows(builder, b, b_at, b_step, LANES), strict=True):
        _write(builder, x, pointer, b.element)


def _rows(builder: Any, array: Any, at: Any, step: Any, count: int) -> Any:
    """Pointers to `count` places of an array: from `at` on, `step` apart."""
    pointer = builder.gep(array.data, [at])
    for _ in range(count):
        yield pointer
        pointer = builder.gep(pointer, [step])


def _rows_in_tile(element: Any, columns: int) -> int:
    return min(LANES // columns, max(1, _TILE_BYTES // (columns * LANES * element.bitwidth // 8)))


def _tile(columns: int) -> tuple[Any, Any]:
    """Return the operation on a tile of so many vectors side by side, and that which gives its
    number of rows.
    """

    @_operation(lambda *kinds: types.intp)
    def tile_rows(builder: Any, array: Any) -> Any:
        """Number of rows of a tile of the array's type: a divisor of LANES."""
        return ir.Constant(_WORD, _rows_in_tile(array.element, columns))

    @_operation(lambda *kinds: types.void)
    def tile(
        builder: Any,
        c: Any,
        c_at: Any,
        c_step: Any,
        a: Any,
        a_at: Any,
        a_step: Any,
        b: Any,
        b_at: Any,
        b_step: Any,
        count: Any,
    ) -> None:
        """c[i, j] = sum of a[p, i] b[p, j] over p < count, for as many i as a tile has rows, summed
        in registers.

        Each array is contiguous; its part begins at flat[at], and its rows are `step` apart.
        """
        size = _rows_in_tile(c.element, columns)
        vector = _vector(c.element)
        a_pointer = builder.gep(a.data, [a_at])
        b_pointer = builder.gep(b.data, [b_at])
        before = builder.block
        loop = builder.append_basic_block("steps")
        builder.branch(loop)
        builder.position_at_end(loop)
        p, *sums = (builder.phi(x) for x in (count.type, *[vector] * size * columns))
        a_row = builder.gep(a_pointer, [builder.mul(p, a_step)])
        b_row = builder.gep(b_pointer, [builder.mul(p, b_step)])
        line = [
            _read(builder, builder.gep(b_row, [_INDEX(LANES * j)]), c.element)
            for j in range(columns)
        ]
        more = []
        for i in range(size):
            weight = _everywhere(builder, builder.load(builder.gep(a_row, [_INDEX(i)])))
            more += [_fused(builder, weight, x, sums[i * columns + j]) for j, x in enumerate(line)]
        following = builder.add(p, count.type(1))
        after = builder.append_basic_block("summed")
        builder.cbranch(builder.icmp_signed("<", following, count), loop, after)
        p.add_incoming(count.type(0), before)
        p.add_incoming(following, loop)
        for old, new in zip(sums, more, strict=True):
            old.add_incoming(ir.Constant(vector, [0.0] * LANES), before)
            old.add_incoming(new, loop)
        builder.position_at_end(after)
        for i, pointer in enumerate(_rows(builder, c, c_at, c_step, size)):
            for j in range(columns):
                _write(
                    builder,
                    more[i * columns + j],
                    builder.gep(pointer, [_INDEX(LANES * j)]),
                    c.element,
                )

    return tile, tile_rows


tile, tile_rows = _tile(1)
wide_tile, wide_tile_rows = _tile(2)


@_operation(lambda *kinds: types.intp)
def take(builder: Any, counter: Any) -> Any:
    """counter[0], left one higher; no two threads are given the same number."""
    return builder.atomic_rmw("add", counter.data, ir.Constant(ir.IntType(64), 1), "monotonic")


@_operation(lambda *kinds: types.intp)
def flush_subnormals(builder: Any) -> Any:
    """Have this thread take numbers below the normal range for zero, with which x86 is slow; what
    `restore` needs.
    """
    if not _X86:
        return ir.Constant(_WORD, 0)
    place = builder.alloca(_INDEX)
    _control_word(builder, "stmxcsr", place)
    before = builder.load(place)
    builder.store(builder.or_(before, ir.Constant(_INDEX, 0x8040)), place)
    _control_word(builder, "ldmxcsr", place)
    return builder.zext(before, _WORD)


@_operation(lambda *kinds: types.void)
def restore(builder: Any, word: Any) -> None:
    """Undo `flush_subnormals`."""
    if _X86:
        place = builder.alloca(_INDEX)
        builder.store(builder.trunc(word, _INDEX), place)
        _control_word(builder, "ldmxcsr", place)


def _control_word(builder: Any, instruction: str, place: Any) -> None:
    byte = ir.IntType(8).as_pointer()
    name = f"llvm.x86.sse.{instruction}"
    kind = ir.FunctionType(ir.VoidType(), [byte])
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    builder.call(function, [builder.bitcast(place, byte)])
