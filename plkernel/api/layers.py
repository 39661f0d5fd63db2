"""Write placed decays and projections into a layer of anybody's."""

import numbers
from typing import TYPE_CHECKING, Any

import numpy as np

from plkernel.analysis.nodes import check_numbers, check_numbers_or_none

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from plkernel.analysis.nodes import Nodes
    from plkernel.models.power_law import Parametrisation
    from plkernel.models.spectrum import Ordered


def apply(
    nodes: "Nodes",
    decays: "Tensor | Ordered",
    projection: "Tensor | None" = None,
    *,
    parametrisation: "Parametrisation | Callable[[Tensor], Tensor] | None" = None,
    dt_bias: "Tensor | float | None" = None,
    a_log: "Tensor | float | None" = None,
    gate_bias: "Tensor | float | None" = None,
    bound: "Tensor | float | None" = None,
    cap: "Tensor | float | None" = None,
    log_step: "Tensor | float | None" = None,
    dim: int = -1,
    match: "Nodes | None" = None,
    max_lag: float | None = None,
) -> None:
    """Write nodes into a layer in place: decays a = exp(-rate), and its projection.

    Slice i of the projection is multiplied by multiplier i.

    decays           (N,), or with N as its last dimension; or a `plkernel.models.spectrum.Ordered`,
                     whose channels take the nodes in its order
    projection       the matrix that reads the N states, (out, N) as in torch.nn.Linear; None leaves
                     it as it is
    parametrisation  how the layer computes its decays from this tensor: a name such as log_rate or
                     a_log, of those that `plkernel.models.init.decays_` explains, or a function
                     from the tensor to its decays a, as `plkernel.watch` takes it
    dt_bias, a_log, gate_bias, bound, cap, log_step
                     what the parametrisation needs or takes beside the tensor, as a_log needs
                     dt_bias
    dim              the dimension of `projection` that counts the states
    match            scale so that the output is as large as with these nodes
    max_lag          the longest lag that matters, in steps: warn if most half-lives are longer

    Both are the tensors that the layer stores, or views of them: of a layer under weight_norm or
    another parametrization its `original`, not what is computed from it.

    Raises ValueError for a tensor without parametrisation, a function that is not monotonic or does
    not reach the decays, `match` without a projection, sizes that differ, a decay that is 0 or 1 in
    the type of the tensor, and a tensor that is computed from parameters, in which the numbers
    would be lost; one computed under `torch.no_grad`, or from parameters that are not trained,
    cannot be told. The projection is only touched after the decays.
    """
    from plkernel.analysis.nodes import warn_outlasting
    from plkernel.analysis.parametrisations import FORMS
    from plkernel.models.power_law import check_writable, decays_, projection_
    from plkernel.models.spectrum import Ordered

    check_numbers(numbers.Integral, dim=dim)
    check_numbers_or_none(max_lag=max_lag)
    if max_lag is not None and not max_lag > 0:
        raise ValueError(f"max_lag must be above 0, got {max_lag}")
    _check_nodes("nodes", nodes)
    if match is not None:
        _check_nodes("match", match)
        if projection is None:
            raise ValueError(
                "match scales the projection, got no projection; give the matrix that reads the"
                " states, or leave match out"
            )
    check_writable("decays", decays)
    if isinstance(decays, Ordered):
        nodes = decays.arranged(nodes)
    if projection is not None:
        check_writable("projection", projection)
    options: dict[str, Any] = {
        "dt_bias": dt_bias,
        "a_log": a_log,
        "gate_bias": gate_bias,
        "bound": bound,
        "cap": cap,
        "log_step": log_step,
    }
    for name, option in options.items():
        if option is not None:
            _check_given(name, option)
    if not isinstance(parametrisation, str) and not callable(parametrisation):
        raise ValueError(
            "parametrisation must say how the layer computes its decays from this tensor: one of"
            f" {', '.join(FORMS)}, such as a_log for A_log of Mamba, Mamba-2 and gated delta nets,"
            " with dt_bias; or a function from the tensor to its decays, such as lambda x:"
            " torch.sigmoid(x)"
        )
    if max_lag is not None:
        warn_outlasting(nodes.half_lives(), max_lag)
    decays_(decays, nodes, parametrisation, **options)
    if projection is not None:
        projection_(projection, nodes, dim=dim, match=match)


def _check_nodes(name: str, value: Any) -> None:
    """ValueError unless `value` is nodes."""
    from plkernel.analysis.nodes import Nodes

    if not isinstance(value, Nodes):
        raise ValueError(
            f"{name} must be nodes, as plkernel.place gives them, got {type(value).__name__}"
        )


def _check_given(name: str, value: Any) -> None:
    """ValueError unless `value` is a finite number, or a tensor or array of these."""
    from torch import Tensor, as_tensor, strided

    if hasattr(value, "to_local"):
        raise ValueError(
            f"{name} must be a whole tensor, got one in shards; give its full_tensor()"
        )
    if isinstance(value, Tensor) and value.is_meta:
        raise ValueError(f"{name} must hold numbers, got a tensor on the meta device")
    if not isinstance(value, Tensor | np.ndarray):
        check_numbers(**{name: value})
    try:
        held = value if isinstance(value, Tensor) else as_tensor(value, device="cpu")
    except TypeError:
        raise ValueError(f"{name} must be numbers, got {value.dtype}") from None
    held = held.detach()
    if held.layout is not strided:
        raise ValueError(f"{name} must be a dense tensor, got a sparse one")
    got = None
    if not held.numel():
        got = "none"
    elif held.is_complex():
        got = str(held.dtype)
    elif not bool(held.double().isfinite().all()):
        got = "NaN or infinite ones"
    if got is not None:
        raise ValueError(f"{name} must be one or more finite numbers, got {got}")
