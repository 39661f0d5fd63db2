"""Models to be probed, by the folder they are in: ours, or a causal language model of transformers."""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from plkernel.common import cli
from plkernel.common.files import load_json
from plkernel.data import corpora
from plkernel.results.layout import CHECKPOINT, CONFIG
from plkernel.training.checkpoint import open_any_model
from plkernel.training.evaluate import Predict, patch_of, predictor
from plkernel.training.view import UNTRAINED_CONTEXT, validation_text

Bytes = NDArray[np.uint8]

TOKENISED = 1 << 22
"""Bytes of a text that become tokens, at most."""
NEED_A_GPU = ("fla", "mamba_ssm", "causal_conv1d")
"""Packages whose kernels transformers takes wherever they are installed, once and for all when it imports a model."""


@dataclass(frozen=True)
class Target:
    """A causal model over the tokens of a text.

    model    what runs
    predict  tokens (B,T) to logits (B,T,V)
    encode   bytes (n,) to tokens
    unit     what a token is: 'byte' or 'token'
    context  tokens in a window unless asked otherwise
    reads    bytes of a text that become tokens, at most
    most     tokens that the model takes; None: any number
    step     it starts anew at multiples of so many tokens only
    config   of a run of ours
    """

    model: nn.Module
    predict: Predict
    encode: Callable[[Bytes], NDArray[Any]]
    unit: str
    context: int
    reads: float = math.inf
    most: int | None = None
    step: int = 1
    config: dict[str, Any] = field(default_factory=dict)

    def text(self, name: str | None) -> tuple[str, Bytes]:
        """The corpus called `name`, all of it, or else the validation text of the run: its name and its bytes."""
        if name is not None:
            return name, corpora.load(name).bytes
        known, data, _ = validation_text(self.config, None, "text")
        return f"validation text of {known}", data


def open_target(path: Path, device: torch.device, trusted: bool = False) -> Target:
    """The model in `path`: a run of ours or what plkernel.load wrote, a checkpoint in it, or a transformers folder.

    trusted: whether the code that a run's configuration names may be imported. Raises ValueError where there is no
    model, not all of it, or one whose code may not run.
    """
    cli.existing(path, "target")
    if path.is_file() or (path / CHECKPOINT).is_file():
        model = open_any_model(path, trusted).to(device)
        config = load_json((path if path.is_dir() else path.parent) / CONFIG)
        context = (config.get("train") or {}).get("context", UNTRAINED_CONTEXT)
        predict, step = predictor(model, device), patch_of(model)
        return Target(model, predict, lambda text: text, "byte", context, step=step, config=config)
    content = load_json(path / CONFIG) if (path / CONFIG).is_file() else None
    if isinstance(content, dict) and "model_type" in content:
        return _transformers(path, device)
    raise ValueError(
        f"target {path}: neither a run of ours ({CHECKPOINT}, {CONFIG}) nor a transformers model, whose {CONFIG} names "
        "a model_type"
    )


@contextmanager
def _without(packages: tuple[str, ...]) -> Iterator[None]:
    """Those of `packages` that are not imported yet cannot be for a while."""
    hidden = [name for name in packages if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: the import fails
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def _transformers(path: Path, device: torch.device) -> Target:
    """Nothing is fetched, and no code of the folder runs."""
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise ValueError(f"target {path}: needs transformers, which is missing: pip install transformers") from error
    local = {"local_files_only": True, "trust_remote_code": False}
    try:
        with _without(NEED_A_GPU if device.type == "cpu" else ()):
            model: Any = AutoModelForCausalLM.from_pretrained(path, **local)
    except Exception as error:  # of whatever kind the model's own module raises
        raise ValueError(f"target {path}: transformers does not open it as a causal language model: {error}") from error
    absent = f"target {path}: no tokenizer, which says what its tokens are: save_pretrained that of the model there"
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(path, **local)
    except Exception as error:
        raise ValueError(f"{absent} ({error})") from error
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # made up where the folder has none
        raise ValueError(absent)
    model.float().to(device).eval()

    def predict(tokens: Tensor) -> Tensor:
        logits: Tensor = model(input_ids=tokens.to(device), use_cache=False).logits
        return logits.float()

    def encode(text: Bytes) -> NDArray[Any]:
        words = text[:TOKENISED].tobytes().decode("utf-8", errors="replace")
        tokens = np.asarray(tokenizer(words, add_special_tokens=False, verbose=False)["input_ids"], dtype=np.int64)
        if tokens.size and tokens.max() >= (size := model.get_input_embeddings().num_embeddings):
            raise ValueError(f"target {path}: its tokenizer gives token {tokens.max()}, but the model has {size} only")
        return tokens

    most = getattr(model.config, "max_position_embeddings", None)
    context = min(UNTRAINED_CONTEXT, most or UNTRAINED_CONTEXT)
    return Target(model, predict, encode, "token", context, TOKENISED, most)
