"""Public Python functions; `import plkernel` offers them with `fit`, `place` and `load_spec`.

Each is thin over what the command of the same purpose does. torch is imported by the functions that
need it.
"""

import numbers
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from plkernel.analysis.information.counts import SYMBOLS
from plkernel.analysis.information.estimate import BLOCKS, MAX_LAG, Estimator
from plkernel.analysis.information.laws import (
    Measurement,
    Named,
    Range,
    check_range,
    measure_corpus,
)
from plkernel.analysis.nodes import check_numbers, check_numbers_or_none, check_switches
from plkernel.analysis.results import Result
from plkernel.common import cli
from plkernel.common.files import CONFIG, METRICS, brief, load_json, read_lines, refuse_study
from plkernel.context.measures import BATCH, UNTRAINED_CONTEXT
from plkernel.data import corpora
from plkernel.data.names import known_sequence
from plkernel.data.symbols import (
    READING,
    MeasuredAs,
    SymbolText,
    check_measured,
    check_reading,
    is_vector_file,
    of_text,
    of_vector,
    read_vector,
)
from plkernel.results.study import Study, read_study

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame
    from torch import Tensor

    from plkernel.analysis.nodes import Nodes
    from plkernel.config.spec import Spec
    from plkernel.context.measures import Influence, Means, Truncation
    from plkernel.decays.findings import Finding
    from plkernel.decays.inspection import Shown
    from plkernel.decays.own import Decays
    from plkernel.decays.rates import Layer
    from plkernel.models.power_law import Parametrisation
    from plkernel.models.spectrum import Ordered
    from plkernel.results.comparison import Comparison
    from plkernel.study.trial import TrialModel
    from plkernel.training.build import Model
    from plkernel.training.evaluate import Predict

    Subject: TypeAlias = "TrainedRun | Model | Predict"

Text = bytes | bytearray | memoryview | str | Path | NDArray[Any]
"""Bytes and vectors of integers from 0 to 255 are the text; a string or path names a corpus, as for
plkernel.corpus.
"""

load_corpus = corpora.load


def measure(
    text: Text,
    *,
    lags: Range | None = None,
    max_lag: int = MAX_LAG,
    estimator: Estimator | None = None,
    tokenizer: str | Path | None = None,
    measured: MeasuredAs = "bytes",
    blocks: int = BLOCKS,
    max_bytes: int | None = None,
    separator: str = "\n",
    column: str | None = None,
    threads: int | None = None,
) -> Measurement:
    """Measure the mutual information I(d) of symbols d apart, and its exponent in I(d) ~ d**-beta.

    text       bytes, a vector (n,) of integers, each of which is a symbol and those from 0 to 255
               bytes, or the name of a corpus or of a file .npy; a string is a name or a path
    lags       first and last lag, in symbols, of the exponent `law`; 1 to 500, or to max_lag if
               that is less
    max_lag    the longest lag of the curve
    estimator  jackknife unless given; for symbols that are not bytes, with fewer than ten pairs for
               each cell of their table, repeats, a lower bound of I(d)
    tokenizer  a tokenizer file such as tokenizer.json, of a text: `tokens` of the result says how
               many bytes a token has, and lags stand in both units. plkernel.place takes it as
               step=found.tokens.bytes_per_token
    measured   bytes, or tokens, of a text with a tokenizer
    blocks     how many the jackknife leaves out one by one
    max_bytes, separator, column
               how a text is read by its name, as of `load_corpus`
    threads    lags that are counted at the same time, as many as there are processors unless given

    In the result, `information` has lags (L,), values (L,) in nats and intervals; `law.beta`,
    `law.low` and `law.high` are the exponent with its 95 % interval, None in place of `law` if
    nothing decays; `verdict.sentence` says if the curve is a power law; `exact` (L,) is the true
    information of a corpus whose law its name states. Raises ValueError for a text that is too
    short for `max_lag`, and for an estimator that counts pairs where symbols are too many for that.

    >>> import numpy as np
    >>> text = np.random.default_rng(0).integers(0, 4, 50_000)
    >>> measure(text, max_lag=20, lags=(1, 20)).verdict.kind
    'none'
    """
    check_numbers(numbers.Integral, max_lag=max_lag, blocks=blocks)
    check_numbers_or_none(numbers.Integral, threads=threads)
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    stated = check_range(lags, max_lag)
    place = None if tokenizer is None else _path(tokenizer, "tokenizer")
    reading = {"max_bytes": max_bytes, "separator": separator, "column": column}
    found = _read_symbols(text, place, measured, reading)
    is_named = isinstance(text, str | Path) and found.unit == "byte"
    sequence = known_sequence(str(text)) if is_named else None
    options: Any = {
        "stated": stated,
        "max_lag": max_lag,
        "estimator": estimator,
        "blocks": blocks,
        "exact": sequence.mutual_information if sequence else None,
        "unit": found.unit,
        "tokens": found.tokens,
        "threads": threads or os.cpu_count() or 1,
    }
    with cli.progress_bar(found.corpus.name) as progress:
        return measure_corpus(found.corpus, found.data, progress=progress, **options)


