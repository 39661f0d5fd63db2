"""make gpu: what only a GPU shows, in at most nine minutes: equality tests, benchmarks, a slice of exp013.

    python runs/gpu.py [--corpus NAME] [--out FOLDER]

Installs nothing and needs no network: it uses whatever this interpreter has, skips by name what lacks a package, and
reads the standard library's source code unless a corpus is named. Everything it prints and measures lands in FOLDER
(runs/out/gpu): summary.json with the environment, a log per part, the benchmark rows and the study.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SLICE_MINUTES = 0.6


def parts(out: Path, corpus: str) -> list[tuple[str, tuple[str, ...], int, list[str]]]:
    """Name, packages needed, seconds allowed, arguments of `python -m`."""
    bench = str(out / "bench")
    study = [
        "plkernel.experiment",
        "runs/exp013.toml",
        *("--name", "exp013-slice", "--out", str(out / "exp013-slice"), "--seeds", "0"),
        *("--corpus.name", corpus, "--train.steps", "None", "--train.minutes", str(SLICE_MINUTES)),
        *("--train.eval-every", "100", "--train.device", "cuda"),
    ]
    commands = ("tyro", "pydantic")
    training = (*commands, "safetensors", "tensorboard", "tqdm", "scipy", "matplotlib")
    return [
        (
            "equality tests",
            ("pytest", "numba"),
            170,
            ["pytest", "-q", "-W", "default", "-m", "not slow", "tests/kernels"],
        ),
        ("bench scan", commands, 80, ["plkernel.bench", "scan", "--out", bench]),
        ("bench wkv", commands, 50, ["plkernel.bench", "wkv", "--out", bench]),
        ("bench train", commands, 60, ["plkernel.bench", "train", "--out", bench]),
        ("exp013 slice", training, 180, study),
    ]


def run_part(name: str, packages: tuple[str, ...], seconds: int, arguments: list[str], out: Path) -> str:
    """Run one part with its output in a log; how it ended, in words."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        return f"skipped: {', '.join(missing)} not installed"
    log = out / f"{name.replace(' ', '-')}.log"
    with log.open("w") as handle:
        try:
            code = subprocess.run(
                [sys.executable, "-m", *arguments], cwd=ROOT, stdout=handle, stderr=handle, timeout=seconds, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            return f"stopped after {seconds} s, see {log}"
    return "done" if code == 0 else f"failed with exit code {code}, see {log}"


def main() -> None:
    """Run every part and write summary.json; exit 1 when a part failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="stdlib", help="corpus of the study slice; one that is cached already")
    parser.add_argument("--out", type=Path, default=Path("runs/out/gpu"), help="folder for everything written")
    options = parser.parse_args()
    missing = [package for package in ("torch", "triton") if importlib.util.find_spec(package) is None]
    if missing:
        print(f"nothing to do: {', '.join(missing)} not installed under {sys.executable}")
        return
    import torch

    if not torch.cuda.is_available():
        print("nothing to do: no GPU found (torch.cuda.is_available() is False)")
        return
    sys.path.insert(0, str(ROOT))
    from plkernel.tools.environment import environment

    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    summary: dict[str, object] = {"environment": environment(torch.get_num_threads())}
    outcomes = {}
    for name, packages, seconds, arguments in parts(out, options.corpus):
        print(f"{name} ...", flush=True)
        started = time.perf_counter()
        outcomes[name] = run_part(name, packages, seconds, arguments, out)
        print(f"{name}: {outcomes[name]} ({time.perf_counter() - started:.0f} s)", flush=True)
        summary["parts"] = outcomes
        (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(f"written: {out}")
    if any(outcome.startswith(("failed", "stopped")) for outcome in outcomes.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
