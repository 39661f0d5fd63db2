"""What rounding allows: the bound that results of a kernel are held to, on any processor."""

import torch
from torch import Tensor

UNIT = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
LOST = 2.0**-110  # numbers below 2**-126 may be taken for zero, and then be multiplied and summed
LOST_HALF = 2.0**-25  # half the distance of float16 below 2**-14


def magnitudes(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """The problem with absolute values, in float64; decays, and their logarithms, stay."""
    return {name: x.double() if name in ("a", "log_decay") else x.double().abs() for name, x in given.items()}


def excess(
    found: Tensor, exact: Tensor, size: Tensor, roundings: float, arithmetic: torch.dtype = torch.float32
) -> float:
    """The largest error of a result as a part of what rounding allows: at most 1, NaN where nothing was written.

    Args:
        found: the result, in the dtype it is stored in, which is one rounding more.
        exact: the same in float64.
        size: A, the result for absolute values.
        roundings: n, of a term in the dtype of the arithmetic.
        arithmetic: its dtype.
    """
    stored = UNIT[found.dtype] * exact.abs() + (LOST_HALF if found.dtype == torch.float16 else LOST)
    allowed = roundings * UNIT[arithmetic] * size * (1 + UNIT[found.dtype]) + stored
    errors = (found.double() - exact).abs() / allowed
    return float(errors.max()) if errors.numel() else 0.0


def scan_roundings(time: int, float32_steps: int = 0) -> float:
    """n of the scan: two roundings a step in float64, and in float32 for so many steps; a product, a sum, a store."""
    return 2 * float32_steps + 4 + 2 * time * UNIT[torch.float64] / UNIT[torch.float32]


def wkv_roundings(chunk: int, keys: int, values: int) -> int:
    """n of WKV in chunks, in the arithmetic of a chunk; the carry between chunks is wider.

    A term passes the decays of a chunk at most twice, a sum over its steps twice (the gradient of ln w, over steps
    before and after), a sum over keys, one over values, and at most 16 products and stores.
    """
    return 4 * chunk + keys + values + 16


def wkv7_roundings(chunk: int, keys: int, values: int) -> int:
    """n of WKV-7: as of WKV, for sums over the steps of a chunk, over what two of them wrote, keys and values."""
    return 4 * chunk + 2 * keys + values + 16


def wkv7_sizes(given: dict[str, Tensor], chunk: int) -> dict[str, Tensor]:
    """What one rounding of every term makes of each result of WKV-7 at most, to first order, in float64.

    Absolute values all the way would grow like (1 + |a||b|)**T where the state does not. So a step's errors are taken
    from absolute values within its chunk, and go on from there through the transitions diag(w) + a b^T as they are.
    """
    w, (r, k, v, a, b, go) = (
        given["log_decay"].double().exp(),
        (given[x].double() for x in ("r", "k", "v", "a", "b", "grad_out")),
    )
    ends = [t for t in range(r.shape[1]) if (t + 1) % chunk == 0 or t + 1 == r.shape[1]]
    exact, wrong, terms = _trajectory(w, a, b, k, v, given["state"].double(), ends)
    nothing, starts = torch.zeros_like(w[:, :1]), [t for t in range(r.shape[1] + 1) if t % chunk == 0]
    later = [r.shape[1] - t for t in reversed(starts)]  # steps back in time, the last of which has no output
    back = _trajectory(
        torch.cat([nothing + 1, w.flip(1)], 1), torch.cat([nothing, b.flip(1)], 1), torch.cat([nothing, a.flip(1)], 1),
        torch.cat([r.flip(1), nothing], 1), torch.cat([go.flip(1), torch.zeros_like(go[:, :1])], 1),
        given["grad_last"].double(), later,
    )  # fmt: skip
    grad, grad_wrong, grad_terms = (x[:, 1:].flip(1) for x in back)  # of the state before the first step and after each
    wrong, terms, grad_wrong, grad_terms = wrong + terms, terms, grad_wrong + grad_terms, grad_terms
    before, after, into = slice(None, -1), slice(1, None), slice(1, None)
    read = torch.einsum("bthvk,bthk->bthv", exact[:, before], a)
    read_wrong = torch.einsum("bthvk,bthk->bthv", wrong[:, before], a.abs())
    grad_read = torch.einsum("bthvk,bthk->bthv", grad[:, into], b)
    grad_read_wrong = torch.einsum("bthvk,bthk->bthv", grad_wrong[:, into], b.abs())
    of_values, of_keys = "bthvk,bthk->bthv", "bthvk,bthv->bthk"
    both = terms[:, before] * grad_wrong[:, into] + wrong[:, before] * grad_terms[:, into]
    return {
        "out": torch.einsum(of_values, wrong[:, after], r.abs()),
        "last": wrong[:, -1],
        "grad_r": torch.einsum(of_keys, wrong[:, after], go.abs()),
        "grad_log_decay": w * both.sum(-2),
        "grad_k": torch.einsum(of_keys, grad_wrong[:, into], v.abs()),
        "grad_v": torch.einsum(of_values, grad_wrong[:, into], k.abs()),
        "grad_a": torch.einsum(of_keys, wrong[:, before], grad_read.abs())
        + torch.einsum(of_keys, exact[:, before].abs(), grad_read_wrong),
        "grad_b": torch.einsum(of_keys, grad_wrong[:, into], read.abs())
        + torch.einsum(of_keys, grad[:, into].abs(), read_wrong),
        "grad_state": grad_wrong[:, 0],
    }


def _trajectory(
    w: Tensor, a: Tensor, b: Tensor, k: Tensor, v: Tensor, state: Tensor, ends: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """S_0 to S_T (B,T+1,H,V,K), the errors they have from before, and the sums of absolute terms they are made of.

    Chunks end after the steps `ends`; the terms of a chunk are those since its start, beside the state then.
    """
    states, errors, terms = [state], [torch.zeros_like(state)], [state.abs()]
    written = torch.zeros_like(state)
    sources: list[tuple[Tensor, Tensor]] = []  # errors (B,H,V,J) and where they have got to (B,H,J,K)
    for t in range(w.shape[1]):
        w_t, a_t, b_t, k_t = (x[:, t, :, None] for x in (w, a, b, k))
        v_t = v[:, t, :, :, None]
        sources = [(size, path * w_t + (path * a_t).sum(-1, keepdim=True) * b_t) for size, path in sources]
        read = (states[-1] * a_t).sum(-1, keepdim=True)
        sources.append(((terms[-1] * a_t.abs()).sum(-1, keepdim=True), b_t))
        added = read.abs() * b_t.abs() + v_t.abs() * k_t.abs()
        carried = states[-1].abs() * torch.minimum(w_t, 1 - w_t)
        written, sum_ = written * w_t + added, terms[-1] * w_t + added
        states.append(states[-1] * w_t + read * b_t + v_t * k_t)
        if t in ends:
            sources.append((written + carried, torch.eye(w.shape[-1], dtype=w.dtype).expand(*w.shape[::2], -1, -1)))
            written, sum_ = torch.zeros_like(written), states[-1].abs()
        errors.append(sum(size @ path.abs() for size, path in sources))
        terms.append(sum_)
    return tuple(torch.stack(x, 1) for x in (states, errors, terms))
