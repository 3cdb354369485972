"""For all tests: files are written as ever, but nobody waits for the disk, nor for pictures at which nobody looks."""

from __future__ import annotations

import base64
import os

import pytest


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies loses nothing that it has written; only the machine could. Tests do not switch that off."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="session")
def pixel() -> bytes:
    """The smallest picture."""
    return base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )


@pytest.fixture(autouse=True)
def no_painting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, pixel: bytes) -> None:
    """The figures beside a page are made everywhere; they are painted, which takes longest, for the tests of pages."""
    if request.module.__name__ != "test_report":
        monkeypatch.setattr("adagoal.report.exploration_page.figure_to_png", lambda drawn: pixel)
