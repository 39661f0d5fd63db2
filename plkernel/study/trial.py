"""The whole chain on one text: measure its memory, fit it, plan a study, register and run it.

The study compares initialisations, and fits into some minutes.

RUNS/NAME.toml is the spec of the study in RUNS/NAME, with comments that say what was measured; what
was measured lies in RUNS/NAME/measurement.json. With both there, a trial goes on; with the latter
alone, after a call with too few minutes, the same text is not measured again.
"""

import json
import math
import os
import re
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from plkernel.analysis.exponentials import power_law_target
from plkernel.analysis.information.estimate import BLOCKS, MAX_LAG
from plkernel.analysis.information.laws import PowerLaw, fit_power_law, measure_corpus
from plkernel.analysis.nodes import ANCHORS, Nodes, node_scores, place
from plkernel.common import cli
from plkernel.common.corpus_names import is_recall
from plkernel.common.environment import installed
from plkernel.common.files import (
    MEASUREMENT,
    REGISTERED,
    atomic_write,
    check_folder,
    is_utf8,
    save_json,
)
from plkernel.config.condition import Condition, resolve
from plkernel.config.reading import load_spec, parse_spec, parse_toml
from plkernel.config.resolved import resolve_spec
from plkernel.config.schema import FOLDER_NAME, Arm, ModelSpec
from plkernel.config.spec import Spec
from plkernel.data import corpora
from plkernel.data.names import check_outside
from plkernel.results.measured import CONTROL, Measured, TrialOptions, read_measurement
from plkernel.results.registration import register
from plkernel.training import check

TrialModel = Literal["ssm", "rwkv6", "rwkv7"]
Tell = Callable[[str], object]

CONTEXT = 256
"""Bytes of a training window."""
BATCH = 8
"""Windows of a step."""
HELD_OUT = 0.05
"""Share of the text for validation, and as much for test."""
LEAST_WINDOWS = 16
"""Windows of a text's validation split, at least; with fewer the losses are noise."""
LEAST_LAG = 10
"""The memory of a text must stand out to this lag; half-lives of 1 to 8 bytes are the control."""
FAINT = 0.01
"""Bits that a byte tells of another; below, the reader is told before anything is trained."""
LEAST_STEPS = 60
"""With fewer steps a run shows little but its warm-up."""
LEAST_SEEDS = 2
"""For an interval."""
EVALUATIONS = 6
"""Evaluations of a run after the one at its start; the steps are a multiple of them."""
EVAL_WINDOWS = 64
TEST_WINDOWS = 128
RESERVE = 1.1
"""Times the minutes that a trial needs: what is asked for where there are too few."""
MOST_MINUTES = 1_000_000_000
"""Steps for more are too many for a spec."""
AFTERWARDS = 15.0
"""Seconds kept for n-grams before the runs and the page after them."""
SHORT = 8
"""The longest half-life, in bytes, of the arms whose memory is too short."""
COPIED = 64
"""Bytes from which one is copied on the text of the control."""
CONTROL_CORPUS = f"synthetic:lags,alpha=0.7,longest={COPIED},redrawn=0.05,symbols=8,bytes=2MB"
CONTROL_MODEL = {"dim": 32, "layers": 1}
"""Small, so that it is cheap, and of one layer, since several reach further than each alone."""
CONTROL_WORDS = f"a synthetic task, bytes that copy one of the {COPIED} before them"
GOOSE_SHORTEST = 1.2
"""No half-life of an RWKV-7 is below 1.143 bytes."""

MODELS: dict[str, dict[str, Any]] = {
    "ssm": {"layers": 4, "gain": "ema"},
    "rwkv6": {"kind": "rwkv6", "layers": 3, "k_clamp": True},
    "rwkv7": {"kind": "rwkv7", "layers": 3},
}
TRAINING: dict[str, dict[str, Any]] = {
    "ssm": {"learning_rate": 1.6e-2, "warmup": 20},
    "rwkv6": {"learning_rate": 2e-3, "recipe": "blinkdl"},
    "rwkv7": {"learning_rate": 2e-3, "recipe": "blinkdl"},
}
HEAD_SIZE = 32
BASELINE = "log-spaced"
POWER_LAW = "power-law"
CONCENTRATED = "concentrated"
QUANTILE = "quantile"
OFFICIAL = "official"
SHORT_LEARNT = "short"
SHORT_FROZEN = "short-frozen"
CONTROL_BASELINE = f"{BASELINE}_{CONTROL}"
CONTROL_ARM = f"{SHORT_FROZEN}_{CONTROL}"
SHORT_WORDS = f"half-lives of 1 to {SHORT} bytes"
FROZEN_WORDS = f"frozen {SHORT_WORDS}"


