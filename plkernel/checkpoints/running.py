"""Where a running layer computes its decays: the argument of a function of torch, and how it is overheard.

What is asked of a layer is what it hands to softplus, sigmoid or exp: the bias with what the input adds to it. So one
line serves every module that computes a family's decays, however it is written, and no code of a model is changed.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


@dataclass(frozen=True)
class Argument:
    """The first argument of a function of torch, which for every token takes the place of a static tensor.

    role       of the static tensor
    functions  by name; whichever of them a module of this family calls
    time       the dimension of the tokens; calls where it has another length are not meant
    call       which of the calls that are left, from 0; None for all of them, each of some of the channels
    """

    role: str
    functions: tuple[str, ...]
    time: int = 1
    call: int | None = 0


class _Overheard(TorchFunctionMode):
    """Hands the name and the first argument of each function of torch to whoever listens at the moment."""

    def __init__(self) -> None:
        super().__init__()
        self.listener: Callable[[str, Tensor], None] | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.listener is not None and args and isinstance(args[0], Tensor):
            self.listener(getattr(func, "__name__", ""), args[0])
        return func(*args, **(kwargs or {}))


@contextmanager
def overheard(modules: Mapping[nn.Module, Argument], tokens: int) -> Iterator[dict[nn.Module, list[Tensor]]]:
    """The arguments (T,...) that these modules give their functions, in order, while one sequence of T tokens runs."""
    found: dict[nn.Module, list[Tensor]] = {module: [] for module in modules}

    def listen(module: nn.Module, name: str, value: Tensor) -> None:
        wanted = modules[module]
        if name in wanted.functions and value.dim() > 2 and value.shape[0] == 1 and value.shape[wanted.time] == tokens:
            found[module].append(value.detach().movedim(wanted.time, 0)[:, 0])

    def begin(module: nn.Module, _: Any) -> None:
        mode.listener = partial(listen, module)

    def end(*_: Any) -> None:
        mode.listener = None

    with ExitStack() as stack:
        mode = stack.enter_context(_Overheard())
        for module in modules:
            stack.callback(module.register_forward_pre_hook(begin).remove)
            stack.callback(module.register_forward_hook(end).remove)
        yield found