def _read_symbols(
    text: Text, tokenizer: Path | None, measured: MeasuredAs, reading: Mapping[str, Any]
) -> SymbolText:
    """The symbols of a text, of its tokens, or of a vector of integers of any alphabet."""
    if not isinstance(text, str | Path):
        check_reading("bytes and vectors, which are measured as they are", reading)
    elif is_vector_file(text):
        check_reading(f"{text}, which holds numbers and no text", reading)
    vector = _vector(text)
    check_measured(tokenizer, measured)
    if vector is None:
        corpus, data = _read_text(text, reading)
        if tokenizer is None:
            return of_text(corpus, data)
        with cli.progress_bar(f"{corpus.name}, tokens") as progress:
            return of_text(corpus, data, tokenizer, measured, progress)
    if tokenizer is not None:
        raise ValueError(
            "tokenizer must be left out for a vector of integers, each of which is a symbol, got"
            f" {tokenizer}"
        )
    return vector


def _vector(text: Any) -> SymbolText | None:
    """A vector of integers that are not all bytes, or a file of numpy; None for anything else."""
    if isinstance(text, str | Path):
        if not is_vector_file(text):
            return None
        with cli.progress_bar(f"{text}, symbols") as progress:
            return read_vector(text, progress)
    if isinstance(text, bytes | bytearray | memoryview):
        return None
    data = _array(text)
    if data.ndim != 1 or data.dtype.kind not in "iu" or not data.size:
        return None
    if data.min() >= 0 and data.max() < SYMBOLS:
        return None
    with cli.progress_bar("array, symbols") as progress:
        return of_vector(data, "array", "given", progress)


def _array(text: Any) -> NDArray[Any]:
    """A vector, also a tensor of torch on any device, as an array.

    Raises ValueError for what numpy does not take.
    """
    if getattr(text, "is_meta", False):
        raise ValueError(
            "text must hold numbers, got a tensor on the meta device; give one on the CPU"
        )
    held = text.detach().cpu() if hasattr(text, "detach") else text
    try:
        return np.asarray(held)
    except (TypeError, ValueError, RuntimeError) as error:
        is_tensor = held is not text
        got = f"{text.dtype} of shape {tuple(text.shape)}" if is_tensor else brief(text)
        raise ValueError(
            "text must be bytes, a vector of integers, or the name of a corpus, got"
            f" {got} ({cli.told(error)})"
        ) from None


