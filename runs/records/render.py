"""Renders the numbers of README.md, of docs/ and of two records from the rows committed beside this script.

    python runs/records/render.py           rewrite the marked parts of all
    python runs/records/render.py --check   exit 1 when one of them says something else

Links of README.md to files are relative, until pyproject.toml names a Repository under [project.urls]: then they begin
with it, so that pictures also show where the package is indexed.

fit/fit.json is written by `python -m plkernel.fit --beta 1.15 --out runs/records/fit`, gallery/* by `python -m
plkernel.gallery`, minimax/table.json by `python runs/minimax_table.py`; quick/table.json and rows.jsonl are the report
of `make demo`, schemes/* and goose/* of `python -m plkernel.experiment` with the spec of that name; exp013-audit/* are
the record and the report of runs/exp013-audit.toml (its README.md has both commands); bench/*.json are written by
`make bench`, but for bench/compiled.json, by `python -m plkernel.bench compiled --out runs/records/bench`, and for
bench/threads-before.json, which keeps what an earlier commit made of threads on another processor;
measure/coverage.json by `python runs/interval_coverage.py` and the rest of measure/* by `python
runs/mutual_information.py all`; findings/table.json by `python runs/findings.py`. All but the first two name their
commit and hardware.
"""

import re
import sys
import tomllib
from pathlib import Path

from tables import controls, frameworks, information, kernels, natural, speed, studies
from tables.records import RECORDS

ROOT = RECORDS.parents[1]
README = ROOT / "README.md"
DOCUMENTS = (
    README,
    RECORDS / "exp013-audit" / "README.md",
    RECORDS / "findings" / "README.md",
    ROOT / "docs" / "rwkv.md",
    *sorted((ROOT / "docs" / "evidence").glob("*.md")),
)
PART = re.compile(r"(<!-- record:(\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?:https?://[^)\s]+/HEAD/)?((?:docs|runs)/[^)\s]*|[A-Z]+\.md|LICENSE)\)")

PARTS = {
    part.__name__: part
    for part in (
        *(kernels.fit, kernels.six, kernels.minimax, kernels.gallery),
        *(studies.quick, studies.schemes, studies.goose, studies.audit, studies.audit_short),
        *(studies.transfer, studies.saturation),
        *(controls.controls, controls.verdicts, controls.doses),
        *(natural.lengths, natural.length_verdicts, natural.corners, natural.length_memory),
        *(natural.texts, natural.text_verdicts, natural.prose_verdicts),
        *(information.verdict, information.measure, information.stability, information.trust),
        *(speed.bench, speed.recurrence, speed.delta_rule, speed.rwkv_steps, speed.counts, speed.compiled),
        *(frameworks.findings, frameworks.known_bugs),
    )
}
"""What a document may ask for, by the name after `record:`."""


def render(text: str) -> str:
    """A document with its marked parts rendered from the records."""
    return PART.sub(lambda match: f"{match[1]}{PARTS[match[2]]()}\n{match[3]}", text)


def repository() -> str | None:
    """Where the project says that its files are."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("urls", {})
    return urls.get("Repository")


def linked(text: str, base: str | None) -> str:
    """A document of the root with its links to files below `base`; relative without one."""

    def link(match: re.Match[str]) -> str:
        picture, name, path = match.groups()
        head = f"{base.rstrip('/')}/{'raw' if picture else 'blob'}/HEAD/" if base else ""
        return f"{picture}[{name}]({head}{path})"

    return LINK.sub(link, text)


def written(document: Path) -> str:
    """What a document should say."""
    text = render(document.read_text())
    return linked(text, repository()) if document == README else text


def main() -> None:
    """Rewrite the documents, or check them."""
    for document in DOCUMENTS:
        text = document.read_text()
        rendered = written(document)
        if "--check" in sys.argv[1:] and rendered != text:
            sys.exit(f"{document} differs from the records: run python runs/records/render.py")
        if rendered != text:
            document.write_text(rendered)


if __name__ == "__main__":
    main()
