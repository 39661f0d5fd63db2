"""python -m plkernel.judge ROWS: the verdict on runs that somebody else trained."""

import math
from pathlib import Path
from typing import Literal

import tyro

from plkernel.common import cli
from plkernel.common.files import (
    FigureFormat,
    atomic_write,
    check_apart,
    check_folder,
    check_regular,
    end_of_name,
    refuse_links,
    save_json,
)
from plkernel.results.judging import (
    Stating,
    content,
    early_note,
    figure,
    judged,
    read_hypotheses,
    render,
    stepless_note,
    unmatched_note,
)
from plkernel.results.rows import PATTERN, Columns, last_values, read_rows, unmatched


def command(
    rows: tyro.conf.Positional[Path],
    baseline: str | None = None,
    arm: tuple[str, ...] = (),
    seed: str | None = None,
    value: str | None = None,
    step: str | None = None,
    size: str | None = None,
    run: str | None = None,
    pattern: str = PATTERN,
    at: float | None = None,
    better: Literal["lower", "higher"] = "lower",
    hope: float | None = None,
    hypotheses: Path | None = None,
    out: Path | None = None,
    formats: tuple[FigureFormat, ...] = ("svg",),
) -> None:
    """Compare arms that other software trained, seed by seed, as a study of plkernel is compared.

    Reads CSV, TSV, JSON, JSON lines and Parquet with the columns arm, seed and value (optionally
    step and size), charts and tables as wandb and trackio export them, and folders of TensorBoard.
    Prints paired differences with 95 % intervals, Holm's correction, what these seeds could find,
    and writes judge.json and a forest.

    Args:
        rows: The file, with a row for each run, or a folder with a subfolder for each run that
            TensorBoard can show.
        baseline: The arm that others are compared with; left out, one called baseline or control,
            else the first.
        arm: Column, or columns, that tell the arm.
        seed: Column of the seed. Arms that share fewer than two seeds are compared by
            Welch's test.
        value: Column of the value, or the tag in TensorBoard's files.
        step: Column of the step; compared is the last that all runs have.
        size: Column of a size, or of anything within which arms are compared.
        run: Column of the name of a run, for files without arm and seed.
        pattern: Regular expression with the groups arm and seed, for names of runs; folders of
            TensorBoard that it does not match are left out.
        at: The step to compare at; runs that ended before it are left out.
        better: Which values are better.
        hope: A difference; tells how many seeds find it 8 times in 10.
        hypotheses: A TOML file with [[hypotheses]]: name, arm, claim (lower, higher, equal,
            lower_by_less or higher_by_less) and margin, and optionally against, size, family and
            alpha.
        out: Folder to write to; runs/out/judge-ROWS if left out.
        formats: Formats of the forest plot.
    """
    cli.existing(rows, "rows")
    if hope is not None and not (math.isfinite(hope) and hope != 0):
        raise ValueError(f"hope must be a finite number other than 0, got {hope:g}")
    columns = Columns(arm, seed, run, value, step, size, pattern)
    stating = Stating()
    if hypotheses is not None:
        check_regular(cli.existing(hypotheses, "hypotheses"), "hypotheses ")
        stating = read_hypotheses(hypotheses)
    out = out or Path("runs/out") / f"judge-{end_of_name(rows.resolve().stem)}"
    check_folder(out, "out")
    check_apart({"out": out / "judge.json"}, [rows, hypotheses])
    every = read_rows(rows, columns)
    values, used = last_values(every, at)
    told = [unmatched_note(unmatched(rows, columns))]
    if at is None:
        told += [early_note(every, used, baseline, stating), stepless_note(every, used)]
    notes = [note for note in told if note is not None]
    result = judged(values, baseline, stating, hope, used, notes)
    print(render(result, better), flush=True)
    refuse_links(out)
    save_json(out / "judge.json", content(result))
    from plkernel.analysis.figures.style import rendered

    drawn = rendered(figure(result, value or "", better), kinds=list(dict.fromkeys(formats)))
    for kind, data in drawn.items():
        atomic_write(out / f"forest.{kind}", data)
    print(f"\nwritten: {out}")


if __name__ == "__main__":
    cli.main(command)