def apply(
    nodes: "Nodes",
    decays: "Tensor | Ordered",
    projection: "Tensor | None" = None,
    *,
    parametrisation: "Parametrisation | None" = None,
    dt_bias: "Tensor | float | None" = None,
    a_log: "Tensor | float | None" = None,
    gate_bias: "Tensor | float | None" = None,
    bound: "Tensor | float | None" = None,
    cap: "Tensor | float | None" = None,
    log_step: "Tensor | float | None" = None,
    dim: int = -1,
    match: "Nodes | None" = None,
    max_lag: float | None = None,
) -> None:
    """Write nodes into a layer in place: decays a = exp(-rate), and its projection.

    Slice i of the projection is multiplied by multiplier i.

    decays           (N,), or with N as its last dimension; or a `plkernel.models.spectrum.Ordered`,
                     whose channels take the nodes in its order
    projection       the matrix that reads the N states, (out, N) as in torch.nn.Linear; None leaves
                     it as it is
    parametrisation  how the layer computes its decays from this tensor: a name such as log_rate or
                     a_log, of those that `plkernel.models.init.decays_` explains
    dt_bias, a_log, gate_bias, bound, cap, log_step
                     what the parametrisation needs or takes beside the tensor, as a_log needs
                     dt_bias
    dim              the dimension of `projection` that counts the states
    match            scale so that the output is as large as with these nodes
    max_lag          the longest lag that matters, in steps: warn if most half-lives are longer

    Raises ValueError for a tensor without parametrisation, sizes that differ, and a decay that is 0
    or 1 in the type of the tensor; the projection is only touched after the decays.
    """
    from plkernel.analysis.nodes import warn_outlasting
    from plkernel.analysis.parametrisations import FORMS
    from plkernel.models.power_law import check_writable, decays_, projection_
    from plkernel.models.spectrum import Ordered

    check_numbers(numbers.Integral, dim=dim)
    check_numbers_or_none(max_lag=max_lag)
    if max_lag is not None and not max_lag > 0:
        raise ValueError(f"max_lag must be above 0, got {max_lag}")
    _check_nodes("nodes", nodes)
    if match is not None:
        _check_nodes("match", match)
    check_writable("decays", decays)
    if isinstance(decays, Ordered):
        nodes = decays.arranged(nodes)
    if projection is not None:
        check_writable("projection", projection)
    options: dict[str, Any] = {
        "dt_bias": dt_bias,
        "a_log": a_log,
        "gate_bias": gate_bias,
        "bound": bound,
        "cap": cap,
        "log_step": log_step,
    }
    for name, option in options.items():
        if option is not None:
            _check_given(name, option)
    if not isinstance(parametrisation, str):
        raise ValueError(
            "parametrisation must say how the layer computes its decays from this tensor: one of"
            f" {', '.join(FORMS)}, such as a_log for A_log of Mamba, Mamba-2 and gated delta nets,"
            " with dt_bias"
        )
    if max_lag is not None:
        warn_outlasting(nodes.half_lives(), max_lag)
    decays_(decays, nodes, parametrisation, **options)
    if projection is not None:
        projection_(projection, nodes, dim=dim, match=match)


def _check_nodes(name: str, value: Any) -> None:
    """ValueError unless `value` is nodes."""
    from plkernel.analysis.nodes import Nodes

    if not isinstance(value, Nodes):
        raise ValueError(
            f"{name} must be nodes, as plkernel.place gives them, got {type(value).__name__}"
        )


def _check_given(name: str, value: Any) -> None:
    """ValueError unless `value` is a finite number, or a tensor or array of these."""
    from torch import Tensor, as_tensor, strided

    if hasattr(value, "to_local"):
        raise ValueError(
            f"{name} must be a whole tensor, got one in shards; give its full_tensor()"
        )
    if isinstance(value, Tensor) and value.is_meta:
        raise ValueError(f"{name} must hold numbers, got a tensor on the meta device")
    if not isinstance(value, Tensor | np.ndarray):
        check_numbers(**{name: value})
    try:
        held = as_tensor(value).detach()
    except TypeError:
        raise ValueError(f"{name} must be numbers, got {value.dtype}") from None
    if held.layout is not strided:
        raise ValueError(f"{name} must be a dense tensor, got a sparse one")
    got = None
    if not held.numel():
        got = "none"
    elif held.is_complex():
        got = str(held.dtype)
    elif not bool(held.double().isfinite().all()):
        got = "NaN or infinite ones"
    if got is not None:
        raise ValueError(f"{name} must be one or more finite numbers, got {got}")


def _path(value: Any, name: str) -> Path:
    """`value` as a path; ValueError that names the argument unless it is one."""
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise ValueError(f"{name} must be a path, got {brief(value)}")
    return Path(value)


