"""Specs: every committed one expands as it always has, options replace fields, and a mistake is one
line.
"""

import copy
import hashlib
import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from pydantic import Field, JsonValue, ValidationError

from plkernel.analysis.nodes import Nodes, output_std, place
from plkernel.commands.specs import command
from plkernel.common.files import load_json, parse_toml, read_lines, save_json
from plkernel.config import reading
from plkernel.config.condition import from_config, resolve
from plkernel.config.reading import expanded, find_spec, load_spec, parse_spec, roles, specs
from plkernel.config.schema import (
    MAMBA2,
    MOST_STEPS,
    PLAIN_MAMBA2,
    SMALLEST_EPS,
    Arm,
    Gate,
    Hypothesis,
    ModelSpec,
    Section,
    TrainSpec,
    explained,
    families,
)
from plkernel.config.spec import Spec, with_defaults
from plkernel.models.init.plan import RoleTable
from plkernel.training import check
from plkernel.training.folder import differences

RUNS = Path(__file__).parents[2] / "runs"
GOLDEN = load_json(Path(__file__).with_name("conditions.json"))
CLAIM = {"name": "it helps", "arm": "power", "claim": "lower"}
GATE = {"name": "has learnt", "arm": "uniform", "at_most": 4.0}
TINY: dict[str, Any] = {
    "name": "tiny",
    "baseline": "uniform",
    "seeds": [0, 1],
    "model": {"dim": 16, "layers": 2},
    "train": {"steps": 12, "eval_every": 4, "context": 32, "batch": 4},
    "arms": {"uniform": {}, "power": {"projection": "published"}},
}
PLAIN = """name = "tiny"
baseline = "uniform"
[model]
dim = 16
[train]
steps = 12
context = 32
"""
"""The beginning of a file of a spec, before its arms."""
DESIGN: dict[str, Any] = {
    "name": "design",
    "model": {"dim": 16, "layers": 1},
    "train": {"steps": 3, "context": 32, "batch": 2},
    "within": ["model.gain"],
    "factors": {
        "placement": ["log-spaced", "concentrated"],
        "projection": ["uniform", "gain-corrected"],
        "model.gain": ["none", "ema"],
    },
}
BLOCKS: dict[str, Any] = {
    **DESIGN,
    "factors": {"projection": ["uniform", "published"], "model.gain": ["none", "ema"]},
}
FILES = ("spec", "references", "registered", "measurement")
YOUNGER = [["final_windows", 0], ["average", 0.0], ["ahead_of", None], ["decay_weight_decay", 0.0]]
YOUNGER += [["decay_dtype", "float32"], ["carry", False], ["beyond", None]]
YOUNGER += [["curriculum", ()], ["curriculum", []]]
"""Options that specs of earlier versions do not have, at the defaults that change nothing."""


def values(changes: dict[str, Any], base: dict[str, Any] = TINY) -> dict[str, Any]:
    """The tiny spec with the values at dotted places replaced."""
    changed = copy.deepcopy(base)
    for key, value in changes.items():
        *heads, last = key.split(".")
        table = changed
        for head in heads:
            table = table.setdefault(head, {})
        table[last] = value
    return changed


def tiny(**arm: Any) -> Spec:
    """The tiny spec with these options in its arm `power`."""
    return parse_spec(values({"arms.power": arm}), "here")


def rounded(value: Any) -> Any:
    """Plain values with floats as texts of ten digits, equal on every processor, without
    YOUNGER.
    """
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items() if [key, item] not in YOUNGER}
    return [rounded(item) for item in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("name", GOLDEN)
def test_committed_specs_expand_to_the_same_conditions(name: str) -> None:
    spec = load_spec(RUNS / name)
    conditions = {arm: spec.condition(arm).config for arm in spec.arms}
    content = json.dumps(rounded([spec.model_dump(mode="json"), conditions]))
    assert hashlib.sha256(content.encode()).hexdigest()[:16] == GOLDEN[name]
    arm = spec.baseline
    assert from_config(json.loads(json.dumps(conditions[arm]))).config == conditions[arm]


def test_the_arm_of_the_decays_alone_has_those_of_the_power_law_start() -> None:
    alone, both = (
        nodes_of(load_spec(RUNS / "models-goose.toml"), arm)
        for arm in ("power-law-decays", "power-law")
    )
    assert alone.rates == pytest.approx(both.rates, rel=5e-5)  # five digits
    assert set(alone.projection) == {1.0}


def test_no_committed_spec_is_left_out_and_each_fits_its_scheme() -> None:
    files = {path for pattern in ("*.toml", "records/**/spec.json") for path in RUNS.glob(pattern)}
    assert {str(path.relative_to(RUNS)) for path in files} == set(GOLDEN)
    for path in specs().values():
        spec = load_spec(path, lambda condition: None if condition.code else check(condition))
        assert spec.name == path.stem


def test_a_configuration_of_an_earlier_version_has_defaults() -> None:
    condition = tiny(projection="published").condition("power")
    old = json.loads(json.dumps(condition.config))
    for section, name in (
        ("train", "l2wrap"),
        ("model", "ranks"),
        ("arm_options", "init"),
        ("corpus", "follow_links"),
    ):
        del old[section][name]
    old["model"]["parameters"] = 12345
    assert from_config(old) == condition
    del old["model"]["parameters"]
    assert with_defaults(old) == with_defaults(json.loads(json.dumps(condition.config)))


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("train", 3, "train: must be a table, got 3"),
        ("train.stepps", 3, "unknown key 'stepps' in [train]; did you mean 'steps'?"),
        ("model.ranks.x", 3, "unknown key 'x' in [model.ranks]; valid: decay, gate, rate, value"),
        ("model.dim", -1, "model.dim: Input should be greater than or equal to 2, got -1"),
        ("arm_options.betaa", 3, "unknown key 'betaa' in [arm_options]; did you mean 'beta'?"),
    ],
)
def test_a_configuration_that_is_none_is_refused_in_words(
    place: str, value: Any, message: str
) -> None:
    """Not in those of pydantic, which takes four lines and names its own page."""
    config = json.loads(json.dumps(tiny().condition("power").config))
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        from_config(values({place: value}, config))
    assert str(error.value) == message


GOOSE = {"kind": "rwkv7", "dim": 64, "head_size": 16}


@pytest.mark.parametrize(
    ("model", "arm", "expected"),
    [
        (
            {"dim": 32, "gain": "ema"},
            {"kind": "m:B", "config": {"a": 1}},
            {"kind": "m:B", "config": {"a": 1}},
        ),
        ({"kind": "m:A", "config": {"a": 1}}, {"kind": "m:B"}, {"kind": "m:B"}),
        (
            {"kind": "m:A", "config": {"a": 1}},
            {"kind": "m:A", "config": {"b": 2}},
            {"config": {"a": 1, "b": 2}},
        ),
        (
            {"kind": "m:A", "config": {"a": 1}},
            {"kind": "ssm", "layers": 2},
            {"kind": "ssm", "layers": 2},
        ),
        (
            {**GOOSE, "ranks": {"decay": 8}},
            {"kind": "rwkv6", "k_clamp": True},
            {**GOOSE, "kind": "rwkv6", "k_clamp": True},
        ),
    ],
)
def test_an_arm_of_another_kind_takes_what_both_kinds_have(
    model: dict[str, Any], arm: dict[str, Any], expected: dict[str, Any]
) -> None:
    """As in docs/own.md, where a model of one's own is compared with one of plkernel's."""
    spec = parse_spec(
        values({"model": model, "arms": {"uniform": {}, "own": {"model": arm}}}), "here"
    )
    assert spec.condition("own").model == ModelSpec.model_validate(
        {"kind": spec.model.kind, **expected}
    )
    assert spec.condition("uniform").model == spec.model


T = 32  # of the tiny spec


def test_a_spectrum_reaches_to_a_multiple_of_the_context() -> None:
    """Time constants of one step to T, or to T**2: half-lives are ln 2 times that."""
    spec = tiny(spectrum=T)
    arm = spec.condition("power").arm
    assert (arm.shortest, arm.longest) == pytest.approx((math.log(2), math.log(2) * T**2))
    patched = parse_spec(
        values({"model.patching": {"size": 4}, "arms.power": {"spectrum": 0.5}}), "here"
    ).condition("power")
    assert patched.nodes.rates == pytest.approx(np.geomspace(1, 4 / 16, 16))
    goose = parse_spec(values({"model": GOOSE, "arms.power": {"spectrum": 1}}), "here")
    condition = goose.condition("power")
    assert condition.scheme == "rwkv7_post"
    assert condition.arm.scheme_options == {"longest": T}
    shaped = {"init_options": {"step": 0.1}, "model": {"kind": MAMBA2}}
    mamba2 = tiny(spectrum=2, **shaped).condition("power")
    assert mamba2.arm.init == "plkernel.models.init.mamba2:spectrum_"
    assert mamba2.arm.init_options == {"step": 0.1, "longest": 2 * T}
    for one in (spec.condition("power"), condition, mamba2):
        assert from_config(json.loads(json.dumps(one.config))) == one
        untrained = from_config({**one.config, "train": None})
        assert (untrained.arm, untrained.model) == (one.arm, one.model)
    for model in (ModelSpec(), ModelSpec(kind=MAMBA2)):
        for arm in (Arm(spectrum=1), Arm(spectrum=1, scheme="mup_table8")):
            with pytest.raises(ValueError, match="train must be given with spectrum"):
                resolve(model, arm)
    with pytest.raises(ValueError, match="train must be given with spectrum"):
        resolve(ModelSpec(), Arm(spectrum=1, init="other:start"))


def test_the_length_of_position_scaling_is_the_context() -> None:
    model = {"position_scaling": True, "parametrisation": "ordered"}
    spec = tiny(model=model)
    assert spec.condition("power").model.scaled_over == T
    assert spec.condition("uniform").model.scaled_over is None
    assert tiny(model={**model, "scaling_length": 64}).condition("power").model.scaled_over == 64
    saved = spec.condition("power").config
    assert from_config({**saved, "train": None}).model.scaled_over == T
    with pytest.raises(ValueError, match="scaling_length must be given where nothing is trained"):
        _ = resolve(ModelSpec(position_scaling=True)).model.scaled_over


def test_a_mamba2_gets_its_options_of_decays_in_its_config() -> None:
    """Its builder knows of nothing else; what is there already stays."""
    own = {"num_heads": 8, "scaling_of": "both"}
    model = {"position_scaling": True, "parametrisation": "ordered", "config": own}
    condition = tiny(model={"kind": MAMBA2, **model}).condition("power")
    assert condition.model.config == {
        **own,
        "parametrisation": "ordered",
        "scaling_length": T,
    }
    assert from_config(json.loads(json.dumps(condition.config))) == condition
    told = {"kind": MAMBA2, "position_scaling": True, "scaling_length": 64}
    assert tiny(model=told).condition("power").model.config == {"scaling_length": 64}
    goose = {"model": {**GOOSE, "position_scaling": True}, "arms.uniform": {}}
    shared = parse_spec(values({**goose, "arms.power": {"model": {"kind": MAMBA2}}}), "here")
    assert shared.condition("power").model.config == {"scaling_length": T}
    with pytest.raises(ValueError, match="scaling_length must be given where nothing is trained"):
        resolve(ModelSpec(kind=MAMBA2, position_scaling=True))


