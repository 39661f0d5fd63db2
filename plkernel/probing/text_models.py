"""Causal models that are opened to run on a text: runs of plkernel, and folders of transformers."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from plkernel.common import cli
from plkernel.common.corpus_names import is_recall
from plkernel.common.files import CHECKPOINT, CONFIG
from plkernel.context.measures import UNTRAINED_CONTEXT, Bytes
from plkernel.data import corpora
from plkernel.data.tokenised import characters, tokenised
from plkernel.decays.config_sizes import check_against, check_parameters
from plkernel.decays.gguf_files import GGUF
from plkernel.decays.rates import NUMBERED
from plkernel.decays.structure import layers_of, too_many
from plkernel.decays.tensors import INDEX, PICKLE, PICKLE_INDEX, SINGLE, open_checkpoint
from plkernel.models.layers import BYTES
from plkernel.probing.runs import validation_text
from plkernel.training.checkpoint import is_of_transformers, open_model
from plkernel.training.evaluate import Predict, patch_of, predictor
from plkernel.training.foreign import without_gpu_code

TOKENISED = 1 << 22
"""Bytes of a text that become tokens, at most."""
PLAIN = {"add_special_tokens": False, "verbose": False}
"""Options of a tokenizer that gives the tokens of a text and nothing else."""
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""Stands for a space in the pieces of SentencePiece."""
FALLBACK = re.compile(r"<0x[0-9A-F]{2}>")
"""A piece that is one byte of a character that has no piece."""


Read = tuple[NDArray[Any], NDArray[np.int64] | None]
"""Tokens (n,) of a text, and the bytes of it up to the end of each; None where they are bytes."""


@dataclass(frozen=True)
class TextModel:
    """A causal model over the tokens of a text.

    predict  tokens (B,T) to logits (B,T,V)
    encode   bytes (n,) of a text to its tokens, and where these end
    unit     what a token is called: byte or token
    context  tokens of a window, unless others are asked for
    most     the largest number of tokens that it takes; infinite without a limit
    step     tokens of a patch: the model starts anew at multiples of so many only
    config   config.json of a run of plkernel; empty for other models
    """

    model: nn.Module
    predict: Predict
    encode: Callable[[Bytes], Read]
    unit: str
    context: int
    most: float = math.inf
    step: int = 1
    config: dict[str, Any] = field(default_factory=dict)

    def text(self, name: str | None) -> tuple[str, Bytes]:
        """Name and bytes of the corpus `name`, or else of the run's validation text."""
        if name is not None:
            return name, corpora.load(name).bytes
        corpus = self.config.get("corpus")
        trained_on = str(corpus.get("name")) if isinstance(corpus, dict) else ""
        if is_recall(trained_on):
            raise ValueError(
                "target must be a model of a text, got a run on recall, which predicts answers"
                " alone: result.json has its accuracy by length, distance and order; --text reads"
                " it on another text"
            )
        known, data, _ = validation_text(self.config, None, "text")
        return f"validation text of {known}", data


def open_text_model(path: Path, device: torch.device, trusted: bool = False) -> TextModel:
    """Open the model in `path`: a run, a folder of plkernel.load, or one of transformers.

    trusted: the code that a run's configuration names may be imported. Raises ValueError if there
    is no model, not all of it, or one whose code may not run.
    """
    cli.existing(path, "target")
    if path.is_file() and path.suffix != GGUF and is_of_transformers(path):
        raise ValueError(
            f"target must be the folder of a model of transformers, got a file in it, {path}; give"
            f" {path.parent}"
        )
    if path.is_file() or (path / CHECKPOINT).is_file():
        model, config, _ = open_model(path, trusted)
        context = (config.get("train") or {}).get("context", UNTRAINED_CONTEXT)
        predict = predictor(model.to(device), device)
        return TextModel(
            model, predict, _bytewise, "byte", context, step=patch_of(model), config=config
        )
    if is_of_transformers(path):
        return _transformers(path, device)
    raise ValueError(
        f"target must be a run of plkernel ({CHECKPOINT}, {CONFIG}) or a model of transformers,"
        f" whose {CONFIG} names a model_type, got {path}"
    )


def _bytewise(text: Bytes) -> Read:
    """A text whose tokens are its bytes."""
    return text, None


def _checked_numbers(path: Path) -> int | None:
    """Number of values in the tensors of a folder; None if there are no tensors.

    Raises ValueError where config.json describes a larger model, before anything is imported.
    """
    if not any((path / name).exists() for name in (INDEX, SINGLE, PICKLE, PICKLE_INDEX)):
        return None
    try:
        checkpoint = open_checkpoint(str(path))
        numbers = checkpoint.numbers()
        check_against(checkpoint.config, checkpoint.names, numbers)
    except ValueError as error:
        raise ValueError(f"target {path}: {error}") from error
    return numbers


