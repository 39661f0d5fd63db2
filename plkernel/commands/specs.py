"""python -m plkernel.specs: the specs and tables of roles that come with plkernel, and what each is for."""

import re
from pathlib import Path
from typing import Annotated

import tyro

from plkernel.common import cli
from plkernel.common.files import parse_toml, read_bytes
from plkernel.config.reading import roles, specs

COST = re.compile(r"(?:about [\w ]{1,20}|a few |an )?(?:minutes|hours?) on two cores|for GPUs", re.IGNORECASE)
"""How the comments at the head of a spec say what it takes."""


def command(name: Annotated[str | None, tyro.conf.Positional] = None) -> None:
    """List the specs that come with plkernel, what each takes and is for; or write one, to edit.

        python -m plkernel.specs quick > my.toml

    Wherever a command takes a SPEC, it takes these names; --dry-run of plkernel.experiment says what one takes on this
    machine.

    Args:
        name: Print the content of this one.
    """
    known = {**specs(), **roles()}
    if name is None:
        print(listing())
        return
    if name not in known:
        raise ValueError(f"no spec or table of roles {name!r} comes with plkernel; {cli.nearest(name, known)}")
    print(known[name].read_text(encoding="utf-8"), end="")


def listing() -> str:
    """Names, costs and descriptions, and the tables of roles."""
    rows = [(name, *_told(path)) for name, path in specs().items()]
    wide, dear = (max(len(row[column]) for row in rows) + 2 for column in (0, 1))
    lines = [f"{name:<{wide}}{cost:<{dear}}{what}" for name, cost, what in rows]
    show = cli.program("plkernel.specs")
    tables = f"tables of roles, for RoleTable.from_toml: {', '.join(roles())}"
    return "\n".join([*lines, "", tables, f"{show} NAME > my.toml writes one, to edit"])


def _told(path: Path) -> tuple[str, str]:
    """What a spec takes, by the comments at its head, and what it is for."""
    content = read_bytes(path)
    values = parse_toml(content, path.stem)
    comments = " ".join(line.lstrip("# ") for line in content.decode().splitlines() if line.startswith("#"))
    cost = COST.search(comments)
    return cost[0].lower().replace("gpus", "GPUs") if cost else "", str(values.get("description", ""))


if __name__ == "__main__":
    cli.main(command)
