"""What every room may use: worlds, plans and counts as the loop sees them, errors, checks, types, files."""
