"""These tests need a separate environment (make check-panda): PyBullet is large and needs Python 3.11."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("panda_gym") else ["test_*"]
