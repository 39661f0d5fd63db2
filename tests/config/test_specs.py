"""Specs: every committed one expands as it always has, options replace fields, and a mistake is one line."""

import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plkernel.analysis.nodes import Nodes, output_std, place
from plkernel.commands.specs import COST, command, listing
from plkernel.common.files import load_json, save_json
from plkernel.config import command_line
from plkernel.config.condition import from_config, resolve
from plkernel.config.factors import expanded
from plkernel.config.reading import find, load_spec, parse_spec, roles, specs
from plkernel.config.schema import Arm, Gate, Hypothesis, ModelSpec, TrainSpec, families
from plkernel.config.study import Spec
from plkernel.models.init.plan import RoleTable
from plkernel.training import check
from plkernel.training.folder import differences

Write = Callable[..., Path]
RUNS = Path(__file__).parents[2] / "runs"
GOLDEN = load_json(Path(__file__).with_name("conditions.json"))
HYPOTHESIS = '[[hypotheses]]\nname = "it helps"\narm = "power-law"\nclaim = "lower"\n'
GATE = '[[gates]]\nname = "has learnt"\narm = "uniform"\nat_most = 4.0\n'
FACTORS = "factors = { placement = ['log-spaced', 'concentrated'] }"
QUANTILE = 'placement = "quantile"'


def rounded(value: Any) -> Any:
    """Plain values with floats as texts of ten digits, equal on every processor."""
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("name", GOLDEN)
def test_committed_specs_expand_to_the_same_conditions(name: str) -> None:
    spec = load_spec(RUNS / name)
    conditions = {arm: spec.condition(arm).config for arm in spec.arms}
    content = json.dumps(rounded([spec.model_dump(mode="json"), conditions]))
    assert hashlib.sha256(content.encode()).hexdigest()[:16] == GOLDEN[name]
    arm = spec.baseline
    assert from_config(json.loads(json.dumps(conditions[arm]))).config == conditions[arm]


def test_no_committed_spec_is_left_out_and_each_fits_its_scheme() -> None:
    files = {path for pattern in ("*.toml", "records/**/spec.json") for path in RUNS.glob(pattern)}
    assert {str(path.relative_to(RUNS)) for path in files} == set(GOLDEN)
    for path in specs().values():
        spec = load_spec(path, lambda condition: None if condition.code else check(condition))
        assert spec.name == path.stem
        for name, arm in spec.arms.items():
            assert not arm.places_nodes or len(spec.condition(name).nodes.rates) == spec.model_of(name).node_count


def test_conditions_are_keys(tiny_spec: Write) -> None:
    one, other = (load_spec(tiny_spec()) for _ in range(2))
    assert one.condition("uniform") is one.condition("uniform")
    assert len({spec.condition(arm) for spec in (one, other) for arm in spec.arms}) == 2
    with pytest.raises(ValueError, match="frozen"):
        one.name = "other"


@pytest.fixture
def write(tiny_spec: Write) -> Write:
    """Write a tiny spec (width 16) with the given lines in its second arm, in its model and at its end."""

    def write(arm: str = "", model: str = "", more: str = "", **train: object) -> Path:
        path = tiny_spec(**train)
        text = path.read_text().replace('projection = "published"', arm or 'projection = "published"')
        path.write_text(text.replace("[model]", f"[model]\n{model}") + more)
        return path

    return write


@pytest.fixture
def node_file(tmp_path: Path) -> Path:
    """A file as plkernel.fit writes it: nodes per byte among other keys."""
    nodes = place(16, placement="quantile", gain="ema", tempering=0.5)
    save_json(tmp_path / "fit.json", {"beta": 1.15, "nodes": nodes.to_dict()})
    return tmp_path / "fit.json"


def nodes_of(spec: Spec, arm: str = "power-law") -> Nodes:
    return resolve(spec.model, spec.arm(arm)).nodes


# Bad input ----------------------------------------------------------------------------------------------------------

