"""These tests have an environment of their own (make check-sb3): PyTorch is heavy."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("stable_baselines3") else ["test_*"]