def test_what_is_saved_of_other_specs_knows_nothing_of_them() -> None:
    """So that configurations, checkpoints and registrations stay as they were, to the byte."""
    config = tiny().condition("power").config
    assert not {"parametrisation", "position_scaling", "scaling_length"} & config["model"].keys()
    assert "spectrum" not in config["arm_options"]
    saved = tiny(spectrum=1, model={"position_scaling": True}).condition("power").config
    assert saved["arm_options"]["spectrum"] == 1
    assert saved["model"]["scaling_length"] == T
    assert "parametrisation" not in saved["model"]


# Bad input
# ------------------------------------------------------------------------------------------

RWKV = {"kind": "rwkv6", "dim": 16, "head_size": 8}
PATCHES = {"dim": 16, "patching": {"size": 100}}
QUANTILE = {"placement": "quantile"}
CUT = {"metric": "truncation_cost"}
CORRECTED = {"projection": "gain-corrected"}
FACTORS = {"placement": ["log-spaced", "concentrated"]}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"model.parametrisation": "sorted"}, "model.parametrisation: Input should be 'free' or"),
    (
        {"model": {**RWKV, "position_scaling": True}},
        "position_scaling must be left out for model kind 'rwkv6'",
    ),
    (
        {"model.scaling_length": 64},
        "scaling_length must be left out without position_scaling, got 64",
    ),
    (
        {
            "model.position_scaling": True,
            "model.scaling_length": 4,
            "model.patching": {"size": 4},
        },
        "scaling_length must be more than one patch of 4 bytes, got 4",
    ),
    (
        {"arms.power": {"spectrum": 1, "longest": 300}},
        "arms.power: longest must be left out beside spectrum, which makes it 22.18",
    ),
    (
        {"arms.power": {"spectrum": 1, **QUANTILE}},
        "placement must be left out beside spectrum, which places decays, got 'quantile'",
    ),
    (
        {"model": RWKV, "arms.power": {"spectrum": 1}},
        "spectrum must be left out unless the model is of kind ssm or rwkv7 or"
        f" {MAMBA2}, got kind 'rwkv6'",
    ),
    (
        {"model": GOOSE, "arms.power": {"spectrum": 1, "scheme_options": {"longest": 64}}},
        "scheme_options.longest must be left out beside spectrum, which makes it 32, got 64",
    ),
    (
        {"model": GOOSE, "arms.power": {"spectrum": 1, "scheme": "rwkv7_official"}},
        "scheme must be left out beside spectrum, which makes it 'rwkv7_post'",
    ),
    (
        {"model": {"kind": "other:Model"}, "arms": {"uniform": {}, "power": {"spectrum": 1}}},
        f"unless the model is of kind ssm or rwkv7 or {MAMBA2}, got kind 'other:Model'",
    ),
    (
        {"model": {"kind": MAMBA2}, "arms.power": {"spectrum": 1, "init": "other:start"}},
        "init must be left out beside spectrum, which makes it"
        " 'plkernel.models.init.mamba2:spectrum_', got 'other:start'",
    ),
    (
        {
            "model": {"kind": MAMBA2},
            "arms.power": {"spectrum": 1, "init_options": {"longest": "T"}},
        },
        "init_options.longest must be left out beside spectrum, which makes it 32, got 'T'",
    ),
    (
        {"model": {"kind": MAMBA2}, "arms.power": {"spectrum": 1, "placement": "log-spaced"}},
        "placement must be left out beside spectrum, which places decays, got 'log-spaced'",
    ),
    (
        {
            "model": {"kind": MAMBA2, "position_scaling": True, "config": {"scaling_length": 64}},
            "arms.power": {},
        },
        "config.scaling_length must be left out beside model.position_scaling, which makes it 32,"
        " got 64",
    ),
    (
        {"model": {"kind": MAMBA2, "config": {"position_scaling": True}}},
        "config.position_scaling must be left out, got it there: set it in [model] itself",
    ),
    (
        {"model": {"kind": MAMBA2, "config": {"spectrum": 1}}},
        "config.spectrum must be left out, got it there: set it in the arm",
    ),
    (
        {"model": {"kind": PLAIN_MAMBA2, "config": {"scaling_length": 64}}},
        "config.scaling_length must be left out, got it there: it is for kind"
        " 'plkernel.models.mamba2:mamba2', the same model",
    ),
    (
        {"model": {"kind": PLAIN_MAMBA2, "position_scaling": True}},
        "to which it does not belong; set kind = 'plkernel.models.mamba2:mamba2', the same model"
        " with it",
    ),
    (
        {"train.beyond": 16, "model": {"dim": 16, "patching": {"size": 2, "mode": "published"}}},
        "arms.uniform: train.beyond 16 is for causal models, and patching mode 'published' of all"
        " arms sees ahead: leave it out",
    ),
    (
        {
            "arms.power.train": {"truncation_windows": 8},
            "model": {"dim": 16, "patching": {"size": 2, "mode": "published"}},
        },
        "arms.power: train.truncation_windows 8 is for causal models",
    ),
    (
        {"hypotheses": [{**CLAIM, "metric": "capacity", "times": 1, "margin": 3}]},
        "margin must be below 1 with metric 'capacity', which is a share of the answers, got 3",
    ),
    (
        {"hypotheses": [{**CLAIM, "metric": "capacity_bits"}]},
        "times must be 1, 2, 4 or another power of two with metric 'capacity_bits', got None",
    ),
    (
        {"hypotheses": [{**CLAIM, "metric": "recall_bits"}]},
        "'persistence', 'capacity_bits', 'persistence_bits', 'position_bpb'",
    ),
    (
        {"train.learing_rate": 1},
        "unknown key 'learing_rate' in [train]; did you mean 'learning_rate'",
    ),
    ({"seed": 1}, "unknown key 'seed' in the top level; did you mean 'seeds'"),
    ({"arms.power.model": {"gian": "ema"}}, "unknown key 'gian' in [model]; did you mean 'gain'"),
    ({"train.steps": True}, "train.steps: must be a number, not true or false, got True"),
    ({"train": 3}, "spec here: train: must be a table, got 3"),
    (
        {"tuning": "curve"},
        "tuning: must be a table, got 'curve': write [tuning] method = 'curve'",
    ),
    (
        {"arms.power": {"corpus": "stdlib"}},
        "arms.power.corpus: must be a table, got 'stdlib': write [arms.power.corpus] name ="
        " 'stdlib'",
    ),
    ({"arms.power": 3}, "spec here: arms.power: must be a table, got 3"),
    ({"arms.power": {"train": 3}}, "arms.power.train: must be a table, got 3"),
    ({"seeds": 3}, "spec here: seeds: must be a list, got 3"),
    ({"train.steps": 10**18}, "steps must be at most 1,000,000,000,000, got 1,000,000,000,000,000"),
    ({"train.bytes": 1000}, "exactly one of steps and bytes"),
    (
        {"train.schedule": "exponential", "train.final_fraction": 0.0},
        "final_fraction must be above 0 with schedule",
    ),
    (
        {"train.weight_decay": 0, "train.decay_weight_decay": 1},
        "train.decay_weight_decay 1.0 has no effect with weight_decay 0: leave it out",
    ),
    ({"train.dropout": 0.1}, "arms.uniform: train.dropout 0.1 belongs to RWKVs, got kind 'ssm'"),
    (
        {"train.steps": None, "train.bytes": 100},
        "bytes must be a step or more, batch * context 128, got 100",
    ),
    ({"baseline": "unifrom"}, "baseline must name an arm, got 'unifrom'; did you mean 'uniform'"),
    ({"seeds": [1, 1]}, "seeds must be different"),
    ({"seeds": [10**30]}, "seeds.0: Input should be less than or equal to 9223372036854775807"),
    (
        {"tuning": {"rates": [1, 2], "seeds": [0]}},
        "tuning.seeds must be none of the seeds that are compared, got [0]",
    ),
    ({"model": {**RWKV, "head_size": 7}}, "dim 16 must be a multiple of head_size 7"),
    ({"model.kind": "a b:c"}, "model.kind: must be ssm, rwkv5, rwkv6, rwkv7 or module:attribute"),
    (
        {"model": {"kind": "other:Model"}},
        "arms.power: projection published belongs to models of plkernel",
    ),
    (
        {"model": {"kind": "other:M", "config": {"a": float("nan")}}},
        "model.config.a: Input should be a finite number",
    ),
    (
        {"model": {"dim": 16, "patching": {"size": 2, "mode": "published"}}, "train.carry": True},
        "train.carry True needs a state, which patching mode 'published' has none of",
    ),
    ({"seeds": []}, "seeds must be different numbers, at least one, got []"),
    ({"arms.-x": {}}, "arm name must be 1 to 220 letters from A to Z or a to z, digits, '.', '_'"),
    (
        {"name": "my study"},
        "and '-', a letter or a digit first, such as 'my-study', got 'my study'",
    ),
    (
        {"hypotheses": [{**CLAIM, "name": " it helps"}]},
        "hypotheses.0.name: must be one line of text that begins and ends without a space, got",
    ),
    (
        {"arms": {"a é": {}, "b": {}}, "tuning": {"method": "curve", "rates": [1, 2, 3]}},
        "digits, '.', '_' and '-', a letter or a digit first, such as 'a', got 'a é'",
    ),
    (
        {
            "arms": {"uniform": {}, "a" * 219: {}},
            "tuning": {"method": "curve", "rates": [1, 2, 3]},
        },
        "; give the arm a shorter name, as its rate stands behind it",
    ),
    (
        {"factors.beta": {"small é": {"beta": 0.5}, "large": {"beta": 2.0}}},
        "factors.beta: names of levels must be letters from A to Z or a to z, digits, '.', '_' and",
    ),
    (
        {"tuning": {"method": "curve", "rates": [-1, 2, 3]}},
        "spec here: tuning.rates must be numbers above 0, got [-1.0, 2.0, 3.0]",
    ),
    (
        {"tuning": {"method": "curve", "rates": [1, 2, float("nan")]}},
        "spec here: tuning.rates must be numbers above 0, got [1.0, 2.0, nan]",
    ),
    (
        {
            "tuning": {"method": "curve", "rates": [1, 2, 3]},
            "hypotheses": [{**CLAIM, "arm": "power_4"}],
        },
        "arm must name an arm, got 'power_4'; the runs of 'power' are power_1, power_2, power_3",
    ),
    (
        {
            "tuning": {"method": "curve", "rates": [1, 2, 3]},
            "hypotheses": [{**CLAIM, "arm": "power"}],
        },
        "arm must name an arm, got 'power'; the runs of 'power' are power_1, power_2, power_3; or"
        ' give metric = "val_bpb_minimum" or "test_bpb_minimum", which names curves',
    ),
    ({"arms.power.rates": [1, 2]}, "rates must be as many as tuning.rates, 0 different"),
    (
        {"arms.power.against": "power"},
        "arms.power: against must name another arm, got 'power'; valid: uniform",
    ),
    (
        {"arms.uniform.against": "power"},
        "arms.uniform: against must be no arm that is compared with 'uniform' itself, got 'power':"
        " the same difference would be counted twice",
    ),
    (
        {"arms.power.train": {"steps": 20}},
        "train.steps must be the same in all arms; an arm may have its own weight_decay",
    ),
    # Arms that fit no model
    ({"arms.power": {"tempering": 0.5}}, "got 0.5; it belongs to placement 'quantile'"),
    (
        {"arms.power": {**QUANTILE, "projection": "published"}},
        "must be left out with placement 'quantile'",
    ),
    (
        {"arms.power": {**QUANTILE, "beta": 1e-3}},
        "placement 'quantile' with beta 0.001: half-lives must be between",
    ),
    ({"arms.power": {"placement": "terms"}}, "node_file must be given with placement 'terms'"),
    (
        {"arms.power": {"match": "unifrom"}},
        "match must name an arm, got 'unifrom'; did you mean 'uniform'",
    ),
    (
        {"arms.power": {"match": "baseline"}, "arms.baseline": {}},
        "match must name one arm, got 'baseline', which may mean the arm of that name or",
    ),
    ({"arms.power": {"node_file": "none.json"}}, "node_file none.json: no such file"),
    ({"arms.power": {"node_file": "."}}, "node_file . must be a regular file, got a folder"),
    ({"corpus.name": "bad-\udcff.txt"}, "corpus.name: must be a name in UTF-8; rename the file"),
    (
        {"report_steps": [4, 5]},
        "report_steps must be one with an evaluation, every 4 steps and at 12, got 5",
    ),
    ({"report_steps": [4, 8, 4]}, "report_steps must be different steps, got [4, 8, 4]"),
    ({"arms.power": {"node_rates": [1.0]}}, "node_multipliers must be given"),
    ({"arms.power": {"shortest": 9.0, "longest": 3.0}}, "0 < shortest < longest"),
    ({"arms.power": {"shortest": 0.5}, "model": PATCHES}, "shortest must be between"),
    (
        {"arms.power": {"placement": "concentrated"}, "model": PATCHES},
        "placement 'concentrated': shortest must be between 0.794 and",
    ),
    ({"arms.power.beta": 1e38}, "beta must be small enough for float64"),
    (
        {"arms.power": {"beta": 2}},
        "beta 2.0 belongs to a power law: set a projection or placement 'quantile'",
    ),
    (
        {"arms.power": {"shape_on": "receptance"}},
        "shape_on must be columns or multiplier in an SSM",
    ),
    ({"arms.power": {"init": "nothing"}}, "arms.power.init: must be module:attribute"),
    ({"arms.power": {"init_options": {"a": 1}}}, "init_options {'a': 1} are for an init"),
    ({"arms.power": {"match": "uniform"}, "model": RWKV}, "match uniform does nothing in an RWKV"),
    (
        {"arms.power.placement": "log-spaced", "model": RWKV},
        "projection published is right under the EMA gain only",
    ),
    (
        {"arms.power": {"placement": "log-spaced", "lag": "state"}, "model": RWKV},
        "lag state belongs to a power law",
    ),
    # Hypotheses and gates that fit no study
    (
        {"hypotheses": [{**CLAIM, "arm": "powr"}]},
        "'it helps': arm must name an arm, got 'powr'; did you mean 'power'",
    ),
    (
        {"hypotheses": [{**CLAIM, "arm": "uniform"}]},
        "against must be given, since arm 'uniform' is a baseline",
    ),
    (
        {"hypotheses": [{**CLAIM, "step": 5}]},
        "step must be one with an evaluation, every 4 steps and at 12, got 5",
    ),
    ({"hypotheses": [{**CLAIM, **CUT, "bytes": 32}]}, "bytes must be fewer than the context, 32"),
    (
        {"hypotheses": [{**CLAIM, **CUT, "bytes": 8}]},
        "train.truncation_windows must be above 0 for truncation_cost",
    ),
    (
        {"hypotheses": [{**CLAIM, "metric": "test_bpb", "step": 4}]},
        "step 4 has no test_bpb, which is taken at the end",
    ),
    ({"hypotheses": [CLAIM, CLAIM]}, "hypotheses 'it helps': name must be unique"),
    (
        {"hypotheses": [CLAIM, {**CLAIM, "name": "b", "alpha": 0.1}]},
        "alpha must be that of the family 'main', 0.05, got 0.1",
    ),
    (
        {"gates": [{"name": "has learnt", "arm": "uniform"}]},
        "'has learnt': a gate must have at_least or at_most",
    ),
    # Factors
    (
        {"factors": FACTORS, "within": ["gain"]},
        "within must be names of factors, got 'gain'; valid: placement",
    ),
    ({"factors": {"placement": ["log-spaced"]}}, "factors.placement must have two levels or more"),
    (
        {"factors": {"beta": [1, 2], "x": {"a": {"beta": 1.1}, "b": {}}}},
        "factors.x: 'a' must set what no other factor sets, got {'beta': 1.1}",
    ),
    (
        {"factors": {f"f{i}": list(range(10)) for i in range(300)}},
        "factors must make at most 4,096 arms, got more; leave out factors",
    ),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=[message[:60] for _, message in BAD])