REPLACED: list[tuple[str, str, str]] = [  # in the tiny spec
    ("learning_rate", "learing_rate", r"unknown key 'learing_rate' in \[train\]; did you mean 'learning_rate'"),
    ("seeds", "seed", "unknown key 'seed' in the top level; did you mean 'seeds'"),
    ("projection", "proj", r"unknown key 'proj' in \[arms.power-law\]; did you mean 'projection'"),
    ("[train]", "[trian]", "unknown key 'trian' in the top level; did you mean 'train'"),
    ("steps = 12", "steps = 0", "train.steps: .*greater than or equal to 1, got 0"),
    ("steps = 12", "steps = true", "train.steps: must be a number, not true or false, got True"),
    ("steps = 12", "steps = 12\nminutes = 1.0", "exactly one of steps, bytes and minutes"),
    ('baseline = "uniform"', 'baseline = "unifrom"', "baseline 'unifrom' is not an arm; did you mean 'uniform'"),
    ("seeds = [0, 1]", "seeds = [1, 1]", "seeds must be different"),
    ("seeds = [0, 1]", f"seeds = [{10**30}]", "seeds.0: .*9223372036854775807"),
    ("seeds = [0, 1]", f"seeds = [0]\nfactors = {'[' * 5000}{']' * 5000}", "nested deeper than 64"),
    ("seeds = [0, 1]", f"seeds = [0]\n{'a.' * 20_000}a = 1", "nested deeper than 64"),
    ("seeds = [0, 1]", "seeds = [0]\nfactors = ['gain']", r"factors: expected a table, got \['gain'\]"),
    ("seeds = [0, 1]", f"seeds = [0]\nwithin = [5]\n{FACTORS}", r"within: expected a list of names .* got \[5\]"),
    ("seeds = [0, 1]", f"seeds = [0]\nwithin = ['gain']\n{FACTORS}", "within: 'gain' is not a factor"),
    ("seeds = [0, 1]", "seeds = [0]\ntuning = { rates = [1, 2], seeds = [0] }", r"tuning.seeds .* got \[0\] in both"),
    ("seeds = [0, 1]", "seeds = [0]\ntuning = { seeds = [3] }", "tuning.seeds .3,. needs a search"),
    ('baseline = "uniform"', f"baseline = [1]\n{FACTORS}", r"baseline: expected the name of an arm, got \[1\]"),
    ("dim = 16", "dim = 1000000000", "model.dim: .*less than or equal to 65536, got 1000000000"),
    ("dim = 16", f"dim = '{'x' * 20000}'", "model.dim: .*got 'x{1,40}[.]{3}x{1,40}'"),
    ("dim = 16", "dim = 16\nhead_size = 4", "head_size does not belong to model kind 'ssm'"),
    ("dim = 16", "kind = 'rwkv'", "model.kind: must be ssm, rwkv5, rwkv6, rwkv7 or module:attribute"),
    ("dim = 16\nlayers = 2", "kind = 'other:Model'", "arms.power-law: projection published belongs to models of plker"),
    ("dim = 16", "kind = 'a b:c'", "model.kind: must be module:attribute"),
    ("batch = 4", "batch = 268435456", r"batch \* context must be at most 268435456 bytes in a step"),
    ("[model]", "[model", "not valid TOML"),
    ("[arms.power-law]", "[arms.-x]", "arm name '-x' must start with a letter or digit"),
    ("[arms.power-law]", "[arms.report]", "arm name 'report' must"),
    ("[arms.power-law]", f"[arms.{'x' * 300}]", "has 300 letters, too many for the name of a folder: 255 at most"),
    ("[arms.power-law]", "[arms.power-law]\nrates = [1, 2]", "rates must be as many as tuning.rates, 0 different"),
    ("[arms.power-law]", "[arms.power-law]\nagainst = 'power-law'", "against 'power-law' is not another arm"),
]
ARMS: list[tuple[str, str, str]] = [  # lines of the second arm, and of the model
    ("tempering = 0.5", "", "tempering belongs to placement 'quantile', got placement 'log-spaced'"),
    (f"{QUANTILE}\ntempering = 2", "", "tempering: .*less than or equal to 1, got 2"),
    (f'{QUANTILE}\nprojection = "published"', "", "does not go with placement 'quantile'"),
    ('lag = "distance"', "", "projection 'uniform' follows no target, kernel or lag"),
    ('target = "mutual"', "", "target: .*'information' or 'correlation', got 'mutual'"),
    ('placement = "terms"', "", "placement 'terms' needs a fit: .* node_file"),
    ('placement = "logspaced"', "", "placement 'logspaced' is none of ours, .*; did you mean 'log-spaced'"),
    ('match = "unifrom"', "", "match 'unifrom' is not an arm; did you mean 'uniform'"),
    ('match = "power-law"', "", "match 'power-law' is itself matched"),
    ('node_file = "none.json"', "", "none.json: no such file"),
    ("node_rates = [1.0]", "", "node_multipliers is missing"),
    ("shortest = 9.0\nlongest = 3.0", "", "0 < shortest < longest"),
    ("longest = 1e12", "", "longest 1e[+]12 is no half-life that a float32 decay holds: use 0.00794 to 1.16e[+]07"),
    ("shortest = 0.5", "patching = { size = 100 }", "shortest 0.5 is no half-life .*patches of 100 bytes"),
    (f"{QUANTILE}\nbeta = 1e-3", "", "beta 0.001 with loss 0.05 and max_lag 2048 places half-lives"),
    ('placement = "concentrated"', "patching = { size = 100 }", "placement 'concentrated', half-life 0.5 is no half"),
    ('projection = "published"\nbeta = 1e38', "", "beta 1e[+]38 takes the projection's weights"),
    ("output_std = 1e38", "", "output_std 1e[+]38 makes the largest multiplier of the projection"),
    (f"{QUANTILE}\nlongest = 5", "", "longest 5.0 belongs to placement 'log-spaced', got placement 'quantile'"),
    ("beta = 2", "", "beta 2.0 belongs to a power law: set a projection or placement 'quantile'"),
    ("beta = true", "", "arms.power-law.beta: must be a number, not true or false, got True"),
    ("bonus = 'law'", "", "bonus law belongs to model kinds rwkv5 and rwkv6"),
    ("init = 'nothing'", "", "arms.power-law.init: must be module:attribute"),
    ("init_options = { a = 1 }", "", "init_options need an init"),
    ("model = { gian = 'ema' }", "", r"unknown key 'gian' in \[model\]; did you mean 'gain'"),
    ("train = { steps = 20 }", "", "train.steps is the same in all arms, got 20: an arm may have its own weight_decay"),
    ("train = { clipp = 1 }", "", "clipp.*did you mean 'clip'"),
    ("beta = 1.0", "kind = 'rwkv6'\nhead_size = 8", "beta 1.0 needs a placement in an RWKV"),
    ("match = 'uniform'", "kind = 'rwkv6'\nhead_size = 8", "match uniform does nothing in an RWKV"),
    ('match = "baseline"\n[arms.baseline]', "", "match 'baseline' may mean the arm of that name or"),
]
TABLES: list[tuple[str, str]] = [  # at the end of the spec
    (HYPOTHESIS.replace("power-law", "powerlaw"), "'it helps': arm 'powerlaw' is not an arm; did you mean"),
    (HYPOTHESIS + 'against = "unifrom"\n', "'it helps': against 'unifrom' is not an arm; did you mean 'uniform'"),
    (HYPOTHESIS + 'against = "power-law"\n', "against 'power-law' is the arm itself"),
    (HYPOTHESIS.replace("power-law", "uniform"), "against is missing: arm 'uniform' is a baseline"),
    (HYPOTHESIS + "step = 5\n", "'it helps': step 5 has no evaluation; near it are 4 and 8 and 12, the last"),
    (HYPOTHESIS.replace("lower", "smaller"), "hypotheses.0.claim: .*'lower', 'higher' or 'equal', got 'smaller'"),
    (HYPOTHESIS.replace("lower", "equal"), "'it helps': claim 'equal' needs a margin above 0"),
    (HYPOTHESIS + "margn = 1\n", r"unknown key 'margn' in \[hypotheses.0\]; did you mean 'margin'"),
    (HYPOTHESIS + "bytes = 4\n", "'it helps': metric 'val_bpb' takes no bytes, got 4"),
    (HYPOTHESIS + 'metric = "truncation_cost"\n', "'it helps': metric 'truncation_cost' needs bytes"),
    (HYPOTHESIS + 'metric = "truncation_cost"\nbytes = 32\n', "bytes must be fewer than the context, 32, got 32"),
    (HYPOTHESIS + 'metric = "truncation_cost"\nbytes = 8\n', "not measured: set train.truncation_windows"),
    (HYPOTHESIS + 'metric = "test_bpb"\nstep = 4\n', "'it helps': test_bpb is taken at the end only, got step 4"),
    (HYPOTHESIS + HYPOTHESIS, "hypotheses 'it helps': 2 have this name"),
    (
        HYPOTHESIS + HYPOTHESIS.replace("it helps", "b") + "alpha = 0.1\n",
        "alpha 0.1 differs from the 0.05 of 'it helps'",
    ),
    (GATE.replace("at_most = 4.0\n", ""), "'has learnt': a gate needs at_least or at_most"),
    (GATE + "at_least = 5.0\n", "'has learnt': at_least 5 is above at_most 4"),
]
TRAIN: list[tuple[dict[str, Any], str]] = [
    ({"recipe": "blinkd"}, "train.recipe: Input should be 'blinkdl', got 'blinkd'"),
    ({"schedule": "exponential", "final_fraction": 0.0}, "final_fraction must be above 0 with schedule 'expon"),
    ({"dropout": 0.1}, "train.dropout belongs to model kinds rwkv5, rwkv6 and rwkv7, got 0.1 with kind 'ssm'"),
    ({"warmup_from": 0.1}, "train.warmup_from 0.1 needs steps of warm-up, got warmup 0: set warmup, or leave it"),
    ({"schedule": "constant", "final_fraction": 0.5}, "train.final_fraction 0.5 needs an end to reach, got schedule"),
    ({"eps": 1e-40}, "eps must be at least 1.2e-38, the least that float32 holds to all its digits, got 1e-40"),
    ({"steps": None, "bytes": 100}, r"bytes must be a step or more, batch \* context 128, got 100"),
]


