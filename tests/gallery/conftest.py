"""These tests need a separate environment (make check-gallery) with packages of other projects."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PACKAGES = {"test_network": "nasim", "test_text": "textworld", "test_protocol": "aalpy", "test_rooms": "gymnax"}
collect_ignore = [f"{name}.py" for name, package in PACKAGES.items() if not importlib.util.find_spec(package)]
if not importlib.util.find_spec(
    "nasim"
):  # the environment of make test has MiniGrid too, but these tests take a minute
    collect_ignore.append("test_grid.py")

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "gallery"))
