"""The scan in Triton in one launch: each number is read once.

A program takes one tile: STEPS steps (a chunk) of LANES channels. It loads the tile into registers,
finds the carry that leaves the tile when none enters it (its end), publishes that, waits for the
carry that enters, and scans the registers again from there.

Chunks form groups. A chunk combines the ends of the chunks before it in its own group, which depend
on nothing, with the carry that leaves the group before, which the last chunk of that group
publishes. So only one wait in a group is for another wait ("hop"). What is combined, and in which
order, depends on the shapes alone, never on which program came first: results are reproducible bit
by bit. (A look-back that takes whatever carry it finds first is not.)

No deadlock: programs draw tickets, and a program waits only for smaller tickets, whose programs
have started. Tickets go through all channels before the next chunk, so that all chains advance.

Memory order: what programs exchange is one 64-bit word for each number, zero until it is there, the
bits of a float64 after that. The word is written by a relaxed atomic exchange and read by volatile
loads, which are single accesses at the level of the GPU; as the word itself says that it is there,
nothing else needs an order, and there are no fences. The sum of the gradients of a fixed decay is
the exception: see `_sum_in_order`.

Accuracy is that of `plkernel.kernels.scan.gpu`: float32 within ROWS steps, float64 from there on.
"""

# The language of the kernels is Triton, not typed Python:
# mypy: disallow-untyped-defs=False, disable-error-code="assignment"

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from plkernel.kernels.scan.steps import fixed_decay, load_rows, step

# Compiled once for all lengths: nothing is gained from knowing that one is 1 or a multiple of 16.
LENGTHS = ("B", "T", "chunks", "group", "length")
# Kernels get T and D twice, the second time as `length` and `stride`, for what they store. If the
# compiler knew that these are the same, it would keep the addresses and masks of all loads in
# registers until the stores: twice as many as the numbers themselves.