def test_mistakes_are_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"^spec here: ") as error:
        parse_spec(values(changes), "here")
    assert message in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert len(str(error.value)) < 700


RECALL = {"corpus.name": "synthetic:recall,pairs=4,length=32"}

MORE_BAD: list[tuple[dict[str, Any], str]] = [
    ({"train.eps": 0.99 * SMALLEST_EPS}, "eps must be at least 1.2e-38"),
    ({"train.batch": 2**20, "train.context": 2**20}, "batch * context must be at most"),
    ({"train.steps": None}, "exactly one of steps and bytes must be given"),
    ({"train.steps": None, "train.bytes": 127}, "bytes must be a step or more"),
    ({"train.steps": MOST_STEPS + 1}, "steps must be at most"),
    ({"train.warmup_from": 0.5}, "train.warmup_from 0.5 has no effect with warmup 0"),
    (
        {"train.schedule": "constant", "train.final_fraction": 0.2},
        "train.final_fraction 0.2 has no effect with schedule 'constant'",
    ),
    (
        {"train.decay_multiplier": 0, "train.decay_weight_decay": 1},
        "train.decay_weight_decay 1.0 has no effect with decay_multiplier 0",
    ),
    (
        {"train.curriculum": [{"share": 0.6, "length": 8, "pairs": [1]}] * 2},
        "shares of the curriculum must add up to 1 at most, got 1.2",
    ),
    ({"hypotheses": [{**CLAIM, "bytes": 8}]}, "bytes 8 does not belong to metric 'val_bpb'"),
    (
        {"hypotheses": [{**CLAIM, **CUT}]},
        "bytes must be given with metric 'truncation_cost', such as 32, got none",
    ),
    ({"hypotheses": [{**CLAIM, "times": 2}]}, "times 2 does not belong to metric 'val_bpb'"),
    *(
        (
            {"hypotheses": [{**CLAIM, "metric": "capacity", **times}]},
            "times must be 1, 2, 4 or another power of two with metric 'capacity'",
        )
        for times in ({}, {"times": 3}, {"times": 6})
    ),
    (
        {"hypotheses": [{**CLAIM, "metric": "capacity", "times": 2}]},
        "corpus must be synthetic:recall for metric 'capacity', got",
    ),
    (
        {"hypotheses": [{**CLAIM, "metric": "position_bpb", "times": 1}]},
        "train.beyond must be 2 or more for metric 'position_bpb', such as 2, got None",
    ),
    (
        {"hypotheses": [{**CLAIM, "metric": "reading_on", "times": 8}], "train.beyond": 4},
        "times must be at most 4, got 8: set train.beyond = 8",
    ),
    (
        {"hypotheses": [{**CLAIM, "metric": "reading_on", "times": 1}], "train.beyond": 4},
        "times must be 2 or more with metric 'reading_on', got 1",
    ),
    (
        {
            "hypotheses": [{**CLAIM, "metric": "position_bpb", "times": 2}],
            "train.beyond": 2,
            "train.context": 48,
        },
        "train.context must be a power of two for metric 'position_bpb', got 48",
    ),
    (
        {
            "hypotheses": [{**CLAIM, "metric": "position_bpb", "times": 2}],
            "corpus.name": "synthetic:recall,pairs=4,length=32",
        },
        "corpus must be a text for metric 'position_bpb', got 'synthetic:recall",
    ),
    (
        {"gates": [{**GATE, "metric": "position_bpb", "times": 2}], "train.beyond": 2},
        "metric of a gate must be a loss of a run within its context, got 'position_bpb'",
    ),
    ({"hypotheses": [{**CLAIM, "step": 16}]}, "step must be one with an evaluation"),
    ({"hypotheses": [{**CLAIM, "claim": "equal"}]}, "margin must be above 0 for claim 'equal'"),
    (
        {"hypotheses": [{**CLAIM, "metric": "val_bpb_minimum"}]},
        "tuning.method must be 'curve' for minima, which are those of curves over learning",
    ),
    ({"gates": [{**GATE, "metric": "capacity", "times": 2}]}, "metric of a gate must be a loss"),
    ({"gates": [{**GATE, "at_least": 4.5}]}, "at_least not above at_most, got 4.5 and 4.0"),
    ({"gates": [{**GATE, "ahead_of": 2}]}, "ahead_of must be alone, and of val_bpb or test_bpb"),
    (
        {"gates": [{"name": "a", "arm": "uniform", "ahead_of": 2, "step": 4}]},
        "ahead_of must be alone, and of val_bpb or test_bpb at the end",
    ),
    (
        {"gates": [{"name": "a", "arm": "uniform", "ahead_of": 2, "metric": "excess_bpb"}]},
        "ahead_of must be alone, and of val_bpb or test_bpb at the end",
    ),
    ({"gates": [{**GATE, "arm": "powr"}]}, "arm must name an arm, got 'powr'; did you mean"),
    ({"gates": [GATE, GATE]}, "gates 'has learnt': name must be unique"),
    ({"arms.report": {}}, "arm name must be none of report, "),
    ({"arms": {"uniform": {}, "a" * 221: {}}}, "arm name must be 1 to 220 letters"),
    ({"arms.power.rates": [1, 1], "tuning.rates": [1, 2]}, "rates must be as many as"),
    (
        {"tuning": {"method": "curve", "rates": [1, 2]}},
        "tuning.rates must be 3 or more with tuning.method 'curve'",
    ),
    ({"tuning": {"method": "curve"}}, "tuning.rates must be given with tuning.method 'curve'"),
    (
        {"tuning": {"method": "curve", "rates": [1, 2, 3]}, "factors.learning_rate": [1, 2]},
        "factors.learning_rate must be left out with tuning.method 'curve', which makes it of",
    ),
    (
        {"tuning": {"method": "curve", "rates": [1, 2, 3]}, "arms.power": {"rates": [1, 2]}},
        "arms.power: rates must be left out with tuning.method 'curve', as all arms have",
    ),
    ({"factors.beta": [1, 1.0]}, "factors.beta must have two levels or more, all different"),
    (
        {"tuning": {"method": "curve", "rates": [1e-3, 1e-3, 2e-3]}},
        "tuning.rates must be all different, got [0.001, 0.001, 0.002]",
    ),
    (
        {"train.curriculum": [{"share": 0.01, "length": 8, "pairs": [1]}], **RECALL},
        "share of the curriculum's length 8 must be enough for a step, 0.083 of 12, got 0.01",
    ),
    (
        {
            "arms.power": {
                "node_rates": [0.5] * 16,
                "node_multipliers": [1.0] * 16,
                "node_gain": "ema",
            },
            "model": {"dim": 16, "gain": "ema", "parametrisation": "ordered"},
        },
        "model.parametrisation must be 'free' for nodes some of which are alike",
    ),
    (
        {
            "arms.power": {
                "node_rates": [0.5] * 16,
                "node_multipliers": [1.0] * 16,
                "node_gain": "ema",
            },
            "model": {"dim": 16, "gain": "ema", "position_scaling": True},
        },
        "model.position_scaling must be false for nodes some of which are alike",
    ),
    (
        {
            "arms.power": {"placement": "log-spaced", "shortest": 1.2},
            "model": {**GOOSE, "dim": 32, "head_size": 16, "position_scaling": True},
        },
        "model.position_scaling must be false where nodes are placed in each of 2 heads",
    ),
    (
        {"arms.power": {"scheme": "rwkv7_post"}, "model": {"dim": 16}},
        "scheme 'rwkv7_post' belongs to model kind rwkv7, whose decays it sets, got kind 'ssm'",
    ),
    (
        {"arms.power": {"placement": "concentrated"}, "model": {"dim": 4}},
        "model.dim must be at least 5, got 4, for concentrated half-lives",
    ),
    (
        {"arms.power": QUANTILE, "model": {**RWKV, "dim": 16, "head_size": 1}},
        "model.head_size must be at least 2, got 1, for quantile half-lives",
    ),
    (
        {"arms.power": {"spectrum": 0.01}, "model": {"dim": 16}},
        "spectrum must be above 0.0312 and at most 5.24e+05 for a context of 32",
    ),
    (
        {"arms.power": {"spectrum": 6e5}, "model": {"dim": 16}},
        "spectrum must be above 0.0312 and at most 5.24e+05 for a context of 32",
    ),
    (
        {"arms.power": {"spectrum": 5e4}, "model": GOOSE},
        "spectrum must be above 0.0828 and at most 4.3e+04 for a context of 32",
    ),
    (
        {"arms.power": {"spectrum": 0.05}, "model": GOOSE},
        "spectrum must be above 0.0828 and at most 4.3e+04 for a context of 32",
    ),
    (
        {
            "arms.power": {"placement": "log-spaced", "shortest": 1.2},
            "model": {**GOOSE, "dim": 32, "head_size": 16, "parametrisation": "ordered"},
        },
        "model.parametrisation must be 'free' where nodes are placed in each of 2 heads",
    ),
    (
        {"arms.power": {"placement": "log-spaced", "shortest": 1.0}, "model": GOOSE},
        "placement 'log-spaced': shortest",
    ),
    ({"arms.power": {"bonus": "law"}}, "bonus law belongs to model kinds rwkv5 and rwkv6"),
    (
        {"arms.power": {"shortest": 2.0}, "model": RWKV},
        "shortest 2.0 needs a placement in an RWKV",
    ),
    (
        {"model": {"kind": "other:M"}, "arms.power": {}, "train.backend": "cpu"},
        "train.backend cpu belongs to models of plkernel, got kind 'other:M'",
    ),
    *(
        (
            {"model": GOOSE, "arms.power": {"placement": "log-spaced", "shortest": 1.2, **option}},
            f"{name} belongs to a power law: set projection 'gain-corrected', or leave it out",
        )
        for name, option in {
            "beta 2.0": {"beta": 2.0},
            "max_lag 64.0": {"max_lag": 64.0},
            "target correlation": {"target": "correlation"},
            "kernel rms": {"kernel": "rms"},
            "shape_on receptance": {"shape_on": "receptance"},
        }.items()
    ),
    (
        {"model": GOOSE, "arms.power": {**QUANTILE, "bonus": "law"}},
        "bonus law belongs to model kinds rwkv5 and rwkv6: leave it out",
    ),
    *(
        (
            {"arms.power": {**QUANTILE, **option}},
            "placement 'quantile' with beta 1.15: half-lives must be between",
        )
        for option in ({"max_lag": 1e9}, {"loss": 1e-9})
    ),
    (
        {"arms.power": {"match": "twin"}, "arms.twin": {"match": "uniform"}},
        "arms.power: match must name an arm that is not matched itself, got 'twin'",
    ),
    (
        {"hypotheses": [{**CLAIM, "metric": "capacity", "times": 1, "margin": 1}], **RECALL},
        "margin must be below 1 with metric 'capacity'",
    ),
    *(
        (
            {"hypotheses": [{**CLAIM, **metric, "step": 12}]},
            f"step 12 has no {metric['metric']}, which is taken at the end only",
        )
        for metric in ({**CUT, "bytes": 8}, {"metric": "val_bpb_minimum"})
    ),
    (
        {"hypotheses": CLAIM},
        "hypotheses: must be a list, got {'name': 'it helps', 'arm': 'power', 'claim': 'lower'}:"
        " write [[hypotheses]]",
    ),
    (
        {"train.curriculum": {"share": 1}},
        "train.curriculum: must be a list, got {'share': 1}: write [[train.curriculum]]",
    ),
    (
        {"factors": {"corpus.name": ["/here/a", "/here/b"]}},
        "got '-here-a'; give a factor a table with other names, LEVEL = { ... }",
    ),
    ({"arms": {}}, "baseline must name an arm, got 'uniform'; there is none"),
    *(
        (
            {"model": model, "arms.power": {option: []}},
            f"arms.power.{option}: must have at least 1 item, got []",
        )
        for model in (RWKV, {"kind": "other:Model"})
        for option in ("node_rates", "node_multipliers")
    ),
    ({"arms.power": {"rates": []}}, "arms.power.rates: must have at least 2 items, got []"),
    (
        {"gates": [{"name": "a", "arm": "uniform", "ahead_of": True}]},
        "gates.0.ahead_of: must be a number, not true or false, got True",
    ),
    (
        {"gates": [{"name": "a", "arm": "uniform", "ahead_of": 6}]},
        "gates.0.ahead_of: Input should be less than or equal to 5, got 6",
    ),
]


