"""A trained model at one time for `plkernel.inspect`, and two times of it as tables."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from plkernel.common.cli import text_table
from plkernel.common.files import shown
from plkernel.config.condition import from_config
from plkernel.config.schema import CorpusSpec, explained
from plkernel.context.measures import BATCH, UNTRAINED_CONTEXT
from plkernel.data import corpora
from plkernel.data.names import KINDS, PRESETS, recall_of
from plkernel.data.windows import Bytes, check_holds_window, fixed_windows
from plkernel.decays.findings import Finding, grouped
from plkernel.decays.inspection import Parts
from plkernel.decays.memory import Memory, kernel_exponents, memory_of, slope_range
from plkernel.decays.structure import NOT_FINITE
from plkernel.training.build import Model, started
from plkernel.training.checkpoint import apart, open_model
from plkernel.training.evaluate import diagnose, label, memory
from plkernel.training.recall_task import Asked, asked_in, held_out

NAMED = {"shortest": 0, "median": 3, "longest": 6}
"""Places among the seven quantiles of half-lives of a `Memory`."""
Values = dict[str, Any]
"""The figures of a model at one time, for JSON."""


@dataclass(frozen=True)
class View:
    """The memory of the blocks of a model at one time, in bytes, and `values` for JSON."""

    memory: Memory
    values: Values


def view(model: Model, windows: Tensor, asked: Asked | None = None) -> View:
    """The memory of `model` up to the length of `windows` (n, context + 1), and one evaluation.

    Where something is `asked`, the evaluation is of the answers.

    x of the law t**-x that the kernel of a block follows is left out where too few lags are known.
    Of an RWKV-7 the exponents of its impulse responses, erasing included, are added.
    """
    half_lives = [values.numpy() for values in model.half_lives()]
    known = memory_of([memory(model, half_lives, windows.shape[1] - 1)])
    figures = diagnose(model, windows, BATCH, torch.device("cpu"), asked)
    loss = "bits_per_byte" if asked is None else "bits_per_answer"
    values = {
        "half_lives": _named_half_lives(known),
        "kernel": _kernel_values(model, known),
        loss: figures.bits_per_byte,
        **figures.to_row(),
    }
    length = getattr(model.config, "scaling_length", None)
    if length is not None:
        values["half_lives_at"] = length
    return View(known, values)


def _named_half_lives(known: Memory) -> list[dict[str, float]]:
    """The half-lives in NAMED of each block, in bytes."""
    named = []
    for quantiles in known.half_lives[0].tolist():
        named.append({name: quantiles[place] for name, place in NAMED.items()})
    return named


def _kernel_values(model: Model, known: Memory) -> Values:
    """Kernels of the blocks at their lags, and exponents where enough lags are known."""
    lags = known.lags
    span = slope_range(lags)
    kernel: Values = {
        "lags": lags.tolist(),
        "blocks": known.kernels[0].tolist(),
        "exponents": known.exponents()[0].tolist() if span else [],
        "exponents_over_lags": span,
    }
    responses = model.responses(torch.tensor(lags, dtype=torch.long)) if span else []
    if responses:
        rows = np.stack([row.numpy() for row in responses])
        kernel["measured_exponents"] = kernel_exponents(lags, rows).tolist()
    return kernel


def at_initialisation(config: dict[str, Any]) -> Model | None:
    """The model of a run before its first step, from its config.json.

    None if it was not trained here, and where code that is not imported here had a part in it.
    """
    if "seed" not in config:
        return None
    condition = from_config(config)
    if condition.code:
        return None
    with apart():
        return cast(Model, started(condition, config["seed"]))


def validation_text(
    config: dict[str, Any], corpus: str | None, option: str = "corpus", in_python: bool = False
) -> tuple[str, Bytes, int]:
    """Name and validation split of the corpus, and the bytes that are predicted in a window of it.

    They are the context of the run, or in a corpus of recall the length of a sequence.

    corpus     the name of another corpus than the run's
    option     that gives another text, for messages
    in_python  it is an argument of a function, not an option of a command

    Raises ValueError when the run's corpus has other bytes here, when none is named for a model
    that was not trained here, and when the split is too short for one window.
    """
    known = config.get("corpus") or {}
    another = f"{option}=" if in_python else f"--{option}"
    if not isinstance(known, dict):
        raise ValueError(f"corpus must be a table, got {shown(known)}")
    if corpus is None and not known:
        example = f'{another}"stdlib"' if in_python else f"{another} stdlib"
        raise ValueError(
            f"{option} must be given for a model that was not trained here, as in {example}"
        )
    options = {key: value for key, value in known.items() if key in CorpusSpec.model_fields}
    try:
        section = CorpusSpec(**options) if corpus is None else CorpusSpec(name=corpus)
    except ValidationError as error:
        raise ValueError(f"corpus: {explained(error, CorpusSpec)}") from None
    try:
        text = corpora.load(section.name, **section.reading)
    except ValueError as error:
        if corpus is not None or not _is_missing_file(section.name):
            raise
        raise ValueError(
            f"{error}; the name is that of a file where the run was trained: open the run there, or"
            f" name another text with {another}"
        ) from None
    if corpus is None and text.sha256 != known.get("sha256"):
        raise ValueError(
            f"corpus {section.name!r} must be what the run was trained on, got one with another"
            f" sha256; name one with {another}"
        )
    data = text.splits(section.validation, section.test).validation
    split = f"the validation split of corpus {section.name!r}"
    law = recall_of(section.name)
    if law is not None:
        _check_holds_sequence(data.size, law.length, split)
        return section.name, data, law.length
    context = (config.get("train") or {}).get("context", UNTRAINED_CONTEXT)
    check_holds_window(data.size, context, split, "name a corpus of more bytes")
    return section.name, data, context


def _is_missing_file(name: str) -> bool:
    """True for a name of a corpus that is a relative path at which nothing is."""
    kind = PRESETS.get(name, name).partition(":")[0]
    path = os.path.expanduser(name)
    return kind not in KINDS and not os.path.isabs(path) and not os.path.exists(path)


def _check_holds_sequence(size: int, length: int, name: str) -> None:
    """Raise ValueError unless `size` bytes of a corpus of recall hold at least one sequence."""
    if size < length:
        raise ValueError(
            f"{name} must hold one sequence of length = {length} bytes or more, got {size}; name"
            " a corpus of more bytes, or of a smaller length"
        )


def held_out_windows(
    name: str, text: Bytes, context: int, count: int
) -> tuple[Tensor, Asked | None]:
    """Up to `count` validation windows (n, context + 1) of the corpus called `name`.

    text: its validation split. Of a corpus of recall they are sequences as a run is evaluated on,
    whatever the context, with what is asked in them.
    """
    law = recall_of(name)
    if law is None:
        return fixed_windows(text, context, count), None
    sequences = held_out(law, "validation", min(count, text.size // law.length))
    return sequences, asked_in(sequences)


def render(start: View | None, now: View, note: str = "") -> str:
    """Tables of blocks, slopes and all blocks together, at initialisation and now.

    note: follows the words "bits per byte" or "bits per answer"
    """
    first = start.values if start else None
    last = now.values
    blocks = range(now.memory.blocks)
    parts = [_block_table(first, last, blocks)]
    if "half_lives_at" in last:
        parts.append(
            f"half-lives and kernels are those at byte {last['half_lives_at']:g}: decays slow down"
            " with the position"
        )
    if last["kernel"]["exponents_over_lags"]:
        parts.append(_slope_table(first, last, blocks))
    parts.append(_summary_table(first, last, note))
    return "\n\n".join(parts)


def _block_table(first: Values | None, last: Values, blocks: Sequence[int]) -> str:
    """Half-lives of every block, and its amplification where it is known, first and last."""
    header = ["block", "half-lives at initialisation", "now"]
    has_amplification = any(time and "amplification" in time for time in (first, last))
    if has_amplification:
        header += ["amplification at initialisation", "now"]
    rows = []
    for block in blocks:
        row = [str(block)]
        row += [_half_lives_text(first, block), _half_lives_text(last, block)]
        if has_amplification:
            row += [_amplification_text(first, block), _amplification_text(last, block)]
        rows.append(row)
    title = "half-lives in bytes: shortest / median / longest"
    return f"{title}\n{text_table(header, rows)}"


def _half_lives_text(time: Values | None, block: int) -> str:
    """The half-lives of a block, as 2 / 30 / 1500; "-" where they are not known."""
    lives = time["half_lives"][block].values() if time else ()
    texts = [f"{value:.0f}" if value >= 1000 else f"{value:.3g}" for value in lives]
    return " / ".join(texts) if texts else "-"


def _amplification_text(time: Values | None, block: int) -> str:
    """The growth of the residual stream over a block; "-" where it is not known."""
    if time is None or "amplification" not in time:
        return "-"
    return f"{time['amplification'][block]:.3f}"


def _slope_table(first: Values | None, last: Values, blocks: Sequence[int]) -> str:
    """The exponents of the kernels, and where they are known those of measured responses."""
    shortest, longest = last["kernel"]["exponents_over_lags"]
    title = f"kernels fall as t**-x over lags {shortest:g} to {longest:g} bytes"
    columns = {
        "x at initialisation": _exponents(first, "exponents", blocks),
        "now": _exponents(last, "exponents", blocks),
    }
    if "measured_exponents" in last["kernel"]:
        title += "; measured with erasing, which kernels leave out"
        columns["measured at initialisation"] = _exponents(first, "measured_exponents", blocks)
        columns["measured now"] = _exponents(last, "measured_exponents", blocks)
    rows = [list(row) for row in zip(map(str, blocks), *columns.values(), strict=True)]
    return f"{title}:\n{text_table(['block', *columns], rows)}"


def _exponents(time: Values | None, key: str, blocks: Sequence[int]) -> list[str]:
    """The exponents of the blocks called `key`; "-" where they are not known, or infinite."""
    if time is None:
        return ["-"] * len(blocks)
    return [f"{x:.3f}" if math.isfinite(x) else "-" for x in time["kernel"][key]]


def _summary_table(first: Values | None, last: Values, note: str) -> str:
    """The figures of all blocks together, at initialisation and now."""
    before = _summary(first) if first else {}
    rows = []
    for name, text in _summary(last).items():
        if text == before.get(name, "-") == "-":  # amplification is known of an RWKV alone
            continue
        words = f"{name}{note}" if name.startswith("bits per ") else name
        rows.append([words, before.get(name, "-"), text])
    return text_table(["", "at initialisation", "now"], rows)


def _summary(values: Values) -> dict[str, str]:
    """The figures of all blocks together, in words."""
    seen = values["saturation"]
    growth = values.get("amplification")
    uniform = f"in nats (uniform: {math.log(256):.3f})"
    if "bits_per_answer" in values:
        predicted = "answers"
        losses = {
            "bits per answer": f"{values['bits_per_answer']:.4f}",
            "answers right": f"{values['val_accuracy']:.1%}",
        }
    else:
        predicted = "positions"
        losses = {"bits per byte": f"{values['bits_per_byte']:.4f}"}
    return {
        **losses,
        f"loss {uniform}": f"{seen['loss']:.3f}",
        "logits": f"{seen['logit_min']:+.1f} .. {seen['logit_max']:+.1f}",
        "largest probability, mean": f"{seen['largest_probability']:.3f}",
        "largest probability, maximum": f"{seen['peak_probability']:.3f}",
        f"entropy {uniform}": f"{seen['entropy']:.3f}",
        f"saturated {predicted}": f"{seen['saturated_share']:.1%}",
        "amplification per block, geometric mean": (
            f"{np.exp(np.mean(np.log(growth))):.3f}" if growth else "-"
        ),
    }


def not_finite(model: Model) -> list[Finding]:
    """The parameters of a model that hold NaN or infinite numbers, and how many of them."""
    found = []
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        for kind, test in NOT_FINITE:
            count = np.count_nonzero(test(values))
            if count:
                seen = f"{count:,} of {values.size:,} numbers; training has diverged"
                found.append(Finding(kind, f"model.{name}", seen))
    return found


def of_run(
    model: Path, corpus: str | None, windows: int, option: str = "corpus", in_python: bool = False
) -> Parts:
    """Half-lives, kernels and predictions of a trained model, and those at its initialisation.

    model    a run, or the file of a checkpoint
    corpus   the name of a text to predict, that of the run unless given
    windows  how many windows are predicted at most
    option, in_python
             as of `validation_text`
    """
    trained, config, step = open_model(model)
    name, validation, context = validation_text(config, corpus, option, in_python)
    data, asked = held_out_windows(name, validation, context, windows)
    context = data.shape[1] - 1
    now = view(trained, data, asked)
    untrained = at_initialisation(config)
    start = None if untrained is None else view(untrained, data, asked)
    causal = trained.config.causal
    broken = not_finite(trained)
    values = {
        "model": str(model),
        "step": step,
        "corpus": name,
        "windows": len(data),
        "context": context,
        "causal": causal,
        "initialisation": start.values if start else None,
        "now": now.values,
        "findings": [one._asdict() for one in broken],
    }
    read = f"{len(data)} validation windows of {context} bytes of {name}"
    if asked is not None:
        read += ", of which the answers count"
    parts = [
        f"{model}: step {step:,}; {read}",
        render(start, now, label(causal)),
    ]
    if broken:
        parts.append("\n".join(f"wrong: {line}" for line in grouped(broken, "wrong")))
    code = (config.get("arm_options") or {}).get("init")
    if code:
        parts.append(
            f"left out: its initialisation, which the code {code!r} had a part in; it is not"
            " imported here"
        )
    memories = (start.memory if start else None, now.memory)
    return parts, values, memories, f"{model}, step {step:,}"
