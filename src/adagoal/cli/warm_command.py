"""``adagoal warm``."""

from __future__ import annotations

import time

import click

from adagoal.cli import options


@click.command(epilog="Example: adagoal warm")
@options.quiet_option
def warm(quiet: bool) -> None:
    """Compile all methods now, on all cores, so that no first run has to wait.

    Numba keeps the compiled code in __pycache__ beside the package, or in the folder NUMBA_CACHE_DIR.
    """
    from adagoal.core import precompilation
    from adagoal.runs.progress_display import ProgressDisplay

    start = time.monotonic()
    signatures = precompilation.read_signatures()
    with ProgressDisplay(quiet):
        n_compiled = precompilation.compile_in_processes(signatures)
    if n_compiled == 0:
        click.echo(f"all {len(signatures)} functions are compiled already")
        return
    seconds, cores = time.monotonic() - start, precompilation.n_processes()
    click.echo(f"compiled {n_compiled} functions in {seconds:.0f} s on {cores} cores")
