"""Hypotheses and gates of a spec: what is read, what is refused, and that no run knows of them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from plkernel.common.files import save_json
from plkernel.config.factors import expanded
from plkernel.config.hypotheses import Gate, Hypothesis, families
from plkernel.config.reading import load_spec, parse_spec
from plkernel.config.study import Spec

HYPOTHESIS = '[[hypotheses]]\nname = "it helps"\narm = "power-law"\nclaim = "lower"\n'
GATE = '[[gates]]\nname = "has learnt"\narm = "uniform"\nat_most = 4.0\n'


@pytest.fixture
def declaring(tiny_spec: Callable[..., Path]) -> Callable[[str], Path]:
    """Writes the tiny spec with more tables behind it."""

    def write(tables: str) -> Path:
        path = tiny_spec()
        path.write_text(path.read_text() + tables)
        return path

    return write


def test_what_is_left_out_is_filled_in(declaring: Callable[[str], Path]) -> None:
    spec = load_spec(declaring(HYPOTHESIS + GATE))
    (found,) = spec.hypotheses
    assert found == Hypothesis(name="it helps", arm="power-law", against="uniform", claim="lower")
    assert (found.family, found.margin, found.metric, found.step, found.alpha) == ("main", 0.0, "val_bpb", None, 0.05)
    assert spec.gates == (Gate(name="has learnt", arm="uniform", at_most=4.0),)


def test_they_round_trip_and_old_specs_have_none(declaring: Callable[[str], Path], tmp_path: Path) -> None:
    more = HYPOTHESIS.replace("it helps", "at 4") + 'step = 4\nfamily = "early"\nmargin = 1e-3\n'
    spec = load_spec(declaring(HYPOTHESIS + more + GATE))
    save_json(tmp_path / "spec.json", spec.model_dump(mode="json"))
    assert load_spec(tmp_path / "spec.json") == spec
    assert {family: [one.name for one in of] for family, of in families(spec.hypotheses).items()} == {
        "main": ["it helps"],
        "early": ["at 4"],
    }
    old = {key: value for key, value in spec.model_dump(mode="json").items() if key not in ("hypotheses", "gates")}
    assert parse_spec(old, "old").hypotheses == ()


def test_no_run_knows_of_them(declaring: Callable[[str], Path]) -> None:
    plain, declared = load_spec(declaring("")), load_spec(declaring(HYPOTHESIS + GATE))
    assert declared != plain
    for arm in plain.arms:
        assert declared.condition(arm).config == plain.condition(arm).config


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            HYPOTHESIS.replace("power-law", "powerlaw"),
            "hypotheses 'it helps': arm 'powerlaw' is not an arm; did you mean",
        ),
        (HYPOTHESIS + 'against = "unifrom"\n', "'it helps': against 'unifrom' is not an arm; did you mean 'uniform'"),
        (HYPOTHESIS + 'against = "power-law"\n', "against 'power-law' is the arm itself"),
        (HYPOTHESIS.replace("power-law", "uniform"), "against is missing: arm 'uniform' is a baseline"),
        (HYPOTHESIS + "step = 5\n", "'it helps': step 5 has no evaluation; near it are 4 and 8 and 12, the last"),
        (HYPOTHESIS + "step = 16\n", "'it helps': step 16 has no evaluation; near it are 12, the last"),
        (HYPOTHESIS.replace("lower", "smaller"), "hypotheses.0.claim: .*'lower', 'higher' or 'equal', got 'smaller'"),
        (HYPOTHESIS.replace("lower", "equal"), "'it helps': claim 'equal' needs a margin above 0"),
        (HYPOTHESIS + "margin = -1\n", "hypotheses.0.margin: .*greater than or equal to 0, got -1"),
        (HYPOTHESIS + "margn = 1\n", r"unknown key 'margn' in \[hypotheses.0\]; did you mean 'margin'"),
        (HYPOTHESIS + "alpha = 0.5\n", "hypotheses.0.alpha: .*less than 0.5"),
        (HYPOTHESIS + "bytes = 4\n", "'it helps': metric 'val_bpb' takes no bytes, got 4"),
        (HYPOTHESIS + 'metric = "truncation_cost"\n', "'it helps': metric 'truncation_cost' needs bytes"),
        (HYPOTHESIS + 'metric = "truncation_cost"\nbytes = 32\n', "bytes must be fewer than the context, 32, got 32"),
        (
            HYPOTHESIS + 'metric = "truncation_cost"\nbytes = 8\n',
            "truncation_cost is not measured: set train.truncation_windows",
        ),
        (HYPOTHESIS + 'metric = "test_bpb"\nstep = 4\n', "'it helps': test_bpb is taken at the end only, got step 4"),
        (HYPOTHESIS + HYPOTHESIS, "hypotheses 'it helps': 2 have this name"),
        (
            HYPOTHESIS + HYPOTHESIS.replace("it helps", "b") + "alpha = 0.1\n",
            "hypotheses 'b': alpha 0.1 differs from the 0.05 of 'it helps': all of family 'main' share one",
        ),
        (GATE.replace("at_most = 4.0\n", ""), "'has learnt': a gate needs at_least or at_most"),
        (GATE + "at_least = 5.0\n", "'has learnt': at_least 5 is above at_most 4"),
        (GATE.replace("uniform", "unifrom"), "gates 'has learnt': arm 'unifrom' is not an arm; did you mean 'uniform'"),
        (GATE + 'claim = "lower"\n', r"unknown key 'claim' in \[gates.0\]"),
        ("[hypotheses]\nname = 'x'\n", "hypotheses: .*got {'name': 'x'}"),
    ],
)
def test_mistakes_are_one_line_that_names_the_remedy(
    declaring: Callable[[str], Path], tables: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as error:
        load_spec(declaring(tables))
    assert len(str(error.value).splitlines()) == 1


def test_an_arm_without_a_comparison_needs_to_be_told_one() -> None:
    """In blocks, the baseline of the second is compared with none, and every other arm with that of its block."""
    values = {
        "name": "blocks",
        "within": ["model.gain"],
        "factors": {"projection": ["uniform", "published"], "model.gain": ["none", "ema"]},
        "train": {"steps": 4},
    }
    spec = Spec.model_validate(expanded(dict(values)))
    assert {name: spec.against(name) for name in spec.arms} == {
        "uniform_none": None,
        "published_none": "uniform_none",
        "uniform_ema": None,
        "published_ema": "uniform_ema",
    }
    one = {"name": "a", "arm": "uniform_ema", "claim": "higher"}
    with pytest.raises(ValueError, match="hypotheses 'a': against is missing: arm 'uniform_ema' is a baseline"):
        parse_spec({**values, "hypotheses": [one]}, "here")
    found = parse_spec({**values, "hypotheses": [{**one, "against": "uniform_none"}]}, "here").hypotheses[0]
    assert found.against == "uniform_none"