@triton.jit
def _take_ticket(counters, B, D, LANES: tl.constexpr):
    """Chunk, batch, block of channels and channels of the next tile to start."""
    blocks = tl.cdiv(D, LANES)
    ticket = tl.atomic_add(counters, 1, sem="relaxed", scope="gpu").to(tl.int32)
    chunk = ticket // (B * blocks)
    batch = (ticket // blocks) % B
    block = ticket % blocks
    channel = block * LANES + tl.arange(0, LANES)
    return chunk, batch, block, channel


@triton.jit
def _areas(exchange, B, D, chunks, group, FIXED: tl.constexpr):
    """Where the exchanged words lie: counters, carries (B,groups,D), ends and products
    (B,chunks,D).
    """
    groups = tl.cdiv(chunks, group)
    row = B.to(tl.int64) * D
    carries = exchange
    ends = carries + row * groups
    products = ends + row * chunks
    counters = ends + row * chunks * (1 if FIXED else 2)
    return counters, carries, ends, products


@triton.jit
def _publish(pointer, value, lanes):
    """Write numbers for other programs. 0.0 becomes the smallest float64, since zero says
    "not there".
    """
    bits = value.to(tl.int64, bitcast=True)
    bits = tl.where(bits == 0, 1, bits)
    tl.atomic_xchg(pointer, bits, mask=lanes, sem="relaxed", scope="gpu")


@triton.jit
def _peek(pointer, stride, left, ROWS: tl.constexpr):
    """The words of ROWS rows as they are now, and how many of the first `left` rows lack."""
    words = ()
    missing = tl.zeros(left.shape, tl.int32)
    for i in tl.static_range(ROWS):
        word = tl.load(pointer + i * stride, mask=i < left, other=1, volatile=True)
        words = words + (word,)  # noqa: RUF005 - Triton does not unpack
        missing += (word == 0).to(tl.int32)
    return words, tl.sum(missing, 0)


@triton.jit
def _await_rows(pointer, stride, left, fill: tl.constexpr, ROWS: tl.constexpr):
    """Wait for the first `left` of ROWS rows of published numbers; `fill` from there on."""
    words, missing = _peek(pointer, stride, left, ROWS)
    while missing > 0:
        words, missing = _peek(pointer, stride, left, ROWS)
    rows = ()
    for i in tl.static_range(ROWS):
        row = tl.where(i < left, words[i].to(tl.float64, bitcast=True), fill)
        rows = rows + (row,)  # noqa: RUF005 - Triton does not unpack
    return rows


@triton.jit
def _scan_parts(
    xs,
    decays,
    fixed,
    whole,
    part,
    count,
    REVERSE: tl.constexpr,
    FIXED: tl.constexpr,
    LANES: tl.constexpr,
    STEPS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The tile in parts of ROWS steps, each scanned from zero: ends in float32 and products of the
    decays; the end of the whole tile and its product (for a fixed decay that of all STEPS steps).
    """
    ends = ()
    products = ()
    end = tl.zeros([LANES], tl.float64)
    product = tl.full([LANES], 1.0, tl.float64)
    for first in tl.static_range(0, STEPS, ROWS):
        local = tl.zeros([LANES], tl.float32)
        factor = tl.full([LANES], 1.0, tl.float64)
        if FIXED:
            factor = tl.where(count >= first + ROWS, whole, tl.where(count > first, part, 1.0))
        for i in tl.static_range(ROWS):
            decay = tl.where(first + i < count, fixed, 1.0) if FIXED else decays[first + i]
            _, local = step(local, decay, xs[first + i], REVERSE)
            if not FIXED:
                factor = factor * decay.to(tl.float64)
        ends = ends + (local,)  # noqa: RUF005 - Triton does not unpack
        products = products + (factor,)  # noqa: RUF005
        end = factor * end + local.to(tl.float64)
        product = (whole if FIXED else factor) * product
    return ends, products, end, product


@triton.jit
def _publish_end(
    end,
    product,
    ends,
    products,
    batch,
    chunk,
    channel,
    lanes,
    D,
    chunks,
    group,
    FIXED: tl.constexpr,
):
    """Publish what this tile contributes, if a later chunk of its group will read it."""
    read = (chunk % group < group - 1) & (chunk < chunks - 1)
    index = (batch * chunks + chunk).to(tl.int64) * D + channel
    _publish(ends + index, end, lanes & read)
    if not FIXED:
        _publish(products + index, product, lanes & read)


@triton.jit
def _await_carry(
    end,
    product,
    first,
    carries,
    ends,
    products,
    batch,
    chunk,
    channel,
    lanes,
    D,
    chunks,
    group,
    FIXED: tl.constexpr,
    LANES: tl.constexpr,
    LOOK: tl.constexpr,
):
    """The carry that enters this tile. The last tile of a group publishes the one that leaves it.

    Chunks are combined LOOK at a time from the first of the group on.
    """
    place = chunk // group  # of the group in the sequence
    before = chunk % group  # chunks of the group before this one
    local = tl.zeros([LANES], tl.float64)
    factor = tl.full([LANES], 1.0, tl.float64)
    row = (batch * chunks + place * group).to(tl.int64) * D
    left = before
    while left > 0:
        wanted = tl.where(lanes, left, 0)
        locals_ = _await_rows(ends + row + channel, D, wanted, 0.0, LOOK)
        factors = () if FIXED else _await_rows(products + row + channel, D, wanted, 1.0, LOOK)
        for i in tl.static_range(LOOK):
            # A fixed decay has the same product in all chunks but the last one.
            decay = tl.where(i < left, product, 1.0) if FIXED else factors[i]
            local = decay * local + locals_[i]
            factor = decay * factor
        row += LOOK * D
        left -= LOOK

    groups = tl.cdiv(chunks, group)
    hop = carries + (batch * groups + place).to(tl.int64) * D + channel
    started = tl.load(
        first + batch.to(tl.int64) * D + channel, mask=lanes & (place == 0), other=0.0
    )
    entered = _await_rows(hop - D, D, tl.where(lanes & (place > 0), 1, 0), 0.0, 1)
    carry = tl.where(place > 0, entered[0], started.to(tl.float64))
    carry = factor * carry + local
    closes = (before == group - 1) & (chunk < chunks - 1)
    _publish(hop, product * carry + end, lanes & closes)
    return carry


@triton.jit(do_not_specialize=LENGTHS)
def _forward(
    a,
    b,
    state,
    exchange,
    h,
    last,
    B,
    T,
    D,
    chunks,
    group,
    length,
    stride,
    FIXED: tl.constexpr,
    LANES: tl.constexpr,
    STEPS: tl.constexpr,
    ROWS: tl.constexpr,
    LOOK: tl.constexpr,
):
    """Every h of a tile; the last chunk also writes the last state."""
    counters, carries, ends, products = _areas(exchange, B, D, chunks, group, FIXED)
    chunk, batch, _, channel = _take_ticket(counters, B, D, LANES)
    lanes = channel < D
    time = chunk * STEPS
    count = tl.minimum(T - time, STEPS)
    left = tl.where(lanes, count, 0)  # rows left to this lane
    tile = (batch.to(tl.int64) * T + time) * D + channel
    xs = load_rows(b + tile, D, left, 0.0, STEPS)
    decays = () if FIXED else load_rows(a + tile, D, left, 1.0, STEPS)
    fixed, whole, part = fixed_decay(a + channel, lanes, count, FIXED, ROWS)
    locals_, factors, end, product = _scan_parts(
        xs, decays, fixed, whole, part, count, False, FIXED, LANES, STEPS, ROWS
    )
    _publish_end(
        end, product, ends, products, batch, chunk, channel, lanes, D, chunks, group, FIXED
    )
    carry = _await_carry(
        end,
        product,
        state,
        carries,
        ends,
        products,
        batch,
        chunk,
        channel,
        lanes,
        D,
        chunks,
        group,
        FIXED,
        LANES,
        LOOK,
    )
    left = tl.where(lanes, tl.minimum(length - time, STEPS), 0)
    for first in tl.static_range(0, STEPS, ROWS):
        value = carry.to(tl.float32)
        for i in tl.static_range(first, first + ROWS):
            decay = fixed if FIXED else decays[i]
            value, _ = step(value, decay, xs[i], False)
            tl.store(h + tile + i * stride, value, mask=i < left)
        carry = factors[first // ROWS] * carry + locals_[first // ROWS].to(tl.float64)
    tl.store(last + batch.to(tl.int64) * D + channel, carry, mask=lanes & (chunk == chunks - 1))


@triton.jit(do_not_specialize=LENGTHS)
def _backward(
    a,
    grad_h,
    h,
    state,
    grad_last,
    exchange,
    parts,
    grad_a,
    grad_b,
    grad_state,
    B,
    T,
    D,
    chunks,
    group,
    length,
    stride,
    FIXED: tl.constexpr,
    LANES: tl.constexpr,
    STEPS: tl.constexpr,
    ROWS: tl.constexpr,
    LOOK: tl.constexpr,
):
    """grad_b_t = g_t, grad_a_t = g_t * h_{t-1} and grad_state = a_1 * g_1, from the last step on.

    For a fixed decay grad_a is (D,), and parts (B,chunks + groups,D) in float64 are its sums over
    each chunk and each group.
    """
    counters, carries, ends, products = _areas(exchange, B, D, chunks, group, FIXED)
    chunk, batch, block, channel = _take_ticket(counters, B, D, LANES)
    lanes = channel < D
    time = T - 1 - chunk * STEPS
    count = tl.minimum(time + 1, STEPS)
    left = tl.where(lanes, count, 0)  # rows left to this lane
    tile = (batch.to(tl.int64) * T + time) * D + channel
    xs = load_rows(grad_h + tile, -D, left, 0.0, STEPS)
    decays = () if FIXED else load_rows(a + tile, -D, left, 1.0, STEPS)
    fixed, whole, part = fixed_decay(a + channel, lanes, count, FIXED, ROWS)
    locals_, factors, end, product = _scan_parts(
        xs, decays, fixed, whole, part, count, True, FIXED, LANES, STEPS, ROWS
    )
    _publish_end(
        end, product, ends, products, batch, chunk, channel, lanes, D, chunks, group, FIXED
    )
    # On their way while this program waits for the carry.
    hs = load_rows(h + tile - D, -D, tl.minimum(left, time), 0.0, STEPS)
    before = tl.load(state + batch.to(tl.int64) * D + channel, mask=lanes, other=0.0).to(tl.float32)
    carry = _await_carry(
        end,
        product,
        grad_last,
        carries,
        ends,
        products,
        batch,
        chunk,
        channel,
        lanes,
        D,
        chunks,
        group,
        FIXED,
        LANES,
        LOOK,
    )
    left = tl.where(lanes, tl.minimum(length - chunk * STEPS, STEPS), 0)
    total = tl.zeros([LANES], tl.float64)
    for first in tl.static_range(0, STEPS, ROWS):
        into = carry.to(tl.float32)
        summed = tl.zeros([LANES], tl.float32)
        for i in tl.static_range(first, first + ROWS):
            decay = fixed if FIXED else decays[i]
            value, into = step(into, decay, xs[i], True)
            gradient = value * tl.where(time == i, before, hs[i])
            tl.store(grad_b + tile - i * stride, value, mask=i < left)
            if FIXED:
                summed += tl.where(i < left, gradient, 0.0)
            else:
                tl.store(grad_a + tile - i * stride, gradient, mask=i < left)
        carry = factors[first // ROWS] * carry + locals_[first // ROWS].to(tl.float64)
        total += summed.to(tl.float64)
    tl.store(
        grad_state + batch.to(tl.int64) * D + channel, carry, mask=lanes & (chunk == chunks - 1)
    )
    if FIXED:
        _sum_in_order(
            total,
            parts,
            grad_a,
            counters,
            batch,
            chunk,
            block,
            channel,
            lanes,
            B,
            D,
            chunks,
            group,
            LANES,
            LOOK,
        )


@triton.jit
def _sum_in_order(
    total,
    parts,
    grad_a,
    counters,
    batch,
    chunk,
    block,
    channel,
    lanes,
    B,
    D,
    chunks,
    group,
    LANES: tl.constexpr,
    LOOK: tl.constexpr,
):
    """Sum over chunks and batch: the program that arrives last in a group sums it from its first
    chunk to its last, and the one that arrives last of these sums the groups likewise. Nobody
    waits, and who sums does not change the sum.

    Memory order: a barrier puts all stores of a program before the atomic addition of one of its
    threads, which releases them to the GPU; who arrives last acquires them by that addition, whose
    result all threads get after a barrier. So their ordinary loads see what the others stored.
    """
    groups = tl.cdiv(chunks, group)
    blocks = tl.cdiv(D, LANES)
    place = chunk // group
    arrivals = counters + 1
    finished = arrivals + groups.to(tl.int64) * B * blocks
    sums = parts + B.to(tl.int64) * chunks * D + channel
    row = parts + (batch * chunks + place * group).to(tl.int64) * D + channel
    tl.store(row + (chunk % group) * D, total, mask=lanes)
    tl.debug_barrier()
    members = tl.minimum(chunks - place * group, group)
    own = (batch * groups + place) * blocks + block
    arrived = tl.atomic_add(arrivals + own, 1, sem="acq_rel", scope="gpu")
    if arrived == members - 1:
        summed = _sum_rows(row, D, members, lanes, LANES, LOOK)
        tl.store(sums + (batch * groups + place).to(tl.int64) * D, summed, mask=lanes)
        tl.debug_barrier()
        done = tl.atomic_add(finished + block, 1, sem="acq_rel", scope="gpu")
        if done == B * groups - 1:
            summed = _sum_rows(sums, D, B * groups, lanes, LANES, LOOK)
            tl.store(grad_a + channel, summed, mask=lanes)


@triton.jit
def _sum_rows(pointer, stride, count, lanes, LANES: tl.constexpr, LOOK: tl.constexpr):
    """The sum of `count` rows, from the first to the last."""
    total = tl.zeros([LANES], tl.float64)
    while count > 0:
        rows = load_rows(pointer, stride, tl.where(lanes, count, 0), 0.0, LOOK, tl.float64)
        for i in tl.static_range(LOOK):
            total += rows[i]
        pointer += LOOK * stride
        count -= LOOK
    return total


@dataclass(frozen=True)
class LookBack:
    """A plan of launches: the size of a tile and of a group.

    Args:
        lanes: channels of a program.
        warps: warps of a program; lanes / (32 * warps) channels lie in one thread.
        held: numbers of the tile that a thread holds in registers, of all tensors together.
        rows: steps in float32 between two carries in float64.
        look: chunks whose ends are loaded at once.
        hops: groups in a sequence, as long as they have at most `most` chunks; None makes every
            chunk a group (a plain chain).
        most: chunks of a group, at most: each of them reads the ends of all before it.
    """

    lanes: int = 128
    warps: int = 4
    held: int = 64
    rows: int = 16
    look: int = 4
    hops: int | None = 32
    most: int = 16

    def steps(self, tensors: int) -> int:
        """Steps of a tile of so many tensors: whole multiples of `rows`."""
        each = self.lanes // (32 * self.warps)
        return max(1, self.held // (tensors * each * self.rows)) * self.rows

    def group(self, chunks: int) -> int:
        """Chunks of a group: as few as `hops` allows, and no more than `most`."""
        return 1 if self.hops is None else min(self.most, triton.cdiv(chunks, self.hops))

    def constants(self, tensors: int, size: int = 0) -> dict[str, int]:
        """The constants of a kernel that holds so many tensors, of any `size` of numbers."""
        steps = self.steps(tensors)
        return {"LANES": self.lanes, "STEPS": steps, "ROWS": self.rows, "LOOK": self.look}

    @property
    def options(self) -> dict[str, Any]:
        """Options of the compiler for kernels. The fusion of a * h + b is asked for by name."""
        return {"num_warps": self.warps, "enable_fp_fusion": True}

    def forward(self, a: Tensor, b: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """h_t = a_t * h_{t-1} + b_t with h_0 = state; returns every h_t and the last one."""
        fixed = a.dim() == 1
        h = torch.empty_like(b)
        last = torch.empty_like(state)
        batch, time, channels = b.shape
        steps = self.steps(1 if fixed else 2)
        chunks = triton.cdiv(time, steps)
        group = self.group(chunks)
        programs = batch * chunks * triton.cdiv(channels, self.lanes)
        with torch.cuda.device_of(b):  # kernels are launched on the current device
            _forward[(programs,)](
                a,
                b,
                state,
                self._exchange(b, chunks, group, fixed),
                h,
                last,
                batch,
                time,
                channels,
                chunks,
                group,
                time,
                channels,
                FIXED=fixed,
                **self.constants(1 if fixed else 2),
                **self.options,
            )
        return h, last

    def backward(
        self, a: Tensor, state: Tensor, h: Tensor, grad_h: Tensor, grad_last: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """g_t = grad_h_t + a_{t+1} * g_{t+1}; gradients of a, b and the state."""
        fixed = a.dim() == 1
        grad_a, grad_b, grad_state = (torch.empty_like(x) for x in (a, h, state))
        batch, time, channels = h.shape
        steps = self.steps(2 if fixed else 3)
        chunks = triton.cdiv(time, steps)
        group = self.group(chunks)
        parts = grad_a  # not used for varying decays
        if fixed:
            rows = batch * (chunks + triton.cdiv(chunks, group))
            parts = h.new_empty((rows, channels), dtype=torch.float64)
        programs = batch * chunks * triton.cdiv(channels, self.lanes)
        with torch.cuda.device_of(h):  # kernels are launched on the current device
            _backward[(programs,)](
                a,
                grad_h,
                h,
                state,
                grad_last,
                self._exchange(h, chunks, group, fixed),
                parts,
                grad_a,
                grad_b,
                grad_state,
                batch,
                time,
                channels,
                chunks,
                group,
                time,
                channels,
                FIXED=fixed,
                **self.constants(2 if fixed else 3),
                **self.options,
            )
        return grad_a, grad_b, grad_state

    def _exchange(self, like: Tensor, chunks: int, group: int, fixed: bool) -> Tensor:
        """Zeroed words: what is published, the counter of tickets, and those of the sums."""
        batch, _, channels = like.shape
        groups = triton.cdiv(chunks, group)
        blocks = triton.cdiv(channels, self.lanes)
        published = batch * channels * (groups + chunks * (1 if fixed else 2))
        counters = 1 + (groups * batch + 1) * blocks
        return like.new_zeros(published + counters, dtype=torch.int64)