@dataclass(frozen=True, repr=False)
class TextLosses(Result):
    """Mean of the losses, its standard error over windows, and losses (n,T) in bits.

    The error is NaN for one window.
    """

    bits_per_byte: float
    error: float
    losses: NDArray[np.floating[Any]]

    def _title(self) -> str:
        count, context = self.losses.shape
        windows = cli.counted(count, "window", "windows")
        length = cli.counted(context, "byte", "bytes")
        return f"{self.bits_per_byte:.4f} +- {self.error:.4f} bits per byte, {windows} of {length}"

    @property
    def positions(self) -> "Means":
        """Bits per byte by how many bytes of the window come before."""
        from plkernel.context.measures import by_position

        return by_position(self.losses)

    def _table(self) -> Any:
        return self.positions._table()

    def _draw(self) -> "Figure":
        return self.positions.plot()


def evaluate(
    model: "Subject",
    text: Text | None = None,
    *,
    context: int | None = None,
    windows: int = 64,
    batch: int = BATCH,
) -> TextLosses:
    """Mean of -log2 p(byte | those before it in its window), over windows of a text.

    Windows are disjoint and evenly spaced.

    model    causal: a `TrainedRun`, a model of plkernel, or any callable from tokens (B,T) int64 to
             logits (B,T,V)
    text     bytes, a vector of integers from 0 to 255, or the name of a corpus; unless given, the
             validation split of a `TrainedRun`
    context  T: a window has T + 1 bytes; that of the run, or 512
    windows  largest number of windows

    A torch module is in evaluation mode meanwhile; what it returns may hold the logits as
    `.logits`, or first in a tuple. Raises ValueError for a model that sees ahead, is random or
    returns something else, for logits that are not numbers, and a text shorter than a window.
    """
    from plkernel.context.measures import moments
    from plkernel.training.evaluate import token_losses

    with _opened(model, text, context, windows, batch) as (predict, data, _):
        losses = token_losses(predict, data, batch)
    (mean,), (error,) = moments(losses.mean(axis=1, dtype=np.float64)[None])
    return TextLosses(mean, error, losses)


def truncation(
    model: "Subject",
    text: Text | None = None,
    *,
    context: int | None = None,
    windows: int = 256,
    batch: int = BATCH,
) -> "Truncation":
    """Bits per byte at the same bytes when only the last 1, 2, 4 .. context are given.

    It is the worth of far context.

    Arguments as in `evaluate`. The result has given (L,) bytes, bpb (L,) and cost (L,) against the
    whole context.
    """
    from plkernel.training import evaluate as measures

    with _opened(model, text, context, windows, batch, disjoint=False) as (predict, data, step):
        return measures.truncation(predict, data, batch, step=step)


def influence(
    model: "Subject",
    text: Text | None = None,
    *,
    lags: Sequence[int] | None = None,
    context: int | None = None,
    windows: int = 64,
    batch: int = BATCH,
    seed: int = 0,
) -> "Influence":
    """KL divergence in bits of a prediction when the token d steps back is another.

    lags: ascending, 1 to the context; 1, 2, 4 .. unless given. Other arguments as in `evaluate`.
    The result has lags (L,) and bits (L,). For integer arrays of other alphabets:
    `plkernel.probing.predictions`.
    """
    from plkernel.training import evaluate as measures

    check_numbers(numbers.Integral, seed=seed)
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}")
    with _opened(model, text, context, windows, batch) as (predict, data, _):
        return measures.influence(predict, data, lags, batch, seed=seed)


def generate(
    model: "TrainedRun | Model",
    prompt: bytes | str = b"",
    *,
    count: int = 512,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
) -> bytes:
    """`count` bytes that follow the prompt, drawn from the model one after the other.

    model        a `TrainedRun`, or a model of plkernel: it must take and return a state
    prompt       bytes, or a text in UTF-8; a newline if empty
    temperature  divides the logits; 0 always takes the likeliest byte
    top_p        draw only from the likeliest bytes that together have this probability
    seed         of the random numbers, one for each byte

    Memory and time for a byte do not grow with their number. One by one, without end:
    `plkernel.models.sampling.continuation`. As plkernel.generate.
    """
    from itertools import islice

    from plkernel.models.layers import evaluating
    from plkernel.models.sampling import Sampling, continuation

    check_numbers(numbers.Integral, count=count, seed=seed)
    check_numbers(temperature=temperature, top_p=top_p)
    if count < 0:
        raise ValueError(f"count must be at least 0, got {count}")
    opened: Any = model.model if isinstance(model, TrainedRun) else model
    if isinstance(opened, type) or not hasattr(opened, "initial_state"):
        raise ValueError(
            f"model must be a run or a model of plkernel, got {type(model).__name__}; others carry"
            " no state"
        )
    text = _prompt_bytes(prompt)
    sampling = Sampling(temperature, top_p, seed)
    with evaluating(opened):
        return bytes(islice(continuation(opened, text, sampling), count))


