"""Schemes and corpora of another package, by entry points: known by name once the person has consented."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plkernel.data import names
from plkernel.foreign.groups import offered
from plkernel.models.init import SCHEMES
from plkernel.run.build import admit, check
from plkernel.run.task import prepare
from plkernel.run.training import run_training
from plkernel.spec.reading import load_spec

PARTS = '''
from pathlib import Path

import numpy as np

from plkernel.data.files import Chunk
from plkernel.data.names import Source
from plkernel.models.init.schemes.transformers import transformers_default

Path(__file__).with_name("imported").write_text("yes")


def tenfold(sizes, *, factor=10.0):
    """transformers_default with another name."""
    return transformers_default(sizes)


def counting(rest, request):
    size = 256 * int(rest)
    return Source(f"counting:{rest}", {"counting": rest}, lambda: blocks(size), size)


def blocks(size):
    yield Chunk(np.zeros(1, np.uint8), np.zeros(1, np.int64))
    yield Chunk(np.arange(size).astype(np.uint8), np.zeros(0, np.int64))
'''


@pytest.fixture
def parts(package: Path) -> Iterator[Path]:
    """The package with a scheme and a corpus, and metadata that say so, as an installed one has them."""
    (package / "parts.py").write_text(PARTS)
    metadata = package.parent / "somebodys-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: somebodys\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[plkernel.schemes]\ntenfold = somebodys.parts:tenfold\n"
        "[plkernel.corpora]\ncounting = somebodys.parts:counting\n"
    )
    yield package
    SCHEMES.pop("tenfold", None)
    names.KINDS.pop("counting", None)


def test_they_are_used_by_name_after_consent_and_never_before(
    parts: Path, tiny_spec: Callable[..., Path], tmp_path: Path
) -> None:
    path = tiny_spec(corpus="counting:80", steps=2, eval_every=2)
    path.write_text(path.read_text().replace("[arms.uniform]", '[arms.uniform]\nscheme = "tenfold"'))
    told = "scheme 'somebodys.parts:tenfold', corpus 'somebodys.parts:counting' would be imported and run"
    with pytest.raises(ValueError, match=f"arms.uniform: {told}"):
        load_spec(path, check)
    with pytest.raises(ValueError, match=told):
        prepare(load_spec(path), "uniform", 0, tmp_path / "out")
    assert not (parts / "imported").exists()
    spec = load_spec(path, check, trusted=True)
    assert SCHEMES["tenfold"].source == "somebodys 1.0"
    task = prepare(spec, "uniform", 0, tmp_path / "out")
    assert task.corpus.size == 80 * 256
    assert run_training(task, progress_bar=False)["steps"] == 2


def test_names_of_ours_are_never_looked_up(parts: Path) -> None:
    assert offered("megatron_default", "stdlib") == offered(None, "synthetic:beta=1.0") == {}
    assert offered(None, str(parts)) == {}


def test_an_unknown_name_is_as_unknown_as_before(tiny_spec: Callable[..., Path]) -> None:
    path = tiny_spec(head="")
    path.write_text(path.read_text().replace("[arms.uniform]", '[arms.uniform]\nscheme = "megatron_defualt"'))
    with pytest.raises(ValueError, match="scheme 'megatron_defualt' does not exist; nearest: megatron_default"):
        load_spec(path, check)
    admit(load_spec(tiny_spec()).condition("uniform"))
