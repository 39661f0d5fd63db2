"""Print lines and files of each folder of source and tests: `make size`."""

import subprocess
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
KINDS = (".py", ".pyi", ".html", ".css")


def room(path: Path) -> str:
    """The folder that a file is counted in: two levels deep, tests all together."""
    if path.parts[0] == "tests":
        return "tests"
    return "/".join(path.parts[:-1][:2]) or "."


def main() -> None:
    """Print the table."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    counts = defaultdict(list)
    for name in filter(None, tracked.stdout.split("\0")):
        path = ROOT / name
        if path.suffix in KINDS and path.is_file() and not path.is_symlink():
            counts[room(Path(name))].append(len(path.read_text(encoding="utf-8").splitlines()))
    print(f"{'folder':24}{'lines':>8}{'files':>7}")
    for name, lengths in sorted(counts.items()):
        print(f"{name:24}{sum(lengths):8,}{len(lengths):7}")


if __name__ == "__main__":
    main()