class NoMemoryError(ValueError):
    """The text has no memory that half-lives could carry; the message is the answer."""


class Planned(NamedTuple):
    """One arm: its options, a comment for the spec, and what it is called in a sentence."""

    options: dict[str, Any]
    comment: str
    words: str


class Prediction(NamedTuple):
    """One hypothesis of the spec."""

    name: str
    family: str
    arm: str
    claim: str


@dataclass(frozen=True)
class PlannedTrial:
    """A trial, ready to run.

    spec      as in `path`, a TOML file to read and edit
    out       folder of the study
    measured  the text's memory
    """

    spec: Spec
    path: Path
    out: Path
    measured: Measured


def plan_trial(
    text: str | Path, out: Path | None, options: TrialOptions, tell: Tell
) -> PlannedTrial:
    """Measure a text, fit its law, write the spec; or read what a call before has written.

    text     the name of a corpus, or a file or folder
    options  of the trial; those of a call before must be the same
    tell     receives the lines for the reader

    Raises NoMemoryError for a text without memory, ValueError for a corpus of recall, a text that
    is too short, a model too small for its law, and too few minutes; nothing is trained before.
    """
    begun = time.monotonic()
    _check(options)
    _check_text(str(text))
    out = out or Path("runs/out") / trial_name(text, options.model)
    _check_name(out)
    path = out.with_name(f"{out.name}.toml")
    check_folder(out, "out")
    check_outside({"out": out}, [text])
    before = read_measurement(out)
    if path.exists():
        return _continued(str(text), before, path, out, options, tell)
    measured = _measured(text, options, before)
    _check_carried(measured, options)
    _tell_law(measured, tell)
    shortest = spec_of(spec_text(measured, out.name, LEAST_STEPS), path)
    tell(fit_table(measured, shortest))
    save_json(out / MEASUREMENT, _content(measured))  # also for a call with more minutes
    tell(f"timing a few steps here, to see how many fit into {options.minutes:g} min")
    steps, seconds = steps_for(shortest, options, time.monotonic() - begun)
    written = spec_text(measured, out.name, steps)
    spec = spec_of(written, path)
    atomic_write(path, written)
    runs = len(spec.arms) * len(spec.seeds)
    size = steps * spec.train.batch * spec.train.context / 1e6
    tell(
        f"spec: {path}, {runs} runs of {steps} steps ({size:.2g} MB each), about"
        f" {max(1, round(seconds / 60))} min in all"
    )
    return PlannedTrial(spec, path, out, measured)


def _continued(
    text: str,
    known: Measured | None,
    path: Path,
    out: Path,
    options: TrialOptions,
    tell: Tell,
) -> PlannedTrial:
    """The trial whose spec an earlier call has written to `path`, as that file is now."""
    if known is None:
        raise ValueError(
            f"out must be a new folder, or that of a trial, got {out}: {path} is there but no"
            f" {MEASUREMENT}; give another --out"
        )
    _check_same(known, text, options, out)
    _check_same_bytes(known, out)
    _check_carried(known, options)
    _tell_law(known, tell)
    tell(f"goes on with {path}, as it is now; another --out begins anew")
    return PlannedTrial(load_spec(path, check), path, out, known)


def run_trial(planned: PlannedTrial) -> list[str]:
    """Register the hypotheses, run the study or go on with it; names of runs that did not finish.

    Hypotheses are registered before the first run and not again; the report tells what was edited
    since.
    """
    from plkernel.study.recalled import answers_behind
    from plkernel.study.schedule import run_experiment

    if planned.spec.hypotheses and not (planned.out / REGISTERED).exists():
        answers = answers_behind(planned.spec, planned.spec.gates)
        register(planned.spec, planned.out / REGISTERED, planned.out, answers=answers)
    return run_experiment(planned.spec, planned.out)


def trial_name(text: str | Path, model: str) -> str:
    """Name of the study: of a path its last part.

    >>> trial_name("stdlib", "ssm"), trial_name("/texts/a novel.txt", "rwkv7")
    ('trial-stdlib', 'trial-a-novel-rwkv7')
    """
    name = str(text)
    if os.sep in name or Path(name).exists():
        name = Path(name).resolve().stem
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", name)[:60].strip("-.")
    parts = ["trial", plain or "text"]
    if model != "ssm":
        parts.append(model)
    return "-".join(parts)


