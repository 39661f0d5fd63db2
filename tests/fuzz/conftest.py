"""What every fuzzer needs: a case runs in a process of its own, and how it ended is told apart.

A case ends well when it is accepted, or refused by one of `cli.USER_ERRORS`, which a command prints as one line. It is
a fault when it ends in another exception (a traceback), in more processor time or memory than any valid input of this
size takes (a hang), in a signal (a crash), in a message that no terminal shows whole (an echo), or leaves temporary
files behind. Cases are drawn by hypothesis from a fixed seed: the same on every machine, and as many as are asked for.
"""

import copy
import importlib
import os
import pickle
import resource
import select
import signal
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

hypothesis = pytest.importorskip("hypothesis", reason="the fuzzers draw their cases with hypothesis")
from hypothesis import HealthCheck, Phase, given, seed, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

SEED = 14
CPU_SECONDS = 10
WALL_SECONDS = 20.0
MEMORY = 3 << 30
LONGEST_MESSAGE = 2000
LONGEST_SHOWN = 300
FAULTS = ("traceback", "hang", "crash", "echo", "leftover")

Action = Callable[[Any, Path], Any]


@pytest.fixture(scope="session", autouse=True)
def imported() -> None:
    """torch imports its compiler where a model is first built on `meta`: here, not in the process of each case."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("torch._dynamo")


@pytest.fixture
def tally() -> Callable[..., Counter[str]]:
    """Counts how cases end, `tally(strategy, action, examples)`; fails, with the cases, where one is a fault.

    `action(case, folder)` takes a case in an empty folder, which holds nothing hidden afterwards.
    """

    def count(strategy: st.SearchStrategy[Any], action: Action, examples: int) -> Counter[str]:
        ends: Counter[str] = Counter()
        faults: list[str] = []

        @seed(SEED)
        @settings(
            max_examples=examples,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(strategy)
        def each(case: Any) -> None:
            with tempfile.TemporaryDirectory(prefix="plkernel-fuzz-") as folder:
                kind, detail = isolated(action, case, Path(folder))
            ends[kind] += 1
            if kind in FAULTS:
                faults.append(f"{kind}: {shortened(repr(case))}\n    {detail}")

        each()
        print(dict(ends))
        assert not faults, f"{dict(ends)}\n" + "\n".join(faults)
        return ends

    return count


def isolated(action: Action, case: Any, folder: Path) -> tuple[str, str]:
    """How `action(case, folder)` ends in a forked process, and a line about it."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forking beside threads: none of theirs is used here
        child = os.fork()
    if child == 0:
        _work(action, case, folder, writer)
    os.close(writer)
    answered = select.select([reader], [], [], WALL_SECONDS)[0]
    if not answered:
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reader, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    if not answered or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
        return "hang", "no end in the time it has"
    if os.WIFSIGNALED(status) or not told:
        return "crash", f"status {status}"
    kind, detail = pickle.loads(told)
    remains = sorted(str(path.relative_to(folder)) for path in folder.rglob(".*"))
    return ("leftover", ", ".join(remains)) if remains and kind not in FAULTS else (kind, detail)


def _work(action: Action, case: Any, folder: Path, writer: int) -> None:
    """The child: do it, tell how it ended, and be gone without what Python does at an end."""
    from plkernel.common.cli import USER_ERRORS

    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    warnings.simplefilter("default")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
    end = "accepted", ""
    try:
        action(case, folder)
    except USER_ERRORS as error:
        message = " ".join(str(error).split())
        end = ("refused" if 0 < len(message) <= LONGEST_MESSAGE else "echo"), shortened(f"{len(message)}: {message}")
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        ours = [f for f in traceback.extract_tb(error.__traceback__) if "plkernel" in f.filename]
        where = ours[-1] if ours else place
        end = "traceback", shortened(f"{type(error).__name__} at {where.filename}:{where.lineno}: {error}")
    os.write(writer, pickle.dumps(end))
    os._exit(0)


def shortened(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}... ({len(text)} characters)"


def nested(depth: int, inner: Any, name: str | None = None) -> Any:
    """`inner` in so many lists, or tables under `name`."""
    for _ in range(depth):
        inner = [inner] if name is None else {name: inner}
    return inner


STRANGE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 3, 7, 1000, 2**31, 2**53 + 1, 2**63, 10**5, 10**9, 10**10, 10**30),
    *(0.0, -0.0, 0.5, 1e-9, 1e-320, 1e12, 1e38, 1e308, float("inf"), float("-inf"), float("nan")),
    *("", " ", "x", "no", "0", "1e9", "é\x00", "\n", "\U0001f701" * 40, "a" * 255, "a" * 20000, "../..", "/dev/zero"),
    *([], [[]], [None], [5], [0.1, 0.1], ["a", "a"], ["a", 1, None], list(range(300)), [[1, 2], [3]], [{}], [1e9]),
    *({}, {"a": {}}, {"": 1}, {"dim": 10**9}, {"levels": 3}, {"rates": [1]}, {"0": 0}),
    *(nested(30, 1), nested(99, {}, "a"), nested(200, 1, "model"), nested(200, 0)),
)


