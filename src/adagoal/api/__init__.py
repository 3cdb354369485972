"""The public functions: explore, resume, train, certify, audit, play, export, check."""
