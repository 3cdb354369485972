"""``python -m adagoal`` is the command line."""

from adagoal.cli.main import main

main()