def _check(options: TrialOptions) -> None:
    """ValueError for options that no trial can have."""
    if options.model not in get_args(TrialModel):
        names = ", ".join(get_args(TrialModel))
        raise ValueError(
            f"model must be one of {names}, got {_model_words(options.model)}; for a model of your"
            " own python -m plkernel.new FOLDER writes a study to begin from (docs/own.md)"
        )
    if options.seeds < LEAST_SEEDS:
        raise ValueError(
            f"seeds must be at least {LEAST_SEEDS}, for an interval, got {options.seeds}"
        )
    if not 0 < options.minutes < math.inf:
        raise ValueError(f"minutes must be a finite number above 0, got {options.minutes:g}")
    if options.minutes > MOST_MINUTES:
        raise ValueError(f"minutes must be at most {MOST_MINUTES:,}, got {options.minutes:g}")
    if options.dim < 2:
        raise ValueError(f"dim must be at least 2, got {options.dim}")


def _model_words(model: str) -> str:
    """The name of a model as it was given, in one line: the text of a module takes many."""
    first, *more = model.splitlines() or [""]
    return f"{first!r} and more lines" if more else repr(model)


def _check_name(out: Path) -> None:
    """ValueError for a folder whose name, as written, cannot be that of a study."""
    if not re.fullmatch(FOLDER_NAME, out.name):
        raise ValueError(
            f"out must end in the name of the study, of letters, digits, '.', '_' and '-', got"
            f" {str(out)!r}; the spec is written beside it, as NAME.toml"
        )


def _check_text(text: str) -> None:
    """ValueError for a name that no spec holds, and for a corpus of recall.

    Of the bytes of recall the answers alone can be predicted.
    """
    if not is_utf8(text):
        raise ValueError(
            f"text must have a name in UTF-8, which the spec will hold, got {text!r}; rename it"
        )
    if is_recall(text):
        raise ValueError(
            "text must be a corpus whose bytes are all predicted, such as stdlib or a file, got"
            f" {text!r}, which asks for answers; a spec for plkernel.experiment trains on recall"
        )


def _check_same(known: Measured, text: str, options: TrialOptions, out: Path) -> None:
    """ValueError where a call before, with other options, has written what is there."""
    before = {"text": known.text, **known.options.model_dump()}
    now = {"text": text, **options.model_dump()}
    other = [name for name in now if now[name] != before[name]]
    if other:
        name = other[0]
        raise ValueError(
            f"{name} must be {before[name]}, with which {out} was begun, got {now[name]}; or give"
            " another --out"
        )


def _check_same_bytes(known: Measured, out: Path) -> None:
    """ValueError where the text has other bytes than those that were measured."""
    digest = corpora.load(known.text).sha256
    if known.sha256 and digest != known.sha256:
        raise ValueError(
            f"text {known.text!r} must be as it was measured, of sha256 {known.sha256[:12]}, got"
            f" other bytes, of {digest[:12]}; bring them back, or give another --out than {out}"
        )


def _check_size(corpus: corpora.Corpus) -> None:
    """ValueError for a text too short for its windows, or for being measured."""
    wanted = max(math.ceil(LEAST_WINDOWS * (CONTEXT + 1) / HELD_OUT), MAX_LAG + BLOCKS)
    if corpus.size < wanted:
        raise ValueError(
            f"text {corpus.name!r} must have at least {wanted:,} bytes, for {LEAST_WINDOWS} windows"
            f" of {CONTEXT} bytes in the {HELD_OUT:.0%} for validation, and as many for test, got"
            f" {corpus.size:,}; give a longer text"
        )


