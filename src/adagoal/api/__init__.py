"""The front door: explore, resume, audit, play."""
