"""The public functions: explore, resume, certify_data, train, certify, audit, play, export, check."""
