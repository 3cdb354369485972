"""The command line: the only place that knows the names of options."""
