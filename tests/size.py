"""Print source and test lines and files per room, beside the budget of each room: `make size`."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
BUDGET = {
    "plkernel": 250,  # __init__, __main__, the public functions
    "plkernel/commands": 700,
    "plkernel/common": 280,
    "plkernel/data": 700,
    "plkernel/config": 900,
    "plkernel/training": 1550,
    "plkernel/study": 700,
    "plkernel/benchmarks": 400,
    "plkernel/results": 2300,
    "plkernel/memory": 2000,
    "plkernel/interop": 350,
    "models": 1250,
    "models/init": 2180,
    "kernels": 2700,
    "analysis": 3650,
    "analysis/figures": 400,
    "runs": 500,
    "docs": 300,
}
SOURCE, TESTS, FILES = 22_000, 16_000, 100
KINDS = (".py", ".pyi", ".html", ".css")


def lines(folder: str) -> dict[Path, int]:
    """Lines of each source file under `folder`; linked folders and generated files do not count."""
    found = {}
    for path in sorted((ROOT / folder).rglob("*")):
        parts = path.relative_to(ROOT).parts
        linked = parts[0] == "plkernel" and any((ROOT / Path(*parts[:n])).is_symlink() for n in range(2, len(parts)))
        generated = {"_build", "api", "out"} & set(parts[1:]) or (
            parts[:2] == ("runs", "records") and path.suffix != ".py"
        )
        if path.suffix in KINDS and path.is_file() and not linked and not (generated and parts[0] in ("docs", "runs")):
            found[path] = len(path.read_text(encoding="utf-8").splitlines())
    return found


def main() -> None:
    """Print the table."""
    rooms: dict[str, list[int]] = {name: [] for name in BUDGET}
    for top in ("plkernel", "models", "kernels", "analysis", "runs", "docs"):
        for path, count in lines(top).items():
            parts = path.relative_to(ROOT).parts
            inner = (
                "/".join(parts[:2]) if len(parts) > 2 and ("/".join(parts[:2]) in BUDGET or top == "plkernel") else top
            )
            rooms.setdefault(inner, []).append(count)
    print(f"{'room':24}{'lines':>8}{'budget':>8}{'files':>7}")
    for name, counts in rooms.items():
        print(f"{name:24}{sum(counts):8,}{BUDGET.get(name, 0):8,}{len(counts):7}")
    every = [count for counts in rooms.values() for count in counts]
    print(f"{'source':24}{sum(every):8,}{SOURCE:8,}{len(every):7} of about {FILES}")
    tests = lines("tests")
    print(f"{'tests':24}{sum(tests.values()):8,}{TESTS:8,}{len(tests):7}")


if __name__ == "__main__":
    main()
