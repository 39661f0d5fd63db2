"""Vectors of LANES numbers for compiled loops: what numba would find by itself if it could tell its arrays apart.

Every array of a kernel may overlap every other as far as the compiler knows, so it neither keeps numbers in registers
from step to step nor turns a short loop into vector instructions. These few operations say both. A vector has the type
of the array it comes from, float32 or float64, and is rounded to that of the array it is stored in.
"""

import math
from typing import Any

import numba
from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic, models, register_model

LANES = 16
_operation: Any = intrinsic  # a call of one, seen by a type checker, is that of the function it decorates
_INDEX = ir.IntType(32)
_TYPES = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}
_config: Any = numba.config
_FEATURES = (_config.CPU_FEATURES or binding.get_host_cpu_features().flatten()).split(",")  # of what is compiled for
_LN2, _LN2_REST = 0.6931471803691238, 1.9082149292705877e-10  # the first so short that n times it is exact
# bytes of vectors that a tile may keep in registers: half of them all, the others are for what comes and goes
_TILE_BYTES = 16 * 64 if "+avx512f" in _FEATURES else 8 * 32 if "+avx2" in _FEATURES else 8 * 16


class _Lanes(types.Type):
    def __init__(self, element: Any) -> None:
        self.element = element
        super().__init__(name=f"Lanes({element}, {LANES})")


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _vector(fe_type.element))


def _vector(element: Any) -> Any:
    return ir.VectorType(_TYPES[element], LANES)


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [index])


