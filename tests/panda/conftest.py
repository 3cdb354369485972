"""These tests have an environment of their own (make check-panda): PyBullet is large, and for Python 3.11 alone."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("panda_gym") else ["test_*"]
