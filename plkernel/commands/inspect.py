"""python -m plkernel.inspect: what a model remembers, and what training did to it.

The model is one of plkernel, or anybody's.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from plkernel.common import cli
from plkernel.common.files import files_of, refuse_study

if TYPE_CHECKING:
    from plkernel.decays.inspection import Parts

WINDOWS = 16
"""Windows of a run that are evaluated unless asked otherwise."""


def __getattr__(name: str) -> Any:
    """`inspect`, the function of the package, which is loaded when it is asked for."""
    if name != "inspect":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from plkernel.api.models import inspect

    return inspect


def command(
    model: tyro.conf.Positional[Path],
    corpus: str | None = None,
    windows: int = WINDOWS,
    json: Path | None = None,
    figure: Path | None = None,
    compare: Path | None = None,
    strict: bool = False,
    notable: bool = False,
    text: str | None = None,
    tokens: int = 2048,
    state_dtype: str | None = None,
    decays: Path | None = None,
    trust_code: bool = False,
) -> None:
    """Print half-lives and kernels of a model; of a run also saturation and amplification.

    Of other people's checkpoints (Mamba, gated delta nets, RWKV, RetNet, xLSTM and more) only the
    decays are read, by name: half-lives in tokens, kernels, and findings such as decays that are
    zero, as they were initialised, or lost in bfloat16. Decays that the input moves are shown
    without an input; with --text a run of RWKV-6 or RWKV-7, or a folder that transformers opens,
    also reads a text on the CPU, and quantiles of the half-lives over its tokens are added.

    Of a run or a model of plkernel.load half-lives are in bytes, the shortest / median / longest of
    every block, at its initialisation, rebuilt from specification and seed, and now. A kernel is
    the weight of an input t bytes later in a block, the root mean square over its entries; x of
    t**-x is fitted on log-log axes. A position is saturated if a probability above 0.99 goes to one
    byte. Of a run on recall all predictions are those of the answers. Amplification is the growth
    of the residual stream over a block, and known of an RWKV alone. Code of other people is
    imported with --text and --trust-code alone: of a run whose model it builds the decays are read
    by name, as of other people's checkpoints.

    Args:
        model: Folder of a run (STUDY/ARM/seed-0) or of plkernel.load; a folder as on the Hugging
            Face hub, a .safetensors, .pth, .ckpt or .gguf file, or hf:OWNER/NAME.
        corpus: Validation text, as plkernel.corpus names it; if left out that of the run.
        windows: How many windows of the run's context to evaluate.
        json: Write the figures to this file too, kernels at every power of two up to the context.
        figure: Draw kernels and half-lives to this file: .pdf, .png or .svg.
        compare: Of other people's checkpoints, an earlier checkpoint of the same model.
        strict: Exit with 1 if anything is wrong with such a checkpoint.
        notable: With --strict, also exit with 1 if anything is notable.
        text: A file, or what else plkernel.corpus names: also run the model on it. No code in the
            folder runs. A run whose model other people's code builds needs --trust-code.
        tokens: How much of the text to run it on, in windows of the run's context, or of up to 512
            tokens.
        state_dtype: Of other people's checkpoints, which half-lives a recurrent state does not hold
            that is stored in this type after every step: bf16, fp16 or fp8.
        decays: A TOML file that says how the decays of layers of your own follow from their
            parameters: a table [decays] with lines such as "*.decay" = "sigmoid".
        trust_code: With --text, import and run the code that a run names.
    """
    from plkernel.common.delivery import check_outputs, deliver
    from plkernel.decays.inspection import is_other_software
    from plkernel.decays.memory_figures import model_figure

    read = [*files_of(model), corpus, compare, text, decays]
    check_outputs(json, figure, read, windows=(windows, 1), tokens=(tokens, 2))
    if corpus is not None or text is not None:
        from plkernel.data.names import check_outside

        check_outside({"json": json, "figure": figure}, [corpus, text])
    is_foreign = is_other_software(model)
    refuse_study(model, "model")
    code = None
    if not is_foreign:
        from plkernel.training.checkpoint import foreign_code

        code = foreign_code(model)
        is_foreign = code is not None
    if notable and not strict:
        raise ValueError("strict must be given with notable; give --strict --notable")
    if trust_code and text is None:
        raise ValueError("text must be given with trust_code, since no code is imported without")
    if is_foreign:
        _check_for_checkpoint(model, corpus, windows, code)
        _check_one_of_text_and_decays(text, decays)
        parts, values, memories, title = _of_checkpoint(model, compare, state_dtype, decays, code)
        if code is not None:
            imported = "is imported for the text" if trust_code else "is not imported"
            parts.append(f"its tokens are bytes; {code}, which builds the model, {imported}")
    else:
        _check_for_run(model, strict, compare, state_dtype, decays)
        from plkernel.probing.runs import of_run

        parts, values, memories, title = of_run(model, corpus, windows)
    before, now = memories
    if text is not None:
        if is_foreign:
            _check_runnable(model, values["findings"])
        layers = now.blocks if is_foreign else None
        table, values["observed"] = _observed(model, text, tokens, layers, trust_code)
        parts.append(table)
    unit = "tokens" if is_foreign else "bytes"
    report = "\n\n".join(parts)
    deliver(report, values, lambda: model_figure(before, now, title, unit), json, figure)
    if strict and _fails(values["findings"], notable):
        sys.exit(1)


def _check_for_checkpoint(model: Path, corpus: str | None, windows: int, code: str | None) -> None:
    """Raise ValueError for options that only a run has a use for whose model can be built.

    code: of other people that builds the model of a run.
    """
    if corpus is not None or windows != WINDOWS:
        why = "is no run of plkernel" if code is None else f"has a model that {code} builds"
        raise ValueError(f"corpus and windows must be left out for {model}, which {why}")


def _check_for_run(model: Path, strict: bool, *others: object) -> None:
    """Raise ValueError for options that only a checkpoint of other software has a use for."""
    if strict or any(one is not None for one in others):
        raise ValueError(
            f"compare, strict, state_dtype and decays must be left out for {model}, which is no"
            " checkpoint of other software"
        )


def _check_one_of_text_and_decays(text: str | None, decays: Path | None) -> None:
    """Raise ValueError for a text beside stated decays, whose model nobody knows how to run."""
    if decays is not None and text is not None:
        raise ValueError(
            "text must be left out where decays are given, since models of known families alone"
            " are run"
        )


def _of_checkpoint(
    model: Path,
    compare: Path | None,
    state_dtype: str | None,
    decays: Path | None,
    code: str | None,
) -> "Parts":
    """The report on a checkpoint of other software; where no decays are known, how to state them.

    That stands on standard error, before ValueError is raised. code: of other people that builds
    the model of a run.
    """
    from plkernel.decays import inspection, own
    from plkernel.decays.tensors import HUB

    if compare is not None and not str(compare).startswith(HUB):
        cli.existing(compare, "compare")
    stated = None if decays is None else own.read_statements(decays)
    try:
        return inspection.of_checkpoint(model, compare, state_dtype, stated)
    except own.UnknownDecays as error:
        told = own.with_toml(error, f"{cli.program()} {model}")
        print(*getattr(told, "__notes__", ()), sep="\n", file=sys.stderr)
        if code is None:
            raise told from None
        raise ValueError(
            f"model.kind must be one of plkernel's own, or build layers whose decays are known by"
            f" name, got {code!r}, which is other people's code; {told}"
        ) from None


def _check_runnable(model: Path, findings: list[dict[str, Any]]) -> None:
    """Raise ValueError where transformers would not run the model that the findings are about."""
    for one in findings:
        if one["tensor"] == "config.json":
            raise ValueError(
                f"text: config.json of {model} must describe the model, got one that says"
                f" {one['seen']}; mend it, or leave text out"
            )


def _observed(
    model: Path, text: str, tokens: int, layers: int | None, trusted: bool
) -> tuple[str, dict[str, Any]]:
    """The table and figures of a model that runs on a text.

    layers   how many layers with decays the checkpoint has; None for a model of plkernel
    trusted  the code that a run names may be imported
    """
    from plkernel.probing.observation import observe_text

    table, values = observe_text(model, text, tokens, trusted)
    known = len(values["layers"])
    if layers is not None and known != layers:
        raise ValueError(
            f"text: model must be one that runs in full, got {known} of the {layers} layers with"
            f" decays in {model}; leave text out"
        )
    return table, values


def _fails(findings: list[dict[str, Any]], notable: bool) -> bool:
    """True if anything is wrong; with `notable` anything that is notable counts too."""
    return any(notable or one["severity"] == "wrong" for one in findings)


if __name__ == "__main__":
    cli.main(command)
