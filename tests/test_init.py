"""python -m plkernel.init: schemes named, shown at any size, checked; and one line for every mistake."""

import json
import re
import runpy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from plkernel.commands.init import check, listing, show
from plkernel.common import cli
from plkernel.init_command.check import render, verdict
from plkernel.init_command.options import arm_of, spec_of
from plkernel.init_command.show import planned
from plkernel.models.init import SCHEMES
from plkernel.models.init.plan import Plan
from plkernel.models.words import ModelKind

Shown = pytest.CaptureFixture[str]


def test_list_names_every_scheme_with_source_and_constants(capsys: Shown) -> None:
    listing()
    text = capsys.readouterr().out
    flat = " ".join(text.split())
    lines = {line.split()[0] for line in text.splitlines() if line.strip()}
    for name, scheme in SCHEMES.items():
        assert name in lines
        assert scheme.summary
        assert scheme.source in flat
        for option, default in scheme.options.items():
            assert f"{option}={default:g}" in flat
    assert max(map(len, text.splitlines())) <= 120
    assert f"{len(SCHEMES)} schemes" in text


@pytest.mark.parametrize("page", ["README.md", "docs/initialising.md"])
def test_the_pages_count_the_schemes(page: str) -> None:
    text = " ".join((Path(__file__).parent.parent / page).read_text().split())
    assert re.findall(r"(\d+) schemes", text) == [str(len(SCHEMES))]


def test_a_scheme_that_needs_data_says_so(capsys: Shown) -> None:
    listing("auto_init")
    assert "calibrated on a batch, which a run does by itself" in capsys.readouterr().out
    listing()
    assert capsys.readouterr().out.count("calibrated on a batch") == 1
    show("auto_init", dim=64, option=("target=0.5",))
    assert "of its\nbranch is 0.5; a run does this by itself" in capsys.readouterr().out
    show("mup_table8", dim=64, option=("sgd=1",))
    assert "the rates are for SGD; a run here has AdamW" in capsys.readouterr().out


def test_list_finds_by_part_by_pattern_and_by_name(capsys: Shown) -> None:
    listing("MUP")
    assert "megatron_mup" in (found := capsys.readouterr().out)
    assert "olmo" not in found
    listing("olmo*")
    assert "3 schemes" in capsys.readouterr().out
    listing("mup_table8")
    assert "zero_readout: the head and the queries start at zero" in capsys.readouterr().out
    with pytest.raises(ValueError, match="did you mean 'trinity'"):
        listing("trinty")


@pytest.mark.parametrize(
    "kind",
    ["ssm", "rwkv6", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("rwkv5", "rwkv7"))],
)
def test_every_scheme_shows_on_every_model_it_is_for(kind: ModelKind, capsys: Shown) -> None:
    refused = []
    for name in SCHEMES:
        try:
            show(name, model=kind, dim=64, layers=2)
        except ValueError as error:
            assert " not for RWKV-" in str(error)  # noqa: PT017
            refused.append(name)
            continue
        text = capsys.readouterr().out
        assert f"{name} on {kind}, width 64, 2 blocks" in text
        assert "asks of the model:" in text
    foreign = {"ssm": "none", "rwkv5": "finch|rwkv7", "rwkv6": "eagle|rwkv7", "rwkv7": "finch|eagle|blinkdl|u_mup"}
    assert set(refused) == {name for name in SCHEMES if re.search(foreign[kind], name)}


def test_what_a_goose_erases_is_shown(capsys: Shown) -> None:
    """Half-lives of every block, and slopes with erasing and without; at any width, measured on a small one."""
    show("rwkv7_official", model="rwkv7", dim=4096, layers=2, head_size=16)
    text = capsys.readouterr().out
    assert "memory at the start, width 64, 2 blocks: half-lives of 1.2 to 3.41e+03; " in text
    assert "with erasing and by decays alone" in text
    show("rwkv_blinkdl", model="rwkv6", dim=64)
    assert "erasing" not in capsys.readouterr().out


