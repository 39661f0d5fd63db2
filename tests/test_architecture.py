"""The house: which room stands on which, what is loaded for what, and that the map in CONTRIBUTING.md is of it.

Run as a script, it writes that map anew.
"""

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINKED = ("analysis", "kernels", "models")  # folders at the top, of which the package has links
LINKS = (*LINKED, "runs")  # and that of the specs, which are data
HEAVY = ("torch", "triton", "numba", "matplotlib", "tensorboard", "datasets", "pydantic", "tyro")
MOST_MODULES, MOST_LINES, MOST_COMMANDS = 12, 300, 14
LONGER = ("models/rwkv.py",)  # a whole model
# Rooms and what they never import, at any time.
NEVER = {
    "analysis": ("plkernel.models", "plkernel.kernels", "plkernel.spec", "plkernel.data", "plkernel.tools"),
    "kernels": ("plkernel.models", "plkernel.analysis", "plkernel.spec", "plkernel.tools"),
    "models": ("plkernel.spec", "plkernel.run", "plkernel.data", "plkernel.tools", "plkernel.records"),
    "plkernel/tools": ("plkernel.data", "plkernel.spec", "plkernel.run", "plkernel.records", "plkernel.models"),
    "plkernel/spec": ("plkernel.models.init", "plkernel.models.ssm", "plkernel.models.rwkv", "plkernel.run"),
    "plkernel/records": ("plkernel.spec", "plkernel.run", "plkernel.report", "plkernel.models"),
    "plkernel/checkpoints": ("plkernel.run", "plkernel.spec", "plkernel.records", "plkernel.report"),
    "plkernel/foreign": ("plkernel.spec", "plkernel.run", "plkernel.records", "plkernel.report"),
    "plkernel/run": ("plkernel.report", "plkernel.study", "plkernel.dry_run"),
    "plkernel/report": ("plkernel.run", "plkernel.study", "plkernel.dry_run", "plkernel.data"),
}
CHAINED = {("plkernel.experiment", "plkernel.report.__main__")}
"""One command that ends by calling another."""
SHARED = '"""What the operators share: backends, compilation, threads, vectors and chunks, derivatives."""'
BEGIN, END = "<!-- the map: python tests/test_architecture.py writes it -->", "<!-- the end of the map -->"


