"""Every example of README.md and of docs/ runs, or is what the very command takes; and no link of
the README is dead.

Python runs as it stands, a page in one namespace. Commands of `console` blocks print what is shown.
Those of `sh` blocks are parsed by the command itself, and some run (RUN). `toml` blocks are specs
or parts of one, or roles.
"""

import doctest
import importlib.util
import re
import runpy
import shlex
import shutil
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from sybil import Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser

from plkernel.common import cli
from plkernel.config import reading
from plkernel.config.reading import parse_spec
from plkernel.config.schema import deep_merge
from plkernel.decays.own import statements
from plkernel.models.init import SCHEMES
from plkernel.models.init.plan import RoleTable
from plkernel.training import build

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted(path for path in ROOT.glob("docs/**/*.md") if path.stem[0] != "_"),
]
RUN = {
    "python -m plkernel.init list mup": False,
    "python -m plkernel.corpus README.md": False,
    "python -m plkernel.init show megatron_default --model rwkv6 --dim 4096 --layers 32": True,
    "python -m plkernel.experiment runs/quick.toml --dry-run": True,
}
"""Commands that run, and whether they are slow."""


def blocks(page: Path, language: str) -> list[str]:
    """The blocks of one language in a page."""
    found: list[str] = []
    parser = CodeBlockParser(
        language=language, evaluator=lambda example: found.append(str(example.parsed))
    )
    for example in Sybil(parsers=[parser], path=str(ROOT)).parse(page).examples():
        example.evaluate()
    return found


def commands(text: str) -> Iterator[str]:
    """The commands of a shell block, without comments, lines joined where they end in a
    backslash.
    """
    for line in text.replace("\\\n", " ").splitlines():
        for part in line.split(" && "):
            if words := shlex.split(part, comments=True):
                yield shlex.join(words)


def shown(language: str, pages: list[Path]) -> list[tuple[str, str]]:
    """Name of the page and text of every block of a language."""
    return [
        (str(page.relative_to(ROOT)), text) for page in pages for text in blocks(page, language)
    ]


SHELL = {f"{page}: {one}": one for page, text in shown("sh", PAGES) for one in commands(text)}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like a checkout, into which examples may write."""
    (tmp_path / "runs").mkdir()
    for path in (ROOT / "runs").glob("*.toml"):
        shutil.copy(path, tmp_path / "runs")
    (tmp_path / "runs" / "roles").symlink_to(ROOT / "runs" / "roles")
    shutil.copy(ROOT / "runs" / "quick.toml", tmp_path / "my-study.toml")
    shutil.copy(ROOT / "README.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] * (page.stem == "recipes")) for page in PAGES
    ],  # it imports fla
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_python_runs(page: Path) -> None:
    known = set(SCHEMES)
    try:
        run_python(page)
    finally:
        for added in SCHEMES.keys() - known:
            del SCHEMES[added]


def run_python(page: Path) -> None:
    """Run the Python of a page, in one namespace."""
    parser = PythonCodeBlockParser(doctest_optionflags=doctest.REPORT_NDIFF)
    for example in Sybil(parsers=[parser], path=str(ROOT)).parse(page).examples():
        example.evaluate()


def run(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run `python -m MODULE ARGUMENTS` or `python SCRIPT ARGUMENTS`; SystemExit where it ends with
    an error.
    """
    words = shlex.split(command)
    code, *arguments = words[words.index("-m") + 1 :] if "-m" in words else words[1:]
    monkeypatch.setattr(sys, "argv", [code, *arguments])
    if "-m" not in words:
        monkeypatch.syspath_prepend(ROOT / Path(code).parent)
        runpy.run_path(str(ROOT / code), run_name="__main__")
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*found in sys.modules", RuntimeWarning)
        source = importlib.util.find_spec(
            code
        )  # run_module takes no module whose assertions pytest rewrites
        runpy.run_path(str(source and source.origin), run_name="__main__")