@pytest.mark.parametrize(("old", "new", "message"), REPLACED)
def test_mistakes_are_one_line(write: Write, old: str, new: str, message: str) -> None:
    path = write()
    path.write_text(path.read_text().replace(old, new, 1))
    refused(path, message)


@pytest.mark.parametrize(("arm", "model", "message"), ARMS)
def test_arms_that_fit_no_model_are_refused(write: Write, arm: str, model: str, message: str) -> None:
    error = refused(write(arm, model), message)
    assert "power-law" in error


@pytest.mark.parametrize(("tables", "message"), TABLES)
def test_hypotheses_and_gates_that_fit_no_study_are_refused(write: Write, tables: str, message: str) -> None:
    refused(write(more=tables), message)


@pytest.mark.parametrize(("options", "message"), TRAIN)
def test_protocols_that_do_not_hold_together_are_refused(write: Write, options: dict, message: str) -> None:
    refused(write(**options), message)


def refused(path: Path, message: str) -> str:
    with pytest.raises(ValueError, match=message) as error:
        load_spec(path)
    assert str(path) in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


def test_no_object_a_pipe_and_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text("[]")
    os.mkfifo(tmp_path / "pipe.toml")
    for name, message in {"spec.json": "holds a list", "pipe.toml": "a pipe or device", "no.toml": "no such"}.items():
        with pytest.raises(ValueError, match=f"{name}: .*{message}"):
            load_spec(tmp_path / name)


