"""python -m plkernel.init: schemes named, shown at any size; and one line for every mistake."""

import re
import time
from pathlib import Path
from typing import Any

import pytest

from plkernel.commands.init import listing, show
from plkernel.common import cli
from plkernel.models import ModelKind
from plkernel.models.init import SCHEMES

Shown = pytest.CaptureFixture[str]


def test_list_names_every_scheme_with_source_and_constants(capsys: Shown) -> None:
    listing()
    text = capsys.readouterr().out
    flat = " ".join(text.split())
    names = {line.split()[0] for line in text.splitlines() if line.strip()}
    for name, scheme in SCHEMES.items():
        assert name in names
        assert " ".join(scheme.about.partition("\n\n")[0].split()) in flat
        assert scheme.source in flat
        assert all(f"{option}={default:g}" in flat for option, default in scheme.options.items())
    assert max(map(len, text.splitlines())) <= 120
    assert f"{len(SCHEMES)} schemes" in text
    words = " ".join((Path(__file__).parents[1] / "docs/initialising.md").read_text().split())
    assert re.findall(r"(\d+) schemes", words) == [str(len(SCHEMES))]


def test_list_finds_by_part_by_pattern_and_by_name(capsys: Shown) -> None:
    listing("MUP")
    assert "megatron_mup" in (text := capsys.readouterr().out)
    assert "olmo" not in text
    listing("olmo*")
    assert "3 schemes" in capsys.readouterr().out
    listing("mup_table8")
    assert "zero_readout: the head and the queries are zero" in capsys.readouterr().out


@pytest.mark.parametrize(
    "kind",
    ["ssm", "rwkv6", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("rwkv5", "rwkv7"))],
)
def test_every_scheme_shows_on_every_model_it_is_for(kind: ModelKind, capsys: Shown) -> None:
    refused = set()
    for name in SCHEMES:
        try:
            show(name, model=kind, dim=64, layers=2)
        except ValueError as error:
            assert " for RWKV-" in str(error)  # noqa: PT017
            refused.add(name)
            continue
        text = capsys.readouterr().out
        assert f"{name} on {kind}, width 64, 2 blocks" in text
        assert "asks of the model:" in text
    wrong = {
        "ssm": "none",
        "rwkv5": "rwkv7|finch",
        "rwkv6": "rwkv7|eagle",
        "rwkv7": "blinkdl|eagle|finch|u_mup",
    }
    assert refused == {name for name in SCHEMES if re.search(wrong[kind], name)}


@pytest.mark.parametrize(("head_size", "shape"), [(None, "2x32"), (16, "4x16")])
def test_heads_of_an_rwkv_are_as_asked(head_size: int | None, shape: str, capsys: Shown) -> None:
    show("megatron_default", model="rwkv6", dim=64, layers=2, head_size=head_size)
    text = capsys.readouterr().out
    bonus = rf"blocks\.\*\.att\.time_faaaa +0-1 +own +{shape} +as in rwkv_blinkdl"
    assert re.search(bonus, text)


def test_a_model_of_a_hundred_billion_is_shown_at_once(capsys: Shown) -> None:
    start = time.process_time()
    width = 13312
    show("megatron_mup", dim=width, layers=96, option=(("base_width", 256),))
    assert time.process_time() - start < 3
    text = capsys.readouterr().out
    count = (
        96 * (2 * width**2 + 3 * width * (4 * width // 3) + 7 * width) + 2 * 256 * width + 2 * width
    )
    assert f"{count:,} parameters" in text
    assert "multiplier logits = 0.0192308" in text
    assert re.search(r"blocks\.\*\.ssm\.B\.weight +0-95 +value +13312x13312 +N\(", text)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda: show("megatron_defualt"), "nearest: megatron_default"),
        (lambda: listing("trinty"), "did you mean 'trinity'"),
        (lambda: show("nonsense"), "got 'nonsense'; plkernel.init list names all"),
        (lambda: show("gpt2", option=(("sd", 1),)), "must be one of std, position_std, got 'sd'"),
        (lambda: show("gpt2", option=(("std", -1),)), "must be a finite number of at least 0"),
        (
            lambda: show("rwkv7_post", option=(("even", 0.5),)),
            "even of scheme 'rwkv7_post' must be 0 or 1, got 0.5",
        ),
        (lambda: show("rwkv7_official", "rwkv6"), "scheme must be rwkv_blinkdl or rwkv_finch"),
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


def test_repeated_options_all_count(capsys: Shown) -> None:
    """From the command line, where the last of several flags of one name would otherwise be the
    only one.
    """
    cli.main(
        show, ["mup_table8", *["--option", "zero_readout", "1", "--option", "base_width", "64"]]
    )
    printed = capsys.readouterr().out
    assert "base_width = 64," in printed
    assert "zero_readout = 1" in printed
