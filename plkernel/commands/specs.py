"""python -m plkernel.specs: the specs and tables of roles that come with plkernel."""

from typing import Annotated

import tyro

from plkernel.common import cli
from plkernel.common.files import parse_toml
from plkernel.config.reading import roles, specs


def command(name: Annotated[str | None, tyro.conf.Positional] = None) -> None:
    """List the specs that come with plkernel and say what each is for, or print one to edit.

    A command that takes a SPEC takes these names too. plkernel.experiment NAME --dry-run says how
    long a study takes on this machine.

    Args:
        name: Print the content of this spec or table of roles.
    """
    known = {**specs(), **roles()}
    if name is not None and name not in known:
        raise ValueError(
            f"name must be that of a spec or a table of roles of plkernel, got {name!r};"
            f" {cli.nearest(name, known)}"
        )
    if name is not None:
        print(known[name].read_text(encoding="utf-8"), end="")
        return
    width = max(map(len, known))
    for spec, path in specs().items():
        description = parse_toml(path.read_bytes(), spec).get("description", "")
        print(f"{spec:<{width}}  {description}")
    print(f"\ntables of roles, for RoleTable.from_toml: {', '.join(roles())}")
    print(f"{cli.program('plkernel.specs')} NAME > my.toml writes one, to edit")


if __name__ == "__main__":
    cli.main(command)
