"""Functional probe: how far back a causal model reads, from its predictions alone; and the models it opens."""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from plkernel.analysis.information.curve import BLOCKS, decay_curves
from plkernel.analysis.information.estimate import critical_value
from plkernel.common import cli
from plkernel.common.files import load_json
from plkernel.common.layout import CHECKPOINT, CONFIG
from plkernel.data import corpora
from plkernel.data.windows import fixed_windows
from plkernel.memory.diagnostics import Bytes, Probe, by_position, lengths, others
from plkernel.memory.figures import Report, probe_figure
from plkernel.training.checkpoint import open_any_model
from plkernel.training.evaluate import (
    PLACES,
    Predict,
    check_lags,
    influence,
    logits_of,
    patch_of,
    predictor,
    replaced,
    token_losses,
    truncation,
)
from plkernel.training.view import UNTRAINED_CONTEXT, validation_text

ROUNDING = 1e-4
"""Share of the largest logit by which those before a replaced token may move, as by a convolution through FFTs."""
TOKENISED = 1 << 22
"""Bytes of a text that become tokens, at most."""
NEED_A_GPU = ("fla", "mamba_ssm", "causal_conv1d")
"""Packages whose kernels transformers takes if they are installed, once and for all when it imports a model."""


@dataclass(frozen=True)
class Target:
    """A causal model over the tokens of a text.

    model    the module
    predict  tokens (B,T) to logits (B,T,V)
    encode   bytes (n,) to tokens
    unit     'byte' or 'token'
    context  tokens in a window unless asked otherwise
    reads    bytes of a text that become tokens, at most
    most     tokens that the model takes; None: any number
    step     it starts anew at multiples of so many tokens only
    config   of a run of plkernel
    """

    model: nn.Module
    predict: Predict
    encode: Callable[[Bytes], NDArray[Any]]
    unit: str
    context: int
    reads: float = math.inf
    most: int | None = None
    step: int = 1
    config: dict[str, Any] = field(default_factory=dict)

    def text(self, name: str | None) -> tuple[str, Bytes]:
        """Name and bytes of the corpus `name`, all of it, or else of the validation text of the run."""
        if name is not None:
            return name, corpora.load(name).bytes
        known, data, _ = validation_text(self.config, None, "text")
        return f"validation text of {known}", data