def test_a_model_of_a_hundred_billion_is_shown_at_once(capsys: Shown) -> None:
    start = time.process_time()
    show("megatron_mup", dim=13312, layers=96, option=("base_width=256",))
    assert time.process_time() - start < 3
    text = capsys.readouterr().out
    width = 13312
    count = 96 * (2 * width**2 + 3 * width * (4 * width // 3) + 7 * width) + 2 * 256 * width + 2 * width
    assert f"{count:,} parameters" in text
    assert "0-95" in text
    assert "the logits times 0.0192308" in text


def test_needs_and_multipliers_are_told_in_words(capsys: Shown) -> None:
    for name, told in {
        "fixup": "no norms at all",
        "trinity": "the embedding's output times 8",
        "deepnorm_decoder": "a = 1.68179 in norm(a x + f(x))",
        "rezero": "one learned number that multiplies every residual branch",
        "small_init_scalenorm_fixnorm": "ScaleNorm: g x / |x|",
        "gpt2": "nothing",
    }.items():
        show(name, dim=64)
        assert told in capsys.readouterr().out.split("asks of the model:")[1]
    show("u_mup", layers=8)
    assert "each branch times a number of its own, from 0.3536 (mixer.0)" in capsys.readouterr().out


def test_against_tells_what_differs(capsys: Shown) -> None:
    show("megatron_default", dim=64, layers=3, option=("std=0.1",), against="transformers_default")
    told = capsys.readouterr().out.split("megatron_default -> transformers_default:")[1].strip().splitlines()
    assert [line.split(":")[0].strip() for line in told] == ["blocks.*.ssm.C_proj.weight", "blocks.*.mlp.down.weight"]
    assert told[0].endswith("N(0.04082) -> N(0.1)  (blocks 0-2)")
    show("gpt2", against="gpt2")
    assert "gpt2 -> gpt2: no difference" in capsys.readouterr().out


def test_the_plan_is_saved(tmp_path: Path, capsys: Shown) -> None:
    show("u_mup", model="rwkv6", dim=64, layers=2, json=tmp_path / "plan.json")
    values = json.loads((tmp_path / "plan.json").read_text())
    assert values.pop("model") == "rwkv6"
    assert Plan.from_dict(values) == planned(spec_of("rwkv6", 64, 2), arm_of("u_mup", ()))


SMALL: dict[str, Any] = {"widths": (16, 32, 64), "layers": 1, "depths": (1, 3), "dim": 16, "steps": 2, "threads": 1}


@pytest.mark.parametrize("kind", [pytest.param("ssm", marks=pytest.mark.slow), "rwkv6"])
def test_check_prints_and_writes_what_it_found(kind: ModelKind, tmp_path: Path, capsys: Shown) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the same few words over and over again. " * 40)
    check(
        "megatron_mup",
        kind,
        **SMALL,
        head_size=None if kind == "ssm" else 4,
        corpus=str(text),
        option=("base_width=16",),
        out=tmp_path,
    )
    out = capsys.readouterr().out
    for part in ("width 16", "width 64", "mixer 0", "logits", "verdict:", "growth per block", "2 steps of Adam"):
        assert part in out
    values = json.loads((tmp_path / f"megatron_mup-{kind}.json").read_text())
    assert values["options"] == {"base_width": 16.0}
    assert [item["depth"] for item in values["depths"]] == [1, 3]
    assert len(values["depths"][1]["forward"]) == 4
    assert set(values["slopes"]) == set(values["coordinates"]["changes"])
    for suffix in ("pdf", "png", "svg"):
        assert (tmp_path / f"megatron_mup-{kind}.{suffix}").stat().st_size > 1000


def test_check_tells_the_same_twice(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("bytes " * 400)
    found = []
    for _ in range(2):
        check("gpt2", **SMALL, seeds=1, corpus=str(text), out=tmp_path, figure=False)
        found.append((tmp_path / "gpt2-ssm.json").read_bytes())
    assert found[0] == found[1]


def test_verdict_groups_what_is_not_flat() -> None:
    from plkernel.analysis.trained.coordinates import Coordinates

    def line(exponent: float) -> list[list[list[float]]]:
        return [[[width**exponent]] for width in (2, 4)]

    changes = {"a": line(0), "b": line(1), "c": line(-0.5), "d": line(0.5), "e": [[[0.0]], [[0.0]]]}
    found = Coordinates((2, 4), 1e-3, {}, changes)
    assert verdict(found) == "not flat in width; grows: b (+1.00), d (+0.50); shrinks: c (-0.50); does not move: e"
    assert verdict(Coordinates((2, 4), 1e-3, {}, {"a": line(0)})) == "flat in width within 0.1, all 1"
    assert "flat within 0.1" in render(found, "x")


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda: show("megatron_defualt"), "nearest: megatron_default"),
        (lambda: show("nonsense"), "'nonsense' does not exist; plkernel.init list names them"),
        (lambda: show("gpt2", option=("sd=1",)), "has no option 'sd'; valid: std, position_std"),
        (lambda: show("gpt2", option=("std",)), "option must be NAME=VALUE"),
        (lambda: show("gpt2", option=("std=x",)), "option std must be a number, true or false, got 'x'"),
        (lambda: show("gpt2", option=("std=-1",)), "must be a finite number of at least 0"),
        (lambda: show("gpt2", against="gpt3"), "nearest: gpt2"),
        (lambda: show("gpt2", dim=1), "width must be at least 2, got 1"),
        (lambda: show("gpt2", layers=0), "number of blocks must be at least 1, got 0"),
        (lambda: show("gpt2", "rwkv5", dim=48), "width 48 must be a multiple of head_size 32"),
        (lambda: show("rwkv_eagle_paper", "rwkv6"), "not for RWKV-6"),
        (lambda: check("gpt2", depths=()), "depths must be at least 1"),
        (lambda: check("gpt2", widths=(64,)), "widths must be at least two, got 64"),
        (lambda: check("gpt2", "rwkv6", widths=(48, 64)), "width 48 must be a multiple"),
    ],
)
def test_mistakes_are_answered_in_one_line(action: Any, message: str, capsys: Shown) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.report_errors(action)
    assert stopped.value.code == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ")
    assert message in error
    assert "\n" not in error


@pytest.mark.slow
def test_help_leads_from_list_to_show_to_check() -> None:
    def run(*words: str) -> str:
        command = [sys.executable, "-m", "plkernel.init", *words]
        return " ".join(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.split())

    assert all(name in run("--help") for name in ("list", "show", "check"))
    text = run("show", "--help")
    assert "RoleTable.from_toml" in text
    assert "plkernel.init list" in text
    assert "Tensor Programs V" in run("check", "--help")


def test_repeated_options_all_count(monkeypatch: pytest.MonkeyPatch, capsys: Shown) -> None:
    """From the command line, where the last of several flags of one name would otherwise be the only one."""
    options = ["--option", "zero_readout=1", "--option", "base_width=64"]
    monkeypatch.setattr(sys, "argv", ["plkernel.init", "show", "mup_table8", *options])
    monkeypatch.delitem(sys.modules, "plkernel.commands.init")
    runpy.run_module("plkernel.init", run_name="__main__")
    printed = capsys.readouterr().out
    assert "base_width = 64," in printed
    assert "zero_readout = 1" in printed


def test_a_head_size_of_a_model_without_heads_is_refused() -> None:
    with pytest.raises(ValueError, match="head_size 16 belongs to models rwkv5 to rwkv7, got model 'ssm'"):
        show("gpt2", head_size=16)