def _check_carried(measured: Measured, options: TrialOptions) -> None:
    """Refuse a text without a law that half-lives carry, and a model too small for it.

    Raises NoMemoryError for the one, ValueError for the other.
    """
    verdict = measured.verdict
    if verdict.kind == "none" or not verdict.last_lag:
        raise NoMemoryError(
            f"{measured.text}: {verdict.sentence}; no half-life can help a model there, so nothing"
            " is trained"
        )
    if verdict.last_lag < LEAST_LAG:
        raise NoMemoryError(
            f"{measured.text}: memory stands out to lag {verdict.last_lag} only, and half-lives"
            f" matter from about {LEAST_LAG} bytes on: counts of a few bytes do, so nothing is"
            " trained"
        )
    if measured.law is None or not measured.law.beta > 0:
        raise NoMemoryError(
            f"{measured.text}: the information does not fall with the lag (beta is not positive),"
            " so no half-life is called for and nothing is trained"
        )
    channels = options.dim if options.model == "ssm" else _head_size(options)
    needed = math.ceil(measured.octaves) + 1
    if channels < needed:
        what = "channels" if options.model == "ssm" else "channels in a head"
        raise ValueError(
            f"dim must give {needed} {what} or more, as half-lives of 1 to {verdict.last_lag} bytes"
            f" are {measured.octaves:.1f} octaves, got {options.dim}, which gives {channels};"
            f" give --dim {needed} or more"
        )


def _measured(text: str | Path, options: TrialOptions, before: Measured | None) -> Measured:
    """Measure the text, as plkernel.measure does with its defaults.

    before: what an earlier call measured, taken where the bytes are the same.
    """
    corpus = corpora.load(text)
    _check_size(corpus)
    if before is not None and before.sha256 == corpus.sha256:
        known = before.model_copy(update={"text": str(text), "options": options})
        return _with_words(known, options)
    if np.ptp(corpus.bytes) == 0:
        raise NoMemoryError(
            f"{text}: repeats one byte, {corpus.bytes[0]}, which leaves nothing to predict, so"
            " nothing is trained"
        )
    with cli.progress_bar(corpus.name) as progress:
        found = measure_corpus(
            corpus, np.asarray(corpus.bytes), threads=os.cpu_count() or 1, progress=progress
        )
    first = found.verdict.first_lag
    last = found.verdict.last_lag
    try:
        law = fit_power_law(found.information, (first, last)) if last > first else None
    except ValueError:  # too few positive values
        law = None
    values = {
        "text": str(text),
        "sha256": corpus.sha256,
        "options": options,
        "information": found.information,
        "verdict": asdict(found.verdict),
        "law": law,
    }
    return _with_words(Measured.model_validate(values), options)


def _with_words(measured: Measured, options: TrialOptions) -> Measured:
    """Words on the measurement, with names of the arms and the control of these options."""
    if measured.law is None or not measured.law.beta > 0:
        return measured
    words = {name: arm.words for name, arm in arms_of(measured).items()}
    control = CONTROL_WORDS if _has_control(options) else ""
    return measured.model_copy(update={"words": words, "control": control})


def _content(measured: Measured) -> dict[str, Any]:
    """The content of measurement.json."""
    return {"plkernel": installed("plkernel"), **measured.model_dump(mode="json")}


def _tell_law(measured: Measured, tell: Tell) -> None:
    """The verdict on the text, in one line or two."""
    tell(f"{measured.text}: {measured.information.size:,} bytes; {measured.verdict.sentence}")
    most = max(measured.information.values) / math.log(2)
    if most < FAINT:
        tell(
            f"note: a byte tells at most {most:.1g} bits of another one, at any lag: expect"
            " differences as small, unless many bytes together tell more"
        )
    if measured.law:
        law = measured.law
        tell(
            f"information falls as d**-{law.beta:.3g} ({law.low:.3g} to {law.high:.3g}) over lags"
            f" {law.first_lag} to {law.last_lag}"
        )


def fit_table(measured: Measured, spec: Spec) -> str:
    """Reach of four fits of the measured law, and the factor by which they miss it."""
    beta = _law(measured).beta
    last = measured.verdict.last_lag
    rows = [_published_row(beta, last)]
    for name, nodes in _placements(spec, beta, last).items():
        rows.append(_fit_row(name, nodes, beta, last))
    header = [f"d**-{beta:.3g} on lags 1 to {last}", "longest half-life", "terms", "off by"]
    return f"{cli.text_table(header, rows)}\n(off by: the factor either way that no scale removes)"


def _published_row(beta: float, last: int) -> list[str]:
    """The row of the published fit of the law, whose nodes are not those of a model."""
    from plkernel.analysis.fit import fit

    with warnings.catch_warnings(action="ignore"):  # of half-lives beyond the last lag
        published = fit(beta, max_lag=last)
    terms = published.active
    return [
        "NNLS on 1 to 2,048, published",
        f"{terms.half_lives().max():,.0f}",
        f"{len(terms.rates)}",
        _factor(published.optimal_scores.e_log),
    ]