# Options of a command line -------------------------------------------------------------------------------------------


def parse(*args: str) -> tuple[Spec, Path | None]:
    taken: list[tuple[Spec, Path | None]] = []

    def command(spec: Spec, out: Path | None = None) -> None:
        taken.append((spec, out))

    command_line.main(command, args)
    return taken[0]


def test_every_form_of_an_option(tiny_spec: Write) -> None:
    """Underscores for hyphens, =, several values, None, switches, tables, and options of an arm's model."""
    spec, out = parse(
        *(str(tiny_spec()), "--train.learning_rate=0.5", "--train.steps", "None", "--train.minutes", "2"),
        *("--seeds", "3", "4", "5", "--out", "here", "--arms.power_law.beta", "0.9", "--report-steps"),
        *("--arms.uniform.scheme-options", "std", "0.1", "--arms.power-law.model.gain", "ema", "--model.no-k-clamp"),
        *("--spec.train.decay-multiplier", "0", "--train.compile", "--corpus.separator", "-1"),
    )
    assert (spec.train.learning_rate, spec.train.steps, spec.train.minutes) == (0.5, None, 2.0)
    assert (spec.seeds, spec.report_steps, out) == ((3, 4, 5), (), Path("here"))
    assert (spec.arms["power-law"].beta, spec.arms["uniform"].scheme_options) == (0.9, {"std": 0.1})
    assert (spec.model_of("power-law").gain, spec.model_of("uniform").gain) == ("ema", "none")
    assert (spec.model.k_clamp, spec.train.compile, spec.train.decay_multiplier) == (False, True, 0.0)
    assert spec.corpus.separator == "-1"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--train.steps", "-3"], "train.steps: Input should be greater than or equal to 1, got '-3'"),
        (["--train.minutes", "1"], "give exactly one of steps, bytes and minutes"),
        (["--baseline", "powerlaw"], "did you mean 'power-law'"),
        (["--train.stepps", "5"], "unknown option --train.stepps; did you mean --train.steps?"),
        (["--steps", "5"], "unknown option --steps; did you mean --train.steps or --tuning.steps?"),
        (["--arms.powerlaw.beta", "1"], "unknown option --arms.powerlaw.beta; did you mean --arms.power-law.beta?"),
        (["--factors.gain", "1"], "unknown option --factors.gain"),
        (["--train.steps"], "--train.steps: expected one value, INT, got nothing"),
        (["--train.steps", "ten"], "train.steps: Input should be a valid integer, .* got 'ten'"),
        (["--train.steps", "5", "6"], "--train.steps: expected one value, INT, got 5 6"),
        (["--seeds", "0", "x"], "seeds.1: Input should be a valid integer, .* got 'x'"),
        (["--arms.uniform.kernel", "rsm"], "kernel: Input should be 'coherent' or 'rms', got 'rsm'"),
        (["--arms.uniform.scheme-options", "std"], "expected pairs of a name and a value, got std"),
        (["--outt", "here"], "unknown option --outt; did you mean --out?"),
        (["--out"], "Missing value for argument '--out'"),
        (["here"], "'here' belongs to no option"),
    ],
)
def test_wrong_options_are_one_line(
    tiny_spec: Write, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(str(tiny_spec()), *flags)
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert re.search(message.replace("?", "[?]"), error)
    assert len(error.splitlines()) == 1


def test_the_spec_comes_first_and_help_lists_its_fields(
    tiny_spec: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tiny_spec())
    for arguments, code, message in (
        ([path.replace("tiny", "tinny")], 2, f"no such file or folder; did you mean {path}?"),
        (["--out", "here"], 2, "the spec comes first"),
        ([str(tmp_path)], 2, "is a folder; name a TOML file, or the spec.json of a study"),
        (["--help-all"], 0, "Peak learning rate of AdamW"),
        ([path, "--help-all"], 0, "--train.steps INT (now 12)"),
        ([path, "--help-all"], 0, "--model.patching.mode {causal,published} (now 'causal')"),
        (["--help"], 0, "Example: "),
    ):
        with pytest.raises(SystemExit) as stop:
            parse(*arguments)
        printed = capsys.readouterr()
        assert (stop.value.code, message in (printed.err if code else printed.out)) == (code, True), arguments


# Reading back, recipes, hypotheses, names -----------------------------------------------------------------------------


def test_specs_round_trip_through_json(write: Write, tmp_path: Path) -> None:
    spec = load_spec(write(more=HYPOTHESIS + GATE, recipe="blinkdl", beta2=0.95))
    assert (spec.train.beta2, spec.train.eps, spec.train.l2wrap, spec.train.learning_rate) == (0.95, 1e-18, 1e-4, 0.01)
    save_json(tmp_path / "spec.json", spec.model_dump(mode="json"))
    assert load_spec(tmp_path / "spec.json") == spec
    assert parse_spec(load_json(tmp_path / "spec.json"), "here") == spec
    assert spec.hypotheses == (Hypothesis(name="it helps", arm="power-law", against="uniform", claim="lower"),)
    assert spec.gates == (Gate(name="has learnt", arm="uniform", at_most=4.0),)
    assert {family: len(of) for family, of in families(spec.hypotheses).items()} == {"main": 1}
    plain = load_spec(write(recipe="blinkdl", beta2=0.95))
    assert all(plain.condition(arm).config == spec.condition(arm).config for arm in plain.arms), "no run knows of them"


def test_a_recipe_as_an_option_fills_what_file_and_options_leave_open(tiny_spec: Write) -> None:
    """A value given as the default is given all the same."""
    options = ("--train.recipe", "blinkdl", "--train.weight-decay", "0.01", "--train.beta2=0.999")
    train = parse(str(tiny_spec(eps=1e-8)), *options)[0].train
    assert (train.eps, train.weight_decay, train.beta2, train.l2wrap) == (1e-8, 0.01, 0.999, 1e-4)
    off = parse(str(tiny_spec(recipe="blinkdl", beta2=0.95)), "--train.recipe", "None")[0].train
    assert (off.recipe, off.beta2, off.eps, off.warmup_from, off.l2wrap) == (None, 0.95, 1e-8, None, 0.0)
    plain, filled = TrainSpec(steps=9), TrainSpec(steps=9, recipe="blinkdl")
    assert len({name for name in TrainSpec.model_fields if getattr(plain, name) != getattr(filled, name)}) == 8


def test_an_arm_may_train_its_own_way(write: Write) -> None:
    spec = load_spec(write(more="[arms.frozen]\ntrain = { decay_multiplier = 0, clip = 0.5 }\n"))
    own, others = spec.condition("frozen").protocol, spec.condition("uniform").protocol
    assert (own.decay_multiplier, own.clip) == (0, 0.5)
    assert own.model_copy(update={"decay_multiplier": None, "clip": 1.0}) == others == spec.train
    assert "train" not in spec.condition("frozen").config["arm_options"]


def test_what_comes_with_plkernel_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in specs():
        line = next(line for line in listing().splitlines() if line.startswith(f"{name} "))
        assert COST.search(line)
        assert load_spec(name).description in line
    (tmp_path / "quick").mkdir()  # as a study with --out quick leaves one
    assert find("quick").resolve() == RUNS / "quick.toml"
    (tmp_path / "quick.toml").write_text("")
    assert find("quick.toml") == Path("quick.toml")
    for given, message in {
        "qick": "none of that name comes with plkernel; did you mean 'quick'",
        "runs/quick.toml": "did you mean quick, which comes with plkernel",
    }.items():
        with pytest.raises(ValueError, match=message):
            find(given)
    command("finch")
    assert capsys.readouterr().out.encode() == (RUNS / "finch.toml").read_bytes()
    for name, path in roles().items():
        assert RoleTable.from_toml(name) == RoleTable.from_toml(path)


# Nodes ---------------------------------------------------------------------------------------------------------------


def test_quantile_arms_place_what_they_say(write: Write) -> None:
    options = {"loss": 0.1, "max_lag": 500, "target": "correlation", "kernel": "rms", "lag": "distance"}
    lines = "".join(f"{name} = {value!r}\n" for name, value in options.items())
    spec = load_spec(write(f"{QUANTILE}\ntempering = 0.5\n{lines}", 'gain = "lru"\npatching = { size = 2 }'))
    assert nodes_of(spec) == place(16, placement="quantile", gain="lru", tempering=0.5, step=2, **options)


@pytest.mark.parametrize("name", ["baseline", "uniform"])
def test_matched_arms_have_the_output_of_the_arm_they_name(write: Write, name: str) -> None:
    path = write(f'{QUANTILE}\nmatch = "{name}"')
    spec, plain = load_spec(path), load_spec(write(QUANTILE))
    assert output_std(nodes_of(spec)) == pytest.approx(output_std(nodes_of(spec, "uniform")), rel=1e-12)
    assert output_std(nodes_of(plain)) != pytest.approx(output_std(nodes_of(plain, "uniform")), rel=0.1)
    assert nodes_of(spec).rates == nodes_of(plain).rates
    changed, _ = parse(str(write(f'{QUANTILE}\nmatch = "{name}"')), "--arms.uniform.longest", "50")
    assert output_std(nodes_of(changed)) == pytest.approx(output_std(nodes_of(changed, "uniform")), rel=1e-12)
    (difference,) = differences(spec.arm("power-law").model_dump(), changed.arm("power-law").model_dump())
    assert difference.startswith("output_std was ")


def test_nodes_are_read_from_a_file_once_and_known_by_their_values(
    write: Write, node_file: Path, tmp_path: Path
) -> None:
    path, content = write(f"node_file = '{node_file}'", 'gain = "ema"'), load_json(node_file)
    spec, other = load_spec(path), place(16, placement="concentrated", gain="ema")
    save_json(tmp_path / "other.json", {"nodes": other.to_dict()})
    assert nodes_of(parse(str(path), "--arms.power-law.node-file", str(tmp_path / "other.json"))[0]) == other
    node_file.unlink()
    save_json(tmp_path / "spec.json", spec.model_dump(mode="json"))
    assert load_spec(tmp_path / "spec.json") == spec
    assert nodes_of(spec) == Nodes.from_dict(content["nodes"])
    content["nodes"]["rates"][3] *= 1 + 1e-15
    save_json(node_file, content)
    changed = differences(spec.arm("power-law").model_dump(), load_spec(path).arm("power-law").model_dump())
    assert [line.split(" was ")[0] for line in changed] == ["node_file", "node_rates"]


@pytest.mark.parametrize(
    ("content", "lines", "message"),
    [
        ({"nodes": place(16).to_dict()}, 'gain = "lru"', "assume gain 'none', but model.gain is 'lru'"),
        ({"nodes": place(8).to_dict()}, "", "are 8 rates and 8 multipliers, but model.dim is 16"),
        ({"nodes": [1.0]}, "", "no node set in it, expected"),
        ([1.0], "", "no node set in it, expected"),
        ({"nodes": {**place(16).to_dict(), "rates": [-1.0] * 16}}, "", "node_rates.0: .*greater"),
        ({"nodes": {**place(16).to_dict(), "rates": [1e-12] * 16}}, "", "1e-12 per byte is no rate that a float32"),
        ({"nodes": {**place(16).to_dict(), "projection": [1e30] * 16}}, "", "node_multipliers 1e.30 makes the largest"),
        ({"nodes": place(16).to_dict()}, "longest = 50", "longest 50.0 does not go with node_file"),
        ({"nodes": place(16).to_dict()}, QUANTILE, "placement does not go with node_file"),
    ],
)
def test_node_files_that_do_not_fit_are_refused(
    write: Write, tmp_path: Path, content: object, lines: str, message: str
) -> None:
    save_json(tmp_path / "nodes.json", content)
    of_model = lines.startswith("gain")
    arm = f"node_file = '{tmp_path / 'nodes.json'}'\n{'' if of_model else lines}"
    assert "arms.power-law" in refused(write(arm, lines if of_model else ""), message)


@pytest.mark.parametrize("gain", ["none", "ema", "lru"])
def test_nodes_per_byte_keep_their_kernel_in_patches(gain: str) -> None:
    """A step of three bytes: the same coherent kernel at three times the lag, under the gain of the new rates."""
    nodes = place(16, gain=gain, projection="gain-corrected")
    arm = Arm(node_rates=nodes.rates, node_multipliers=nodes.projection, node_gain=gain)
    patched = resolve(ModelSpec.model_validate({"dim": 16, "gain": gain, "patching": {"size": 3}}), arm).nodes
    steps = np.arange(1, 100)
    ratio = patched.kernel().kernel(steps) / nodes.kernel().kernel(3 * steps)
    assert ratio == pytest.approx(ratio[0], rel=1e-12)
    assert np.mean(patched.projection) == pytest.approx(1)


def test_unread_references_are_not_ignored() -> None:
    for arm in (Arm(match="baseline"), Arm(node_file="fit.json")):
        with pytest.raises(ValueError, match="read the spec with load_spec"):
            _ = resolve(ModelSpec(), arm).nodes


# Factors -------------------------------------------------------------------------------------------------------------

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


def design(**values: Any) -> Spec:
    return parse_spec({**DESIGN, **values}, "here")


def test_a_full_factorial_has_every_combination_once_and_compares_within_blocks() -> None:
    arms = {"quantile": {"placement": "quantile"}, "twin": {"match": "concentrated_uniform"}}
    spec = design(arms={**arms, "log-spaced_uniform": {"beta": 0.9}, "log-spaced_uniform_ema": {"learning_rate": 0.5}})
    assert (len(spec.arms), spec.baseline) == (12, "log-spaced_uniform_none")
    for name, arm in spec.arms.items():
        assert arm.levels is not None
        gain = name.rpartition("_")[2]
        base = f"log-spaced_uniform_{gain}"
        assert (arm.against, spec.condition(name).nodes.gain) == (None if name == base else base, gain)
        if len(arm.levels) == 3:
            assert name == "_".join(arm.levels.values())
            assert (arm.placement, arm.projection) == (arm.levels["placement"], arm.levels["projection"])
    for gain in ("none", "ema"):
        other = spec.condition(f"concentrated_uniform_{gain}").nodes
        assert spec.arms[f"twin_{gain}"].output_std == pytest.approx(output_std(other))
    assert [spec.arms[f"log-spaced_uniform_{gain}"].beta for gain in ("none", "ema")] == [0.9, 0.9]
    assert [spec.arms[f"log-spaced_uniform_{gain}"].learning_rate for gain in ("none", "ema")] == [None, 0.5]
    assert parse_spec(spec.model_dump(mode="json"), "again") == spec
    values = expanded({**DESIGN, "arms": arms})
    assert expanded(values) == values


def test_levels_by_name_and_designs_without_a_crossed_factor() -> None:
    patchings = {"bytes": {}, "pairs": {"model": {"patching": {"size": 2}}}}
    spec = design(within=["patching"], factors={"beta": [0.6, 1.15], "patching": patchings})
    assert list(spec.arms) == ["0.6_bytes", "1.15_bytes", "0.6_pairs", "1.15_pairs"]
    assert [spec.model_of(name).patching.size for name in spec.arms] == [1, 1, 2, 2]
    arms, gains = {"plain": {}, "law": {"projection": "gain-corrected"}}, {"model.gain": ["none", "ema"]}
    spec = design(factors=gains, arms=arms, baseline="plain")
    assert list(spec.arms) == ["plain_none", "law_none", "plain_ema", "law_ema"]
    assert (spec.baseline, spec.arms["law_ema"].against) == ("plain_none", "plain_ema")
    short, whole = (expanded({**DESIGN, "baseline": f"log-spaced_uniform{block}"}) for block in ("", "_none"))
    assert whole == short
    one = {"name": "a", "arm": "plain_ema", "claim": "higher"}
    with pytest.raises(ValueError, match="hypotheses 'a': against is missing: arm 'plain_ema' is a baseline"):
        design(factors=gains, arms=arms, baseline="plain", hypotheses=[one])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"factors": {"placement": ["log-spaced"]}, "within": []}, "factors.placement: needs two levels or more"),
        ({"factors": {"x": {"a": 3, "b": 4}}, "within": []}, "factors.x.a: expected a table of options"),
        ({"factors": {"placement": "log-spaced"}, "within": []}, "factors.placement: expected a list of values"),
        (
            {"factors": {"beta": [1.0, 1.2], "x": {"a": {"beta": 1.1}, "b": {}}}, "within": []},
            "factors beta and x both set beta",
        ),
        ({"factors": {"model.gian": ["none", "ema"]}, "within": []}, "arms.none: unknown key 'gian' in .model."),
        ({"arms": {"x": {"against": "nobody"}}}, "arms.x_none: against 'nobody' is not another arm"),
        ({"factors": {"model.gain": ["none", "ema"]}, "arms": {"a": {}}}, "baseline is missing"),
        (
            {"within": [], "factors": {f"f{i}": list(range(10)) for i in range(300)}},
            r"300 factors .* more than 10\*\*15",
        ),
        ({"within": [], "factors": {f"f{i}": [0, 1] for i in range(13)}}, "make 8,192 arms, and a study has 4,096"),
    ],
)
def test_mistakes_in_a_design_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        design(**values)
