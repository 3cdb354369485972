"""``python -m adagoal`` is the command line."""

from adagoal.cli import main

main()