def _read(builder: Any, pointer: Any, element: Any) -> Any:
    return builder.load(builder.bitcast(pointer, _vector(element).as_pointer()), align=element.bitwidth // 8)


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


@_operation
def load(typingctx: Any, array: Any, index: Any) -> Any:
    """The vector at array.flat[index:index + LANES], of a contiguous array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _read(builder, _pointer(context, builder, signature.args[0], *arguments), array.dtype)

    return _Lanes(array.dtype)(array, types.intp), generate


@_operation
def store(typingctx: Any, array: Any, index: Any, x: Any) -> Any:
    """array.flat[index:index + LANES] = x"""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], *arguments[:2])
        _write(builder, arguments[2], pointer, array.dtype)
        return context.get_dummy_value()

    return types.void(array, types.intp, x), generate


@_operation
def convert(typingctx: Any, x: Any, array: Any) -> Any:
    """x rounded or widened to the type of the array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _converted(builder, arguments[0], array.dtype)

    return _Lanes(array.dtype)(x, array), generate


@_operation
def spread(typingctx: Any, number: Any) -> Any:
    """The number in every lane."""
    return _Lanes(number)(number), lambda context, builder, signature, arguments: _everywhere(builder, arguments[0])


@_operation
def spread_from(typingctx: Any, array: Any, index: Any) -> Any:
    """array.flat[index] in every lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _everywhere(builder, builder.load(_pointer(context, builder, signature.args[0], *arguments)))

    return _Lanes(array.dtype)(array, types.intp), generate


@_operation
def zeros(typingctx: Any, array: Any) -> Any:
    """0 in every lane, of the type of the array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(_vector(array.dtype), [0.0] * LANES)

    return _Lanes(array.dtype)(array), generate


@_operation
def multiply_below(typingctx: Any, x: Any, lane: Any, y: Any) -> Any:
    """x * y in the lanes before `lane`, and x in the others."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, lane, y = arguments
        below = builder.icmp_signed("<", _mask(range(LANES)), _everywhere(builder, builder.trunc(lane, _INDEX)))
        one = ir.Constant(x.type, [1.0] * LANES)  # a product that is stored in part would have to be waited for
        return builder.fmul(x, builder.select(below, y, one))

    return x(x, types.intp, x), generate


@_operation
def add(typingctx: Any, x: Any, y: Any) -> Any:
    """x + y"""
    return x(x, x), lambda context, builder, signature, arguments: builder.fadd(*arguments)


@_operation
def multiply(typingctx: Any, x: Any, y: Any) -> Any:
    """x * y"""
    return x(x, x), lambda context, builder, signature, arguments: builder.fmul(*arguments)


@_operation
def multiply_add(typingctx: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z, in one rounding where the processor has such an instruction."""
    return x(x, x, x), lambda context, builder, signature, arguments: _fused(builder, *arguments)


@_operation
def total(typingctx: Any, x: Any) -> Any:
    """The sum of all lanes, halves first: always in the same order."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, count = arguments[0], LANES
        while count > 1:
            count //= 2
            parts = (_mask(range(count)), _mask(range(count, 2 * count)))
            x = builder.fadd(*(builder.shuffle_vector(x, x, part) for part in parts))
        return builder.extract_element(x, _INDEX(0))

    return x.element(x), generate


@_operation
def exponential(typingctx: Any, x: Any) -> Any:
    """e**x of float64 x <= 0 within some 2e-16 of it; 0 below -708, where float64 ends.

    x = n ln 2 + f with integer n and |f| <= ln 2 / 2, and e**f by its series.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def number(value: float) -> Any:
            return ir.Constant(_vector(types.float64), [value] * LANES)

        whole = ir.VectorType(ir.IntType(64), LANES)
        least, shift = number(-708.0), number(1.5 * 2.0**52)  # added to n, it leaves n in the last bits
        dead = builder.fcmp_ordered("<", arguments[0], least)
        x = builder.select(dead, least, arguments[0])
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

    return x(x), generate


@_operation
def transpose(typingctx: Any, a: Any, a_at: Any, a_step: Any, b: Any, b_at: Any, b_step: Any) -> Any:
    """A square of LANES rows from a.flat[a_at:], a_step apart, into b.flat[b_at:], b_step apart, as its columns."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        a_type, b_type = signature.args[0], signature.args[3]
        rows = list(_rows(context, builder, a_type, arguments[:3], LANES))
        rows = [_read(builder, pointer, a.dtype) for pointer in rows]
        distance = LANES // 2
        while distance:
            low = _mask(i if not i & distance else LANES + i - distance for i in range(LANES))
            high = _mask(i + distance if not i & distance else LANES + i for i in range(LANES))
            for i in range(LANES):
                if not i & distance:
                    pair = rows[i], rows[i + distance]
                    rows[i], rows[i + distance] = (builder.shuffle_vector(*pair, mask) for mask in (low, high))
            distance //= 2
        for x, pointer in zip(rows, _rows(context, builder, b_type, arguments[3:], LANES), strict=True):
            _write(builder, x, pointer, b.dtype)
        return context.get_dummy_value()

    return types.void(a, types.intp, types.intp, b, types.intp, types.intp), generate


def _rows(context: Any, builder: Any, array_type: Any, part: Any, count: int) -> Any:
    """Pointers to `count` places of part = (array, at, step): from `at` on, `step` apart."""
    array, at, step = part
    pointer = _pointer(context, builder, array_type, array, at)
    for _ in range(count):
        yield pointer
        pointer = builder.gep(pointer, [step])


def _tile_rows(columns: int) -> Any:
    @_operation
    def tile_rows(typingctx: Any, array: Any) -> Any:
        """How many rows a tile of the array's type has: a divisor of LANES."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return context.get_constant(types.intp, _rows_in_tile(array.dtype, columns))

        return types.intp(array), generate

    return tile_rows


def _rows_in_tile(element: Any, columns: int) -> int:
    return min(LANES // columns, max(1, _TILE_BYTES // (columns * LANES * element.bitwidth // 8)))


def _tile(columns: int) -> Any:
    @_operation
    def tile(
        typingctx: Any, c: Any, c_at: Any, c_step: Any,
        a: Any, a_at: Any, a_step: Any, b: Any, b_at: Any, b_step: Any, count: Any,
    ) -> Any:  # fmt: skip
        """c[i, j] = sum of a[p, i] b[p, j] over p < count, for as many i as a tile has rows, summed in registers.

        Each array is contiguous; its part begins at flat[at], and its rows are `step` apart.
        """

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            size, vector = _rows_in_tile(c.dtype, columns), _vector(c.dtype)
            a_pointer = _pointer(context, builder, signature.args[3], *arguments[3:5])
            b_pointer = _pointer(context, builder, signature.args[6], *arguments[6:8])
            count = arguments[9]
            before, loop = builder.block, builder.append_basic_block("steps")
            builder.branch(loop)
            builder.position_at_end(loop)
            p, *sums = (builder.phi(x) for x in (count.type, *[vector] * size * columns))
            a_row = builder.gep(a_pointer, [builder.mul(p, arguments[5])])
            b_row = builder.gep(b_pointer, [builder.mul(p, arguments[8])])
            line = [_read(builder, builder.gep(b_row, [_INDEX(LANES * j)]), c.dtype) for j in range(columns)]
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
            for i, pointer in enumerate(_rows(context, builder, signature.args[0], arguments[:3], size)):
                for j in range(columns):
                    _write(builder, more[i * columns + j], builder.gep(pointer, [_INDEX(LANES * j)]), c.dtype)
            return context.get_dummy_value()

        numbers = types.intp
        return types.void(c, numbers, numbers, a, numbers, numbers, b, numbers, numbers, numbers), generate

    return tile


tile, tile_rows = _tile(1), _tile_rows(1)
wide_tile, wide_tile_rows = _tile(2), _tile_rows(2)  # of two vectors side by side