@pytest.fixture
def parsing_only(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands read their arguments, and a spec, then do nothing; models of others do not run."""
    monkeypatch.setattr(build, "_tried", lambda *_: 0)
    bound, main = cli._bound, reading.main

    def idle(command: Callable[..., Any]) -> Callable[..., Any]:
        return wraps(command)(lambda *given, **options: None)

    def of_spec(command: Callable[..., Any], **options: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(cli, "_bound", bound)
            main(idle(command), **options)

    monkeypatch.setattr(cli, "_bound", lambda command: bound(idle(command)))
    monkeypatch.setattr(reading, "main", of_spec)
    yield
    assert not (here / "runs" / "out").exists(), "a command has run"


@pytest.mark.parametrize("command", SHELL.values(), ids=SHELL)
@pytest.mark.usefixtures("parsing_only")
def test_commands_are_taken(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(command)
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert words[1] in targets
    elif words[:2] == ["pip", "install"]:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
            "optional-dependencies"
        ]
        assert set(re.findall(r"plkernel\[(\w+)\]", command)) <= extras.keys()
    else:
        run(command, monkeypatch)


@pytest.mark.usefixtures("parsing_only")
def test_a_wrong_option_is_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (
        "python -m plkernel.fit --bet 1.15",
        "python -m plkernel.experiment runs/quick.toml --worker 2",
    ):
        with pytest.raises(SystemExit):
            run(command, monkeypatch)
        assert "did you mean" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [pytest.param(one, marks=[pytest.mark.slow] * slow) for one, slow in RUN.items()]
)
def test_commands_run(command: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command in SHELL.values(), "no page shows it any more"
    run(command, monkeypatch)


def save_fresh(folder: Path) -> None:
    """A small Falcon-H1 as transformers initialises it."""
    from transformers import FalconH1Config, FalconH1ForCausalLM

    sizes = {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    sizes |= {
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "mamba_n_heads": 8,
        "mamba_d_head": 4,
    }
    sizes |= {"mamba_d_ssm": 32, "mamba_d_state": 8, "mamba_n_groups": 1}
    FalconH1ForCausalLM(FalconH1Config(**sizes)).save_pretrained(folder)  # type: ignore[arg-type]


@pytest.mark.parametrize(("page", "text"), shown("console", PAGES))
def test_consoles_print_what_is_shown(
    page: str,
    text: str,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "inspect fresh" in text:
        save_fresh(here / "fresh")
    if page == "README.md":  # whose checkpoints the script in that page writes
        run_python(ROOT / "docs" / "bugs.md")
    if page in ("docs/bugs.md", "docs/measuring.md"):
        run_python(ROOT / page)
    if page == "docs/judging.md":
        losses, hypotheses = blocks(ROOT / page, "text")
        (here / "runs.csv").write_text(losses)
        (here / "claims.toml").write_text(hypotheses)
    capsys.readouterr()  # what making the files has printed
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        run(command, monkeypatch)
        printed = capsys.readouterr().out
        matching = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        assert doctest.OutputChecker().check_output(expected, printed, matching), (
            f"{page}: {command} prints\n{printed}"
        )


@pytest.mark.parametrize(("page", "text"), shown("toml", PAGES))
def test_specs_are_taken(page: str, text: str) -> None:
    values = tomllib.loads(text)
    if all("." in key or "*" in key for key in values):
        RoleTable.from_dict(values)
        return
    if "decays" in values:
        assert statements(values["decays"])
        return
    if "baseline" not in values:
        whole = tomllib.loads((ROOT / "runs" / "quick.toml").read_text())
        if "factors" in values:
            del whole["arms"], whole["baseline"]
        values = deep_merge(whole, values)
    assert parse_spec(values, page).arms


def with_included(page: Path) -> str:
    """The text of a page and of the pages that it includes."""
    text = page.read_text()
    included = re.findall(r"^```\{include\} (\S+)", text, re.MULTILINE)
    return "\n".join([text, *(with_included(page.parent / name) for name in included)])


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page, which MyST knows too."""
    without_code = re.sub(r"^```.*?^```", "", with_included(page), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", without_code, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_headings_lead_to_one(page: Path) -> None:
    for name, anchor in re.findall(r"\]\(([\w./-]*)#([^)\s]+)\)", page.read_text()):
        target = page.parent / name if name else page
        if target.suffix == ".md":
            assert anchor in anchors(target), f"{name}#{anchor}"


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.encode()) <= 6_000
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        assert re.match(r"https://[\w.-]+/", link) or (ROOT / link.partition("#")[0]).exists(), link