@pytest.fixture(scope="session")
def mutated() -> Callable[[Any], st.SearchStrategy[Any]]:
    """Plain values as in JSON with one to three places in them changed: another type, missing, foreign, wrapped."""
    return _mutated


@st.composite
def _mutated(draw: st.DrawFn, base: Any) -> Any:
    value = copy.deepcopy(base)
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(value))
        place = draw(st.sampled_from(places))
        found = _at(value, place)
        other = _at(value, draw(st.sampled_from(places)))
        new = draw(
            st.one_of(
                st.sampled_from(STRANGE).map(copy.deepcopy),
                st.just([copy.deepcopy(found)]),
                st.just({"a": copy.deepcopy(found)}),
                st.just(str(found)[:200]),
                st.just(copy.deepcopy(other)),
                st.integers(),
                st.floats(),
                st.text(max_size=30),
            )
        )
        kind = draw(st.sampled_from(["replace", "replace", "replace", "delete", "add"]))
        value = _changed(value, place, kind, new)
    return value


def _places(value: Any, head: tuple[Any, ...] = ()) -> Any:
    """The way to every value in it; not further down than valid values go."""
    yield head
    if len(head) < 8:
        items = value.items() if isinstance(value, dict) else enumerate(value[:4]) if isinstance(value, list) else ()
        for key, item in items:
            yield from _places(item, (*head, key))


def _at(value: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        value = value[key]
    return value


def _changed(value: Any, place: tuple[Any, ...], kind: str, new: Any) -> Any:
    if kind == "add" and isinstance(inside := _at(value, place), dict):
        inside[_NEW_KEYS[len(inside) % len(_NEW_KEYS)]] = new
    elif not place:
        return new
    elif kind == "delete":
        del _at(value, place[:-1])[place[-1]]
    else:
        _at(value, place[:-1])[place[-1]] = new
    return value


_NEW_KEYS = ("factors", "dim", "arms", "", "model", "é", "levels", "within", "rates", "a.b", "tuning", "seed")


@pytest.fixture(scope="session")
def damaged() -> Callable[[bytes], st.SearchStrategy[bytes]]:
    """The bytes of a file cut short, with bits flipped, a part overwritten, or doubled; or other bytes altogether."""
    return _damaged


@st.composite
def _damaged(draw: st.DrawFn, base: bytes) -> bytes:
    kind = draw(st.sampled_from(["cut", "flip", "overwrite", "insert", "double", "noise", "fixed"]))
    at = draw(st.integers(0, max(0, len(base) - 1)))
    noise = draw(st.binary(max_size=64))
    if kind == "cut":
        return base[:at]
    if kind == "flip":
        return base[:at] + bytes([base[at] ^ (1 << draw(st.integers(0, 7)))]) + base[at + 1 :] if base else b""
    if kind == "overwrite":
        return base[:at] + noise + base[at + len(noise) :]
    if kind == "insert":
        return base[:at] + noise + base[at:]
    if kind == "double":
        return base + base[at:]
    return noise if kind == "noise" else draw(st.sampled_from(FILES))


FILES: tuple[bytes, ...] = (
    *(
        b"",
        b"\0",
        b"\0" * 4096,
        b"\xff" * 64,
        b"null",
        b"null\n",
        b"null\nnull\n",
        b"[]",
        b"[]\n",
        b"{}",
        b"{}\n",
        b"3\n",
    ),
    *(b'"text"\n', b'{"text": null}\n', b'{"text": 3}\n', b'{"text": {"a": 1}}\n', b'{"text": "a"}\nnull\n', b"NaN\n"),
    *(
        b'{"text": "a"}\n[1]\n',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"[null]\n",
        b"1" * 10_000,
        b"\xef\xbb\xbf{}",
        b"\n\n",
    ),
    *(b"a = " + b"[" * 5000 + b"]" * 5000, b"a." * 5000 + b"a = 1", b"[" + b"a." * 2000 + b"a]\n", b"a = 1e999\n"),
    *(
        b"text\n\n",
        b"a,b\n1\n1,2,3\n",
        b'text\n"open',
        b"text,text\n1,2\n",
        b"PAR1PAR1",
        b"PK\x03\x04",
        b"\x1f\x8b\x08",
        b"\x80\x04.",
    ),
)


def as_toml(values: Any) -> str:
    """Plain values as TOML, as far as it has them; what it has not makes the file invalid."""
    if not isinstance(values, dict):
        return f"values = {_inline(values)}"
    return "".join(f"{_key(key)} = {_inline(value)}\n" for key, value in values.items() if value is not None)


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)} = {_inline(v)}" for k, v in value.items() if v is not None) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_inline(item) for item in value if item is not None) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return _key(value) if isinstance(value, str) else repr(value)


def _key(text: str) -> str:
    escaped = "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text)
    return f'"{escaped}"'


@pytest.fixture(scope="session")
def toml() -> Callable[[Any], str]:
    return as_toml
