"""Schemes and corpora of other packages, by entry points: their metadata say the names, and consent imports them.

    [project.entry-points."plkernel.schemes"]
    halved = "mypackage.schemes:halved"        # (sizes, *, option=default, ..) -> Rules, as in models/init/schemes
    [project.entry-points."plkernel.corpora"]
    genome = "mypackage.corpora:genome"        # (rest, request) -> Source of the corpus genome:REST, as in data/names

Placements, which are read with a spec, are in `spec/arm.py`.
"""

from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from plkernel.common.imports import imported
from plkernel.data.names import KINDS, PRESETS
from plkernel.models.init import SCHEMES
from plkernel.models.init.plan import Scheme

SCHEME_GROUP, CORPUS_GROUP = "plkernel.schemes", "plkernel.corpora"


def offered(scheme: str | None, corpus: str) -> dict[str, EntryPoint]:
    """What other packages offer under the names of a scheme and a corpus that are none of ours; nothing is imported."""
    kind = corpus.partition(":")[0]
    found = {}
    if scheme is not None and scheme not in SCHEMES:
        found["scheme"] = next(iter(entry_points(group=SCHEME_GROUP, name=scheme)), None)
    if kind not in KINDS and corpus not in PRESETS and not Path(corpus).exists():
        found["corpus"] = next(iter(entry_points(group=CORPUS_GROUP, name=kind)), None)
    return {option: entry for option, entry in found.items() if entry is not None}


def register(entries: dict[str, EntryPoint]) -> None:
    """Import what was found, and make it known by its names; the person must have consented."""
    for option, entry in entries.items():
        function = imported(entry.value, option)
        if option == "corpus":
            KINDS[entry.name] = function
        else:
            origin = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
            SCHEMES.setdefault(entry.name, Scheme(entry.name, origin, function))