def _placements(spec: Spec, beta: float, last: int) -> dict[str, Nodes]:
    """The nodes that the model of the spec may begin with, by what a reader calls them."""
    channels = spec.model.node_count
    gain = spec.model.input_gain
    weight: Any = "published" if gain == "ema" else "gain-corrected"
    with warnings.catch_warnings(action="ignore"):  # of half-lives beyond the last lag
        return {
            "concentrated anchors, published": place(
                channels, placement="concentrated", projection=weight, gain=gain, beta=beta
            ),
            "log-spaced to the last lag, weighted": place(
                channels, longest=last, projection=weight, gain=gain, beta=beta
            ),
            "log-spaced to the last lag, to be learnt": place(channels, longest=last, gain=gain),
        }


def _fit_row(name: str, nodes: Nodes, beta: float, last: int) -> list[str]:
    """The row of one placement: its longest half-life, its different ones, and its error."""
    e_log = node_scores(nodes, power_law_target(beta, last)).e_log
    half_lives = nodes.half_lives()
    different = len(np.unique(np.round(half_lives, 6)))
    return [name, f"{half_lives.max():,.0f}", f"{different}", _factor(e_log)]


def _factor(e_log: float) -> str:
    """exp(Elog): half the range of ln(kernel / target), as a factor."""
    return f"{math.exp(e_log):.3g}"


def _law(measured: Measured) -> PowerLaw:
    """The law, which `_check_carried` has seen."""
    if measured.law is None:
        raise ValueError(f"text must have a law that could be fitted, got {measured.text!r}")
    return measured.law


def _head_size(options: TrialOptions) -> int:
    """Channels of a head of an RWKV; a narrow model has one head."""
    return min(HEAD_SIZE, options.dim)


def arms_of(measured: Measured) -> dict[str, Planned]:
    """The arms of the study, by name; the baseline first."""
    last = measured.verdict.last_lag
    beta = round(_law(measured).beta, 4)
    options = measured.options
    spread = _log_spaced(options, last)
    arms = {
        BASELINE: Planned(
            spread,
            f"What the evidence recommends: up to the last lag that stands out, {last}; learnt.",
            "log-spaced half-lives",
        )
    }
    if options.model == "ssm":
        arms |= _ssm_arms(spread, beta)
    else:
        arms |= _rwkv_arms(spread, beta, last, _model(options))
    if options.short:
        arms[SHORT_LEARNT] = Planned(
            _short(options), f"Too short at first, and learnt: {SHORT_WORDS}.", SHORT_WORDS
        )
    if options.frozen:
        arms[SHORT_FROZEN] = Planned(
            _frozen(options), f"Too short, and never learnt: {FROZEN_WORDS}.", FROZEN_WORDS
        )
    if _has_control(options):
        arms |= _control_arms(options)
    return arms


def _log_spaced(options: TrialOptions, longest: int) -> dict[str, Any]:
    """Options of half-lives from one byte to `longest`, as far as the model holds them."""
    spread: dict[str, Any] = {"placement": "log-spaced", "longest": longest}
    if options.model == "rwkv7":
        spread["shortest"] = GOOSE_SHORTEST
    return spread


def _short(options: TrialOptions) -> dict[str, Any]:
    """Options of half-lives of 1 to SHORT bytes, at the baseline's output."""
    short = _log_spaced(options, SHORT)
    if options.model == "ssm":
        short["match"] = "baseline"
    return short


def _frozen(options: TrialOptions) -> dict[str, Any]:
    """Options of the same half-lives, not trained."""
    return {**_short(options), "train": {"decay_multiplier": 0}}


def _control_arms(options: TrialOptions) -> dict[str, Planned]:
    """A small SSM, at the steps and seeds of the trial, on a text in which memory must matter."""
    elsewhere = {
        "corpus": {"name": CONTROL_CORPUS},
        "model": CONTROL_MODEL,
        "levels": {"text": CONTROL},
    }
    spread = {**_log_spaced(options, COPIED), **elsewhere}
    frozen = {**_frozen(options), "against": CONTROL_BASELINE, **elsewhere}
    return {
        CONTROL_BASELINE: Planned(
            spread,
            f"The control, {CONTROL_WORDS}: memory must matter there.",
            "log-spaced half-lives",
        ),
        CONTROL_ARM: Planned(
            frozen, "If this is not behind, the trial could not have seen memory.", FROZEN_WORDS
        ),
    }


