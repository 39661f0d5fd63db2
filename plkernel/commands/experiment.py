"""python -m plkernel.experiment SPEC: run a study, every arm at every seed, and report on it."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from plkernel.common import cli
from plkernel.common.files import SPEC, check_folder
from plkernel.config import reading
from plkernel.config.condition import Condition
from plkernel.config.resolved import ResolvedSpec, resolve_spec
from plkernel.config.spec import Spec
from plkernel.results.power import power_text, powers
from plkernel.results.registration import copy_of, place_of
from plkernel.results.registration import register as register_study
from plkernel.results.study import read_study
from plkernel.training import check
from plkernel.training.curves import LoggerName

if TYPE_CHECKING:
    from plkernel.study.engine import Engine
    from plkernel.study.slurm import SlurmQueue

Workers = int | Literal["auto"] | None
"""Runs at a time: a number, measured, or as many as the engine has room for."""
EngineName = Literal["local", "slurm"]
SLURM = "--slurm"
REPORT_PATIENCE = 120.0
"""Seconds that a command waits for a job that writes the report."""
READING = ("--status", "--cancel")
"""Options of calls that build no model and train nothing."""


def forecast(spec: Spec, only: Sequence[str], workers: int | None) -> str:
    """Return parameters, operations, memory and hours of every run and of the whole study.

    The search for learning rates is included. Raises ValueError where a corpus does not exist or is
    too short; one that is still to be fetched or unpacked is named.
    """
    from plkernel.study.dry_run import estimate, render
    from plkernel.study.schedule import chosen_arms, search_of
    from plkernel.training.loop import check_corpus_size, longest_window

    study = resolve_spec(spec)
    chosen = study.only(chosen_arms(spec, only))
    sections = dict.fromkeys(condition.corpus for condition in chosen.conditions.values())
    train = spec.train
    unread = [
        section.name
        for section in sections
        if not check_corpus_size(section, train.context, longest_window(section, train))
    ]
    arms = chosen.spec.arms
    searched = spec.tuning.rates and any(arm.learning_rate is None for arm in arms.values())
    search = resolve_spec(search_of(chosen.spec)) if searched else None
    lines = [render(estimate(chosen, workers, search=search)), *_cautions(study, *arms)]
    for name in unread:
        lines.append(f"corpus {name!r} is not read yet: nothing is known of its size")
    return "\n".join(lines)


def _rests_on(answers: Mapping[str, int]) -> Iterator[str]:
    """Yield how many answers of recall are behind each hypothesis."""
    for name, count in answers.items():
        answered = f"{count:,} answers" if count else "no answer"
        yield f"{name!r} rests on {answered} of each run"


def _power(spec: Spec, pilot: Path | None) -> Iterator[str]:
    """Yield the power of every hypothesis, or how to get it."""
    if spec.hypotheses and pilot is None:
        yield (
            "the power is not known; --pilot FOLDER takes the spread from runs of some seeds, or"
            " from an earlier record"
        )
    for row in powers(spec, pilot) if pilot else ():
        yield f"power of {row['name']!r}: {power_text(row)}"


def _cautions(study: ResolvedSpec, *arms: str) -> Iterator[str]:
    """Yield what `arms`, by default all, lack: a gate, equal output scale, decays that move.

    The arms of a curve over learning rates are one but for the rate: its name stands for them.
    """
    from plkernel.common.corpus_names import is_synthetic

    spec = study.spec
    is_text = not all(is_synthetic(spec.corpus_of(arm).name) for arm in spec.arms)
    if spec.hypotheses and is_text and not any(one.ahead_of for one in spec.gates):
        yield (
            "no gate asks that a model is ahead of counts of a few bytes: add a [[gates]] with"
            " ahead_of = 5"
        )
    if spec.curves:
        yield from _rate_caution(spec.tuning.rates)
    conditions = study.conditions
    words = {name: name for name in conditions}
    for curve, by_rate in spec.curves.items():
        words |= dict.fromkeys(by_rate.values(), curve)
    found: list[str] = []
    for name in arms or conditions:
        base = study.baselines[name] or ""
        found += _scale_caution(conditions[name], conditions.get(base), words)
        found += _decay_caution(conditions[name], words[name])
        found += _law_caution(conditions[name], words[name])
    yield from dict.fromkeys(found)


def _rate_caution(rates: Sequence[float]) -> Iterator[str]:
    """Yield that learning rates are too far apart for the minimum of a curve."""
    from plkernel.results.rate_curves import far_apart

    for low, high in pairwise(sorted(rates)):
        if far_apart(low, high):
            yield (
                f"tuning.rates: {low:g} and {high:g} are too far apart for the minimum of a curve"
                " to be trusted; add rates between them"
            )


def _scale_caution(
    condition: Condition, other: Condition | None, words: Mapping[str, str]
) -> Iterator[str]:
    """Yield that the output of an SSM differs in scale from that of the arm it is compared with.

    words: what arms are called.
    """
    from plkernel.analysis.nodes import output_std

    if other is None or condition.model != other.model or not other.model.of_kind.has_scale:
        return
    scale = output_std(condition.nodes) / output_std(other.nodes)
    if not 0.9 < scale < 1.1:
        yield (
            f"{words[condition.name]}: at initialisation its output is {scale:.2f} times the output"
            f" of {words[other.name]}; match = 'baseline' evens it"
        )


def _decay_caution(condition: Condition, called: str) -> Iterator[str]:
    """Yield that many half-lives outlast the context, in which they hardly move."""
    from plkernel.decays.memory import outlasting

    if not condition.places_nodes:
        return
    step = condition.model.patching.size
    half_lives = [step * math.log(2) / rate for rate in condition.nodes.rates]
    words = outlasting(half_lives, condition.protocol.context)
    if words:
        yield f"{called}: {words}"


def _law_caution(condition: Condition, called: str) -> Iterator[str]:
    """Yield that the kernel of quantile nodes does not follow the law of the arm."""
    from plkernel.analysis.nodes import HORIZON, NOT_FOLLOWED, law_distance

    arm = condition.arm
    if arm.placement != "quantile" or arm.law is None:
        return
    max_lag = arm.max_lag or HORIZON
    e_log = law_distance(condition.nodes, arm.law, max_lag / condition.model.patching.size)
    if e_log > NOT_FOLLOWED:
        yield (
            f"{called}: its kernel at initialisation misses t**-{arm.law.exponent:g} up to"
            f" {max_lag:g} bytes by a factor of e**{e_log:.3g} either way; a smaller tempering or"
            " more channels bring it nearer"
        )


def check_arguments(
    arms: Sequence[str],
    workers: Workers = None,
    only: Sequence[str] = (),
    engine: EngineName = "local",
    slurm: Sequence[str] = (),
    detach: bool = False,
    register: Sequence[Path] | None = None,
    dry_run: bool = False,
    pilot: Path | None = None,
    **_: object,
) -> None:
    """Refuse mistakes in options before any arm is resolved, which takes seconds."""
    if register is not None and dry_run:
        raise ValueError(
            "register must be left out beside dry_run, which writes nothing; a dry run with --pilot"
            " prints the power of every hypothesis"
        )
    if isinstance(workers, int) and workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    if pilot is not None and not (cli.existing(pilot, "pilot") / SPEC).is_file():
        raise ValueError(
            f"pilot must be the folder of a study or of a record, with a {SPEC}, got {pilot}"
        )
    cli.check_patterns("only", only, arms)
    _check_engine(engine, slurm, detach, workers)


def _check_engine(engine: EngineName, slurm: Sequence[str], detach: bool, workers: Workers) -> None:
    """Raise ValueError for options that do not suit the engine, or that submitit does not have."""
    if engine == "slurm":
        from plkernel.study.slurm import parameters

        parameters(slurm)
        if workers == "auto":
            raise ValueError(
                "workers must be a number, or left out, with --engine slurm, whose nodes train"
                " the runs, got 'auto'"
            )
    elif slurm:
        name = slurm[0].partition("=")[0]
        raise ValueError(
            f"slurm.{name} must be left out with --engine {engine}; it is for --engine slurm"
        )
    elif detach:
        raise ValueError(
            f"engine must be slurm with detach, which leaves runs to a queue, got {engine!r}; runs"
            " of --engine local end with the command"
        )


def _queue(folder: Path, slurm: Sequence[str] = (), workers: int | None = None) -> "SlurmQueue":
    """Return Slurm's queue for a study; ValueError without submitit or Slurm's commands."""
    from plkernel.study.slurm import SlurmQueue, parameters

    return SlurmQueue(folder, parameters(slurm), workers)


def show_status(spec: Spec, folder: Path) -> None:
    """Print the state of every run, from the folders and, where there are jobs, the queue."""
    from plkernel.study.status import has_open_jobs, render, states_of

    queue = None
    if has_open_jobs(spec, folder):
        try:
            queue = _queue(folder)
        except ValueError as error:
            print(f"note: {error}", file=sys.stderr)
    print(render(spec.name, states_of(spec, folder, queue)))


def cancel_jobs(spec: Spec, folder: Path) -> None:
    """Cancel the jobs of a study that are in the queue; OSError if Slurm refuses."""
    from plkernel.study.queue import jobs_of, lives

    jobs = jobs_of(folder)
    queue = _queue(folder) if jobs else None
    states = queue.states() if queue else {}
    if states is None:
        raise OSError("slurm does not answer; run the same command again once it does")
    alive = [job for job in jobs if lives(states.get(job))]
    if queue and alive:
        queue.cancel(alive)
    number = cli.counted(len(alive), "job", "jobs")
    print(f"{spec.name}: {number} cancelled; the same command without --cancel goes on")


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
    engine: EngineName = "local",
    slurm: tuple[str, ...] = (),
    detach: bool = False,
    status: bool = False,
    cancel: bool = False,
) -> None:
    """Run a study, every arm of the spec at every seed, and write its report.

    Finished runs are skipped, and interrupted ones resume. Runs of one seed share base weights and
    the order of the data; each run is a process of its own. Ctrl-C saves every run, and the same
    command goes on. tensorboard --logdir OUT shows the learning curves.

    Args:
        out: Folder of the study; runs/out/NAME if left out.
        workers: Number of runs at the same time; if left out, cores / train.threads on a CPU, and
            one for each GPU. auto: on GPUs as many as a short timing of 1, 2, 4 and 8 at the same
            time finds best.
        only: Run only these arms: names, or patterns such as 'quantile*'.
        dry_run: Say what the study would take; nothing is trained or written.
        report: Write the report at the end.
        retry: Go on with runs that diverged, from their last checkpoints.
        record: Take finished runs from this record, and train the others.
        register: Write the hypotheses to this file and exit; do this before the runs. Without a
            file they go to runs/registered/NAME.json, where the study finds them; of another file
            it finds the copy in OUT.
        pilot: A study or record for --register and --dry-run: the spread of its paired differences
            gives the power of every hypothesis. A claim with two bounds is not registered if its
            power is below 0.5.
        underpowered: Register a claim with two bounds even if its power is below 0.5.
        logger: Also send the learning curves to this library, which the extra of its name installs.
        trust_code: Import and run the code that the spec names.
        engine: Where runs are trained: in processes of this machine, or as jobs of Slurm, one for
            each run.
        slurm: Parameters of the jobs, each as --slurm.NAME VALUE, for example --slurm.partition
            gpu --slurm.time 8:00:00.
        detach: Submit the jobs and exit; the same command without it collects the results.
        status: Print which runs are queued, running, done or failed, with their logs, and exit.
        cancel: Cancel the jobs of the study and exit; runs that have begun are saved.
    """
    folder = out or Path("runs/out") / spec.name
    if status:
        show_status(spec, folder)
        return
    if cancel:
        cancel_jobs(spec, folder)
        return
    if register is not None:
        _register(spec, register, folder, pilot, underpowered)
        return
    check_folder(folder, "out")
    from plkernel.study.schedule import check_outside_corpora

    check_outside_corpora(spec, folder)
    if dry_run:
        _check_found(spec, folder, record)
    if workers == "auto":
        from plkernel.study.together import workers as measured

        workers = measured(spec)
    if dry_run:
        from plkernel.study.recalled import answers_behind

        answers = answers_behind(spec, spec.hypotheses)
        lines = [forecast(spec, only, workers), *_rests_on(answers), *_power(spec, pilot)]
        print("\n".join(lines))
        return
    on_slurm = engine == "slurm"
    chosen = _slurm_engine(folder, slurm, workers, detach, report) if on_slurm else None
    at_once = None if on_slurm else workers
    if record is not None:
        from plkernel.study.schedule import take_record

        number = cli.counted(take_record(spec, record, folder, only, chosen), "run", "runs")
        print(f"{spec.name}: {number} taken from {record}", flush=True)
    _train(spec, folder, at_once, only, chosen, retry, logger, report)


def _check_found(spec: Spec, folder: Path, record: Path | None) -> None:
    """Refuse the folder of another study, and a record that is none or of another one."""
    from plkernel.results.record import missing_rows
    from plkernel.study.schedule import check_record, check_same_study

    check_same_study(spec, folder)
    if record is not None:
        check_record(spec, record, folder)
        missing_rows(record, folder)


def _slurm_engine(
    folder: Path, slurm: Sequence[str], workers: int | None, detach: bool, report: bool
) -> "Engine":
    """Return the engine that submits runs to Slurm."""
    from plkernel.study.queue import QueueEngine

    return QueueEngine(_queue(folder, slurm, workers), detach, report)


def _train(
    spec: Spec,
    folder: Path,
    workers: int | None,
    only: Sequence[str],
    engine: "Engine | None",
    retry: bool,
    logger: LoggerName | None,
    report: bool,
) -> None:
    """Run a study and print its report; exit with 1 where a run did not finish."""
    from plkernel.study.engine import LeftToQueueError
    from plkernel.study.schedule import run_experiment

    try:
        failed = run_experiment(spec, folder, workers, only, engine, retry, logger)
    except LeftToQueueError as left:
        print(f"{spec.name}: {left}")
        return
    if report and read_study(folder).finished():
        from plkernel.commands.report import report as print_report

        # The last job of a queue may be about to write the report too.
        with _held(folder) if engine else nullcontext():
            print_report(folder)
    if failed:
        print(
            f"did not finish: {', '.join(failed)}; log.txt says why, --retry goes on after"
            " divergence",
            file=sys.stderr,
        )
        sys.exit(1)


def _held(folder: Path) -> AbstractContextManager[None]:
    """Return the lock of a study, waited for."""
    from plkernel.training.folder import locked

    return locked(folder, f"out {folder}", REPORT_PATIENCE)


def _check_synthetic(spec: Spec) -> None:
    """Raise ValueError where a synthetic corpus cannot hold a window, as its runs would.

    Others may be of another size, or absent, on the machine of the runs; a dry run reads theirs.
    """
    from plkernel.common.corpus_names import is_synthetic
    from plkernel.training.loop import check_corpus_size, longest_window

    for section in dict.fromkeys(spec.corpus_of(arm) for arm in spec.arms):
        if is_synthetic(section.name):
            check_corpus_size(section, spec.train.context, longest_window(section, spec.train))


def _register(
    spec: Spec,
    register: Sequence[Path],
    folder: Path,
    pilot: Path | None,
    underpowered: bool,
) -> None:
    """Write the hypotheses to a file, and print their power."""
    from plkernel.study.recalled import answers_behind

    if len(register) > 1:
        raise ValueError(f"register must be one file or none, got {len(register)}")
    _check_synthetic(spec)
    path = register[0] if register else place_of(spec)
    answers = answers_behind(spec, spec.hypotheses)
    for name, count in answers.items():
        if not count:
            raise ValueError(
                f"register: hypothesis {name!r} must rest on some answers, got none: its test has"
                " no query at that distance"
            )
    behind_gates = answers_behind(spec, spec.gates)
    new = register_study(spec, path, folder, pilot, underpowered, behind_gates)
    done = f"registered before, unchanged: {path}"
    if new:
        done = f"registered: {path}; commit it before the runs"
    lines = [done]
    copy = copy_of(spec, path, folder)
    if copy is not None:
        lines.append(f"the study finds its copy {copy}; the same command again brings it back")
    lines += [*_rests_on(answers), *_power(spec, pilot), *_cautions(resolve_spec(spec))]
    print("\n".join(lines))


def slurm_gathered(given: Sequence[str]) -> list[str]:
    """Return the words of a command line with all --slurm.NAME VALUE as one option.

    A parameter without a value stands for true.

    >>> slurm_gathered(["quick", "--slurm.partition", "gpu", "--workers", "2", "--slurm.time=60"])
    ['quick', '--workers', '2', '--slurm', 'partition=gpu', 'time=60']
    """
    words = list(given)
    others: list[str] = []
    options: list[str] = []
    while words:
        word = words.pop(0)
        if not word.startswith(f"{SLURM}."):
            others.append(word)
            continue
        option = word.removeprefix(f"{SLURM}.")
        if "=" not in option and words and not words[0].startswith("--"):
            option = f"{option}={words.pop(0)}"
        options.append(option)
    return [*others, SLURM, *options] if options else others


def main(args: Sequence[str] | None = None) -> None:
    """Run the command; what only reads folders is checked without building a model."""
    words = slurm_gathered(sys.argv[1:] if args is None else args)
    reads = any(option in words for option in READING)
    reading.main(command, args=words, check=None if reads else check, ahead=check_arguments)


if __name__ == "__main__":
    main()
