"""``adagoal certify``: find for which goals or starts a policy succeeds, and print and draw the certificate."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from adagoal.cli import options
from adagoal.cli.options import echo_wrapped, setting_options, skip_drawing_on_interrupt
from adagoal.core.errors import InputError
from adagoal.core.user_code import is_file_spec, load_from_file, stdout_to_stderr
from adagoal.settings.exploration import ExecutionOptions
from adagoal.settings.training import ClaimSettings, TrainingOptions

if TYPE_CHECKING:
    from adagoal.certification.certificate import Certification

CLAIM_OPTIONS = ("success", "slack", "delta")
run_option = click.option(
    "--run", type=options.INTEGER, default=0, show_default=True, help="Index of the run, if trained with several seeds."
)
test_goals_option = click.option(
    "--test-goals", help="Goal space: env, or scale=K[,air=P].  [default: that of the training run]"
)


@click.command(
    cls=options.GroupedCommand,
    groups={
        "Problem": "env versus starts goals criterion set_start radius",
        "Guarantee": "success slack delta halvings rollouts seed",
        "Trained policies": "run test_goals trust",
        "Execution": "workers out quiet as_json help",
    },
    epilog="Example: adagoal certify model.zip --env CartPole-v1 --start x=-2:2,theta=-0.2:0.2 --criterion survive:500",
)
@click.argument("policy", type=options.POLICY)
@click.option("--env", type=options.ENV, help="Gymnasium id.  [default: the environment of the training run]")
@click.option("--versus", metavar="POLICY", help="Compare with another policy: where is POLICY better, worse or equal?")
@click.option("--start", "starts", metavar="BOX", help="Vary the start: x=-2:2,theta=-0.2:0.2")
@click.option(
    "--goal",
    "goals",
    metavar="BOX",
    help="Vary the goal: x=-1:1,y=0:2 or -1:1,0:2  [default: goals of the environment]",
)
@click.option(
    "--criterion", metavar="TEXT", help='Success: survive:N, return:X or FILE.py:NAME.  [default: info["is_success"]]'
)
@click.option("--set-start", metavar="FILE.py:NAME", help="Function (env, start) that puts the environment there.")
@setting_options(ClaimSettings, "radius", *CLAIM_OPTIONS, "rollouts", "halvings")
@run_option
@test_goals_option
@options.seed_option
@options.trust_option
@setting_options(TrainingOptions, "workers")
@setting_options(ExecutionOptions, "out", help="Folder of the certificate.  [default: runs/certify-POLICY-ENV, or RUN]")
@options.quiet_option
@options.json_option
def certify(policy: str, out: Path | None, quiet: bool, as_json: bool, **given: Any) -> None:
    """Find out where POLICY succeeds: cells of goals or starts certified, refuted or open.

    POLICY is the folder of a run of adagoal train, a model.zip of Stable-Baselines3 (loading it runs the code in it),
    or a function action = f(observation): module:function or FILE.py:NAME. The same command continues a certification
    that was interrupted.

    --versus says where POLICY is better, worse or equal to another policy; then exit code 1 means that it is worse in
    some cell.

    Writes certificate.json, certificate.png (with the extra figures) and, unless POLICY is a folder, report.html.
    Exit code 0: all cells are certified; 1: all are decided, some refuted; 3: some are open.
    """
    from adagoal.api.certify import certify as certify_policy
    from adagoal.runs.progress_display import CertificationProgress

    for name in ("criterion", "set_start"):
        if is_file_spec(given[name]):
            given[name] = load_from_file(given[name], name)
        elif name == "set_start" and given[name] is not None:
            raise InputError(f"must look like FILE.py:NAME, got {given[name]!r}", name)
    is_folder = os.path.isdir(policy)
    folder = out or (Path(policy) if is_folder else _default_folder(policy, given["versus"], given["env"]))
    with stdout_to_stderr(), CertificationProgress(quiet) as display:
        certification = certify_policy(policy, out=folder, observe=display, **given)
    if as_json:
        click.echo(json.dumps(certification.to_dict(), indent=1))
    else:
        print_certificate(certification)
        picture = "certificate.json" if importlib.util.find_spec("matplotlib") is None else "certificate.png"
        file = folder / (picture if is_folder else "report.html")
        click.echo(f"{certification.outcome} after {certification.rollouts} rollouts: {file}")
    with skip_drawing_on_interrupt("certificate.png", "the same command"):
        draw_certificate(certification, folder)
        # the folder of a run has a page of its own, which shows the certificate
        if not is_folder:
            from adagoal.report.show import show

            show(certification).save(folder / "report.html")
    if certification.status.exit_code:
        raise click.exceptions.Exit(certification.status.exit_code)


def _default_folder(policy: str, versus: str | None, env: str | None) -> Path:
    names = [name.rpartition(":")[2] if ":" in name else Path(name).stem for name in (policy, versus) if name]
    return options.default_run_folder(f"certify-{'-versus-'.join(names)}-{env}", {})


def draw_certificate(certification: Certification, folder: Path) -> None:
    """Draw the certificate into a folder, if Matplotlib (the extra ``figures``) is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    from adagoal.report.figures import draw_certified_cells, save_figure

    save_figure(draw_certified_cells(certification), folder / "certificate.png")


def print_certificate(certification: Certification) -> None:
    """Print the number of cells of each verdict, and what the certificate states."""
    for verdict in certification.claim.verdicts:
        share = f"{certification.share(verdict):6.1%} of the {certification.question.subject}s"
        click.echo(f"{verdict:9}  {certification.count(verdict):4} cells  {share}")
    echo_wrapped(certification.statement)
