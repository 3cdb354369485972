"""``adagoal certify``: which goals a trained policy reaches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from adagoal.cli import options
from adagoal.cli.ending import skip_drawing_on_interrupt
from adagoal.core.files import write_json
from adagoal.core.status import Status
from adagoal.core.streams import stdout_to_stderr
from adagoal.deep.certification import Certification, Verdict

STATUS_SENTENCES = {
    Status.CERTIFIED: "every cell is certified",
    Status.DECIDED: "every cell is decided, some are refuted,",
}


@click.command(epilog="Example: adagoal certify runs/push --radius 50 --success 0.9 --delta 0.05")
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path, file_okay=False))
@click.option("--radius", type=int, required=True, help="L: steps in which a goal must be reached.")
@click.option("--success", type=float, default=0.9, show_default=True, help="Cells below this probability are refuted.")
@click.option("--slack", type=float, default=0.05, show_default=True,
              help="Cells are certified for the success less this; 0 needs --rollouts.")  # fmt: skip
@click.option("--delta", type=float, default=0.05, show_default=True,
              help="Probability of one wrong verdict or more, all cells together.")  # fmt: skip
@click.option(
    "--rollouts", type=options.StepCountParam(), help="Stop after so many.  [default: until every cell is decided]"
)
@click.option("--halvings", type=int, default=6, show_default=True, help="Of the goal space, at most; 6 make 64 cells.")
@click.option("--run", type=click.IntRange(0), default=0, show_default=True, help="Which of the runs side by side.")
@click.option("--test-goals", help="Goal space: env, or scale=K[,air=P].  [default: that of the training]")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Decides everything.")
@click.option("--workers", type=click.IntRange(0, 1024), default=0, help="Rollout processes.  [default: one per core]")
@options.env_override_option
@options.trust_option
@options.quiet_option
@options.json_option
def certify(folder: Path, quiet: bool, as_json: bool, **given: Any) -> None:
    """Find the goals that the policy in RUN reaches within L steps: cells certified, refuted or open.

    Writes RUN/certificate.json and RUN/certificate.png, and alters nothing else. Exit code 0: all cells are
    certified; 1: all are decided, some refuted; 3: some are open.
    """
    from adagoal.api.certify import certify as find
    from adagoal.runs.display import ProgressDisplay

    with stdout_to_stderr(), ProgressDisplay(quiet) as display:

        def observe(open_cells: int, played: int) -> None:
            if display.is_live:
                display.show_lines([f"{open_cells} open cells  {played} rollouts"], None)

        found = find(folder, observe=observe, **given)
    save_certificate(found, folder)
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=1))
    else:
        print_certificate(found)
        click.echo(
            f"{STATUS_SENTENCES.get(found.status, found.status)} after {found.rollouts} rollouts: {folder / 'certificate.png'}"
        )
    with skip_drawing_on_interrupt("certificate.png", "the same command"):
        draw_certificate(found, folder)
    if found.status.exit_code:
        raise click.exceptions.Exit(found.status.exit_code)


def save_certificate(found: Certification, folder: Path) -> None:
    """Write the certificate into the folder of its training."""
    write_json(folder / "certificate.json", found.to_dict())


def draw_certificate(found: Certification, folder: Path) -> None:
    """Write the picture of a certificate into the folder of its training."""
    from adagoal.report import deep_figures as figures

    figures.write_figure_file(figures.draw_certified_cells(found.cells), folder / "certificate.png")


def print_certificate(found: Certification) -> None:
    """Say what was found."""
    for verdict in Verdict:
        click.echo(f"{verdict:9}  {found.count(verdict):4} cells  {found.share(verdict):6.1%} of the goals")
    click.echo(found.statement)
