"""Arms: quantile nodes, arms matched in output, and node sets read from a file into the spec."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from plkernel.analysis.nodes import Nodes, output_std, place
from plkernel.common.files import load_json, save_json
from plkernel.config import command_line
from plkernel.config.arm import Arm
from plkernel.config.condition import resolve
from plkernel.config.model import ModelSpec
from plkernel.config.reading import load_spec
from plkernel.config.study import Spec
from plkernel.training.folder import differences

Write = Callable[..., Path]


@pytest.fixture
def write(tiny_spec: Write) -> Write:
    """A tiny spec (width 16) with the given lines in its second arm and in its model."""

    def write(arm: str, model: str = "", more: str = "") -> Path:
        path = tiny_spec()
        text = path.read_text().replace('projection = "published"', arm).replace("[model]", f"[model]\n{model}")
        path.write_text(text + more)
        return path

    return write


@pytest.fixture
def node_file(tmp_path: Path) -> Path:
    """What plkernel.fit writes: nodes per byte among other keys."""
    nodes = place(16, placement="quantile", gain="ema", tempering=0.5)
    save_json(tmp_path / "fit.json", {"beta": 1.15, "nodes": nodes.to_dict()})
    return tmp_path / "fit.json"


def nodes_of(spec: Spec, arm: str = "power-law") -> Nodes:
    return resolve(spec.model, spec.arm(arm)).nodes


def test_quantile_arms_place_what_they_say(write: Write) -> None:
    arm = 'placement = "quantile"\ntempering = 0.5\nloss = 0.1\nmax_lag = 500\n'
    arm += 'target = "correlation"\nkernel = "rms"\nlag = "distance"'
    spec = load_spec(write(arm, 'gain = "lru"\npatching = { size = 2 }'))
    expected = place(
        16,
        placement="quantile",
        gain="lru",
        tempering=0.5,
        loss=0.1,
        max_lag=500,
        target="correlation",
        kernel="rms",
        lag="distance",
        step=2,
    )
    assert nodes_of(spec) == expected


def test_arms_of_before_are_what_they_were(write: Write) -> None:
    """A run made before these options existed still belongs to its folder, and its nodes are the same."""
    spec = load_spec(write('placement = "concentrated"\nprojection = "published"'))
    before = {"placement": "concentrated", "projection": "published", "beta": 1.15, "shortest": 1.0, "longest": 2000.0}
    assert differences(before, spec.arm("power-law").model_dump()) == []
    assert nodes_of(spec) == place(16, placement="concentrated", projection="published")


@pytest.mark.parametrize("name", ["baseline", "uniform"])
def test_matched_arms_have_the_output_of_the_arm_they_name(write: Write, name: str) -> None:
    spec = load_spec(write(f'placement = "quantile"\nmatch = "{name}"'))
    plain = load_spec(write('placement = "quantile"'))
    assert output_std(nodes_of(spec)) == pytest.approx(output_std(nodes_of(spec, "uniform")), rel=1e-12)
    assert output_std(nodes_of(plain)) != pytest.approx(output_std(nodes_of(plain, "uniform")), rel=0.1)
    assert nodes_of(spec).rates == nodes_of(plain).rates


def test_a_changed_baseline_changes_the_identity_of_a_matched_arm(write: Write) -> None:
    arms = [
        load_spec(write(f'projection = "published"\nmatch = "other"\n[arms.other]\nlongest = {longest}')).arm(
            "power-law"
        )
        for longest in (2000.0, 500.0)
    ]
    (difference,) = differences(arms[0].model_dump(), arms[1].model_dump())
    assert difference.startswith("output_std was ")


def test_flags_that_change_the_matched_arm_count(write: Write) -> None:
    taken: list[Spec] = []

    def command(spec: Spec) -> None:
        taken.append(spec)

    path = write('projection = "published"\nmatch = "baseline"')
    command_line.main(command, [str(path), "--spec.arms.uniform.longest", "50", "--spec.arms.power-law.beta", "0.9"])
    assert output_std(nodes_of(taken[0])) == pytest.approx(output_std(nodes_of(taken[0], "uniform")), rel=1e-12)
    assert output_std(nodes_of(taken[0])) != pytest.approx(output_std(nodes_of(load_spec(path))), rel=0.1)


def test_nodes_are_read_from_a_file_once(write: Write, node_file: Path, tmp_path: Path) -> None:
    """The saved spec holds the values, and needs the file no more."""
    spec = load_spec(write(f"node_file = '{node_file}'", 'gain = "ema"'))
    expected = Nodes.from_dict(load_json(node_file)["nodes"])
    assert nodes_of(spec) == expected
    node_file.unlink()
    save_json(tmp_path / "spec.json", spec.model_dump(mode="json"))
    assert load_spec(tmp_path / "spec.json") == spec
    json.dumps(spec.arm("power-law").model_dump())


def test_a_changed_file_is_noticed(write: Write, node_file: Path) -> None:
    path = write(f"node_file = '{node_file}'", 'gain = "ema"')
    before = load_spec(path).arm("power-law").model_dump()
    assert differences(before, load_spec(path).arm("power-law").model_dump()) == []
    content = load_json(node_file)
    content["nodes"]["rates"][3] *= 1 + 1e-15
    save_json(node_file, content)
    after = load_spec(path).arm("power-law").model_dump()
    assert [line.split(" was ")[0] for line in differences(before, after)] == ["node_file", "node_rates"]


def test_a_flag_names_another_file(write: Write, node_file: Path, tmp_path: Path) -> None:
    other = place(16, placement="concentrated", gain="ema")
    save_json(tmp_path / "other.json", {"nodes": other.to_dict()})
    taken: list[Spec] = []

    def command(spec: Spec) -> None:
        taken.append(spec)

    path = write(f"node_file = '{node_file}'", 'gain = "ema"')
    command_line.main(command, [str(path)])
    command_line.main(command, [str(path), "--spec.arms.power-law.node-file", str(tmp_path / "other.json")])
    assert taken[0] == load_spec(path)
    assert nodes_of(taken[1]) == other


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


MISTAKES = {
    "tempering of others": ("tempering = 0.5", "tempering belongs to placement 'quantile', got placement 'log-spaced'"),
    "tempering too large": ('placement = "quantile"\ntempering = 2', "tempering: .*less than or equal to 1, got 2"),
    "two shapes": ('placement = "quantile"\nprojection = "published"', "does not go with placement 'quantile'"),
    "aim of uniform": ('lag = "distance"', "projection 'uniform' follows no target, kernel or lag"),
    "unknown target": ('target = "mutual"', "target: .*'information' or 'correlation', got 'mutual'"),
    "terms": ('placement = "terms"', "placement 'terms' needs a fit: .* node_file"),
    "match nobody": ('match = "unifrom"', "match 'unifrom' is not an arm; did you mean 'uniform'"),
    "match itself": ('match = "power-law"', "match 'power-law' is itself matched"),
    "no file": ('node_file = "none.json"', "none.json: no such file"),
    "half a set": ("node_rates = [1.0]", "node_multipliers is missing"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_line(write: Write, mistake: str) -> None:
    arm, message = MISTAKES[mistake]
    path = write(arm)
    with pytest.raises(ValueError, match=message) as error:
        load_spec(path)
    assert len(str(error.value).splitlines()) == 1
    assert str(path) in str(error.value)
    assert "power-law" in str(error.value)


@pytest.mark.parametrize(
    ("content", "model", "message"),
    [
        ({"nodes": place(16).to_dict()}, 'gain = "lru"', "assume gain 'none', but model.gain is 'lru'"),
        ({"nodes": place(8).to_dict()}, "", "are 8 rates and 8 multipliers, but model.dim is 16"),
        ({"nodes": {**place(16).to_dict(), "projection": [1.0] * 15}}, "", "16 rates and 15 multipliers"),
        ({"rates": [1.0]}, "", "no node set in it, expected"),
        ({"nodes": [1.0]}, "", "no node set in it, expected"),
        ([1.0], "", "no node set in it, expected"),
        ({"nodes": {"rates": "abc", "projection": [], "gain": "none"}}, "", "no node set in it"),
        ({"nodes": {"rates": [-1.0] * 16, "projection": [1.0] * 16, "gain": "none"}}, "", "node_rates.0: .*greater"),
        ({"nodes": {"rates": [1.0] * 16, "projection": [1.0] * 16, "gain": "sqrt"}}, "", "node_gain: .*got 'sqrt'"),
    ],
)
def test_a_file_that_does_not_fit_is_one_line(
    write: Write, tmp_path: Path, content: object, model: str, message: str
) -> None:
    save_json(tmp_path / "nodes.json", content)
    path = write(f"node_file = '{tmp_path / 'nodes.json'}'", model)
    with pytest.raises(ValueError, match=message) as error:
        load_spec(path)
    assert len(str(error.value).splitlines()) == 1
    assert "arms.power-law" in str(error.value)


def test_placed_nodes_take_no_placement(write: Write, node_file: Path) -> None:
    for line, key in (
        ('placement = "quantile"', "placement"),
        ('lag = "distance"', "lag"),
        ("tempering = 1", "tempering"),
    ):
        with pytest.raises(ValueError, match=f"{key} does not go with node_file"):
            load_spec(write(f"node_file = '{node_file}'\n{line}", 'gain = "ema"'))


def test_an_ambiguous_baseline_is_refused(write: Write) -> None:
    with pytest.raises(ValueError, match="match 'baseline' may mean the arm of that name or"):
        load_spec(write('match = "baseline"', more="[arms.baseline]\n"))


def test_unread_references_are_not_ignored() -> None:
    """An arm made without reading a spec does not silently train unmatched."""
    for arm in (Arm(match="baseline"), Arm(node_file="fit.json")):
        with pytest.raises(ValueError, match="read the spec with load_spec"):
            _ = resolve(ModelSpec(), arm).nodes


@pytest.mark.parametrize(
    ("lines", "options"),
    [
        ("placement = 'chrono'", {"placement": "chrono"}),
        ("placement = 'chrono'\nmax_lag = 64", {"placement": "chrono", "max_lag": 64.0}),
        ("placement = 'inverse-gamma'", {"placement": "inverse-gamma"}),
    ],
)
def test_starts_of_recurrent_networks_are_arms(write: Write, lines: str, options: dict) -> None:
    spec = load_spec(write(lines + "\nprojection = 'gain-corrected'", 'gain = "ema"'))
    assert nodes_of(spec) == place(16, projection="gain-corrected", gain="ema", **options)


PATCHES = "patching = { size = 100 }"
HELD = "use 0.00794 to 1.16e+07 bytes"


@pytest.mark.parametrize(
    ("arm", "model", "message"),
    [
        ("longest = 1e12", "", f"longest 1e+12 is no half-life that a float32 decay holds: {HELD}"),
        ("shortest = 1e-9", "", f"shortest 1e-09 is no half-life that a float32 decay holds: {HELD}"),
        ("shortest = 0.5", PATCHES, "shortest 0.5 is no half-life that a float32 decay holds (patches of 100 bytes)"),
        ('placement = "quantile"\nbeta = 1e-3', "", "beta 0.001 with loss 0.05 and max_lag 2048 places half-lives"),
        ('placement = "quantile"\nbeta = 1e38', "", "use a beta from 0.346 to 72.7"),
        ('placement = "quantile"\nmax_lag = 1e9', "", "use a shorter max_lag or a larger loss"),
        ('placement = "concentrated"', PATCHES, "placement 'concentrated', half-life 0.5 is no half-life"),
        ('projection = "published"\nbeta = 1e38', "", "beta 1e+38 takes the projection's weights"),
        ("output_std = 1e38", "", "output_std 1e+38 makes the largest multiplier of the projection"),
        ('placement = "chrono"\nmax_lag = 2', "", "max_lag must be above 2 under placement 'chrono', got 2"),
        ('placement = "chrono"\nmax_lag = 1e9', "", "placement 'chrono', half-life 2.16609e+07 is no half-life"),
        ('placement = "inverse-gamma"\nmax_lag = 9', "", "max_lag belongs to placement 'quantile' or 'chrono', got"),
        ('placement = "chrono"\nlongest = 5', "", "longest 5.0 belongs to placement 'log-spaced', got placement 'chr"),
        ('placement = "quantile"\nlongest = 5', "", "longest 5.0 belongs to placement 'log-spaced', got placement 'qu"),
        ("beta = 2", "", "beta 2.0 belongs to a power law: set a projection or placement 'quantile'"),
        ("beta = true", "", "arms.power-law.beta: must be a number, not true or false, got True"),
    ],
)
def test_impossible_nodes_and_options_without_effect_are_refused(
    write: Write, arm: str, model: str, message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        load_spec(write(arm, model))


@pytest.mark.parametrize(
    ("nodes", "more", "message"),
    [
        ({"rates": [1e-12] * 16}, "", "1e-12 per byte is no rate that a float32 decay holds: use 5.96e-08 to 87.3"),
        ({"projection": [1e30] * 16}, "", "node_multipliers 1e+30 makes the largest multiplier"),
        ({}, "\nlongest = 50", "longest 50.0 does not go with node_file"),
        ({}, "\nbeta = 2", "beta 2.0 does not go with node_file"),
    ],
)
def test_impossible_node_files_are_refused(
    write: Write, tmp_path: Path, nodes: dict[str, list[float]], more: str, message: str
) -> None:
    save_json(tmp_path / "nodes.json", {"nodes": {**place(16).to_dict(), **nodes}})
    with pytest.raises(ValueError, match=re.escape(message)):
        load_spec(write(f'node_file = "{tmp_path / "nodes.json"}"{more}'))