def _loaded(path: Path, numbers: int | None) -> nn.Module:
    """The model of a folder, counted without memory first; every tensor comes from its file."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    if numbers is not None:
        with torch.device("meta"):
            empty = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        check_parameters(sum(one.numel() for one in empty.parameters()), numbers)
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        path, local_files_only=True, trust_remote_code=False, output_loading_info=True
    )
    model, found = loaded
    missing = sorted(found["missing_keys"])
    if missing:
        raise ValueError(
            f"tensors of the model are not in its file: {', '.join(missing[:3])}"
            f"{' ..' if missing[3:] else ''}"
        )
    _check_all_taken(found["unexpected_keys"], config.to_dict())
    return cast(nn.Module, model)


def _check_all_taken(unread: Iterable[str], config: Mapping[str, Any]) -> None:
    """ValueError for layers of a file that config.json does not count.

    unread: names of the tensors that the model has no place for, as of a head for another task.
    """
    matches = [NUMBERED.search(name) for name in unread]
    numbers = [int(match["number"]) for match in matches if match]
    words = too_many(1 + max(numbers, default=-1), config, layers_of(config))
    if words:
        raise ValueError(f"{CONFIG} must count all layers of the model, got {words}")


def ends_by_pieces(pieces: Sequence[str], size: int) -> NDArray[np.int64]:
    """Bytes up to the end of each token (n,), of a tokenizer that does not tell its places.

    pieces: what each token stands for, in the letters of its vocabulary. These are bytes (GPT-2,
    ByT5) or characters (SentencePiece, with a mark for a space); whichever comes nearer to the
    `size` of the text, in bytes, is taken. The rest, such as spaces that are dropped, is spread.
    """
    plain = [FALLBACK.sub(" ", piece).replace(SPACE, " ") for piece in pieces]
    as_bytes = np.array([len(piece) for piece in plain], dtype=np.int64)
    as_characters = np.array([len(piece.encode()) for piece in plain], dtype=np.int64)
    widths = min(as_bytes, as_characters, key=lambda each: abs(int(each.sum()) - size))
    if not widths.any():
        widths = np.ones_like(widths)
    reached = np.cumsum(widths)
    if not reached.size:
        return reached
    return np.asarray(np.rint(reached * (size / reached[-1])).astype(np.int64))


def _transformers(path: Path, device: torch.device) -> TextModel:
    """Model and tokenizer of a folder; 256 tokens without a tokenizer are bytes.

    Nothing is fetched, and no code of the folder runs.
    """
    numbers = _checked_numbers(path)
    model, tokenizer = _with_tokenizer(path, numbers, on_cpu=device.type == "cpu")
    model.float().to(device).eval()

    def predict(tokens: Tensor) -> Tensor:
        try:
            logits: Tensor = model(input_ids=tokens.to(device), use_cache=False).logits
        except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
            # Of a configuration that its module does not check; others are of the machine.
            raise ValueError(
                f"target {path}: model must run on tokens of shape {tuple(tokens.shape)}, it raised"
                f" {cli.told(error)}"
            ) from error
        return logits.float()

    most = getattr(model.config, "max_position_embeddings", None) or math.inf
    context = int(min(UNTRAINED_CONTEXT, most))
    if tokenizer is None:
        return TextModel(model, predict, _bytewise, "byte", context, most)
    encode = partial(_encoded, path, tokenizer, _alphabet_of(model))
    return TextModel(model, predict, encode, "token", context, most)


def _with_tokenizer(path: Path, numbers: int | None, on_cpu: bool) -> tuple[Any, Any]:
    """The model of a folder, and its tokenizer; None for a model that reads bytes without one.

    numbers: how many its tensors hold. Raises ValueError for whatever transformers does not open.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ValueError(
            f"target {path}: package transformers must be installed to run it, got none;"
            ' pip install "plkernel[models]"'
        ) from error
    try:
        with without_gpu_code() if on_cpu else nullcontext():
            model: Any = _loaded(path, numbers)
            if not _has_tokenizer(path) and _alphabet_of(model) == BYTES:
                return model, None
            tokenizer: Any = AutoTokenizer.from_pretrained(
                path, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # of whatever kind the model's own module raises
        fault = "does not open it as a causal language model with a tokenizer"
        raise ValueError(f"target {path}: transformers {fault}: {error}") from error
    # Where a folder has none, transformers makes one up that knows special tokens alone.
    is_made_up = len(tokenizer) <= len(tokenizer.all_special_ids)
    if is_made_up:
        fault = (
            "no tokenizer, which says what its tokens are (a model of 256 tokens reads bytes"
            " without one)"
        )
        raise ValueError(f"target {path}: {fault}: save that of the model there")
    return model, tokenizer


def _has_tokenizer(path: Path) -> bool:
    """True if a folder holds a file that tokenizers are saved in."""
    return any((*path.glob("*token*"), *path.glob("vocab*"), *path.glob("spiece*")))


def _alphabet_of(model: Any) -> int:
    """Number of tokens of a model of transformers."""
    return int(model.get_input_embeddings().num_embeddings)


def _encoded(path: Path, tokenizer: Any, alphabet: int, text: Bytes) -> Read:
    """The first TOKENISED bytes of a text as tokens, and where these end.

    Where a tokenizer does not tell the places of its tokens, the length of what each stands for
    tells them. Raises ValueError for tokens that a model of `alphabet` tokens does not have.
    """
    read = text[:TOKENISED]
    if tokenizer.is_fast:
        found = tokenised(read, partial(_spans, tokenizer), piece=TOKENISED)
        tokens = found.ids
        ends = found.ends
    else:
        words, _ = characters(read)
        tokens = np.array(tokenizer(words, **PLAIN)["input_ids"], dtype=np.int64)
        ends = ends_by_pieces(tokenizer.convert_ids_to_tokens(tokens.tolist()), read.size)
    if tokens.size and tokens.max() >= alphabet:
        raise ValueError(
            f"target {path}: tokens of its tokenizer must be below {alphabet}, as the model has,"
            f" got {tokens.max()}; save that of the model there"
        )
    return tokens, ends


def _spans(tokenizer: Any, words: str) -> tuple[list[int], Iterable[tuple[int, int]]]:
    """Tokens of `words`, and the characters from and to which each stands."""
    found = tokenizer(words, return_offsets_mapping=True, **PLAIN)
    return found["input_ids"], found["offset_mapping"]