def _prompt_bytes(prompt: bytes | str) -> bytes:
    """The bytes of a prompt; those that a shell could not decode are escaped in a text."""
    if isinstance(prompt, bytes | bytearray):
        return bytes(prompt)
    if not isinstance(prompt, str):
        raise ValueError(f"prompt must be bytes or a text, got {type(prompt).__name__}")
    try:
        return prompt.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"prompt must be a text in UTF-8, got {prompt[error.start]!r} at character"
            f" {error.start}; give bytes"
        ) from None


@dataclass(frozen=True, repr=False)
class TrainedRun(Result):
    """A trained model with the files of its run: the folder of a run, or of plkernel.load.

    evaluate, truncation, influence and generate are the functions of those names, with this model;
    the first three with the context of the run and, unless a text is given, its validation split.
    """

    path: Path
    evaluate = evaluate
    truncation = truncation
    influence = influence
    generate = generate

    def _title(self) -> str:
        from plkernel.training.folder import loss_unit

        number = cli.counted(len(self.metrics), "evaluation", "evaluations")
        title = f"{self.path}: {number}"
        if self.metrics.empty:
            return title
        last = self.metrics.iloc[-1]
        step = int(last["step"])
        after = f"after {step:,} {'step' if step == 1 else 'steps'}"
        return f"{title}, {last['val_bpb']:.4f} {loss_unit(last)} {after}"

    def _table(self) -> Any:
        columns = ["step", "bytes", "train_bpb", "val_bpb", "excess_bpb", "val_accuracy"]
        return self.metrics.filter(columns)

    def _draw(self) -> "Figure":
        from plkernel.decays.memory_figures import model_figure
        from plkernel.probing.runs import of_run

        *_, (before, now), title = of_run(self.path, None, 4)
        return model_figure(before, now, title)

    @cached_property
    def model(self) -> "Model":
        """The model, on the CPU and in evaluation mode: bytes (B,T) int64 to logits (B,T,256)."""
        from plkernel.training.checkpoint import open_model

        return open_model(self.path)[0]

    @cached_property
    def _shown(self) -> "Shown":
        """The decays in its checkpoint, as `inspect` reads those of other software."""
        from plkernel.decays.inspection import inspected

        return inspected(str(self.path))

    @property
    def layers(self) -> "tuple[Layer, ...]":
        """Layers with decays, as `inspect` finds them in any checkpoint; ValueError if none are.

        Their rates are -ln a per step of the recurrence, which is a byte or a patch of bytes.
        """
        return self._shown.layers

    @property
    def kernels(self) -> NDArray[np.float64]:
        """The kernel of every layer, (L,T), at the lags of `inspect`, in steps."""
        return self._shown.kernels

    @property
    def findings(self) -> "tuple[Finding, ...]":
        """Faults of its decays, and what is notable of them."""
        return self._shown.findings

    @property
    def config(self) -> dict[str, Any]:
        """Content of config.json: corpus, model, arm, training."""
        return dict(load_json(self.path / CONFIG))

    @property
    def metrics(self) -> "DataFrame":
        """A row for every evaluation, a column for every number: step, val_bpb ..

        Names of nested figures are dotted, saturation.entropy; lists are left out, and stand in
        metrics.jsonl. Raises ValueError for a damaged file; empty if there is none.
        """
        from pandas import json_normalize

        return json_normalize(read_lines(self.path / METRICS)).select_dtypes("number")


