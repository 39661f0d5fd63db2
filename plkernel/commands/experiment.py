"""python -m plkernel.experiment SPEC: conditions x seeds, several processes at a time, resumable,
with a report.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from plkernel.common import cli
from plkernel.common.files import check_folder
from plkernel.config import reading
from plkernel.config.resolved import ResolvedSpec, resolve_spec
from plkernel.config.study import Spec
from plkernel.results.power import power_text, powers
from plkernel.results.record import restore
from plkernel.results.registration import place_of
from plkernel.results.registration import register as register_study
from plkernel.results.study import read_study
from plkernel.training import check
from plkernel.training.curves import LoggerName

Workers = int | Literal["auto"] | None


def forecast(spec: Spec, only: Sequence[str], workers: int | None) -> str:
    """Return parameters, operations, memory and hours of every run and of the whole, the search
    included.

    ValueError where a corpus does not exist or is too short; one that is still to be fetched or
    unpacked is named.
    """
    from plkernel.study.dry_run import estimate, text
    from plkernel.study.schedule import chosen_arms, search_of
    from plkernel.training.loop import check_ahead

    study = resolve_spec(spec)
    chosen = study.only(chosen_arms(spec, only))
    sections = dict.fromkeys(condition.corpus for condition in chosen.conditions.values())
    unread = [section.name for section in sections if not check_ahead(section, spec.train.context)]
    arms = chosen.spec.arms
    searched = spec.tuning.rates and any(arm.learning_rate is None for arm in arms.values())
    search = resolve_spec(search_of(chosen.spec)) if searched else None
    lines = [text(estimate(chosen, workers, search=search)), *_cautions(study, *arms)]
    return "\n".join(
        [
            *lines,
            *(f"corpus {name!r} is not read yet: nothing is known of its size" for name in unread),
        ]
    )


def _power(spec: Spec, pilot: Path | None) -> Iterator[str]:
    """Yield the power of every hypothesis, or how to get it."""
    if spec.hypotheses and pilot is None:
        yield (
            "power: not known; --pilot FOLDER takes the spread from runs of some seeds, or from an"
            " earlier record"
        )
    for row in powers(spec, pilot) if pilot else ():
        yield f"power of {row['name']!r}: {power_text(row)}"


def _cautions(study: ResolvedSpec, *arms: str) -> Iterator[str]:
    """Yield what `arms`, by default all, lack: a gate of a text, equal output scale, decays that
    move in a window.
    """
    from plkernel.analysis.nodes import output_std
    from plkernel.data.names import known_sequence
    from plkernel.decays.memory import outlasting

    spec = study.spec
    if (
        spec.hypotheses
        and known_sequence(spec.corpus.name) is None
        and not any(one.ahead_of for one in spec.gates)
    ):
        yield (
            "no gate asks that a model is ahead of counts of a few bytes: add a [[gates]] with"
            " ahead_of = 5"
        )
    conditions = study.conditions
    for name, condition in ((name, conditions[name]) for name in arms or conditions):
        other = conditions.get(study.baselines[name] or "")
        if other is not None and condition.model == other.model and other.model.kind == "ssm":
            scale = output_std(condition.nodes) / output_std(other.nodes)
            if not 0.9 < scale < 1.1:
                yield (
                    f"{name}: starts at {scale:.2f} times the output of {other.name}; match ="
                    " 'baseline' evens it"
                )
        if condition.arm.places_nodes and not condition.model.is_foreign:
            half_lives = [
                condition.model.patching.size * math.log(2) / rate for rate in condition.nodes.rates
            ]
            if words := outlasting(half_lives, condition.protocol.context):
                yield f"{condition.name}: {words}"


def check_ahead(
    arms: Sequence[str], workers: Workers = None, only: Sequence[str] = (), **_: object
) -> None:
    """Refuse mistakes in options before any arm is resolved, which takes seconds."""
    if isinstance(workers, int) and workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    cli.check_patterns("only", only, arms)


def command(
    spec: Spec,
    out: Path | None = None,
    workers: Workers = None,
    only: tuple[str, ...] = (),
    dry_run: bool = False,
    report: bool = True,
    retry: bool = False,
    record: Path | None = None,
    register: tuple[Path, ...] | None = None,
    pilot: Path | None = None,
    underpowered: bool = False,
    logger: LoggerName | None = None,
    trust_code: bool = False,
) -> None:
    """Run every condition at every seed, skip what has finished, resume what has not, then write
    the report.

    Runs of one seed share base weights and data order; each run is a process of its own. Ctrl-C
    saves every run; the same command goes on. Learning curves: tensorboard --logdir OUT.

    Args:
        out: Folder of the study; runs/out/NAME if left out.
        workers: Runs at a time; if left out, on a CPU cores / train.threads, on GPUs one each.
            auto: on GPUs as many as a short timing of 1, 2, 4 and 8 at a time finds best.
        only: Run these arms only: names or patterns such as 'quantile*'.
        dry_run: Train and write nothing: say what it would take.
        report: Write the report at the end.
        retry: Try again what diverged, from the last checkpoints.
        record: Take the runs of this record, and train the rest.
        register: Only write down what is declared, in runs/registered/NAME.json, where a study
            finds it, or in this file.
        pilot: Of --register and --dry-run: a study or record whose paired differences show the
            spread, from which the power of every hypothesis follows. An equivalence with a power
            below 0.5 is not registered.
        underpowered: Register it all the same.
        logger: Give the scalars of the learning curves to this library too (extra of its name).
        trust_code: Import and run the code that the spec names.
    """
    folder = out or Path("runs/out") / spec.name
    if register is not None:
        if len(register) > 1:
            raise ValueError(f"register: expected one file or none, got {len(register)}")
        path = register[0] if register else place_of(spec)
        new = register_study(spec, path, folder, pilot, underpowered)
        done = (
            f"registered: {path}; commit it before the runs"
            if new
            else f"registered before, unchanged: {path}"
        )
        print("\n".join([done, *_power(spec, pilot), *_cautions(resolve_spec(spec))]))
        return
    if workers == "auto":
        from plkernel.study.together import workers as measured

        workers = measured(spec)
    if dry_run:
        print("\n".join([forecast(spec, only, workers), *_power(spec, pilot)]))
        return
    from plkernel.study.schedule import run_experiment

    check_folder(folder, "out")
    if record is not None:
        print(f"{spec.name}: {restore(record, folder)} runs taken from {record}", flush=True)
    failed = run_experiment(spec, folder, workers, only, retry=retry, logger=logger)
    if report and read_study(folder).finished():
        from plkernel.commands.report import report as print_report

        print_report(folder)
    if failed:
        print(
            f"did not finish: {', '.join(failed)}; log.txt says why, --retry goes on after"
            " divergence",
            file=sys.stderr,
        )
        sys.exit(1)


if __name__ == "__main__":
    reading.main(command, check=check, ahead=check_ahead)
