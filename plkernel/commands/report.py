"""python -m plkernel.report: the result of a study as a table, a page, figures and rows to keep."""

from pathlib import Path
from typing import Any

import tyro
from tqdm import tqdm

from plkernel.common import cli
from plkernel.common.files import REPORT, ROWS, atomic_write, check_folder, refuse_links, save_json
from plkernel.results.comparison import Comparison, compare, table
from plkernel.results.page import overview, page, text_report, warnings
from plkernel.results.study import read_study, save_record
from plkernel.results.study import record as run_record


def report(
    folder: tyro.conf.Positional[Path],
    record: Path | None = None,
    out: Path | None = None,
    csv: bool = False,
) -> None:
    """Compare the arms of a study: print the tables, write FOLDER/report (page, figures, JSON).

    Arms are compared with the baseline seed by seed, each difference with its 95 % t interval. Runs
    that failed or have not finished are listed, never counted. A record stays as it is: its report
    goes to runs/out/NAME-record.

    Args:
        folder: The folder of a study, as plkernel.experiment writes it (runs/out/NAME), or of a
            record.
        record: Keep a record of the study in this folder: spec.json, rows.jsonl, the registration,
            and those of the search for learning rates. The same command on it gives the same
            report.
        out: Write the report here instead.
        csv: Also write rows.csv, a line per ended run, and table.csv, a line per arm and measure.
    """
    cli.existing(folder, "folder")
    study = read_study(folder)
    out = out or _place(folder)
    check_folder(out, "out")
    check_folder(record, "record")
    if record is not None:
        save_record(study, record)
        print(f"record: {record}", flush=True)
        if not study.finished():  # rates are still searched
            return
    comparison = compare(study)
    print(text_report(comparison), flush=True)
    print(f"\nreport: {write_comparison(comparison, out)}")
    if csv:
        save_csv(comparison, out)


def _place(folder: Path) -> Path:
    """Folder of the report of a study, or of a record."""
    kept = (folder / ROWS).exists()
    return Path("runs/out") / f"{folder.resolve().name}-record" if kept else folder / REPORT


def write_comparison(comparison: Comparison, out: Path) -> Path:
    """Write report.html, table.json, and figures as PDF and PNG to `out`; return the page."""
    from plkernel.analysis.figures.style import rendered
    from plkernel.results.figures import drawings

    drawn = []
    refuse_links(out)
    for one in tqdm(drawings(comparison), desc="figures", unit="figure", leave=False, disable=None):
        files = rendered(one.figure)
        drawn.append((one, files.pop("svg")))
        for kind, content in files.items():
            atomic_write(out / f"{one.name}.{kind}", content)
    words = {"summary": overview(comparison), "warnings": warnings(comparison)}
    save_json(out / "table.json", table(comparison) | words)
    atomic_write(out / "report.html", page(comparison, drawn))
    return out / "report.html"


def save_csv(comparison: Comparison, out: Path) -> None:
    """Write rows.csv, every ended run without its lists, and table.csv, the measures of table.json,
    to `out`.
    """
    from pandas import json_normalize

    numbers, arms = table(comparison), list[dict[str, Any]]()
    for arm in numbers["arms"]:
        for key, of in arm["measures"].items():
            p = arm["p_corrected"] if key == numbers["primary"] else None
            arms.append(
                {
                    "arm": arm["arm"],
                    "against": arm["against"],
                    "measure": key,
                    **of,
                    "p_corrected": p,
                }
            )
    rows = json_normalize([run_record(comparison.study, run) for run in comparison.study.ended])
    lists = [name for name, of in rows.items() if any(isinstance(value, list) for value in of)]
    for name, frame in {
        "rows.csv": rows.drop(columns=lists),
        "table.csv": json_normalize(arms),
    }.items():
        atomic_write(out / name, frame.to_csv(index=False))


if __name__ == "__main__":
    cli.main(report)
