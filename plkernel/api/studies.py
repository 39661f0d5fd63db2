"""Run a study or a trial, and open the folder of one."""

import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plkernel.analysis.nodes import check_numbers, check_numbers_or_none, check_switches
from plkernel.analysis.results import Result
from plkernel.api.texts import path_of
from plkernel.common import cli
from plkernel.common.files import DIVERGED, FAILED
from plkernel.results.study import Study, read_study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from plkernel.config.spec import Spec
    from plkernel.results.comparison import Comparison
    from plkernel.study.trial import TrialModel


WHY = 160
"""Characters of the reason of a run that failed."""


@dataclass(frozen=True, repr=False)
class StudyResult(Result, Study):
    """A study and its runs, compared arm by arm as plkernel.report does.

    Its table has a row for every arm, or, while no run has finished, for every run with its status.
    """

    @cached_property
    def comparison(self) -> "Comparison":
        """The arms with their estimates, and differences to the arms they are compared with."""
        from plkernel.results.comparison import compare

        return compare(self)

    def _title(self) -> str:
        from plkernel.results.conclusion import overview

        told = [overview(self.comparison)[0]] if self.finished() else ["no run has finished"]
        declared = self.comparison.declared if self.finished() else None
        if declared:
            told.insert(0, declared.headline)
        runs = cli.counted(len(self.runs), "run", "runs")
        ends = [f"{len(self.finished())} of {runs} finished"]
        for status in (DIVERGED, FAILED):
            count = sum(run.status == status for run in self.runs)
            if count:
                ends.append(f"{count} {status}")
        return f"{self.name}: {', '.join(ends)}. {' '.join(told)}"

    def _table(self) -> Any:
        if not self.finished():
            return self._unfinished()
        key = self.comparison.primary
        rows = []
        for arm in (one for one in self.comparison.arms if key in one.estimates):
            row = {
                "arm": arm.name,
                "seeds": len(arm.seeds),
                "bits_per_byte": arm.estimates[key].mean,
            }
            other = arm.differences.get(key)
            if other:
                row |= {
                    "difference": other.mean,
                    "low": other.low,
                    "high": other.high,
                    "p": other.p_value,
                }
            rows.append(row)
        return rows

    def _unfinished(self) -> list[dict[str, Any]]:
        """A row for every run: its status, and why it failed or diverged."""
        rows = []
        for run in self.runs:
            *_, why = (run.error or "").strip().splitlines() or [""]  # of a traceback the last line
            row = {
                "arm": run.arm,
                "seed": run.seed,
                "status": run.status,
                "why": cli.shortened(why, WHY),
            }
            rows.append(row)
        return rows

    def _draw(self) -> "Figure":
        from plkernel.results.figures import drawings

        return next(drawings(self.comparison)).figure


def load_study(folder: str | Path) -> StudyResult:
    """Open the folder of a study or of a record.

    Raises ValueError that names the file which is missing or damaged.
    """
    return StudyResult(**vars(read_study(cli.existing(path_of(folder, "folder"), "folder"))))


def run_study(
    spec: "str | Path | Spec",
    out: str | Path | None = None,
    *,
    workers: int | None = None,
    only: Sequence[str] = (),
    trust_code: bool = False,
) -> StudyResult:
    """Run every arm of a study at every seed, as plkernel.experiment does; go on if stopped.

    spec        a file, the name of one that comes with plkernel, or a `Spec` (plkernel.load_spec)
    out         folder of the study, runs/out/NAME unless given
    workers     runs at a time; on a CPU cores / train.threads unless given
    only        names or patterns of arms
    trust_code  import and run the code that the spec names

    Each run is a process of its own. Raises ValueError for a mistake in the spec, before anything
    is written; runs that fail or diverge are listed in the result.
    """
    from plkernel.config.reading import load_spec
    from plkernel.config.spec import Spec
    from plkernel.study.schedule import run_experiment
    from plkernel.training import check

    check_numbers_or_none(numbers.Integral, workers=workers)
    check_switches(trust_code=trust_code)
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    names = [only] if isinstance(only, str) or not isinstance(only, Iterable) else list(only)
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"only must be names or patterns of arms, got {only!r}")
    if isinstance(spec, Spec):
        chosen = spec.trusting(trust_code or spec.trusted)
    else:
        chosen = load_spec(spec, check, trust_code)
    folder = Path("runs/out") / chosen.name if out is None else path_of(out, "out")
    if folder.is_file():
        raise ValueError(f"out must be a folder, got the file {folder}")
    with cli.in_python(run_study):
        run_experiment(chosen, folder, workers, names)
    return load_study(folder)


def trial(
    text: str | Path,
    out: str | Path | None = None,
    *,
    model: "TrialModel" = "ssm",
    minutes: float = 5.0,
    seeds: int = 3,
    frozen: bool = True,
    short: bool = False,
    control: bool = True,
    dim: int = 64,
) -> StudyResult:
    """Measure a text, fit its law, and train a small model from several initialisations that follow
    from it.

    text     the name of a corpus, or a file or folder
    out      folder of the study, runs/out/trial-TEXT unless given; its spec is written to OUT.toml
    model    ssm, rwkv6 or rwkv7
    minutes  about how long it may take on this machine; the steps follow
    seeds    runs of every arm, two or more
    frozen   also train half-lives of 1 to 8 bytes that are frozen
    short    also train half-lives that begin at 1 to 8 bytes and are learnt
    control  with an SSM, also train a small one on a synthetic task in which memory must matter
    dim      width of the model

    The same call goes on with runs that were stopped, and with the spec as it is by then. Raises
    ValueError, before anything is trained, for a text that is too short or has no memory, a model
    too small for its law, and too few minutes. As plkernel.trial, which also writes the page.
    """
    from plkernel.results.measured import TrialOptions
    from plkernel.study import trial as chain

    if not isinstance(text, str | Path) or not str(text):
        raise ValueError(f"text must be the name of a corpus, a file or a folder, got {text!r}")
    check_numbers(minutes=minutes)
    check_numbers(numbers.Integral, seeds=seeds, dim=dim)
    check_switches(frozen=frozen, short=short, control=control)
    options = TrialOptions(
        model=str(model),
        minutes=minutes,
        seeds=seeds,
        frozen=frozen,
        short=short,
        control=control,
        dim=dim,
    )
    folder = None if out is None else path_of(out, "out")

    def tell(line: str) -> None:
        cli.note(cli.python_words(line, trial))

    with cli.in_python(trial):
        planned = chain.plan_trial(text, folder, options, tell)
        chain.run_trial(planned)
    return load_study(planned.out)
