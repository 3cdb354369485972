"""Skip the deep tests where the extra is not installed; compile equal programs only once."""

from __future__ import annotations

import importlib.util
import os
import tempfile

EXTRA = ("jax", "optax", "mujoco", "gymnasium_robotics")
collect_ignore_glob = [] if all(importlib.util.find_spec(name) for name in EXTRA) else ["test_*"]

os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.join(tempfile.gettempdir(), "adagoal-test-programs"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")