def load_run(path: str | Path) -> TrainedRun:
    """Open the run in a folder STUDY/ARM/seed-K, or the model in one of plkernel.load.

    Raises ValueError if there is none.
    """
    run = TrainedRun(cli.existing(_path(path, "path"), "path"))
    refuse_study(run.path, "path")
    if not (run.path / CONFIG).is_file():
        raise ValueError(
            f"path {run.path}: holds no {CONFIG}; give the folder of a run, STUDY/ARM/seed-K"
        )
    return run


@dataclass(frozen=True, repr=False)
class StudyResult(Result, Study):
    """A study and its runs, compared arm by arm as plkernel.report does."""

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
        return (
            f"{self.name}: {len(self.finished())} of {cli.counted(len(self.runs), 'run', 'runs')}"
            " finished."
            f" {' '.join(told)}"
        )

    def _table(self) -> Any:
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

    def _draw(self) -> "Figure":
        from plkernel.results.figures import drawings

        return next(drawings(self.comparison)).figure


def load_study(folder: str | Path) -> StudyResult:
    """Open the folder of a study or of a record.

    Raises ValueError that names the file which is missing or damaged.
    """
    return StudyResult(**vars(read_study(cli.existing(_path(folder, "folder"), "folder"))))


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
    folder = Path("runs/out") / chosen.name if out is None else _path(out, "out")
    if folder.is_file():
        raise ValueError(f"out must be a folder, got the file {folder}")
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
    folder = None if out is None else _path(out, "out")
    planned = chain.plan_trial(text, folder, options, lambda line: None)
    chain.run_trial(planned)
    return load_study(planned.out)


def inspect(path: str | Path, *, decays: "Decays | None" = None) -> "Shown | TrainedRun":
    """Read the decays of anybody's checkpoint, found by name; nothing of it is executed.

    path    a folder as on the Hugging Face hub, a .safetensors, .pth or .gguf file, or
            hf:OWNER/NAME; a run of plkernel is opened as by `load_run`
    decays  how those of a layer of your own follow from its parameters, by pattern of their names:
            {"*.decay": "sigmoid"}; as for `watch`

    In the result, `layers` have rates = -ln a per token, `kernels` (L,T) the later weights of an
    input, `findings` what is wrong with them; a `TrainedRun` has the three too. Raises ValueError
    if no decays are known, and if `decays` fits none of the tensors. As plkernel.inspect.
    """
    from plkernel.decays.inspection import inspected, is_other_software
    from plkernel.decays.own import UnknownDecays, statements, with_lines

    if hasattr(path, "state_dict"):
        raise ValueError(
            f"path must be a path, got {brief(path)}; plkernel.watch(model) reads a live model"
        )
    if isinstance(path, Mapping):
        raise ValueError(
            f"path must be a path, got {brief(path)}; write tensors to a file with"
            " safetensors.torch.save_file(tensors, path), and give that"
        )
    place = _path(path, "path")
    refuse_study(place, "path")
    statements(decays)
    if not is_other_software(place):
        if decays is not None:
            raise ValueError(f"decays must be left out for a run of plkernel, which {path} is")
        return load_run(place)
    try:
        return inspected(str(path), decays)
    except UnknownDecays as error:
        raise with_lines(error, "plkernel.inspect(path, decays=decays)") from None


def _read_text(
    text: Text, reading: Mapping[str, Any] = READING
) -> tuple[Named | corpora.Corpus, NDArray[np.uint8]]:
    """Origin of a text and its symbols (n,), uint8.

    reading: how a corpus is read by its name. Raises ValueError that says what would work for
    anything else.
    """
    if isinstance(text, str | Path):
        corpus = corpora.load(text, **reading)
        return corpus, np.asarray(corpus.bytes)
    if isinstance(text, bytes | bytearray | memoryview):
        data = np.frombuffer(text, np.uint8)
    else:
        data = _array(text)
    if data.ndim != 1 or data.dtype.kind not in "iu":
        got = f"{data.dtype} of shape {data.shape}"
        raise ValueError(
            f"text must be bytes, a vector of integers, or the name of a corpus, got {got}"
        )
    if data.size and not 0 <= data.min() <= data.max() < SYMBOLS:
        raise ValueError(
            f"text must hold integers from 0 to {SYMBOLS - 1}, got {data.min()} to {data.max()}:"
            f" np.unique(text, return_inverse=True)[1] renumbers up to {SYMBOLS} different ones"
        )
    origin = Named("array" if isinstance(text, np.ndarray) else "bytes", "given")
    return origin, data.astype(np.uint8, copy=False)