def modules() -> dict[str, Path]:
    """Every module of ours by name, once: not again through the links."""
    found = {}
    for top in ("plkernel", *LINKED):
        for path in (ROOT / top).glob("**/*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if top != "plkernel" or parts[1] not in LINKS:
                name = ".".join(parts if top == "plkernel" else ("plkernel", *parts))
                found[name.removesuffix(".__init__")] = path
    return found


@cache
def imports(path: Path) -> set[str]:
    """Every module that a file imports, wherever the statement stands."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


MODULES = modules()


def ours(path: Path) -> set[str]:
    """The modules of ours that a file imports."""
    names = (name if name in MODULES else name.rpartition(".")[0] for name in imports(path))
    return {name for name in names if name in MODULES}


@cache
def arrows() -> dict[str, set[str]]:
    """Which modules of ours each imports."""
    return {name: ours(path) - {name} for name, path in MODULES.items()}


def room(name: str) -> str:
    """The folder that a module stands in; a command is a room of its own."""
    path = MODULES[name].relative_to(ROOT)
    command = path.parent == Path("plkernel") or path.stem == "__main__"
    return str(path.with_suffix("") if command else path.parent)


@pytest.mark.parametrize("place", NEVER)
def test_arrows_that_never_are(place: str) -> None:
    inside = {name: path for name, path in MODULES.items() if path.is_relative_to(ROOT / place)}
    assert inside
    for name in inside:
        wrong = {other for other in arrows()[name] if any(f"{other}.".startswith(f"{no}.") for no in NEVER[place])}
        assert not wrong, f"{name} imports {wrong}"


def test_there_is_no_circle() -> None:
    try:
        tuple(TopologicalSorter(arrows()).static_order())
    except CycleError as error:
        pytest.fail(f"modules in a circle: {' -> '.join(error.args[1])}")


def test_nobody_imports_a_command_or_a_benchmark() -> None:
    commands = {name for name, path in MODULES.items() if path.parent == ROOT / "plkernel" and path.stem != "__init__"}
    commands |= {name for name in MODULES if name.endswith(".__main__")}
    for name, imported in arrows().items():
        wrong = {other for other in imported & commands if (name, other) not in CHAINED}
        assert not wrong, f"{name} imports the command {wrong}"
        assert "bench" in name or not any(".bench." in other for other in imported), f"{name} imports a benchmark"


def test_rooms_and_files_are_of_a_size_to_be_looked_over() -> None:
    rooms: dict[Path, list[str]] = {}
    for name, path in MODULES.items():
        if path.stem != "__init__":
            rooms.setdefault(path.parent, []).append(name)
        place = str(path.relative_to(ROOT))
        if not place.startswith("kernels/") and place not in LONGER:
            assert len(path.read_text().splitlines()) <= MOST_LINES, place
    for folder, names in rooms.items():
        most = MOST_COMMANDS if folder == ROOT / "plkernel" else MOST_MODULES
        if folder != ROOT / "models/init/schemes":  # one module for each family of schemes
            assert len(names) <= most, f"{folder}: {sorted(names)}"


def test_analysis_never_names_torch() -> None:
    for path in (ROOT / "analysis").glob("**/*.py"):
        assert not {name.split(".")[0] for name in imports(path)} & {"torch", "triton"}, path


def test_what_is_imported_is_declared() -> None:
    """Every package that is not Python's or ours, wherever it is imported: but for peers of benchmarks on a GPU."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for group in project["optional-dependencies"].values() for one in group)]
    declared = {re.split(r"[<>=; ]", one)[0].replace("-", "_") for one in wanted} | {
        "plkernel",
        "sklearn",
        "pydantic_core",
    }
    for path in MODULES.values():
        names = {name.split(".")[0] for name in imports(path)} - sys.stdlib_module_names
        peers = {"fla", "accelerated_scan", "mamba_ssm"} if "bench" in path.parts else set()
        assert not names - declared - peers, path


def test_triton_is_imported_only_by_gpu_modules() -> None:
    for path in MODULES.values():
        if not path.name.startswith("gpu"):
            assert "triton" not in {name.split(".")[0] for name in imports(path)}, path


def test_links_are_relative() -> None:
    for name in LINKS:
        link = ROOT / "plkernel" / name
        assert str(link.readlink()) == f"../{name}"
    assert not (ROOT / "kernels" / "__init__.py").exists(), "a distribution called kernels exists"


def test_what_is_not_needed_is_not_loaded() -> None:
    """In one process, those who need least first: what one of them loaded would be there for all that follow."""
    needs = {
        "import plkernel": HEAVY,
        "import plkernel.export, plkernel.load, plkernel.init.__main__, plkernel.bench.__main__": ("torch", "scipy"),
        "import plkernel.spec.reading": ("torch", "matplotlib"),
        "plkernel.spec.reading.load_spec(pathlib.Path('runs/mamba2.toml'))": ("transformers", "plkernel.foreign"),
        "import plkernel.train, plkernel.experiment, plkernel.inspect, plkernel.generate, plkernel.probe": (
            "torch",
            "scipy.optimize",
        ),
        "import plkernel.measure, plkernel.corpus": ("torch", "scipy.signal", "scipy.stats"),
        "import plkernel.report.__main__": ("torch",),
    }
    program = f"""if True:
        import pathlib, sys
        for code, unloaded in {needs}.items():
            exec(code)
            print(code, [name for name in unloaded if name in sys.modules])
    """
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert result.stdout.splitlines() == [f"{code} []" for code in needs]


def map_of_the_house() -> str:
    """Every room, the lowest floor first: what it is, in its own words, and the rooms that it stands on."""
    below: dict[str, set[str]] = {}
    for name, imported in arrows().items():
        if (here := room(name)) not in below:
            below[here] = set()
        below[here] |= {found for other in imported if not (found := room(other)).startswith(here)}  # nor inner folders
    rows = ["| room | what it is | stands on |", "|---|---|---|"]
    for here in TopologicalSorter({name: sorted(below[name]) for name in sorted(below)}).static_order():
        path = ROOT / here
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        said = re.match(r'"""(.*?)(?:"""|\n)', file.read_text() if file.exists() else SHARED)
        what, under = (said[1] if said else "").replace("|", "/"), ", ".join(f"`{one}`" for one in sorted(below[here]))
        rows.append(f"| `{here}` | {what} | {under} |")
    return "\n".join(rows)


def test_the_map_is_of_this_house() -> None:
    told = (ROOT / "CONTRIBUTING.md").read_text()
    found = told.partition(BEGIN)[2].partition(END)[0].strip()
    assert found == map_of_the_house(), "python tests/test_architecture.py writes the map anew"


if __name__ == "__main__":
    guide = ROOT / "CONTRIBUTING.md"
    before, rest = guide.read_text().split(BEGIN)
    guide.write_text(f"{before}{BEGIN}\n{map_of_the_house()}\n{END}{rest.partition(END)[2]}")
