"""Settings of all tests: files are written without waiting for the disk."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def skip_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync: it protects against power cuts, which tests do not simulate."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
