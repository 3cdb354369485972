"""For all tests: files are written, but tests do not wait for the disk."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies loses nothing that it has written; only the machine could. Tests do not switch that off."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
