"""Factors written out as arms: every combination once, each compared within its block, and the same when read back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plkernel.analysis.nodes import output_std
from plkernel.config.condition import resolve
from plkernel.config.factors import expanded
from plkernel.config.reading import load_spec, parse_spec
from plkernel.config.study import Spec
from plkernel.training.task import prepare

FACTORS: dict[str, Any] = {
    "placement": ["log-spaced", "concentrated"],
    "projection": ["uniform", "gain-corrected"],
    "model.gain": ["none", "ema"],
}


def study(**values: Any) -> dict[str, Any]:
    return {
        "name": "design",
        "model": {"dim": 16, "layers": 1},
        "train": {"steps": 3, "context": 32, "batch": 2},
        "within": ["model.gain"],
        "factors": FACTORS,
        **values,
    }


def parsed(**values: Any) -> Spec:
    return parse_spec(study(**values), "here")


def test_a_full_factorial_has_every_combination_once() -> None:
    spec = parsed()
    assert len(spec.arms) == 8
    levels = [tuple((arm.levels or {}).values()) for arm in spec.arms.values()]
    assert len(set(levels)) == 8
    for name, arm in spec.arms.items():
        assert arm.levels is not None
        assert name == "_".join(arm.levels.values())
        assert (arm.placement, arm.projection) == (arm.levels["placement"], arm.levels["projection"])
        assert spec.model_of(name).gain == arm.levels["model.gain"]
        assert resolve(spec.model_of(name), arm).nodes.gain == arm.levels["model.gain"]


def test_arms_are_compared_within_their_block() -> None:
    spec = parsed(arms={"quantile": {"placement": "quantile"}})
    assert spec.baseline == "log-spaced_uniform_none"
    for name, arm in spec.arms.items():
        gain = name.rpartition("_")[2]
        own = f"log-spaced_uniform_{gain}"
        assert arm.against == (None if name == own else own)
    assert {"quantile_none", "quantile_ema"} < set(spec.arms)
    assert spec.arms["quantile_ema"].levels == {"model.gain": "ema"}


def test_matches_stay_within_the_block() -> None:
    arms = {"twin": {"match": "concentrated_uniform"}, "other": {"projection": "published", "match": "baseline"}}
    spec = parsed(arms=arms)
    for gain in ("none", "ema"):
        wanted = resolve(spec.model_of(f"concentrated_uniform_{gain}"), spec.arms[f"concentrated_uniform_{gain}"]).nodes
        assert spec.arms[f"twin_{gain}"].output_std == pytest.approx(output_std(wanted))
        base = resolve(spec.model_of(f"log-spaced_uniform_{gain}"), spec.arms[f"log-spaced_uniform_{gain}"]).nodes
        assert spec.arms[f"other_{gain}"].output_std == pytest.approx(output_std(base))


def test_expanding_twice_is_the_same_as_once() -> None:
    values = expanded(study(arms={"quantile": {"placement": "quantile"}}))
    assert expanded(values) == values
    spec = parsed(arms={"quantile": {"placement": "quantile"}})
    assert parse_spec(spec.model_dump(mode="json"), "again") == spec


def test_an_arm_may_add_to_a_combination_everywhere_or_in_one_block() -> None:
    spec = parsed(arms={"log-spaced_uniform": {"beta": 0.9}, "log-spaced_uniform_ema": {"learning_rate": 0.5}})
    assert len(spec.arms) == 8
    assert [spec.arms[f"log-spaced_uniform_{gain}"].beta for gain in ("none", "ema")] == [0.9, 0.9]
    assert [spec.arms[f"log-spaced_uniform_{gain}"].learning_rate for gain in ("none", "ema")] == [None, 0.5]


def test_levels_by_name_hold_options_of_any_section(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(f"{name} text " * 400)
    patchings = {"bytes": {}, "pairs": {"model": {"patching": {"size": 2}}}}
    corpora = {name: {"corpus": {"name": str(tmp_path / f"{name}.txt")}} for name in ("a", "b")}
    factors = {"beta": [0.6, 1.15], "patching": patchings, "corpus": corpora}
    spec = parsed(within=["patching", "corpus"], factors=factors)
    assert list(spec.arms)[:2] == ["0.6_bytes_a", "1.15_bytes_a"]
    assert spec.model_of("0.6_pairs_b").patching.size == 2
    assert spec.model_of("0.6_bytes_b").patching.size == 1
    tasks = {name: prepare(spec, name, 0, tmp_path / "out") for name in ("0.6_bytes_a", "0.6_pairs_b")}
    assert tasks["0.6_bytes_a"].corpus.sha256 != tasks["0.6_pairs_b"].corpus.sha256
    assert tasks["0.6_pairs_b"].config["model"]["patching"]["size"] == 2
    assert tasks["0.6_pairs_b"].config["corpus"]["name"].endswith("b.txt")


def test_a_design_needs_no_crossed_factor() -> None:
    arms = {"plain": {}, "law": {"projection": "gain-corrected"}}
    spec = parsed(factors={"model.gain": ["none", "ema"]}, arms=arms, baseline="plain")
    assert list(spec.arms) == ["plain_none", "law_none", "plain_ema", "law_ema"]
    assert (spec.baseline, spec.arms["law_ema"].against) == ("plain_none", "plain_ema")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"within": ["gain"]}, "within: 'gain' is not a factor; did you mean 'model.gain'"),
        ({"factors": {"placement": ["log-spaced"]}, "within": []}, "factors.placement: needs two levels or more"),
        ({"factors": {"x": {"a": 3, "b": 4}}, "within": []}, "factors.x.a: expected a table of options"),
        ({"factors": {"placement": "log-spaced"}, "within": []}, "factors.placement: expected a list of values"),
        (
            {"factors": {"beta": [1.0, 1.2], "x": {"a": {"beta": 1.1}, "b": {}}}, "within": []},
            "factors beta and x both set beta",
        ),
        ({"factors": {"placment": ["a", "b"]}, "within": []}, "unknown key 'placment' in .*; did you mean 'placement'"),
        (
            {"factors": {"model.gian": ["none", "ema"]}, "within": []},
            "arms.none: unknown key 'gian' in .model.; did you mean 'gain'",
        ),
        ({"arms": {"x": {"against": "nobody"}}}, "arms.x_none: against 'nobody' is not another arm"),
        ({"factors": {"model.gain": ["none", "ema"]}, "arms": {"a": {}}}, "baseline is missing"),
    ],
)
def test_mistakes_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parsed(**values)


def test_what_an_arm_is_compared_with_changes_no_run(tiny_spec: Callable[..., Path], tmp_path: Path) -> None:
    spec = load_spec(tiny_spec())
    before = prepare(spec, "power-law", 0, tmp_path / "out").config
    arm = spec.arms["power-law"].model_copy(update={"against": "uniform", "levels": {"a": "b"}})
    compared = spec.model_copy(update={"arms": spec.arms | {"power-law": arm}})
    assert prepare(compared, "power-law", 0, tmp_path / "out").config == before


def test_a_baseline_by_its_whole_name_is_that_of_every_block() -> None:
    """The first of its block by whole name, or by the name that it has in every block: the same comparisons."""
    factors = {"placement": ["log-spaced", "concentrated"], "model.gain": ["none", "ema"]}
    values = {"within": ["model.gain"], "factors": factors}
    short, whole = (expanded({**values, "baseline": name}) for name in ("log-spaced", "log-spaced_none"))
    assert whole == short
    assert whole["arms"]["concentrated_ema"]["against"] == "log-spaced_ema"
