"""Parts of the kernels of the scan in Triton: the place of a program, a step, powers of a fixed
decay, loading rows.

Channels lie on lanes; a row is one step of all channels of a program.
"""

# The language of the kernels is Triton, not typed Python:
# mypy: disallow-untyped-defs=False, disable-error-code="assignment"

import triton
import triton.language as tl


@triton.jit
def serial_place(D, LANES: tl.constexpr, AS_ROW: tl.constexpr = False):
    """Batch row, and channels (LANES), or (1,LANES) AS_ROW, of a program that takes all steps."""
    blocks = tl.cdiv(D, LANES)
    program = tl.program_id(0)
    first = (program % blocks) * LANES
    channel = first + (tl.arange(0, LANES)[None, :] if AS_ROW else tl.arange(0, LANES))
    batch = (program // blocks).to(tl.int64)
    return batch, channel


@triton.jit
def step(carry, decay, x, REVERSE: tl.constexpr):
    """The value at one step, and the carry that leaves it: h and h, or in reverse g and a * g."""
    if REVERSE:
        value = x + carry
        left = decay * value
    else:
        value = decay * carry + x
        left = value
    return value, left


@triton.jit
def fixed_decay(pointer, lanes, count, FIXED: tl.constexpr, ROWS: tl.constexpr):
    """A fixed decay, and in float64 its powers ROWS and count % ROWS: the factors of a whole and of
    the last group. Zeros unless FIXED.
    """
    fixed, whole, part = 0.0, 0.0, 0.0
    if FIXED:
        fixed = tl.load(pointer, mask=lanes, other=0.0).to(tl.float32)
        whole = tl.full(fixed.shape, 1.0, tl.float64)
        part = whole
        for i in tl.static_range(ROWS):
            whole = whole * fixed.to(tl.float64)
            part = tl.where(i < count % ROWS, whole, part)
    return fixed, whole, part


@triton.jit
def load_rows(
    pointer, stride, left, fill: tl.constexpr, ROWS: tl.constexpr, TYPE: tl.constexpr = tl.float32
):
    """The next ROWS rows, `stride` numbers apart, and `fill` from `left` on; in TYPE, as arithmetic
    in a half type is wrong in the interpreter.
    """
    rows = ()
    for i in tl.static_range(ROWS):
        row = tl.load(pointer + i * stride, mask=i < left, other=fill)
        rows = rows + (row.to(TYPE),)  # noqa: RUF005 - Triton does not unpack
    return rows