@pytest.mark.parametrize(
    ("changes", "message"), MORE_BAD, ids=[message[:60] for _, message in MORE_BAD]
)
def test_a_value_beyond_its_limit_is_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"^spec here: ") as error:
        parse_spec(values(changes), "here")
    assert message in str(error.value)


class Several(Section):
    """Options of several types, in a list and in a table."""

    flags: tuple[Annotated[bool | Literal["auto"], Field()], ...] = ()
    sizes: dict[str, int | float | str | None] = Field(default_factory=dict)
    plain: dict[str, JsonValue] = Field(default_factory=dict)


@pytest.mark.parametrize(
    ("section", "given", "message"),
    [
        (TrainSpec, {"compile": "foo"}, "compile must be true, false or 'auto', got 'foo'"),
        (TrainSpec, {"compile": [1]}, "compile must be true, false or 'auto', got [1]"),
        (
            ModelSpec,
            {"kind": 3},
            "kind must be 'ssm', 'rwkv5', 'rwkv6', 'rwkv7' or another text, got 3",
        ),
        (Several, {"flags": [True, 3]}, "flags.1 must be true, false or 'auto', got 3"),
        (
            Several,
            {"sizes": {"a": 1, "b": []}},
            "sizes.b must be a whole number, a number or another text, got []",
        ),
        (
            Several,
            {"plain": {"a": [{"b": math.inf}]}},
            "plain.a.0.b: Input should be a finite number, got inf",
        ),
    ],
)
def test_an_option_of_several_types_is_refused_once_by_its_name(
    section: type[Section], given: dict[str, Any], message: str
) -> None:
    """Not once for every type, as if the types were options."""
    with pytest.raises(ValidationError) as error:
        section.model_validate(given)
    assert explained(error.value, section) == message


def test_a_list_whose_items_are_wrong_is_not_called_too_short() -> None:
    changes = {"train.curriculum": [{"share": 1, "length": 8, "pairs": [0]}], **RECALL}
    with pytest.raises(ValueError, match=r"pairs\.0: Input should be .* to 1, got 0$"):
        parse_spec(values(changes), "here")


RECALLED = {**CLAIM, "metric": "capacity", "times": 1}
PUBLISHED = {"model": {"dim": 16, "patching": {"size": 4, "mode": "published"}}}
NEVER_MEASURED: list[tuple[dict[str, Any], str]] = [
    (
        {
            "hypotheses": [{**CLAIM, **CUT, "bytes": 8}],
            "arms.power.train": {"truncation_windows": 1},
        },
        "'it helps': against 'uniform': train.truncation_windows must be above 0",
    ),
    (
        {"hypotheses": [{**CLAIM, "metric": "excess_bpb"}]},
        "corpus must be one of synthetic:recall, synthetic:lags, synthetic:markov for metric"
        " 'excess_bpb', as the floor of others is not known, got 'stdlib'",
    ),
    (
        {"gates": [{**GATE, "metric": "excess_bpb"}], "corpus.name": "synthetic:beta=1.0"},
        "as the floor of others is not known, got 'synthetic:beta=1.0'",
    ),
    (
        {"gates": [{"name": "g", "arm": "power", "ahead_of": 5}], **RECALL},
        "ahead_of must be left out on corpus 'synthetic:recall,pairs=4,length=32', where no",
    ),
    (
        {"hypotheses": [RECALLED], "arms.uniform.corpus": {"name": "stdlib"}, **RECALL},
        "'it helps': against 'uniform': corpus must be synthetic:recall for metric 'capacity'",
    ),
    (
        {"hypotheses": [CLAIM], "arms.uniform.corpus": {"name": "stdlib"}, **RECALL},
        "corpus must be one of recall for all runs behind a hypothesis, or for none, as their"
        " losses have other units, got 'synthetic:recall,pairs=4,length=32' and 'stdlib'",
    ),
    (
        {"arms.uniform.corpus": {"name": "stdlib"}, **RECALL},
        "arms.power: corpus must be one of recall if that of arm 'uniform' is, with which it is"
        " compared, and otherwise none, got 'synthetic:recall,pairs=4,length=32' beside 'stdlib'",
    ),
    (
        {"arms.power.corpus": {"name": "synthetic:recall,pairs=4,length=32"}},
        "arms.power: corpus must be one of recall if that of arm 'uniform' is, with which it is"
        " compared, and otherwise none, got 'synthetic:recall,pairs=4,length=32' beside '",
    ),
    (
        {
            "hypotheses": [{**CLAIM, **CUT, "bytes": 8}],
            "train.truncation_windows": 1,
            **PUBLISHED,
        },
        "model.patching.mode must be 'causal' for metric 'truncation_cost', got 'published'",
    ),
    (
        {
            "hypotheses": [{**CLAIM, "metric": "position_bpb", "times": 2}],
            "train.beyond": 2,
            "arms.uniform.model": {"patching": {"size": 4, "mode": "published"}},
        },
        "against 'uniform': model.patching.mode must be 'causal' for metric 'position_bpb'",
    ),
]


@pytest.mark.parametrize(
    "changes",
    [
        {"corpus.name": "synthetic:recallx"},
        {"corpus.name": "synthetic:recallx", "hypotheses": [RECALLED]},
        {"hypotheses": [CLAIM], "arms.power.corpus": {"name": "synthetic:recallx"}},
        {"hypotheses": [CLAIM], "arms.power.corpus": {"name": "synthetic:recallx"}, **RECALL},
    ],
)
def test_an_unknown_law_is_said_before_what_would_follow_from_it(changes: dict[str, Any]) -> None:
    """A name that only begins as one of recall does is none."""
    message = r"arms\.\w+: corpus 'synthetic:recallx': law must be"
    with pytest.raises(ValueError, match=message) as error:
        parse_spec(values(changes), "here")
    assert str(error.value).endswith("got 'recallx'; did you mean 'recall'?")


@pytest.mark.parametrize(
    ("changes", "message"), NEVER_MEASURED, ids=[message[:50] for _, message in NEVER_MEASURED]
)
def test_a_number_that_no_run_would_measure_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    """On either side of a hypothesis, and in every run behind a mean."""
    with pytest.raises(ValueError, match=r"^spec here: ") as error:
        parse_spec(values(changes), "here")
    assert message in str(error.value)


