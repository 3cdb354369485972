"""The command that writes what a run knows for other tools."""

from __future__ import annotations

from pathlib import Path

import click

from adagoal.cli import options


@click.command(epilog="Example: adagoal export runs/two-room --format drn")
@click.argument("run", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--format", "format", default="drn", show_default=True, metavar="drn|umb|csv", help="Which format to write."
)
@click.option("--out", type=options.OutputFolderParam(), help="Folder of the files.  [default: DIR/export]")
@options.env_override_option
@options.trust_option
def export(run: Path, format: str, out: Path | None, env: str | None, trust: bool) -> None:
    """Write what the run in DIR knows, for other programs.

    csv: certificates.csv, the table of certificates of any run. drn and umb, for model checkers: the interval MDP of a
    certified run, in these files:

    certified: every true transition probability lies in its interval, with probability 1 - delta. graph-preserving:
    the same for tools that want lower ends above zero, under the assumption that it states. empirical: frequencies.
    policies.json: goals, certificates and policies.
    """
    from adagoal.api.export import export as write

    for path in write(run, format, out, env=env, trust=trust):
        click.echo(path)