@contextmanager
def _opened(
    model: "Subject",
    text: Text | None,
    context: int | None,
    windows: int,
    batch: int,
    disjoint: bool = True,
) -> "Iterator[tuple[Predict, Tensor, int]]":
    """The model as a callable, windows of the text (n, context + 1), and the bytes of a patch.

    disjoint: windows do not overlap. The model is in evaluation mode meanwhile.
    """
    from plkernel.models.layers import modes_kept
    from plkernel.probing.predictions import check_causal
    from plkernel.training.build import Model
    from plkernel.training.evaluate import patch_of, predictor

    taken = _taken_windows(model, text, context, windows, batch, disjoint)
    opened: Any = model.model if isinstance(model, TrainedRun) else model
    with modes_kept(opened):
        if isinstance(opened, Model):
            device = next(opened.parameters()).device
            yield predictor(opened, device), taken, patch_of(opened)
        else:
            predict = _checked(opened)
            check_causal(predict, taken, batch)
            yield predict, taken, 1


def _taken_windows(
    model: "Subject",
    text: Text | None,
    context: int | None,
    windows: int,
    batch: int,
    disjoint: bool,
) -> "Tensor":
    """Windows (n, context + 1) of a text, or of the validation split of a run.

    Raises ValueError for sizes below 1, and where there is no text, or one that is too short.
    """
    from plkernel.common.corpus_names import is_recall
    from plkernel.data.windows import check_holds_window, fixed_windows, spread_windows
    from plkernel.probing.runs import validation_text

    check_numbers(numbers.Integral, windows=windows, batch=batch)
    check_numbers_or_none(numbers.Integral, context=context)
    config = model.config if isinstance(model, TrainedRun) else {}
    if text is None and not isinstance(model, TrainedRun):
        raise ValueError(
            "text must be given: bytes, an array, or the name of a corpus such as 'stdlib'"
        )
    corpus = config.get("corpus") or {}
    if text is None and is_recall(str(corpus.get("name"))):
        raise ValueError(
            "text must be given for a run on recall, which predicts answers alone; python -m"
            " plkernel.inspect evaluates these"
        )
    data = validation_text(config, None, "text")[1] if text is None else _read_text(text)[1]
    length = (
        config.get("train", {}).get("context", UNTRAINED_CONTEXT) if context is None else context
    )
    if min(length, windows, batch) < 1:
        raise ValueError(
            f"context, windows and batch must be at least 1, got {length}, {windows} and {batch}"
        )
    check_holds_window(data.size, length, "text")
    draw = fixed_windows if disjoint else spread_windows
    return draw(data, length, windows)


def _checked(model: Any) -> "Predict":
    """A callable that returns the logits of `model`; ValueError where it does not give them."""
    import torch

    from plkernel.probing.state_checks import check_model
    from plkernel.training.evaluate import as_logits

    if not callable(model):
        wanted = (
            "a callable from tokens (B,T) int64 to logits (B,T,256), a model of plkernel or a"
            " TrainedRun"
        )
        raise ValueError(
            f"model must be {wanted} (plkernel.load_run opens one), got"
            f" {cli.shortened(repr(model), 60)}"
        )
    check_model(model)
    parameters = list(model.eval().parameters()) if isinstance(model, torch.nn.Module) else []
    device = parameters[0].device if parameters else torch.device("cpu")

    def predict(tokens: "Tensor") -> "Tensor":
        try:
            given = model(tokens.to(device))
        except Exception as error:
            raise ValueError(
                f"model: given tokens of shape {tuple(tokens.shape)}, int64, it raised"
                f" {cli.told(error)}"
            ) from error
        return as_logits(given, tokens, "model").detach()

    return predict