FITTING: list[dict[str, Any]] = [
    {"train.schedule": "exponential", "train.final_fraction": 0.01},
    {"train.schedule": "linear", "train.final_fraction": 0.0},
    {"train.schedule": "constant"},
    {"train.schedule": "constant", "train.recipe": "blinkdl"},
    {"train.recipe": "blinkdl", "train.warmup": 0},
    {"train.warmup": 1, "train.warmup_from": 0.5},
    {"train.decay_weight_decay": 1, "train.decay_multiplier": 0.5},
    {"train.eps": SMALLEST_EPS},
    {"train.steps": None, "train.bytes": 128},
    {"train.steps": MOST_STEPS},
    {"train.curriculum": [{"share": 0.1, "length": 8, "pairs": [1]}] * 10},
    {"train.carry": True, "model": {"dim": 16, "patching": {"mode": "published"}}},
    {"train.beyond": 2, "model": {"dim": 16, "patching": {"mode": "published"}}},
    {"train.beyond": 1, "model": {"dim": 16, "patching": {"size": 2, "mode": "published"}}},
    {
        "train.beyond": 2,
        "arms.uniform.model": {"patching": {"size": 4, "mode": "published"}},
    },
    {"train.carry": True, "model": {"dim": 16, "patching": {"size": 2}}},
    {"model": {"position_scaling": True, "scaling_length": 5, "patching": {"size": 4}}},
    {"hypotheses": [{**CLAIM, "step": 0}]},
    {"hypotheses": [{**CLAIM, "step": 8}]},
    {"hypotheses": [{**CLAIM, "step": 12}]},
    {"hypotheses": [{**CLAIM, "step": 10}], "train.steps": 10},
    {"hypotheses": [{**CLAIM, **CUT, "bytes": 31}], "train.truncation_windows": 1},
    {
        "hypotheses": [{**CLAIM, **CUT, "bytes": 8}],
        "arms.power.train": {"truncation_windows": 1},
        "arms.uniform.train": {"truncation_windows": 1},
    },
    {"hypotheses": [{**CLAIM, "metric": "excess_bpb"}], "corpus.name": "synthetic:lags"},
    {"hypotheses": [{**CLAIM, "metric": "excess_bpb"}], **RECALL},
    {"corpus.name": "synthetic: recall , pairs=4,length=32", "hypotheses": [RECALLED]},
    {"hypotheses": [{**CLAIM, "claim": "equal", "margin": 1e-9}]},
    {"hypotheses": [{**CLAIM, "alpha": 0.1}, {**CLAIM, "name": "b", "family": "other"}]},
    {"hypotheses": [{**CLAIM, "metric": "capacity", "times": 1}], **RECALL},
    {"hypotheses": [{**CLAIM, "metric": "capacity", "times": 8}], **RECALL},
    {"hypotheses": [{**CLAIM, "metric": "capacity_bits", "times": 2, "margin": 3}], **RECALL},
    {
        "hypotheses": [{**CLAIM, "metric": "persistence", "times": 16}],
        **RECALL,
        "train.beyond": 16,
    },
    {"hypotheses": [{**CLAIM, "metric": "position_bpb", "times": 1}], "train.beyond": 2},
    {"hypotheses": [{**CLAIM, "metric": "position_bpb", "times": 4}], "train.beyond": 4},
    {"hypotheses": [{**CLAIM, "metric": "reading_on", "times": 2}], "train.beyond": 2},
    {"gates": [{**GATE, "at_least": 4.0}]},
    {"gates": [{"name": "a", "arm": "uniform", "at_least": 4.0}]},
    {"gates": [{"name": "a", "arm": "uniform", "ahead_of": 5, "metric": "test_bpb"}]},
    {"gates": [{**GATE, "step": 4}]},
    {"hypotheses": [CLAIM], "gates": [{**GATE, "name": CLAIM["name"]}]},
    {"seeds": [100]},
    {"seeds": [0, 2**63 - 1]},
    {"tuning.rates": [1, 2], "seeds": [99, 101]},
    {"tuning": {"method": "curve", "rates": [1, 2, 3]}, "seeds": [100, 101]},
    {"tuning.rates": [1, 2], "arms.power.rates": [3, 4]},
    {"arms": {"uniform": {}, "a" * 220: {}}},
    {"arms.power": {"placement": "log-spaced", "shortest": 1.2}, "model": GOOSE},
    {"arms.power": {"projection": "uniform", "scheme_options": {}}},
    {"train.batch": 2**23},
    {"arms.power": {"placement": "log-spaced", "max_lag": 100, **CORRECTED}, "model": RWKV},
]


@pytest.mark.parametrize("changes", FITTING, ids=lambda changes: str(changes)[:70])
def test_a_value_at_its_limit_is_taken(changes: dict[str, Any]) -> None:
    """These only look like the mistakes above."""
    spec = parse_spec(values(changes), "here")
    for arm in spec.arms:
        spec.condition(arm).check()


@pytest.mark.parametrize(
    ("hypothesis", "changes", "message"),
    [
        ({"times": 16}, {}, "times must be at most 8, got 16: set train.beyond = 16"),
        ({"times": 8}, {"train.beyond": 4}, "times must be at most 4, got 8"),
    ],
)
def test_recall_is_tested_up_to_the_longest_sequences(
    hypothesis: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    declared = {"hypotheses": [{**CLAIM, "metric": "capacity", **hypothesis}]}
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_spec(values({**declared, **changes, **RECALL}), "here")


def test_the_arms_of_a_design_are_counted_with_the_named_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eight combinations, and a named arm in each of the two blocks."""
    monkeypatch.setattr("plkernel.config.factors.MOST_ARMS", 10)
    assert len(design(arms={"quantile": QUANTILE}).arms) == 10
    monkeypatch.setattr("plkernel.config.factors.MOST_ARMS", 9)
    assert len(design().arms) == 8
    with pytest.raises(ValueError, match="factors must make at most 9 arms, got more"):
        design(arms={"quantile": QUANTILE})


def test_stages_of_a_curriculum_follow_each_other_to_the_step() -> None:
    stages = [{"share": share, "length": 8, "pairs": [1]} for share in (0.25, 0.5)]
    train = TrainSpec.model_validate({"steps": 10, "curriculum": stages})
    first, second = train.curriculum
    expected = [first] * 2 + [second] * 6 + [None] * 2  # 2.5 is rounded to the even 2, 7.5 to 8
    assert [train.stage_at(step) for step in range(10)] == expected
    assert TrainSpec(steps=10).stage_at(0) is None


def test_bytes_are_trained_in_whole_steps() -> None:
    of_bytes = TrainSpec(bytes=1000, batch=3, context=100)
    assert (of_bytes.total_steps, TrainSpec(steps=7).total_steps) == (3, 7)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, False),
        ({"decay_multiplier": 0}, True),
        ({"decay_multiplier": 1}, True),
        ({"decay_weight_decay": 0.1}, True),
        ({"decay_dtype": "bfloat16"}, True),
    ],
)
def test_decays_that_are_trained_in_another_way(options: dict[str, Any], expected: bool) -> None:
    assert TrainSpec(steps=1, **options).changes_decays is expected


def test_a_condition_says_what_it_lacks() -> None:
    foreign = resolve(ModelSpec(kind="other:Model"), Arm(init="other:init"))
    assert foreign.code == {"kind": "other:Model", "init": "other:init"}
    assert resolve(ModelSpec()).code == {}
    assert not foreign.places_nodes
    assert resolve(ModelSpec()).places_nodes
    goose = ModelSpec.model_validate(GOOSE)
    assert not resolve(goose).places_nodes
    assert resolve(goose, Arm(placement="log-spaced")).places_nodes
    with pytest.raises(ValueError, match="train must be given for condition 'x', got none"):
        _ = resolve(ModelSpec(), name="x").protocol
    with pytest.raises(ValueError, match="kind must be one that has a scheme, got 'other:Model'"):
        _ = foreign.scheme
    with pytest.raises(
        ValueError, match="kind must be one whose nodes are known, got 'other:Model'"
    ):
        _ = foreign.nodes
    named = [resolve(ModelSpec(), study="s", name=name) for name in "ab"]
    assert len({hash(one) for one in named}) == 2
    assert hash(named[0]) == hash(resolve(ModelSpec(dim=8), study="s", name="a"))


def test_heads_share_the_width_and_a_clamped_key_is_a_gain() -> None:
    assert ModelSpec(dim=96).heads == (1, 96)
    assert ModelSpec(kind="rwkv6", dim=96, head_size=32).heads == (3, 32)
    assert ModelSpec(kind="rwkv6", k_clamp=True).input_gain == "clamp"
    assert ModelSpec(kind="rwkv6").input_gain == "none"
    assert ModelSpec(gain="ema").input_gain == "ema"
    for size, mode, causal in (
        (1, "published", True),
        (2, "causal", True),
        (2, "published", False),
    ):
        model = ModelSpec.model_validate({"patching": {"size": size, "mode": mode}})
        assert model.is_causal is causal


def test_a_long_error_names_the_first_eight_mistakes() -> None:
    wrong = {f"x{i}": {"beta": -1} for i in range(9)}
    with pytest.raises(ValueError, match=r"arms\.x0\.beta: Input should be greater") as error:
        parse_spec(values({"arms": wrong}), "here")
    said = str(error.value)
    assert (said.count(".beta: "), "x7.beta" in said, "x8.beta" in said) == (8, True, False)


@pytest.mark.parametrize("name", ["report", "tuning", *(f"{one}.json" for one in FILES)])
def test_files_and_folders_of_a_study_are_no_arms(name: str) -> None:
    """The folder of the arm would stand in their place."""
    changes = {"arms": {"uniform": {}, name: {}}}
    with pytest.raises(ValueError, match=rf"^spec here: arm name must .*, got '{name}'$"):
        parse_spec(values(changes), "here")


def test_files_that_hold_no_spec_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    for name, text, message in (
        ("spec.json", "[]", r"must hold an object, got \[\]"),
        ("deep.toml", f"a = {'[' * 5000}{']' * 5000}", "must be nested at most 64"),
        ("cut.toml", "[model", "not readable as TOML"),
        (
            "rates.toml",
            "[arms.a]\nrates = [1, 2]\nlearning_rate = 1",
            "arms.a: rates must be left out beside a learning",
        ),
        (
            "longest.toml",
            "[arms.a]\nspectrum = 1\nlongest = 2000",  # what it is if left out
            "arms.a: longest must be left out beside spectrum, which gives it, got 2000",
        ),
        (
            "shortest.toml",
            "[arms.a]\nspectrum = 1\nshortest = 1",
            "arms.a: shortest must be left out beside spectrum, which gives it, got 1",
        ),
        (
            "within.toml",
            'within = ["beta"]\n[arms.a]',
            r"within must be left out without \[factors\], got \['beta'\]",
        ),
        (
            "levels.toml",
            '[factors]\nbeta = [1, 2]\n[arms.a]\nlevels = { beta = "1" }',
            "arms.a: levels must be left out in a design, which fills them in, got {'beta': '1'}",
        ),
        (
            "curve.toml",
            '[tuning]\nmethod = "curve"\nrates = [1, 2, 3]\n[arms.a]\nlevels = { a = "b" }',
            "arms.a: levels must be left out in a design, which fills them in, got {'a': 'b'}",
        ),
        (
            "rate.toml",
            '[tuning]\nmethod = "curve"\nrates = [1, 2, 3]\n[arms.a]\n[train]\nlearning_rate = 0.1',
            "train.learning_rate must be left out with tuning.method 'curve', .*, got 0.1",
        ),
        ("design.json", '{"factors": {"beta": [1]}}', "factors.beta must have two levels"),
        ("pipe.toml", "", "a pipe or device"),
        ("no.toml", "", "no such"),
    ):
        if text:
            (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=f"{name}:? .*{message}"):
            load_spec(tmp_path / name)


def test_a_check_that_is_no_function_is_refused() -> None:
    check: Any = 3
    with pytest.raises(ValueError, match="check must be a function of a spec, got 3; plkernel"):
        load_spec("quick", check)


def test_files_beyond_the_limits_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sparse ones of 3 GB, and a key for which the parser would take gigabytes of memory."""
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail(f"{path} is read"))
    for name in ("spec.json", "spec.toml"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(3 * 10**9)
        with pytest.raises(
            ValueError, match=f"{name}: must have at most 67,108,864 bytes, got 3,000,000,000"
        ):
            load_spec(tmp_path / name)
    with (tmp_path / "rows.jsonl").open("wb") as file:
        file.truncate(2**29 + 1)
    with pytest.raises(ValueError, match=r"rows.jsonl: must have at most 536,870,912 bytes"):
        read_lines(tmp_path / "rows.jsonl")


@pytest.mark.parametrize("form", ["{} = 1", "[{}]", "a = {{ {} = 1 }}", "  {} = 1"])
@pytest.mark.parametrize("part", ["a", '"a.b" ', "'a' . \"b\""])
def test_a_key_of_many_parts_is_refused_before_it_is_parsed(form: str, part: str) -> None:
    """The parser takes memory by the square of their number."""
    for parts in (65, 100_000):
        key = ".".join([part] * parts)
        with pytest.raises(ValueError, match="here: a key must have at most 64 parts"):
            parse_toml(form.format(key).encode(), "here")
    short = ".".join(["a"] * 20)
    assert parse_toml(f"{short} = '{short} {'. ' * 100}'".encode(), "here")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[train]\nsteps = "12"', "train.steps: must be a number, got '12'"),
        ('[train]\ncarry = "yes"', "train.carry: must be true or false, got 'yes'"),
        ("[train]\ncarry = 1", "train.carry: must be true or false, got 1"),
        ('[train]\ncompile = "yes"', "train.compile must be true, false or 'auto', got 'yes'"),
        ('[model.patching]\nsize = "4"', "model.patching.size: must be a number, got '4'"),
        ('[tuning]\nrates = [1, "2"]', "tuning.rates.1: must be a number, got '2'"),
        ('[arms.a]\nbeta = "1"', "arms.a.beta: must be a number, got '1'"),
        ('[arms.a.train]\nclip = "1"', "arms.a.train.clip: must be a number, got '1'"),
        ('[arms.a.model]\nk_clamp = "no"', "arms.a.model.k_clamp: must be true or false, got 'no'"),
        (
            "[arms.a.scheme_options]\nstd = true",
            "arms.a.scheme_options.std: must be a number, got True",
        ),
        ('[factors]\nbeta = [1, "2"]', "arms.2.beta: must be a number, got '2'"),
        ('[[gates]]\nat_least = "1"', "gates.0.at_least: must be a number, got '1'"),
        (
            '[[train.curriculum]]\nshare = 1\npairs = ["2"]',
            "train.curriculum.0.pairs.0: must be a number, got '2'",
        ),
    ],
)
def test_a_text_in_a_file_is_no_number_and_no_truth(
    text: str, message: str, tmp_path: Path
) -> None:
    """Options of a command line, which are all texts, are numbers where they look like them."""
    path = tmp_path / "spec.toml"
    path.write_text(f'name = "a"\n{text}\n')
    with pytest.raises(ValueError, match=re.escape(f"spec {path}: {message}")):
        load_spec(path)


