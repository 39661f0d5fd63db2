"""python -m plkernel.trial TEXT: the whole chain on a text.

Measure, fit, train from several initialisations, one page.
"""

import sys
from pathlib import Path

import tyro

from plkernel.api.studies import trial
from plkernel.common import cli
from plkernel.results.answer import advice, answer
from plkernel.results.comparison import compare
from plkernel.results.measured import TrialOptions
from plkernel.results.study import read_study
from plkernel.study.trial import NoMemoryError, plan_trial, run_trial

__all__ = ["command", "trial"]

NO_MEMORY = 1
"""Exit code for a text without memory, whose measurement is the answer."""


def command(
    text: tyro.conf.Positional[str],
    model: str = "ssm",
    minutes: float = 5.0,
    seeds: int = 3,
    frozen: bool = True,
    short: bool = False,
    control: bool = True,
    dim: int = 64,
    out: Path | None = None,
    dry_run: bool = False,
) -> None:
    """Measure the memory of a text, and test whether a model initialised with it learns better.

    The memory is fitted, models are trained from it and from controls, and one page answers. Writes
    a spec to read and edit, OUT.toml, registers its hypotheses, and trains every arm at every seed.
    Ctrl-C saves every run; the same command goes on. Learning curves: tensorboard --logdir OUT.

    Args:
        text: A corpus: stdlib, a file or folder, bible:en, hf:NAME (see plkernel.corpus).
        model: ssm: a diagonal SSM with EMA gain; rwkv6, with K-clamp; rwkv7.
        minutes: About how long it may take on this machine; the steps follow.
        seeds: Runs of every arm, two or more.
        frozen: Also train half-lives of 1 to 8 bytes that are frozen.
        short: Also train half-lives that begin at 1 to 8 bytes and are learnt.
        control: With an SSM, also train a small one on a synthetic task in which memory must
            matter, to show that seeds and steps suffice to see it.
        dim: Width of the model.
        out: Folder of the study; runs/out/trial-TEXT if left out.
        dry_run: Train nothing: measure, fit, write the spec, and say what it would take.
    """
    options = TrialOptions(
        model=model,
        minutes=minutes,
        seeds=seeds,
        frozen=frozen,
        short=short,
        control=control,
        dim=dim,
    )
    try:
        planned = plan_trial(text, out, options, lambda line: print(line, flush=True))
    except NoMemoryError as found:
        print(found)
        sys.exit(NO_MEMORY)
    if dry_run:
        print("nothing was trained; without --dry-run the same command runs this spec")
        return
    failed = run_trial(planned)
    if read_study(planned.out).finished():
        _show(planned.out)
    if failed:
        print(f"did not finish: {', '.join(failed)}; log.txt of each says why", file=sys.stderr)
        sys.exit(1)


def _show(out: Path) -> None:
    """Write the page; print the verdicts, the answer and the path of the page."""
    from plkernel.commands.report import write_comparison

    comparison = compare(read_study(out))
    page = write_comparison(comparison, out / "report")
    if comparison.declared:
        print(f"\n{comparison.declared.headline}")
    print(f"\n{answer(comparison)}\n\n{advice(comparison)}\n\npage: {page}", flush=True)


if __name__ == "__main__":
    cli.main(command)
