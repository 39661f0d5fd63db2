"""What comes with plkernel, by name: `quick` is runs/quick.toml, in a checkout and wherever plkernel is installed."""

from pathlib import Path

from plkernel.common import cli

FOLDER = Path(__file__).parents[1] / "runs"


def specs() -> dict[str, Path]:
    """The file of every spec, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"), key=lambda path: path.stem)}


def roles() -> dict[str, Path]:
    """The file of every table of roles, by name; `RoleTable.from_toml` takes these names too."""
    return {path.stem: path for path in sorted((FOLDER / "roles").glob("*.toml"))}


def beside(path: Path) -> Path:
    """A file that a spec names, runs/nodes/NAME.json: that of plkernel itself where there is none in this folder."""
    own = FOLDER.parent / path
    return own if own.is_file() and not path.exists() else path


def find(given: Path | str) -> Path:
    """The file of a spec, given by its path or by its name; ValueError that says which was probably meant."""
    path, known = Path(given), specs()
    if path.is_file() or (path.exists() and str(path) not in known):
        return path
    if str(path) in known:
        return known[str(path)]
    if path.stem in known:
        raise ValueError(f"spec {path}: no such file or folder; did you mean {path.stem}, which comes with plkernel?")
    if path.suffix or len(path.parts) > 1:
        return cli.existing(path, "spec")
    raise ValueError(
        f"spec {path}: no such file, and none of that name comes with plkernel; {cli.nearest(str(path), known)}"
    )