def test_types_of_a_file_are_those_of_toml(tmp_path: Path) -> None:
    """Whole numbers for others and the reverse, both types of an option of two, and any table."""
    path = tmp_path / "spec.toml"
    path.write_text(
        'name = "a"\nbaseline = "b"\n[train]\nsteps = 2e2\nclip = 1\ncompile = "auto"\n'
        'learning_rate = 1e-3\n[model]\nkind = "some.code:model"\n'
        'config = { dim = "3", deep = [true, "x"] }\n[arms.b]\n[arms.c]\ncorpus = { name = "1" }\n'
    )
    spec = load_spec(path)
    assert (spec.train.steps, spec.train.clip, spec.train.compile) == (200, 1.0, "auto")
    assert spec.model.config == {"dim": "3", "deep": [True, "x"]}
    assert spec.corpus_of("c").name == "1"


def test_a_saved_spec_may_hold_texts_for_numbers(tmp_path: Path) -> None:
    """As those of before did for options of a command line that change the table of an arm."""
    save_json(tmp_path / "spec.json", values({"arms.power.train": {"clip": "0.5"}}))
    assert load_spec(tmp_path / "spec.json").train_of("power").clip == 0.5


# Options of a command line
# ------------------------------------------------------------------------------------------


@pytest.fixture
def parse(tmp_path: Path) -> Callable[..., tuple[Spec, Path | None]]:
    """Give a command the tiny spec with options, and return what it was called with."""

    def parsed(*options: str, first: str | None = None, **changes: Any) -> tuple[Spec, Path | None]:
        taken: list[tuple[Spec, Path | None]] = []

        def command(spec: Spec, out: Path | None = None) -> None:
            taken.append((spec, out))

        save_json(
            tmp_path / "tiny.json",
            values({key.replace("__", "."): value for key, value in changes.items()}),
        )
        reading.main(command, [str(tmp_path / "tiny.json") if first is None else first, *options])
        return taken[0]

    return parsed


