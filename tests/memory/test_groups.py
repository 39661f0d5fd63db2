"""Schemes, corpora and placements of another package, by entry points: known by name after consent."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from plkernel.analysis.nodes import Aim, Projection, shaped
from plkernel.common.files import load_json
from plkernel.config.condition import from_config
from plkernel.config.reading import load_spec
from plkernel.data import names
from plkernel.memory.foreign import offered
from plkernel.models.init import SCHEMES
from plkernel.training import check
from plkernel.training.build import admit
from plkernel.training.loop import prepare, run_training

PARTS = '''
from pathlib import Path

import numpy as np

from plkernel.data.files import Chunk
from plkernel.data.names import Source
from plkernel.models.init.schemes.frameworks import transformers_default

Path(__file__).with_name("imported").write_text("yes")


def tenfold(sizes, *, factor=10.0):
    """transformers_default with another name."""
    return transformers_default(sizes)


def counting(rest, request):
    size = 256 * int(rest)
    return Source(f"counting:{rest}", {"counting": rest}, lambda: blocks(size), size)


def harmonic(channels):
    return 64 / np.arange(1, channels + 1)


def short(channels):
    return [1.0]


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
        "[plkernel.placements]\nharmonic = somebodys.parts:harmonic\nshort = somebodys.parts:short\n"
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


def placing(path: Path, placement: str, projection: str = "uniform") -> Path:
    """The spec with such an arm in place of its second."""
    arm = f'[arms.placed]\nplacement = "{placement}"\nprojection = "{projection}"'
    path.write_text(path.read_text().partition("[arms.power-law]")[0] + arm)
    return path


@pytest.mark.parametrize(
    ("kind", "projection"),
    [
        ("dim = 16", "uniform"),
        ("dim = 16", "gain-corrected"),
        ('kind = "rwkv6"\ndim = 32\nhead_size = 16', "uniform"),
    ],
)
def test_a_placement_is_asked_once_after_consent_and_kept_as_numbers(
    kind: str, projection: Projection, parts: Path, tiny_spec: Callable[..., Path], tmp_path: Path
) -> None:
    """Refused without importing anything; what is saved needs neither the package nor consent."""
    path = placing(tiny_spec(), "harmonic", projection)
    path.write_text(path.read_text().replace("dim = 16", kind))
    with pytest.raises(
        ValueError, match=r"arms.placed: placement 'somebodys.parts:harmonic' would be imported and run"
    ):
        load_spec(path)
    assert not (parts / "imported").exists()
    spec = load_spec(path, check, trusted=True)
    saved = tmp_path / "spec.json"
    saved.write_text(json.dumps(spec.model_dump(mode="json")))
    (parts / "parts.py").unlink()
    del sys.modules["somebodys.parts"]
    condition = load_spec(saved, check).condition("placed")
    rates = np.log(2) * np.arange(1, 17) / 64
    assert condition.nodes.rates == pytest.approx(rates)
    assert condition.nodes.projection == pytest.approx(shaped(rates, projection, "none", Aim(1.15)).projection)
    assert from_config(condition.config).nodes == spec.condition("placed").nodes


def test_a_run_starts_with_the_half_lives_of_a_placement(
    parts: Path, tiny_spec: Callable[..., Path], tmp_path: Path
) -> None:
    spec = load_spec(placing(tiny_spec(steps=1, eval_every=1), "harmonic"), check, trusted=True)
    task = prepare(spec, "placed", 0, tmp_path / "out")
    run_training(task, progress_bar=False)
    first = json.loads((task.folder.path / "metrics.jsonl").read_text().splitlines()[0])
    assert first["half_life_quantiles"][0][-1] == pytest.approx(64, rel=1e-5)
    assert load_json(task.folder.path / "config.json")["arm_options"]["placement"] == "harmonic"


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        (
            "harmonics",
            "placement 'harmonics' is none of ours, nor an entry point of plkernel.placements; did you mean 'h",
        ),
        ("log_spaced", "nor an entry point of plkernel.placements; did you mean 'log-spaced'?"),
        ("short", "placement 'short': somebodys.parts:short must give 16 half-lives in bytes, positive and finite"),
    ],
)
def test_a_placement_that_is_none_is_one_line(
    placement: str, message: str, parts: Path, tiny_spec: Callable[..., Path]
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        load_spec(placing(tiny_spec(), placement), trusted=True)
