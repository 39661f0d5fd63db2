"""python -m plkernel.specs: the specs and tables of roles that come with plkernel, and what each is for."""

import re
from typing import Annotated

import tyro

from plkernel.common import cli
from plkernel.common.files import parse_toml
from plkernel.config.reading import roles, specs

COST = re.compile(r"(?:about [\w ]{1,20}|a few |an )?(?:minutes|hours?) on two cores|for GPUs", re.IGNORECASE)
"""The costs of a spec in the comments at its head."""


def command(name: Annotated[str | None, tyro.conf.Positional] = None) -> None:
    """List the specs that come with plkernel, what each takes and is for; or write one, to edit.

        python -m plkernel.specs quick > my.toml

    Wherever a command takes a SPEC, it takes these names; --dry-run of plkernel.experiment says what one takes on this
    machine.

    Args:
        name: Print the content of this one.
    """
    known = {**specs(), **roles()}
    if name is not None and name not in known:
        raise ValueError(f"no spec or table of roles {name!r} comes with plkernel; {cli.nearest(name, known)}")
    print(known[name].read_text(encoding="utf-8") if name else listing(), end="" if name else "\n")


def listing() -> str:
    """Return names, costs and descriptions of the specs, and the tables of roles."""
    rows = []
    for name, path in specs().items():
        comments = re.findall(r"^# *(.*)", text := path.read_text(encoding="utf-8"), re.MULTILINE)
        cost = COST.search(" ".join(comments))
        description = parse_toml(text.encode(), name).get("description", "")
        rows.append((name, cost[0].lower().replace("gpus", "GPUs") if cost else "", description))
    wide, dear = (max(len(row[column]) for row in rows) + 2 for column in (0, 1))
    lines = [f"{name:<{wide}}{cost:<{dear}}{description}" for name, cost, description in rows]
    tables = f"tables of roles, for RoleTable.from_toml: {', '.join(roles())}"
    return "\n".join([*lines, "", tables, f"{cli.program('plkernel.specs')} NAME > my.toml writes one, to edit"])


if __name__ == "__main__":
    cli.main(command)
