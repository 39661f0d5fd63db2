"""python -m plkernel.bench scan: check and time one part of the project against its peers."""

import tyro

from plkernel.bench.scan import scan
from plkernel.cli import report_errors

COMMANDS = {"scan": scan}

if __name__ == "__main__":
    report_errors(
        lambda: tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="python -m plkernel.bench", description=__doc__)
    )
