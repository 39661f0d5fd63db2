"""Models that run on a text: how far back their predictions read, and the decays that the text
makes them take.

`probe` asks the predictions of any causal model. `observe` reads decays token by token, beside the
static ones that stand at the biases. The formula of a family is the same for both: its bias is
replaced by the bias with what the input adds. That sum is what a running layer hands to softplus,
sigmoid or exp, so one entry of the table of families serves every module of a family, however it is
written, and no code of a model is changed.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from plkernel.analysis.information.estimate import critical_value
from plkernel.common import cli
from plkernel.common.files import CHECKPOINT, CONFIG, load_json
from plkernel.context.measures import (
    INFORMED,
    Bytes,
    Means,
    Probe,
    by_position,
    lengths,
    moments,
    others,
)
from plkernel.data import corpora
from plkernel.data.windows import fixed_windows
from plkernel.decays.families import BY_INPUT, Argument, Floats
from plkernel.decays.rates import Layer, known_layers, quantiles
from plkernel.decays.tensors import HUB, of_tensors
from plkernel.probing.runs import UNTRAINED_CONTEXT, validation_text
from plkernel.training.checkpoint import open_model
from plkernel.training.evaluate import (
    Predict,
    check_lags,
    divergence,
    influence,
    logits_of,
    losses_per_byte,
    patch_of,
    predictor,
    token_losses,
    truncation,
)
from plkernel.training.foreign import without_gpu_code

ROUNDING = 1e-4
"""Share of the largest logit by which those before a replaced token may move, as by a convolution
through FFTs.
"""
TOKENISED = 1 << 22
"""Bytes of a text that become tokens, at most."""
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Levels of the quantiles of observed half-lives."""
MOST_RATES = 2**21
"""Rates kept of one layer; of a larger one, fewer tokens are looked at, evenly spaced."""


@dataclass(frozen=True)
class Target:
    """A causal model over the tokens of a text.

    predict tokens (B,T) to logits (B,T,V), encode bytes (n,) to tokens of `unit`; reads: bytes of a
    text that become tokens, at most; most: tokens that it takes; step: it starts anew at multiples
    of so many only; config: of a run.
    """

    model: nn.Module
    predict: Predict
    encode: Callable[[Bytes], NDArray[Any]]
    unit: str
    context: int
    reads: float = math.inf
    most: float = math.inf
    step: int = 1
    config: dict[str, Any] = field(default_factory=dict)

    def text(self, name: str | None) -> tuple[str, Bytes]:
        """Name and bytes of the corpus `name`, all of it, or else of the validation text of the
        run.
        """
        if name is not None:
            return name, corpora.load(name).bytes
        known, data, _ = validation_text(self.config, None, "text")
        return f"validation text of {known}", data