def check_causal(predict: Predict, windows: Tensor, batch: int = 4, seed: int = 0) -> None:
    """Raise ValueError that names the place unless logits before a replaced token stay as they are.

    Of the first `batch` of `windows` (n,T+1), the last token that is given is replaced, the one before it, and two in
    the middle. Logits that are not numbers are refused too.
    """
    inputs = windows[:batch, :-1]
    length = inputs.shape[1]
    known = logits_of(predict, inputs)
    if bool(known.isnan().any()):
        raise ValueError("the logits of the model are not numbers: has its training diverged?")
    limit = ROUNDING * max(float(row[row.isfinite()].abs().max()) for row in known)
    rng = np.random.default_rng(seed)
    for place in sorted({length - 1, length - 2, length // 2, length // 2 - 1} & set(range(1, length)), reverse=True):
        changed = replaced(inputs, place, others(windows.numpy(), inputs[:, place].numpy(), rng))
        difference = logits_of(predict, changed)[:, :place] - known[:, :place]
        moved = difference.nan_to_num_().abs_().amax(dim=(0, 2))
        if bool((moved > limit).any()):
            at = int(torch.nonzero(moved > limit)[-1])
            raise ValueError(
                f"the model is not causal: replacing the token at position {place} of {length} moves the logits at "
                f"position {at} by {float(moved[at]):.2g}; give a model that predicts each token from those before it"
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
    progress: Callable[[float], Any] | None = None,
) -> Probe:
    """Apply `influence`, `token_losses` and `truncation` to `windows` (n,T+1), after `check_causal` has passed.

    progress: called with shares of the work, which add up to 1
    """
    count, length = len(windows), windows.shape[1] - 1
    known = check_lags(lags, length)
    work = length * (count * (2 + min(PLACES, length)) + 5 * min(batch, count)) + count * sum(lengths(length, step))

    def counted(tokens: Tensor) -> Tensor:
        logits = predict(tokens)
        if progress is not None:
            progress(tokens.numel() / work)
        return logits

    check_causal(counted, windows, batch, seed)
    losses = token_losses(counted, windows, batch)
    return Probe(
        unit=unit,
        windows=count,
        context=length,
        bytes_per_token=bytes_per_token,
        bits_per_token=float(losses.mean(dtype=np.float64)),
        influence=influence(counted, windows, known, batch, seed=seed),
        positions=by_position(losses),
        truncation=truncation(counted, windows, batch, step=step),
    )


def probe_text(
    path: Path,
    text: str | None,
    windows: int,
    context: int | None,
    lags: Sequence[int],
    batch: int,
    seed: int,
    device: torch.device,
    trusted: bool,
) -> Report:
    """Probe the model in `path` on the corpus `text`; options as of the command."""
    target = open_target(path, device, trusted)
    name, data = target.text(text)
    length = context or target.context
    if target.most is not None and length > target.most:
        raise ValueError(f"context must be at most {target.most:,}, which is all that the model takes, got {length:,}")
    known = check_lags(lags, length)
    tokens, unit = target.encode(data), target.unit
    if tokens.size < length + 1:
        raise ValueError(
            f"text {name!r} has {tokens.size:,} {unit}s, fewer than one window of context + 1 = {length + 1:,}: "
            "give a longer text or a smaller --context"
        )
    options: dict[str, Any] = {"batch": batch, "seed": seed, "step": target.step, "unit": unit}
    options["bytes_per_token"] = min(data.size, target.reads) / tokens.size
    with cli.progress_bar(str(path)) as progress:
        result = probe(target.predict, fixed_windows(tokens, length, windows), known, progress=progress, **options)
    if unit == "byte" and data.size >= known[-1] + BLOCKS:
        result = replace(result, information=decay_curves(data, known)[0])
    title = f"{path} on {name}"
    values = {"target": str(path), "text": name, "seed": seed, **result.to_dict()}
    return Report(f"{title}, {render(result)}", values, lambda: probe_figure(result, title))


def render(result: Probe) -> str:
    """The quantities measured, their units, and a table: one row for every lag, or number of tokens given."""
    unit, per_token, text = result.unit, result.bytes_per_token, result.information_bits()
    near, along, cut = result.influence, result.positions, result.truncation
    cells: dict[str, dict[int, str]] = {}

    def column(name: str, at: Sequence[int], values: Any, form: str, errors: Any = None, count: int = 2) -> None:
        half = np.zeros(len(at)) if errors is None else critical_value(count) * np.asarray(errors)
        cells[name] = {
            place: f"{value:{form}} +- {reach:{form.lstrip('+')}}" if reach > 0 else f"{value:{form}}"
            for place, value, reach in zip(at, values, half, strict=True)
        }

    column("influence", near.lags, near.bits, ".2e", near.standard_error, result.windows)
    column("by position", along.given, along.bpb, ".4f", along.standard_error, result.windows)
    if unit != "byte":
        column("per byte", along.given, np.asarray(along.bpb) / per_token, ".4f")
    column("given alone", cut.given, cut.bpb, ".4f")
    column("cost", cut.given, cut.cost, "+.4f", cut.standard_error, result.windows)
    if text is not None and result.information is not None:
        column("I(d) of the text", near.lags, text[0], ".2e", text[1], len(result.information.replicates[0]))
    rows = [[f"{at:,}", *(one.get(at, "-") for one in cells.values())] for at in sorted(set().union(*cells.values()))]
    whole = f"{result.windows:,} windows of {result.context:,} {unit}s: {result.bits_per_token:.4f} bits per {unit}"
    if unit != "byte":
        whole += (
            f", {result.bits_per_token / per_token:.4f} bits per byte; a token is {per_token:.2f} bytes of this text"
        )
    return "\n".join(
        [
            whole,
            f"influence: how far the prediction moves (KL, bits) when the {unit} so many before it is another",
            f"by position: bits per {unit} where so many {unit}s of the window come before, since the row above",
            f"given alone: bits at the last {unit} of each window when only so many are given; cost: against all",
            "+-: 95 % intervals over windows, and of I(d) over blocks of the text",
            "",
            cli.text_table([f"{unit}s", *cells], rows),
        ]
    )


def open_target(path: Path, device: torch.device, trusted: bool = False) -> Target:
    """Open the model in `path`: a run, a folder of plkernel.load, a checkpoint in one, or a transformers folder.

    trusted: the code that a run's configuration names may be imported. Raises ValueError if there is no model, not all
    of it, or one whose code may not run.
    """
    cli.existing(path, "target")
    if path.is_file() or (path / CHECKPOINT).is_file():
        model = open_any_model(path, trusted).to(device)
        config = load_json((path if path.is_dir() else path.parent) / CONFIG)
        context = (config.get("train") or {}).get("context", UNTRAINED_CONTEXT)
        predict, step = predictor(model, device), patch_of(model)
        return Target(model, predict, lambda text: text, "byte", context, step=step, config=config)
    content = load_json(path / CONFIG) if (path / CONFIG).is_file() else None
    if isinstance(content, dict) and "model_type" in content:
        return _transformers(path, device)
    raise ValueError(
        f"target {path}: neither a run of ours ({CHECKPOINT}, {CONFIG}) nor a transformers model, whose {CONFIG} names "
        "a model_type"
    )


def _transformers(path: Path, device: torch.device) -> Target:
    """Model and tokenizer of a folder. Nothing is fetched, and no code of the folder runs."""
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise ValueError(f"target {path}: needs transformers, which is missing: pip install transformers") from error
    local = {"local_files_only": True, "trust_remote_code": False}
    hidden = [name for name in NEED_A_GPU if device.type == "cpu" and name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: importing it fails
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(path, **local)
        tokenizer: Any = AutoTokenizer.from_pretrained(path, **local)
    except Exception as error:  # of whatever kind the model's own module raises
        fault = "does not open it as a causal language model with a tokenizer"
        raise ValueError(f"target {path}: transformers {fault}: {error}") from error
    finally:
        for name in hidden:
            del sys.modules[name]
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # made up if the folder has none
        raise ValueError(f"target {path}: no tokenizer, which says what its tokens are: save that of the model there")
    model.float().to(device).eval()

    def predict(tokens: Tensor) -> Tensor:
        logits: Tensor = model(input_ids=tokens.to(device), use_cache=False).logits
        return logits.float()

    def encode(text: Bytes) -> NDArray[Any]:
        words = text[:TOKENISED].tobytes().decode("utf-8", errors="replace")
        tokens = np.asarray(tokenizer(words, add_special_tokens=False, verbose=False)["input_ids"], dtype=np.int64)
        if tokens.size and tokens.max() >= (size := model.get_input_embeddings().num_embeddings):
            raise ValueError(f"target {path}: its tokenizer gives token {tokens.max()}, but the model has {size} only")
        return tokens

    most = getattr(model.config, "max_position_embeddings", None)
    context = min(UNTRAINED_CONTEXT, most or UNTRAINED_CONTEXT)
    return Target(model, predict, encode, "token", context, TOKENISED, most)
