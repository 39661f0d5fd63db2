"""python -m plkernel.report: what a study showed, as a table, a page, figures and rows to keep."""

from pathlib import Path

import tyro
from tqdm import tqdm

from plkernel.common import cli
from plkernel.common.files import atomic_write, check_folder, refuse_links, save_json
from plkernel.declared.registration import keep
from plkernel.records.layout import REPORT, ROWS
from plkernel.records.study import read_study
from plkernel.results.comparison import Comparison, compare
from plkernel.results.figures import drawings, memory_drawings
from plkernel.results.page.build import page_of, render
from plkernel.results.table import save_record, save_rows, table
from plkernel.results.terminal import text_report


def report(folder: tyro.conf.Positional[Path], record: Path | None = None, registered: Path | None = None) -> None:
    """Compare the arms of a study: print the table, write FOLDER/report (page, figures, JSON, rows).

    Arms are compared with the baseline seed by seed, each difference with its 95 % t interval, and a plain
    sentence says what may be concluded. Runs that failed or have not finished are listed, never counted.

    Args:
        folder: The folder of a study, as plkernel.experiment writes it (runs/out/NAME), or of a record.
        record: Keep what a report needs of the study in this folder, a small one: spec.json and rows.jsonl, of the
            search for learning rates too, and the registration. The same command on it gives the same report.
        registered: The registration of the study, as plkernel.experiment --register writes it, where it is not in the
            folder already.
    """
    cli.existing(folder, "folder")
    study = read_study(folder)
    check_folder(folder / REPORT, f"folder {folder}:")
    check_folder(record, "record")
    comparison = compare(study, registered and cli.existing(registered, "registered"))
    if record is not None:
        save_record(study, record)
        keep(comparison.declared.registration if comparison.declared else None, record)
    print(text_report(comparison), flush=True)
    print(f"\nreport: {write_comparison(comparison)}")


def write_comparison(comparison: Comparison) -> Path:
    """Write report.html, table.json and the figures as PDF and PNG, and of a study rows.jsonl; the path of the page."""
    from plkernel.analysis.figures.style import rendered

    study = comparison.study
    out = study.folder / REPORT
    refuse_links([out])
    atomic_write(out / "report.html", render(page_of(comparison)))
    drawn = {**drawings(comparison), **memory_drawings(comparison)}
    for name, figure in tqdm(drawn.items(), desc="figures", unit="figure", leave=False, disable=None):
        for kind, content in rendered(figure, ("pdf", "png")).items():
            atomic_write(out / f"{name}.{kind}", content)
    if not (study.folder / ROWS).exists():
        save_rows(study, out / ROWS)
    save_json(out / "table.json", table(comparison))
    return out / "report.html"


if __name__ == "__main__":
    cli.main(report)