def _has_control(options: TrialOptions) -> bool:
    """True for an SSM; an RWKV has decays that follow the input, so freezing them stops little."""
    return options.control and options.model == "ssm"


def _ssm_arms(spread: dict[str, Any], beta: float) -> dict[str, Planned]:
    """The power law in the projection, each as published and at the output of the baseline."""
    anchors = ", ".join(f"{anchor:g}" for anchor in ANCHORS)
    law = {"projection": "published", "beta": beta}
    shapes = {
        POWER_LAW: Planned(
            {**spread, **law},
            "The same half-lives with columns of the projection times lambda**(beta - 1).",
            "power-law projections",
        ),
        CONCENTRATED: Planned(
            {"placement": "concentrated", **law},
            f"The published anchors, {anchors} bytes, with that projection.",
            "concentrated half-lives",
        ),
    }
    arms = {}
    for name, arm in shapes.items():
        arms[name] = arm
        arms[f"{name}-matched"] = Planned(
            {**arm.options, "match": "baseline"},
            "Its control: the projection scaled so that the output is as large as the baseline's.",
            f"scaled {arm.words}",
        )
    return arms


def _rwkv_arms(
    spread: dict[str, Any], beta: float, last: int, model: dict[str, Any]
) -> dict[str, Planned]:
    """The official initialisation, and the power law in the receptance or in the decays as well.

    A flat law has quantiles that no decay holds; that arm is then left out.
    """
    law = {"beta": beta, "max_lag": last}
    arms = {
        OFFICIAL: Planned({}, "The decays of the official code.", "the official initialisation"),
        POWER_LAW: Planned(
            {**spread, "projection": "gain-corrected", **law},
            "The same half-lives with rows of the receptance that carry the power law.",
            "power-law receptances",
        ),
    }
    quantile = {"placement": "quantile", **law}
    try:
        resolve(ModelSpec.model_validate(model), Arm.model_validate(quantile)).check()
    except ValueError:
        return arms
    arms[QUANTILE] = Planned(
        quantile,
        "Half-lives at quantiles of the power law, with the receptance that follows.",
        "quantile half-lives",
    )
    return arms


def _model(options: TrialOptions) -> dict[str, Any]:
    """The section [model] of the spec."""
    model = {**MODELS[options.model], "dim": options.dim}
    if options.model != "ssm":
        model["head_size"] = _head_size(options)
    return model


def claims_of(arms: Sequence[str]) -> list[Prediction]:
    """The hypotheses on these arms, registered before the runs."""
    claims = [
        Prediction(f"{arm} leads log-spaced half-lives", "power law", arm, "lower")
        for arm in (POWER_LAW, CONCENTRATED, QUANTILE)
        if arm in arms
    ]
    if SHORT_FROZEN in arms:
        name = f"half-lives of 1 to {SHORT} bytes that are frozen cost"
        claims.insert(0, Prediction(name, "too short", SHORT_FROZEN, "higher"))
    if CONTROL_ARM in arms:
        name = "control: where memory must matter, they cost"
        claims.append(Prediction(name, CONTROL, CONTROL_ARM, "higher"))
    return claims


def spec_text(measured: Measured, name: str, steps: int) -> str:
    """The spec as TOML, with comments that say what was measured and why each arm is there."""
    options = measured.options
    steps -= steps % EVALUATIONS
    every = steps // EVALUATIONS
    arms = arms_of(measured)
    within = ['within = ["text"]'] if _has_control(options) else []
    lines = [
        *_comments(measured, steps),
        f"name = {_toml(name)}",
        f"description = {_toml(_description(measured))}",
        f"baseline = {_toml(BASELINE)}",
        f"seeds = {_toml(list(range(options.seeds)))}",
        f"report_steps = {_toml([2 * every, 4 * every])}",
        *within,
    ]
    corpus = {"name": measured.text, "validation": HELD_OUT, "test": HELD_OUT}
    train = {"context": CONTEXT, "batch": BATCH, "steps": steps, **TRAINING[options.model]}
    train |= {"eval_every": every, "eval_windows": EVAL_WINDOWS, "test_windows": TEST_WINDOWS}
    lines += ["", *_section("corpus", corpus)]
    lines += ["", *_section("model", _model(options))]
    lines += ["", *_section("train", train)]
    for arm, planned in arms.items():
        lines += ["", f"# {planned.comment}", *_section(f"arms.{arm}", planned.options)]
    for claim in claims_of(list(arms)):
        lines += ["", *_section("[hypotheses]", claim._asdict())]
    return "\n".join(lines) + "\n"