def test_every_form_of_an_option(parse: Callable[..., tuple[Spec, Path | None]]) -> None:
    """Underscores for hyphens, =, several values, None, switches, tables, and options of an arm's
    model.
    """
    spec, out = parse(
        *(
            "--train.learning_rate=0.5",
            "--train.steps",
            "None",
            "--train.bytes",
            "2000",
            "--report-steps",
        ),
        *(
            "--seeds",
            "3",
            "4",
            "5",
            "--out",
            "here",
            "--arms.power_law.beta",
            "0.9",
            "--model.k-clamp",
            "false",
        ),
        *(
            "--arms.uniform.train.clip",
            "0.5",
            "--arms.power-law.model.gain",
            "ema",
            "--train.compile",
        ),
        *("--train.decay-multiplier", "0", "--corpus.separator", "-1", "--description=a=b=c"),
        arms={
            "uniform": {"scheme_options": {"std": 0.1}},
            "power-law": {"projection": "published"},
        },
    )
    assert (spec.train.learning_rate, spec.train.steps, spec.train.bytes) == (0.5, None, 2000)
    assert (spec.seeds, spec.report_steps, out) == ((3, 4, 5), (), Path("here"))
    assert (spec.arms["power-law"].beta, spec.arms["uniform"].scheme_options) == (0.9, {"std": 0.1})
    assert (spec.train_of("uniform").clip, spec.train.clip) == (0.5, 1.0)
    assert (spec.model_of("power-law").gain, spec.model_of("uniform").gain) == ("ema", "none")
    assert (spec.model.k_clamp, spec.train.compile, spec.train.decay_multiplier) == (
        False,
        True,
        0.0,
    )
    assert (spec.corpus.separator, spec.description) == ("-1", "a=b=c")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--train.steps", "-3"],
            "train.steps: Input should be greater than or equal to 1, got '-3'",
        ),
        (
            ["--train.stepps", "5"],
            "option must be one of the spec, got --train.stepps; did you mean --train.steps?",
        ),
        (
            ["--steps", "5"],
            "must be one of the spec, got --steps; did you mean --train.steps or --tuning.steps?",
        ),
        (
            ["--arms.powr.beta", "1"],
            "option must be one of the spec, got --arms.powr.beta; did you mean --arms.power.beta?",
        ),
        (["--seeds", "1", "--seeds", "2"], "--seeds must be given once"),
        (
            ["--train.learning-rate", "1", "--train.learning_rate", "2"],
            "--train.learning-rate must be given once, with all of its values, got it 2 times",
        ),
        (["--train.steps"], "--train.steps must be given one value, got nothing"),
        (["--train.steps", "5", "6"], "--train.steps must be given one value, got 5 6"),
        (
            ["--arms.uniform.scheme-options", "std"],
            "option must be one of the spec, got --arms.uniform.scheme-options",
        ),
        (["--outt", "here"], "option must be one of the spec, got --outt; did you mean --out?"),
        (["--zzzz", "1"], "option must be one of the spec, got --zzzz; --help lists the options"),
        (["--out"], "--out must be a path, got nothing"),
        (["here"], "an option must come before its value, got 'here' alone; a switch such as"),
    ],
)
def test_wrong_options_are_one_line(
    parse: Callable[..., object],
    options: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(*options)
    error = capsys.readouterr().err
    assert (stop.value.code, message in error, len(error.splitlines())) == (2, True, 1), error


BESIDE_SPECTRUM = "longest must be left out beside spectrum, which gives it, got "


@pytest.mark.parametrize(
    ("arm", "options", "message"),
    [
        ("spectrum = 1", ["--arms.power.longest", "2000"], f"{BESIDE_SPECTRUM}'2000'"),
        ("longest = 2000", ["--arms.power.spectrum", "1"], f"{BESIDE_SPECTRUM}2000"),
        (
            "",
            ["--arms.power.spectrum=1", "--arms.power.longest=2000"],
            f"{BESIDE_SPECTRUM}'2000'",
        ),
        ("spectrum = 1", ["--arms.power.spectrum=None", "--arms.power.longest=2000"], None),
        ("spectrum = 1", ["--arms.power.spectrum", "2"], None),
        (
            "learning_rate = 1",
            ["--arms.power.rates", "1", "2"],
            "rates must be left out beside a learning_rate, or that beside rates, got both",
        ),
        ("rates = [1, 2]", ["--arms.power.learning-rate", "1"], None),
        (
            "learning_rate = 1",
            ["--arms.power.rates=1", "2", "--arms.power.learning-rate=None"],
            None,
        ),
    ],
)
def test_an_option_that_another_one_replaces_is_refused_beside_it(
    arm: str,
    options: list[str],
    message: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whichever of them stands in the file, and be it at its default."""
    path = tmp_path / "spec.toml"
    path.write_text(f"{PLAIN}[tuning]\nrates = [1, 2]\n[arms.uniform]\n[arms.power]\n{arm}\n")
    taken: list[Spec | None] = []
    if message is None:
        reading.main(taken.append, [str(path), *options])
        assert len(taken) == 1
        return
    with pytest.raises(SystemExit):
        reading.main(taken.append, [str(path), *options])
    expected = f"error: spec {path} with its options: arms.power: {message}\n"
    assert capsys.readouterr().err == expected


def test_a_saved_spec_has_options_that_nobody_wrote(
    parse: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of these a spectrum, a rate and an end that options give may be beside the others."""
    plain = tiny().model_dump(mode="json")["arms"]
    spread = tiny(spectrum=1).model_dump(mode="json")["arms"]
    spec = parse("--arms.power.spectrum", "1", "--arms.power.projection", "uniform", arms=plain)[0]
    assert spec.arms["power"].longest == pytest.approx(math.log(2) * T)
    for end in ("shortest", "longest"):
        with pytest.raises(SystemExit):
            parse(f"--arms.power.{end}", "2000", arms=spread)
        assert f"power: {end} must be left out beside spectrum" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--within", "projection"], "--within must be [], by which the arms have been written"),
        (["--baseline", "gain-corrected"], "--baseline must be 'uniform', by which the arms"),
        (
            ["--tuning.method", "curve", "--tuning.rates", "1", "2", "3"],
            "--tuning.method must be 'search', by which the arms have been written out, got"
            " 'curve'; change the file of the spec",
        ),
    ],
)
def test_options_do_not_change_a_design_that_is_written_out(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They would change what is compared in part, or nothing."""
    path = tmp_path / "spec.toml"
    path.write_text(f'{PLAIN}[factors]\nprojection = ["uniform", "gain-corrected"]\n')
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if not line.startswith("baseline")))
    taken: list[Spec | None] = []
    reading.main(taken.append, [str(path), "--baseline", "uniform"])
    assert len(taken) == 1, "it is that of the file"
    with pytest.raises(SystemExit):
        reading.main(taken.append, [str(path), *options])
    assert f"{path} with its options: {message}" in capsys.readouterr().err


def test_options_may_make_curves_of_arms_one_by_one(
    parse: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    spec = parse("--tuning.method=curve", "--tuning.rates", "1", "2", "3")[0]
    assert len(spec.arms) == 6
    with pytest.raises(SystemExit):
        parse("--within", "projection")
    assert (
        "within must be left out without [factors], got ['projection']" in capsys.readouterr().err
    )


def test_an_option_changes_the_arm_that_it_spells(
    parse: Callable[..., tuple[Spec, Path | None]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Hyphens stand for underscores where that names one arm alone."""
    arms: dict[str, Any] = {"uniform": {}, "a_b-c": {}, "a-b_c": {}, "x_y": {}}
    spec, _ = parse(
        "--arms.a_b-c.learning-rate",
        "0.5",
        "--arms.a-b_c.learning_rate",
        "0.25",
        "--arms.x-y.learning-rate",
        "0.125",
        arms=arms,
    )
    rates = [arm.learning_rate for arm in spec.arms.values()]
    assert rates == [None, 0.5, 0.25, 0.125]
    with pytest.raises(SystemExit):
        parse("--arms.a-b-c.learning-rate", "1", arms=arms)
    assert capsys.readouterr().err == (
        "error: --arms.a-b-c.learning-rate must name one arm as it is spelt, 'a_b-c' or 'a-b_c'\n"
    )


def test_the_spec_comes_first(
    parse: Callable[..., object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tiny.json"
    for first, options, code, message in (
        (str(tmp_path / "tinny.json"), [], 2, f"no such file or folder; did you mean {path}?"),
        ("--out", ["here"], 2, "the first argument must be a spec"),
        (str(tmp_path), [], 2, "must be a regular file, got a folder"),
        ("--help", [], 0, "Example: "),
    ):
        with pytest.raises(SystemExit) as stop:
            parse(*options, first=first)
        printed = capsys.readouterr()
        assert (stop.value.code, message in (printed.err if code else printed.out)) == (
            code,
            True,
        ), message


# Reading back, recipes, names
# ----------------------------------------------------------------------------------------


def test_specs_round_trip_through_json(tmp_path: Path) -> None:
    recipe = {"train.recipe": "blinkdl", "train.beta2": 0.95}
    plain = parse_spec(values(recipe), "here")
    spec = parse_spec(values({**recipe, "hypotheses": [CLAIM], "gates": [GATE]}), "here")
    assert (spec.train.beta2, spec.train.eps, spec.train.l2wrap, spec.train.learning_rate) == (
        0.95,
        1e-18,
        1e-4,
        3e-4,
    )
    save_json(tmp_path / "spec.json", spec.model_dump(mode="json"))
    assert load_spec(tmp_path / "spec.json") == spec
    assert spec.hypotheses == (
        Hypothesis(name="it helps", arm="power", against="uniform", claim="lower"),
    )
    assert spec.gates == (Gate(name="has learnt", arm="uniform", at_most=4.0),)
    assert {family: len(of) for family, of in families(spec.hypotheses).items()} == {"main": 1}
    assert all(plain.condition(arm).config == spec.condition(arm).config for arm in plain.arms), (
        "no run knows of them"
    )


def test_a_recipe_as_an_option_fills_what_file_and_options_leave_open(
    parse: Callable[..., Any],
) -> None:
    """A value given as the default is given all the same."""
    options = ("--train.recipe", "blinkdl", "--train.weight-decay", "0.01", "--train.beta2=0.999")
    train = parse(*options, train__eps=1e-8)[0].train
    assert (train.eps, train.weight_decay, train.beta2, train.l2wrap) == (1e-8, 0.01, 0.999, 1e-4)
    off = parse("--train.recipe", "None", train__recipe="blinkdl", train__beta2=0.95)[0].train
    assert (off.recipe, off.beta2, off.eps, off.warmup_from, off.l2wrap) == (
        None,
        0.95,
        1e-8,
        None,
        0.0,
    )
    plain, filled = TrainSpec(steps=9), TrainSpec(steps=9, recipe="blinkdl")
    assert (
        len(
            {
                name
                for name in TrainSpec.model_fields
                if getattr(plain, name) != getattr(filled, name)
            }
        )
        == 8
    )


def test_an_arm_may_train_its_own_way() -> None:
    spec = tiny(train={"decay_multiplier": 0, "clip": 0.5})
    own, others = spec.condition("power").protocol, spec.condition("uniform").protocol
    assert (own.decay_multiplier, own.clip) == (0, 0.5)
    assert own.model_copy(update={"decay_multiplier": None, "clip": 1.0}) == others == spec.train
    assert "train" not in spec.condition("power").config["arm_options"]


def test_what_comes_with_plkernel_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command()
    listed = capsys.readouterr().out
    assert all(f"{name} " in listed for name in specs())
    (tmp_path / "quick").mkdir()  # as a study with --out quick leaves one
    assert find_spec("quick").resolve() == RUNS / "quick.toml"
    (tmp_path / "quick.toml").write_text("")
    assert find_spec("quick.toml") == Path("quick.toml")
    with pytest.raises(
        ValueError, match="none of that name comes with plkernel; did you mean 'quick'"
    ):
        find_spec("qick")
    for missing in ("qick.toml", "here/qick"):
        with pytest.raises(ValueError, match=f"spec {missing}: no such file or folder"):
            find_spec(missing)
    command("finch")
    assert capsys.readouterr().out.encode() == (RUNS / "finch.toml").read_bytes()
    for name, path in roles().items():
        assert RoleTable.from_toml(name) == RoleTable.from_toml(path)


# Nodes
# ------------------------------------------------------------------------------------------


def nodes_of(spec: Spec, arm: str = "power") -> Nodes:
    return spec.condition(arm).nodes


def test_quantile_arms_place_what_they_say() -> None:
    options = {
        "loss": 0.1,
        "max_lag": 500,
        "target": "correlation",
        "kernel": "rms",
        "lag": "distance",
    }
    arm, model = (
        {**QUANTILE, **options, "tempering": 0.5},
        {"dim": 16, "gain": "lru", "patching": {"size": 2}},
    )
    spec = parse_spec(values({"model": model, "arms.power": arm}), "here")
    assert nodes_of(spec) == place(
        16, placement="quantile", gain="lru", tempering=0.5, step=2, **options
    )


@pytest.mark.parametrize("name", ["baseline", "uniform"])
def test_matched_arms_have_the_output_of_the_arm_they_name(
    name: str, parse: Callable[..., Any]
) -> None:
    spec, plain = tiny(**QUANTILE, match=name), tiny(**QUANTILE)
    assert output_std(nodes_of(spec)) == pytest.approx(
        output_std(nodes_of(spec, "uniform")), rel=1e-12
    )
    assert output_std(nodes_of(plain)) != pytest.approx(
        output_std(nodes_of(plain, "uniform")), rel=0.1
    )
    assert nodes_of(spec).rates == nodes_of(plain).rates
    changed = parse("--arms.uniform.longest", "50", arms__power={**QUANTILE, "match": name})[0]
    assert output_std(nodes_of(changed)) == pytest.approx(
        output_std(nodes_of(changed, "uniform")), rel=1e-12
    )
    assert nodes_of(changed) != nodes_of(spec)


def test_an_arm_is_matched_to_the_one_that_it_is_compared_with() -> None:
    arms = {"arms.other": {"longest": 50}, "arms.power": {**QUANTILE, "match": "baseline"}}
    for against in ("other", "uniform"):
        spec = parse_spec(values({**arms, "arms.power.against": against}), "here")
        expected = output_std(nodes_of(spec, against))
        assert output_std(nodes_of(spec)) == pytest.approx(expected, rel=1e-12)


def test_a_baseline_of_a_block_is_not_matched_to_another_block() -> None:
    """It is compared with no arm, so that no output is that of the arm compared with."""
    with pytest.raises(ValueError, match=r"^spec here: arms\.uniform_ema: ") as error:
        parse_spec(values({"arms.uniform_ema": {"match": "baseline"}}, BLOCKS), "here")
    assert "match must name an arm, got 'baseline' in an arm that is compared with none" in str(
        error.value
    )
    spec = parse_spec(values({"arms.published_ema": {"match": "baseline"}}, BLOCKS), "here")
    assert spec.against("published_ema") == "uniform_ema"
    expected = output_std(nodes_of(spec, "uniform_ema"))
    assert output_std(nodes_of(spec, "published_ema")) == pytest.approx(expected, rel=1e-12)


def test_nodes_of_plkernel_are_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the folder has a file of that name."""
    monkeypatch.chdir(tmp_path)
    file = "runs/nodes/stdlib-curve-ema.json"
    changes = {"model": {"dim": 64, "gain": "ema"}, "arms.power": {"node_file": file}}
    ours = load_json(RUNS / "nodes" / "stdlib-curve-ema.json")["nodes"]["rates"]
    found = parse_spec(values(changes), "here").arms["power"]
    assert found.node_rates == tuple(ours)
    own = place(64, gain="ema")
    (tmp_path / "runs" / "nodes").mkdir(parents=True)
    save_json(tmp_path / file, {"nodes": own.to_dict()})
    assert parse_spec(values(changes), "here").arms["power"].node_rates == own.rates


def test_nodes_are_read_from_a_file_once_and_known_by_their_values(
    tmp_path: Path, parse: Callable[..., Any]
) -> None:
    file, nodes = tmp_path / "fit.json", place(16, placement="quantile", gain="ema", tempering=0.5)
    save_json(file, {"beta": 1.15, "nodes": nodes.to_dict()})
    changes = {"model": {"dim": 16, "gain": "ema"}, "arms.power": {"node_file": str(file)}}
    spec, other = (
        parse_spec(values(changes), "here"),
        place(16, placement="concentrated", gain="ema"),
    )
    save_json(tmp_path / "other.json", {"nodes": other.to_dict()})
    option = ("--arms.power.node-file", str(tmp_path / "other.json"))
    assert (
        nodes_of(
            parse(*option, **{key.replace(".", "__"): value for key, value in changes.items()})[0]
        )
        == other
    )
    file.unlink()
    save_json(tmp_path / "spec.json", spec.model_dump(mode="json"))
    assert load_spec(tmp_path / "spec.json") == spec
    assert nodes_of(spec) == nodes
    changed = nodes.to_dict()
    changed["rates"] = [nodes.rates[0] * (1 + 1e-15), *nodes.rates[1:]]
    save_json(file, {"nodes": changed})
    lines = differences(
        spec.arm("power").model_dump(),
        parse_spec(values(changes), "here").arm("power").model_dump(),
    )
    assert [line.split(" was ")[0] for line in lines] == ["node_file", "node_rates"]


@pytest.mark.parametrize(
    ("nodes", "changes", "message"),
    [
        ({}, {"model.gain": "lru"}, "'none', got 'lru'"),
        (place(8).to_dict(), {}, "must be as many as model.dim, 16, got 8 rates and 8 multipliers"),
        ([1.0], {}, "must hold a node set, got none"),
        ({"rates": [-1.0] * 16}, {}, "node_rates.0: Input should be greater than 0"),
        (
            {"rates": [1e-12] * 16},
            {},
            "nodes.json: half-lives must be between",
        ),
        ({"projection": [1e30] * 16}, {}, "node_multipliers must be at most"),
        ({}, {"arms.power.placement": "quantile"}, "placement quantile does not go with node_file"),
        ({}, {"arms.power.lag": "distance"}, "lag distance does not go with node_file"),
        *(
            ({}, {f"arms.power.{name}": value}, f"power: {name} {value} does not go with node_file")
            for name, value in {
                "beta": 2.0,
                "max_lag": 64.0,
                "shortest": 2.0,
                "longest": 64.0,
                "tempering": 0.5,
                "loss": 0.1,
                "projection": "published",
                "target": "correlation",
                "kernel": "rms",
            }.items()
        ),
    ],
)
def test_node_files_that_do_not_fit_are_refused(
    nodes: Any, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "nodes.json"
    save_json(
        file, {"nodes": {**place(16).to_dict(), **nodes} if isinstance(nodes, dict) else nodes}
    )
    with pytest.raises(ValueError, match=r"^spec here: arms\.power") as error:
        parse_spec(values({"arms.power": {"node_file": str(file)}, **changes}), "here")
    assert message in str(error.value)


@pytest.mark.parametrize("gain", ["none", "ema", "lru"])
def test_nodes_per_byte_keep_their_kernel_in_patches(gain: str) -> None:
    """A step of three bytes: the same coherent kernel at three times the lag, under the gain of the
    new rates.
    """
    nodes = place(16, gain=gain, projection="gain-corrected")
    arm = Arm(node_rates=nodes.rates, node_multipliers=nodes.projection, node_gain=gain)
    patched = resolve(
        ModelSpec.model_validate({"dim": 16, "gain": gain, "patching": {"size": 3}}), arm
    ).nodes
    steps = np.arange(1, 100)
    ratio = patched.kernel().kernel(steps) / nodes.kernel().kernel(3 * steps)
    assert ratio == pytest.approx(ratio[0], rel=1e-12)
    assert np.mean(patched.projection) == pytest.approx(1)


def test_unread_references_are_not_ignored() -> None:
    for arm in (Arm(match="baseline"), Arm(node_file="fit.json")):
        with pytest.raises(ValueError, match="read the spec with load_spec"):
            _ = resolve(ModelSpec(), arm).nodes


# Factors
# ------------------------------------------------------------------------------------------


def design(**changes: Any) -> Spec:
    return parse_spec({**DESIGN, **changes}, "here")


def test_a_full_factorial_has_every_combination_once_and_compares_within_blocks() -> None:
    arms = {"quantile": QUANTILE, "twin": {"match": "concentrated_uniform"}}
    spec = design(
        arms={
            **arms,
            "log-spaced_uniform": {"beta": 0.9},
            "log-spaced_uniform_ema": {"learning_rate": 0.5},
        }
    )
    assert (len(spec.arms), spec.baseline) == (12, "log-spaced_uniform_none")
    for name, arm in spec.arms.items():
        assert arm.levels is not None
        gain = name.rpartition("_")[2]
        base = f"log-spaced_uniform_{gain}"
        assert (arm.against, spec.condition(name).nodes.gain) == (
            None if name == base else base,
            gain,
        )
        if len(arm.levels) == 3:
            assert name == "_".join(arm.levels.values())
            assert (arm.placement, arm.projection) == (
                arm.levels["placement"],
                arm.levels["projection"],
            )
    for gain in ("none", "ema"):
        other = spec.condition(f"concentrated_uniform_{gain}").nodes
        assert spec.arms[f"twin_{gain}"].output_std == pytest.approx(output_std(other))
    assert [spec.arms[f"log-spaced_uniform_{gain}"].beta for gain in ("none", "ema")] == [0.9, 0.9]
    assert [spec.arms[f"log-spaced_uniform_{gain}"].learning_rate for gain in ("none", "ema")] == [
        None,
        0.5,
    ]
    assert parse_spec(spec.model_dump(mode="json"), "again") == spec
    once = expanded({**DESIGN, "arms": arms})
    assert expanded(once) == once


def test_what_an_arm_of_a_design_names_is_in_its_block() -> None:
    """And what is said of an arm in one block comes before what is said of it in all."""
    arms: dict[str, dict[str, Any]] = {
        "twin": {"against": "concentrated_uniform", "learning_rate": 1},
        "twin_ema": {"learning_rate": 2},
        "concentrated_uniform": {"learning_rate": 3},
        "concentrated_uniform_none": {"learning_rate": 4},
    }
    spec = design(arms=arms)
    assert len(spec.arms) == 10
    for gain, rates in (("none", (1, 4)), ("ema", (2, 3))):
        twin, other = f"twin_{gain}", f"concentrated_uniform_{gain}"
        assert spec.against(twin) == other
        assert (spec.arms[twin].learning_rate, spec.arms[other].learning_rate) == rates


def test_three_arms_may_be_compared_in_a_circle() -> None:
    """Every one of the three pairs is compared once."""
    circle = {"a": {"against": "c"}, "b": {"against": "a"}, "c": {"against": "b"}}
    spec = design(factors={}, arms=circle, baseline="a")
    assert {frozenset([name, spec.against(name)]) for name in circle} == {
        frozenset("ab"),
        frozenset("ac"),
        frozenset("bc"),
    }
    message = "arms.a: against must be no arm that is compared with 'a' itself, got 'b'"
    with pytest.raises(ValueError, match=message):
        design(factors={}, arms={"a": {"against": "b"}, "b": {"against": "a"}}, baseline="a")


def test_levels_by_name_and_designs_without_a_crossed_factor() -> None:
    patchings = {"bytes": {}, "pairs": {"model": {"patching": {"size": 2}}}}
    spec = design(within=["patching"], factors={"beta": [0.6, 1.15], "patching": patchings})
    assert list(spec.arms) == ["0.6_bytes", "1.15_bytes", "0.6_pairs", "1.15_pairs"]
    assert [spec.model_of(name).patching.size for name in spec.arms] == [1, 1, 2, 2]
    arms, gains = (
        {"plain": {}, "law": {"projection": "gain-corrected"}},
        {"model.gain": ["none", "ema"]},
    )
    spec = design(factors=gains, arms=arms, baseline="plain")
    assert list(spec.arms) == ["plain_none", "law_none", "plain_ema", "law_ema"]
    assert (spec.baseline, spec.arms["law_ema"].against) == ("plain_none", "plain_ema")
    short, whole = (
        expanded({**DESIGN, "baseline": f"log-spaced_uniform{block}"}) for block in ("", "_none")
    )
    assert whole == short
    for changes, message in (
        (
            {"hypotheses": [{"name": "a", "arm": "plain_ema", "claim": "higher"}]},
            "arm 'plain_ema' is a baseline",
        ),
        ({"baseline": None}, "baseline: Input should be a valid string"),
        (
            {"arms": {**arms, "x": {"against": "nobody"}}},
            "arms.x_none: against must name another arm, got 'nobody'",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            design(**{"factors": gains, "arms": arms, "baseline": "plain", **changes})


MISPLACED: list[tuple[dict[str, Any], str]] = [
    (
        {"tuning": {"seeds": [101]}},
        "tuning.seeds (101,) needs a search: give tuning.rates, or leave it out",
    ),
    (
        {"tuning": {"steps": 6}},
        "tuning.steps 6 needs a search: give tuning.rates, or leave it out",
    ),
    (
        {"tuning": {"rates": [0.001]}},
        "tuning.rates must be two or more, all different, got [0.001]",
    ),
    (
        {"tuning": {"rates": [0.001, 0.002, 0.001]}},
        "tuning.rates must be two or more, all different, got [0.001, 0.002, 0.001]",
    ),
]


@pytest.mark.parametrize(("changes", "message"), MISPLACED)
def test_a_mistake_of_a_whole_section_names_its_options_and_repeats_no_section(
    changes: dict[str, Any], message: str
) -> None:
    """The message is the whole error: neither the table nor its place is printed with it."""
    with pytest.raises(ValueError, match=r"^spec here: ") as error:
        parse_spec(values(changes), "here")
    assert str(error.value) == f"spec here: {message}"


@pytest.mark.parametrize("section", ["train", "model", "corpus", "tuning", "arms"])
def test_a_section_that_is_no_table_is_one_line(section: str) -> None:
    with pytest.raises(ValueError, match=rf"^spec here: {section}: .*, got 3$"):
        parse_spec(values({}) | {section: 3}, "here")


@pytest.mark.parametrize(
    ("steps", "note"),
    [
        ("12", ""),
        ("8", "note: report_steps 12 are left out of the report, as the last step is 8\n"),
        ("4", "note: report_steps 8, 12 are left out of the report, as the last step is 4\n"),
    ],
)
def test_steps_of_the_report_that_no_run_reaches_are_named(
    steps: str, note: str, parse: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    parse("--train.steps", steps, report_steps=[4, 8, 12])
    assert capsys.readouterr().err == note


def test_an_error_says_whether_options_were_given_beside_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistake may stand in either, where both are read; else it stands in the file."""
    path = tmp_path / "tiny.json"
    save_json(path, values({"train.steps": -5}))

    def start(spec: Spec | None) -> None:
        raise AssertionError("a wrong spec reaches no command")

    errors = []
    for options in ([], ["--train.clip", "2"]):
        with pytest.raises(SystemExit):
            reading.main(start, [str(path), *options])
        errors.append(capsys.readouterr().err)
    alone, both = errors
    assert f"{path}: train.steps" in alone
    assert f"{path} with its options: train.steps" in both


def test_an_option_with_a_learning_rate_is_refused_in_a_study_of_curves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every run has a rate of its own, so that it would do nothing; its spec.json holds it too."""
    text = 'name = "s"\nbaseline = "a"\n[train]\nsteps = 4\n[arms.a]\n[arms.b]\nlongest = 8\n'
    path = tmp_path / "curve.toml"
    path.write_text(f'{text}[tuning]\nmethod = "curve"\nrates = [1e-3, 2e-3, 4e-3]\n')
    saved = tmp_path / "spec.json"
    saved.write_text(load_spec(path).model_dump_json())
    assert load_spec(saved).curves.keys() == {"a", "b"}
    for given in (path, saved):
        with pytest.raises(SystemExit):
            reading.main(lambda spec: None, [str(given), "--train.learning-rate", "1e-3"])
        assert "train.learning_rate must be left out with tuning" in capsys.readouterr().err


def test_the_reference_of_gates_has_what_gates_take() -> None:
    schema = Spec.model_json_schema()["$defs"]
    of_gates = schema["Gate"]["properties"]
    assert not {"times", "distance"} & of_gates.keys()
    assert of_gates["metric"]["enum"] == ["val_bpb", "test_bpb", "excess_bpb", "truncation_cost"]
    assert "capacity" not in of_gates["metric"]["description"]
    assert "hypothesis" not in of_gates["arm"]["description"]
    assert {"times", "distance"} < schema["Hypothesis"]["properties"].keys()
