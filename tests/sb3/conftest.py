"""These tests need a separate environment with PyTorch (make check-sb3)."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("stable_baselines3") else ["test_*"]
