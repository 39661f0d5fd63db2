"""python -m plkernel.report: the result of a study as a table, a page, figures and rows to keep."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro
from tqdm import tqdm

from plkernel.common import cli
from plkernel.common.files import (
    REPORT,
    ROWS,
    FigureFormat,
    atomic_write,
    check_folder,
    refuse_links,
    save_json,
)
from plkernel.results.answer import answer
from plkernel.results.cautions import warnings
from plkernel.results.comparison import Comparison, compare, table
from plkernel.results.conclusion import overview
from plkernel.results.page import page, text_report, used_config
from plkernel.results.record import record_row, save_record
from plkernel.results.study import read_study
from plkernel.results.wording import first_few


def report(
    folder: tyro.conf.Positional[Path],
    record: Path | None = None,
    out: Path | None = None,
    csv: bool = False,
    formats: tuple[FigureFormat, ...] = (),
) -> None:
    """Compare the arms of a study, print the tables, and write a page and JSON to FOLDER/report.

    Arms are compared with the baseline seed by seed, and each difference has a 95 % t interval.
    Runs that failed or have not finished are listed but not counted. The report of a record goes to
    runs/out/NAME-record, so that the record stays as it is.

    Args:
        folder: The folder of a study, as plkernel.experiment writes it (runs/out/NAME), or of a
            record.
        record: Also write a record of the study to this folder: spec.json, rows.jsonl, the
            registration, and those of the search for learning rates. A report on the record equals
            that on the study. Rows of runs that only the record has stay in it.
        out: Write the report to this folder instead.
        csv: Also write rows.csv, a line per ended run, and table.csv, a line per arm and measure.
        formats: Also write each figure of the page to a file, in these formats.
    """
    cli.existing(folder, "folder")
    study = read_study(folder)
    out = out or _place(folder)
    check_folder(out, "out")
    check_folder(record, "record")
    if record is not None:
        kept = save_record(study, record)
        print(f"record: {record}", flush=True)
        if kept:
            _note_kept(kept, folder, record)
        if not study.finished():  # learning rates are still searched for
            return
    comparison = compare(study)
    print(text_report(comparison), flush=True)
    print(f"\nreport: {write_comparison(comparison, out, formats)}")
    if csv:
        save_csv(comparison, out)


def _note_kept(names: Sequence[str], folder: Path, record: Path) -> None:
    """Say on standard error which rows of a record are of no run of the study."""
    rows = cli.counted(len(names), "row stays", "rows stay")
    print(
        f"note: {rows} in {record}, of runs that are not among those of the study in {folder}:"
        f" {first_few(names)}; remove {record} first to give them up",
        file=sys.stderr,
    )


def _place(folder: Path) -> Path:
    """Folder of the report of a study, or of a record."""
    if (folder / ROWS).exists():
        return Path("runs/out") / f"{folder.resolve().name}-record"
    return folder / REPORT


def write_comparison(
    comparison: Comparison, out: Path, formats: Sequence[FigureFormat] = ()
) -> Path:
    """Write report.html, table.json, and figures in `formats` to `out`; return the page."""
    from plkernel.analysis.figures.style import fewer_collections, rendered
    from plkernel.results.figures import drawings

    refuse_links(out)
    drawn = []
    progress = tqdm(drawings(comparison), desc="figures", unit="figure", leave=False, disable=None)
    with fewer_collections():
        for drawing in progress:
            files = rendered(drawing.figure, kinds=list(dict.fromkeys(["svg", *formats])))
            drawn.append((drawing, files["svg"]))
            for kind in formats:
                atomic_write(out / f"{drawing.name}.{kind}", files[kind])
    words = {
        "answer": answer(comparison),
        "summary": overview(comparison),
        "warnings": warnings(comparison),
    }
    save_json(out / "table.json", table(comparison) | words)
    atomic_write(out / "report.html", page(comparison, drawn))
    return out / "report.html"


def save_csv(comparison: Comparison, out: Path) -> None:
    """Write rows.csv and table.csv to `out`.

    rows.csv has every ended run without its lists, and of the model the options that its kind has;
    table.csv has the measures of table.json.
    """
    from pandas import json_normalize

    study = comparison.study
    recorded = [record_row(study, run) for run in study.ended]
    rows = json_normalize([{**row, "config": used_config(row["config"])} for row in recorded])
    lists = [name for name, of in rows.items() if any(isinstance(value, list) for value in of)]
    atomic_write(out / "rows.csv", rows.drop(columns=lists).to_csv(index=False))
    measures = json_normalize(_measure_rows(table(comparison)))
    atomic_write(out / "table.csv", measures.to_csv(index=False))


def _measure_rows(numbers: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for every arm and measure of table.json; only the primary measure has a corrected p."""
    rows = []
    for arm in numbers["arms"]:
        for measure, of in arm["measures"].items():
            is_primary = measure == numbers["primary"]
            rows.append(
                {
                    "arm": arm["arm"],
                    "against": arm["against"],
                    "measure": measure,
                    **of,
                    "p_corrected": arm["p_corrected"] if is_primary else None,
                }
            )
    return rows


if __name__ == "__main__":
    cli.main(report)
