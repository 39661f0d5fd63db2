"""python -m plkernel.report: what a study showed, as a table, a page, figures and rows to keep."""

from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from plkernel import cli
from plkernel.analysis.bands import difference_curves
from plkernel.comparison import CONFIDENCE, Arm, Comparison, compare
from plkernel.findings import interval_text, p_text, sentences, summary, warnings
from plkernel.markup import inline_svg
from plkernel.models import NOT_CAUSAL
from plkernel.page import render
from plkernel.records import save_record, save_rows, table
from plkernel.storage import atomic_write, save_json
from plkernel.studies import REPORT, ROWS, Run, read_study
from plkernel.tables import text_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FIGURES = {
    "convergence": "Validation bits per byte against training bytes read, a line per arm and seed",
    "difference": "Difference of each arm to the baseline against training bytes read, with its interval",
}


def report(folder: tyro.conf.Positional[Path], record: Path | None = None) -> None:
    """Compare the arms of a study: print the table, write FOLDER/report (page, figures, JSON, rows).

    Arms are compared with the baseline seed by seed, each difference with its 95 % t interval, and a plain
    sentence says what may be concluded. Runs that failed or have not finished are listed, never counted.

    Args:
        folder: The folder of a study, as plkernel.experiment writes it (runs/out/NAME), or of a record.
        record: Keep what a report needs of the study in this folder, a small one: spec.json and rows.jsonl, of the
            search for learning rates too. The same command on it gives the same report.
    """
    study = read_study(folder)
    comparison = compare(study)
    if record is not None:
        save_record(study, record)
    page = write_comparison(comparison)
    print(f"{text_report(comparison)}\n\nreport: {page}")


def write_report(folder: Path) -> Path:
    """Read the study in `folder`, write everything to folder/report and return the path of the page.

    Raises ValueError naming the file that is missing or damaged, or when no run is finished.
    """
    return write_comparison(compare(read_study(folder)))


def write_comparison(comparison: Comparison) -> Path:
    """Write report.html, table.json, rows.jsonl and the figures as PDF and PNG; return the path of the page."""
    from plkernel.analysis.figures import rendered

    study = comparison.study
    out = study.folder / REPORT
    inline = {}
    for name, figure in _figures(comparison).items():
        files = rendered(figure)
        inline[name] = inline_svg(files["svg"], name, FIGURES[name])
        for kind in ("pdf", "png"):
            atomic_write(out / f"{name}.{kind}", files[kind])
    save_rows(study, out / ROWS)
    save_json(out / "table.json", table(comparison))
    atomic_write(out / "report.html", render(comparison, inline))
    return out / "report.html"


def text_report(comparison: Comparison) -> str:
    """The table, the warnings and the sentences, for the terminal."""
    bases = comparison.baselines
    minus = [f"minus {bases[0].name}"] if len(bases) == 1 else ["minus", "is"]
    header = ["arm", "seeds", "steps", "best", "final", "test", *minus, "95 % interval", "p", "corrected p"]
    arms = text_table(header, [_text_row(comparison, arm) for arm in comparison.arms])
    label = "" if comparison.causal else f", {NOT_CAUSAL}"
    note = f"bits per byte{label}; difference: {comparison.primary.title}, paired by seed, below 0 is better"
    lines = [*sentences(comparison), *(f"note: {text}" for text in warnings(comparison))]
    return "\n".join([summary(comparison), "", arms, f"({note})", "", *lines])


def _text_row(comparison: Comparison, arm: Arm) -> list[str]:
    shown = [arm.estimates.get(name) for name in ("best_val_bpb", "final_val_bpb", "test_bpb")]
    difference = arm.differences.get(comparison.primary.key)
    return [
        arm.name if arm.causal else f"{arm.name} [{NOT_CAUSAL}]",
        str(len(arm.seeds)),
        ", ".join(map(str, arm.steps)) or "-",
        *(f"{estimate.mean:.4f}" if estimate else "-" for estimate in shown),
        *([arm.against or ""] if len(comparison.baselines) > 1 else []),
        f"{difference.mean:+.4f}" if difference else "",
        interval_text(difference, "+.4f") if difference else "",
        p_text(difference.p_value) if difference else "",
        p_text(comparison.corrected[arm.name]) if difference else "",
    ]


def _figures(comparison: Comparison) -> dict[str, "Figure"]:
    from plkernel.analysis.curve_figures import convergence, differences

    study = comparison.study
    curves = {arm.name: {run.seed: run.curve() for run in study.finished(arm.name)} for arm in comparison.arms}
    labels = {arm.name: _figure_label(comparison, arm) for arm in comparison.arms}
    per_step, heading = _bytes_per_step(study.finished()), "" if comparison.causal else NOT_CAUSAL
    every = {labels[name]: list(seeds.values()) for name, seeds in curves.items()}
    figures = {"convergence": convergence(every, per_step, heading)}
    paired = {
        labels[arm.name]: list(difference_curves(curves[arm.name], curves[str(arm.against)]).values())
        for arm in comparison.others
    }
    if any(paired.values()):
        bases = [base.name for base in comparison.baselines]
        named = bases[0] if len(bases) == 1 else "the arm it is compared with"
        figures["difference"] = differences(paired, named, per_step, heading, CONFIDENCE)
    return figures


def _figure_label(comparison: Comparison, arm: Arm) -> str:
    """The name of an arm; where only some arms are not causal (no heading can say it), those say so."""
    mixed = not arm.causal and any(other.causal for other in comparison.arms)
    return f"{arm.name} ({NOT_CAUSAL})" if mixed else arm.name


def _bytes_per_step(runs: list[Run]) -> float | None:
    """Training bytes per step, where all runs share one figure."""
    ratios = {run.result.bytes / run.result.steps for run in runs if run.result and run.result.steps}
    return ratios.pop() if len(ratios) == 1 else None


if __name__ == "__main__":
    cli.main(report)