def check_causal(predict: Predict, windows: Tensor, batch: int = 4, seed: int = 0) -> None:
    """Raise ValueError that names the place if logits are NaN, or those before a replaced token
    move.

    Of the first `batch` of `windows` (n,T+1), the last token that is given is replaced, the one
    before it, and two in the middle.
    """
    inputs = windows[:batch, :-1]
    length, known = inputs.shape[1], logits_of(predict, inputs)
    if not bool(known.isfinite().flatten(1).any(dim=1).all()) or bool(known.isnan().any()):
        raise ValueError("the logits of the model are not numbers: has its training diverged?")
    limit = ROUNDING * max(float(row[row.isfinite()].abs().max()) for row in known)
    rng = np.random.default_rng(seed)
    for place in sorted(
        {length - 1, length - 2, length // 2, length // 2 - 1} & set(range(1, length)), reverse=True
    ):
        changed = inputs.clone()
        changed[:, place] = torch.as_tensor(others(windows.numpy(), inputs[:, place].numpy(), rng))
        moved = (
            (logits_of(predict, changed) - known)[:, :place].nan_to_num_().abs_().amax(dim=(0, 2))
        )
        if len(seen := torch.nonzero(moved > limit)):
            raise ValueError(
                f"the model is not causal: replacing the token at position {place} of {length}"
                f" moves the logits at position {int(seen[-1])} by {float(moved[seen[-1]]):.2g};"
                " give a model that predicts each token from those before it"
            )


def probe(
    predict: Predict,
    windows: Tensor,
    lags: Sequence[int] | None = None,
    *,
    batch: int = 4,
    seed: int = 0,
    step: int = 1,
    unit: str = "token",
    bytes_per_token: float = 1.0,
) -> Probe:
    """Apply `influence`, `token_losses` and `truncation` to `windows` (n,T+1), after `check_causal`
    has passed.
    """
    known = check_lags(lags, windows.shape[1] - 1)
    check_causal(predict, windows, batch, seed)
    losses = token_losses(predict, windows, batch)
    return Probe(
        unit=unit,
        windows=len(windows),
        context=windows.shape[1] - 1,
        bytes_per_token=bytes_per_token,
        bits_per_token=float(losses.mean(dtype=np.float64)),
        influence=influence(predict, windows, known, batch, seed=seed),
        positions=by_position(losses),
        truncation=truncation(predict, windows, batch, step=step),
    )


def beyond(
    predict: Predict, windows: Tensor, context: int, batch: int = 4, step: int = 1
) -> tuple[Means, Means]:
    """Compare predictions with all tokens before and with the last `context`, the length of
    training, alone.

    For the latter the model starts anew every context / 2 tokens, and is given the last context / 2
    to `context`.
    Returns two means by position in `windows` (n,T+1), from `context` on: bits with all tokens less
    bits with the last alone, paired by token, and KL(all || last alone) of the predictions in bits.
    Memory: batch x T x V floats, V the alphabet.
    """
    length, half, rows = (
        windows.shape[1] - 1,
        max(step, context // 2 // step * step),
        list[Tensor](),
    )
    for chunk in windows.split(batch):
        whole, targets = logits_of(predict, chunk[:, :-1]), chunk[:, 1:]
        found = torch.zeros(2, *targets.shape, dtype=torch.float64)
        for start in range(half, length - context + half, half):
            to = slice(start + context - half, min(start + context, length))
            alone = logits_of(predict, chunk[:, start : to.stop])[:, context - half :]
            bits = (
                losses_per_byte(one, targets[:, to].to(one.device)) for one in (whole[:, to], alone)
            )
            found[0, :, to] = torch.sub(*bits).cpu()
            found[1, :, to] = divergence(whole[:, to], alone).cpu()
        rows.append(found)
    edges = [context, *(given for given in lengths(length) if given > context)]
    both = (
        np.stack([one[:, a:b].mean(axis=1) for a, b in pairwise(edges)])
        for one in torch.cat(rows, dim=1).numpy()
    )
    cost, apart = (Means(tuple(edges[1:]), *moments(one)) for one in both)
    return cost, apart


def render(result: Probe) -> str:
    """The quantities measured, their units, and a table: one row for every lag, or number of tokens
    given.
    """
    unit, per_token, text = result.unit, result.bytes_per_token, result.information
    near, along, cut, count = result.influence, result.positions, result.truncation, result.windows
    far, apart = result.cost, result.divergence
    columns = [
        ("influence", near.lags, near.bits, ".2e", near.standard_error, count),
        ("by position", along.given, along.bpb, ".4f", along.standard_error, count),
        ("given alone", cut.given, cut.bpb, ".4f", np.zeros(len(cut.bpb)), count),
        ("cost", cut.given, cut.cost, "+.4f", cut.standard_error, count),
        *([("reading on", far.given, far.bpb, "+.4f", far.standard_error, count)] if far else []),
        *(
            [("KL", apart.given, apart.bpb, ".2e", np.zeros(len(apart.bpb)), count)]
            if apart
            else []
        ),
        *(
            [("I(d) of the text", text.lags, text.bits, ".2e", text.standard_error, INFORMED)]
            if text
            else []
        ),
    ]
    cells: dict[int, dict[str, str]] = {}
    for name, places, values, form, errors, sample in columns:
        for at, value, reach in zip(
            places, values, critical_value(sample) * np.asarray(errors), strict=True
        ):
            interval = f" +- {reach:{form.lstrip('+')}}" if reach > 0 else ""
            cells.setdefault(at, {})[name] = f"{value:{form}}{interval}"
    head = [name for name, *_ in columns]
    rows = [[f"{at:,}", *(cells[at].get(name, "-") for name in head)] for at in sorted(cells)]
    whole = (
        f"{count:,} windows of {result.context:,} {unit}s: {result.bits_per_token:.4f} bits per"
        f" {unit}"
    )
    if unit != "byte":
        whole += (
            f", {result.bits_per_token / per_token:.4f} bits per byte; a token is {per_token:.2f}"
            " bytes"
        )
    words = (
        f"reading on: bits with all before less those with the last {result.trained} alone; KL: of"
        " both\n"
    )
    return f"""{whole}
influence: how far the prediction moves (KL, bits) when the {unit} so many before it is another
by position: bits per {unit} where so many {unit}s of the window come before, since the row above
given alone: bits at the last {unit} of each window when only so many are given; cost: against all
{words if far else ""}+-: 95 % intervals over windows, and of I(d) over blocks of the text

{cli.text_table([f"{unit}s", *head], rows)}"""


def observe_text(model: Path, text: str, tokens: int) -> tuple[str, dict[str, Any]]:
    """Run the model in a folder on the first windows of the corpus `text`, on the CPU: a table, and
    values for JSON.

    Half-lives at LEVELS, each one that occurs: static over channels, observed over tokens and
    channels. Raises ValueError if the model cannot run.
    """
    if str(model).startswith(HUB) or (model.is_file() and model.name != CHECKPOINT):
        raise ValueError(
            f"text needs a model that can run, as a folder with its tokenizer, which {model} is not"
        )
    target = open_target(model, torch.device("cpu"))
    name, data = target.text(text)
    read = target.encode(data)
    length = min(target.context, tokens, read.size)
    if length < 2:
        raise ValueError(f"text {name!r} has {read.size} {target.unit}s, expected at least 2")
    windows = fixed_windows(read, length - 1, tokens // length)
    try:
        layers = observe(target.model, target.predict, windows)
    except RuntimeError as error:  # of the model's own code
        raise ValueError(
            f"text: {model} does not run on this CPU: {' '.join(str(error).split())}"
        ) from error
    head, fixed, lines = (
        f"observed on {name}:",
        "its decays do not depend on the input",
        dict[str, None](),
    )
    entries: list[dict[str, Any]] = []
    rows = []
    for index, (layer, rates) in enumerate(layers):
        static, seen = (
            dict(
                zip(
                    map("{:g}".format, LEVELS),
                    quantiles(one, LEVELS, "inverted_cdf").tolist(),
                    strict=True,
                )
            )
            for one in (layer.rates, rates)
        )
        entry = {
            "module": layer.module,
            "layer": layer.number,
            "tokens": len(rates),
            "static": static,
        }
        entries.append({**entry, "observed": seen if len(rates) else None})
        if len(rates):
            spans = (" / ".join(f"{x:.3g}" for x in one.values()) for one in (static, seen))
            rows.append([str(layer.number or index), f"{len(rates):,}", *spans])
        else:
            by_input = any(note.startswith(BY_INPUT) for note in layer.family.notes)
            words = "how a text moves its decays is not known here" if by_input else fixed
            lines[f"{head} {layer.family.name}: {words}"] = None
    values = {
        "text": name,
        "unit": target.unit,
        "windows": len(windows),
        "context": length,
        "layers": entries,
    }
    if not rows:
        return "\n".join(lines or [f"{head} {fixed}"]), values
    unit, levels = target.unit, " / ".join(f"{100 * level:g}" for level in LEVELS)
    title = (
        f"half-lives in {unit}s, {levels} %: static over channels, and observed over channels and"
        f" so many of the {unit}s\nin {len(windows):,} windows of {length:,} of {name}:"
    )
    return (
        "\n".join(
            [title, cli.text_table(["layer", f"{unit}s", "static", "observed"], rows), *lines]
        ),
        values,
    )


def observe(
    model: nn.Module, predict: Callable[[Tensor], Tensor], windows: Tensor
) -> list[tuple[Layer, Floats]]:
    """Observe every layer of `model` of a known family while `predict` runs it on `windows` (n,T)
    of tokens.

    Beside a layer stand its rates -ln a at N of the tokens, (N,...) with the shape of
    `layer.rates`; N is 0 where its arguments do not have the shape of the static tensor, or are
    unknown.
    """
    config: dict[str, Any] = getattr(
        model.config, "to_dict", dict
    )()  # models of plkernel need none
    layers = known_layers(of_tensors(model.state_dict(), config))
    moved = [
        (one, model.get_submodule(one.module), one.family.taken)
        for one in layers
        if one.family.taken
    ]
    rates: dict[str, list[Floats]] = {one.module: [] for one in layers}
    for window in windows:
        with (
            torch.no_grad(),
            _overheard({module: argument for _, module, argument in moved}, len(window)) as heard,
        ):
            predict(window[None])
        for layer, module, argument in moved:
            static, calls = layer.tensors[argument.role].values, heard[module]
            calls = calls if argument.every else calls[argument.call : argument.call + 1]
            tokens = (
                torch.cat([call.flatten(1) for call in calls], dim=1)
                if calls
                else torch.empty(0, 0)
            )
            if tokens.shape[1] == static.size:
                count = min(len(tokens), max(1, MOST_RATES // (layer.rates.size * len(windows))))
                for row in (
                    tokens[torch.linspace(0, len(tokens) - 1, count).long()].double().numpy()
                ):
                    rates[layer.module].append(
                        layer.rates_of(**{argument.role: row.reshape(static.shape)})
                    )
    return [(one, np.array(rates[one.module]).reshape(-1, *one.rates.shape)) for one in layers]


@contextmanager
def _overheard(
    modules: Mapping[nn.Module, Argument], tokens: int
) -> Iterator[dict[nn.Module, list[Tensor]]]:
    """The arguments (T,...) that these modules give their functions, in order, while one sequence
    of T tokens runs.
    """
    heard: dict[nn.Module, list[Tensor]] = {module: [] for module in modules}
    running: list[nn.Module] = []

    class Listening(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if (
                running
                and getattr(func, "__name__", "") in (wanted := modules[running[-1]]).functions
            ):
                value = args[0]
                if value.dim() > 2 and value.shape[0] == 1 and value.shape[wanted.time] == tokens:
                    heard[running[-1]].append(value.detach().movedim(wanted.time, 0)[:, 0])
            return func(*args, **(kwargs or {}))

    with Listening(), ExitStack() as stack:
        for module in modules:
            stack.callback(
                module.register_forward_pre_hook(lambda module, _: running.append(module)).remove
            )
            stack.callback(module.register_forward_hook(lambda *_: running.clear()).remove)
        yield heard


def open_target(path: Path, device: torch.device, trusted: bool = False) -> Target:
    """Open the model in `path`: a run, a folder of plkernel.load, a checkpoint in one, or a
    transformers folder.

    trusted: the code that a run's configuration names may be imported. Raises ValueError if there
    is no model, not all of it, or one whose code may not run.
    """
    cli.existing(path, "target")
    if path.is_file() or (path / CHECKPOINT).is_file():
        model, config, _ = open_model(path, trusted)
        context = (config.get("train") or {}).get("context", UNTRAINED_CONTEXT)
        predict, step = predictor(model.to(device), device), patch_of(model)
        return Target(model, predict, lambda text: text, "byte", context, step=step, config=config)
    content = load_json(path / CONFIG) if (path / CONFIG).is_file() else None
    if isinstance(content, dict) and "model_type" in content:
        return _transformers(path, device)
    raise ValueError(
        f"target {path}: neither a run of ours ({CHECKPOINT}, {CONFIG}) nor a transformers model,"
        f" whose {CONFIG} names a model_type"
    )


def _transformers(path: Path, device: torch.device) -> Target:
    """Model and tokenizer of a folder; 256 tokens without a tokenizer are bytes.

    Nothing is fetched, and no code of the folder runs.
    """
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise ValueError(
            f"target {path}: needs transformers, which is missing: pip install transformers"
        ) from error
    local = {"local_files_only": True, "trust_remote_code": False}
    try:
        with without_gpu_code() if device.type == "cpu" else nullcontext():
            model: Any = AutoModelForCausalLM.from_pretrained(path, **local)
            bare = not any((*path.glob("*token*"), *path.glob("vocab*"), *path.glob("spiece*")))
            bytewise = bare and model.get_input_embeddings().num_embeddings == 256
            tokenizer: Any = None if bytewise else AutoTokenizer.from_pretrained(path, **local)
    except Exception as error:  # of whatever kind the model's own module raises
        fault = "does not open it as a causal language model with a tokenizer"
        raise ValueError(f"target {path}: transformers {fault}: {error}") from error
    if not bytewise and len(tokenizer) <= len(
        tokenizer.all_special_ids
    ):  # made up if the folder has none
        fault = (
            "no tokenizer, which says what its tokens are (a model of 256 tokens reads bytes"
            " without one)"
        )
        raise ValueError(f"target {path}: {fault}: save that of the model there")
    model.float().to(device).eval()

    def predict(tokens: Tensor) -> Tensor:
        logits: Tensor = model(input_ids=tokens.to(device), use_cache=False).logits
        return logits.float()

    def encode(text: Bytes) -> NDArray[Any]:
        words = text[:TOKENISED].tobytes().decode("utf-8", errors="replace")
        tokens = np.asarray(
            tokenizer(words, add_special_tokens=False, verbose=False)["input_ids"], dtype=np.int64
        )
        if tokens.size and tokens.max() >= (size := model.get_input_embeddings().num_embeddings):
            raise ValueError(
                f"target {path}: its tokenizer gives token {tokens.max()}, but the model has {size}"
                " only"
            )
        return tokens

    most = getattr(model.config, "max_position_embeddings", None) or math.inf
    context = int(min(UNTRAINED_CONTEXT, most))
    if bytewise:
        return Target(model, predict, lambda text: text, "byte", context, most=most)
    return Target(model, predict, encode, "token", context, TOKENISED, most)