def _comments(measured: Measured, steps: int) -> list[str]:
    """The lines above the spec: what was measured, and what the steps amount to."""
    law = _law(measured)
    size = measured.information.size
    read = steps * BATCH * CONTEXT
    share = read / (size * (1 - 2 * HELD_OUT))
    return [
        "# Written by plkernel.trial, to be read and edited; the same command goes on with it.",
        f"# Measured: {size:,} bytes, {measured.verdict.sentence}.",
        f"# Information falls as d**-{law.beta:.4f} ({law.low:.3f} to {law.high:.3f}) over lags"
        f" {law.first_lag} to {law.last_lag}.",
        f"# {measured.options.minutes:g} minutes allow {steps} steps: a run reads {read:,} bytes,"
        f" {share:.2g} times the training text.",
    ]


def _description(measured: Measured) -> str:
    kinds = {"ssm": "a diagonal SSM", "rwkv6": "RWKV-6", "rwkv7": "RWKV-7"}
    text = cli.shortened(measured.text, 80)
    return f"Initialisations of the memory of {kinds[measured.options.model]} on {text}."


def spec_of(text: str, path: Path) -> Spec:
    """The spec that a text says, checked as a whole; `path` heads the errors."""
    return parse_spec(parse_toml(text.encode(), f"spec {path}"), str(path), check)


def _section(name: str, values: dict[str, Any]) -> list[str]:
    """The lines of a table of TOML."""
    return [f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]


def _toml(value: Any) -> str:
    """A value as TOML; strings as in JSON, whose escapes TOML shares."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)


def steps_for(spec: Spec, options: TrialOptions, elapsed: float) -> tuple[int, float]:
    """Steps of a run so that all runs take `options.minutes`, and the seconds that they take.

    One condition of each text is timed by as many processes as runs are trained at a time, since
    these share the machine; all arms of a text cost the same. Raises ValueError where fewer than
    LEAST_STEPS fit, and names the minutes that would do.
    """
    from plkernel.study.engine import LocalEngine

    engine = LocalEngine()
    conditions = resolve_spec(spec).conditions
    baseline = conditions[spec.baseline]
    runs = len(spec.arms) * len(spec.seeds)
    at_once = max(1, min(runs, engine.room(spec, engine.device(baseline))))
    bases = [spec.baseline]
    if CONTROL_BASELINE in conditions:
        bases.append(CONTROL_BASELINE)
    costs = []
    for base in bases:
        arms = [name for name in spec.arms if base in (name, spec.against(name))]
        rounds = math.ceil(len(arms) * len(spec.seeds) / at_once)
        costs.append(_cost(conditions[base], spec.train.batch, at_once, rounds))
    fixed = elapsed + AFTERWARDS + sum(cost.fixed for cost in costs)
    step = sum(cost.step for cost in costs)
    steps = int((60 * options.minutes - fixed) / step)
    steps -= steps % EVALUATIONS
    if steps < LEAST_STEPS:
        needed = (fixed + LEAST_STEPS * step) / 60
        fewer = "; or give fewer --seeds" if options.seeds > LEAST_SEEDS else ""
        raise ValueError(
            f"minutes must be at least {math.ceil(RESERVE * needed)} here for {runs} runs of"
            f" {LEAST_STEPS} steps, {at_once} at a time, got {options.minutes:g}{fewer}"
        )
    return steps, fixed + steps * step


class Cost(NamedTuple):
    """Seconds of all runs on one text: whatever their steps, and for each step of a run."""

    fixed: float
    step: float


def _cost(condition: Condition, batch: int, at_once: int, rounds: int) -> Cost:
    """The cost of `rounds` runs one after another, timed by `at_once` processes together."""
    from plkernel.study.dry_run import StepTimes, evaluated_windows, timed_apart

    def timed(_: int) -> StepTimes:
        return timed_apart(condition, batch)

    with ThreadPoolExecutor(at_once) as pool:
        found = list(pool.map(timed, range(at_once)))
    start = fmean(one.start for one in found)
    step = fmean(one.step for one in found)
    window = fmean(one.window for one in found)
    return Cost(rounds * (start + evaluated_windows(condition) * window), rounds * step)
