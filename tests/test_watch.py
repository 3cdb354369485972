"""A run that is watched: who may look, what is shown while it goes on, and the one thing that may be asked of it."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import browser as driver
from adagoal.api import explore as api
from adagoal.cli.main import run as command
from adagoal.cli.watch import Live
from adagoal.compare.live import FolderComparison
from adagoal.core.errors import InputError
from adagoal.core.files import alone_in, busy
from adagoal.report import View
from adagoal.report.packed import unpacked
from adagoal.report.server import serving
from adagoal.report.watched import FolderRun, LiveRun
from adagoal.runs.result import Result, load
from adagoal.runs.signals import FILE

SMALL: dict[str, Any] = {"env": "grid", "radius": 6, "env_args": {"rows": 3, "cols": 3}}


@pytest.fixture(scope="module")
def answers() -> list[Result]:
    return [api.explore(**SMALL, budget=budget) for budget in (1000, 4000)]


@pytest.fixture
def source(answers: list[Result], tmp_path: Path) -> LiveRun:
    source = LiveRun(tmp_path)
    source.publish(answers[0], View(0))
    return source


@pytest.fixture
def address(source: LiveRun) -> Iterator[str]:
    with serving(source) as address:
        yield address


def ask(address: str, method: str = "GET", **headers: str) -> tuple[int, bytes, Any]:
    request = urllib.request.Request(address, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read(), error.headers


def until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


def test_the_page_needs_its_token(address: str, tmp_path: Path) -> None:
    port, token = address.split(":")[2].split("/")[:2]
    assert len(token) > 20
    status, page, headers = ask(address)
    assert status == 200
    assert b"Not finished" in page
    assert headers["Cache-Control"] == "no-store"
    for path in ("", "/", "/favicon.ico", f"/{token[:-1]}/", f"/{token}x/", f"/{token}/../", f"/{token}/secret"):
        assert ask(f"http://127.0.0.1:{port}{path}")[0] == 404
    assert ask(address, Host="evil.example")[0] == 404, "a name that was made to point here"
    assert ask(f"http://127.0.0.1:{port}/stop", "POST")[0] == 404
    assert ask(address + "stop")[0] == 404, "looking is not asking"
    assert not (tmp_path / FILE).exists()
    assert ask(address + "stop", "POST")[0] == 204
    assert (tmp_path / FILE).exists()


def test_data_come_when_there_is_something_new(address: str, source: LiveRun, answers: list[Result]) -> None:
    status, block, headers = ask(address + "data?after=")
    facts, arrays = unpacked(block)
    assert status == 200
    assert (facts["steps"], facts["running"]) == (1000, True)
    assert "Not finished" in facts["words"]
    assert sorted(arrays["goal"]) == sorted(answers[0].certificates)
    assert ask(f"{address}data?after={headers['X-Stamp']}")[0] == 204
    source.publish(answers[1], View(0))
    assert unpacked(ask(f"{address}data?after={headers['X-Stamp']}")[1])[0]["steps"] == 4000
    goal = answers[1].goals[0]
    _, policy = unpacked(ask(f"{address}policy?goal={goal}")[1])
    np.testing.assert_array_equal(policy["policy"], answers[1].policy(goal).actions)
    for wrong in ("99", "-1", "x", "", "9" * 50):
        assert ask(f"{address}policy?goal={wrong}")[0] == 503


def test_nothing_to_show_yet_is_said(tmp_path: Path) -> None:
    with serving(LiveRun(tmp_path)) as address:
        status, page, _ = ask(address)
        assert status == 503
        assert b"the run has not begun" in page
        port = int(address.split(":")[2].split("/")[0])
        with pytest.raises(InputError, match=f"port: {port} cannot be used"), serving(LiveRun(tmp_path), port):
            pass


def test_a_live_run_is_the_same_run(tmp_path: Path) -> None:
    """Looking changes nothing."""
    seen: list[int] = []
    live = Live(tmp_path, lambda run: seen.append(run.steps))
    watched = api.explore(**SMALL, budget=4000, observe=live)
    alone = api.explore(**SMALL, budget=4000)
    assert seen
    assert {**watched.to_dict(), "wall_seconds": 0} == {**alone.to_dict(), "wall_seconds": 0}
    for name, array in alone.arrays.items():
        np.testing.assert_array_equal(watched.arrays[name], array)
    assert 0 < unpacked(live.source.block())[0]["steps"] <= 4000


def test_a_live_run_has_the_setting_of_the_run(tmp_path: Path) -> None:
    live = Live(tmp_path, lambda run: None)
    watched = api.explore(**SMALL, goals=[3, 4], budget=4000, observe=live)
    assert watched.setting.goal_space == (3, 4)
    assert live.source._shown()[0].setting == watched.setting


@pytest.mark.parametrize("path", ["//[", "/%", "http://[::1", "\x00"])
def test_a_malformed_request_is_refused_without_a_word(
    path: str, address: str, capfd: pytest.CaptureFixture[str]
) -> None:
    host, port = address.split("/")[2].split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
        answer = connection.recv(100)
    assert answer.split()[1][:1] == b"4"
    with socket.create_connection((host, int(port)), timeout=20) as connection:  # one that goes away in the middle
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(b"GET /")
    assert ask(address)[0] == 200
    assert capfd.readouterr().err == ""


def test_a_folder_shows_its_last_save(tmp_path: Path) -> None:
    """The result where there is one; else, and while a resumed run is ahead of it, the checkpoint."""
    api.explore(**SMALL, budget=1000, out=tmp_path)
    source = FolderRun(tmp_path)
    first = source.stamp()
    assert unpacked(source.block())[0]["steps"] == 1000
    shown: list[int] = []

    def look(run: Any) -> None:
        if not shown:
            facts, arrays = unpacked(source.block())
            shown.append(facts["steps"])
            assert facts["running"]
            assert len(arrays["policy"]) > 0

    result = api.resume(tmp_path, budget=2000, observe=look)
    assert shown == [1000], "the checkpoint with which it began"
    assert source.stamp() != first
    assert unpacked(source.block())[0]["steps"] == result.steps == 2000
    with pytest.raises(InputError, match="no run is going on"):
        source.stop()


def test_a_run_on_another_terminal_is_watched_and_stopped(tmp_path: Path) -> None:
    arguments = ["explore", "grid", "--radius", "8", "--epsilon", "0.01", "--quiet", "--out", str(tmp_path)]
    child = subprocess.Popen([sys.executable, "-m", "adagoal", *arguments], stdout=subprocess.PIPE, text=True)
    try:
        until(lambda: (tmp_path / "manifest.json").exists())
        with serving(FolderRun(tmp_path)) as address:
            assert ask(address)[0] == 200
            assert unpacked(ask(address + "data")[1])[0]["running"]
            assert ask(address + "stop", "POST")[0] == 204
            out, _ = child.communicate(timeout=60)
            assert child.returncode == 3
            assert "Not finished (interrupted)" in out
            assert not unpacked(ask(address + "data")[1])[0]["running"]
    finally:
        child.kill()
    assert load(tmp_path).status == "interrupted"
    assert not (tmp_path / FILE).exists(), "a request is for one run"


def test_a_request_of_yesterday_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / FILE).touch()
    assert api.explore(**SMALL, budget=1000, out=tmp_path).steps == 1000
    assert not (tmp_path / FILE).exists()


def test_a_comparison_is_watched_as_its_runs_come_in(tmp_path: Path) -> None:
    source = FolderComparison(tmp_path)
    with pytest.raises(InputError, match="no run is finished yet"):
        source.page()
    arguments = ["compare", "chain", "--radius", "5", "--goal-rules", "adagoal,unigoal", "--seeds", "1", "--jobs", "1"]
    assert command([*arguments, "--budget", "2000", "--out", str(tmp_path), "--quiet"]) == 0
    before = source.stamp()
    assert "certified" in str(unpacked(source.block())[0]["tables"])
    assert 'data-live="yes"' in source.page()
    facts, _ = unpacked(source.block())
    assert {line["name"] for line in facts["panels"][0]["lines"]} == {"certified, adagoal", "certified, unigoal"}
    assert (facts["running"], facts["stops"]) == (False, False)
    next((tmp_path / "cells").iterdir()).unlink()
    assert source.stamp() != before
    assert len({line["name"] for line in unpacked(source.block())[0]["panels"][0]["lines"]}) == 1
    (tmp_path / "cells" / "other.json").write_text("{}")
    with pytest.raises(InputError, match="damaged, or no run of compare"):
        source.block()


def test_who_looks_locks_nobody_out(tmp_path: Path) -> None:
    assert not busy(tmp_path)
    with alone_in(tmp_path):
        assert busy(tmp_path)
    assert not busy(tmp_path)


def test_watch_needs_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert command(["watch", str(folder)]) == 2
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.skipif(driver.found() is None, reason=driver.HOW)
def test_the_page_follows_the_run(source: LiveRun, address: str, answers: list[Result], tmp_path: Path) -> None:
    with driver.Browser() as browser:
        page = browser.open(address)
        page.wait("document.body.dataset.ready === 'yes' && !$('stop').hidden")
        page.evaluate("choose(page.row[4])")
        assert "after 1,000 steps" in page.evaluate("$('moment-text').textContent")
        source.publish(answers[1], View(0))
        page.wait("$('moment-text').textContent.includes('after 4,000 steps')")
        assert f"{answers[1].certificate(4).lower:.3f}" in page.evaluate("$('interval-text').textContent"), (
            "the goal stays chosen"
        )
        assert "4,000 steps" in page.evaluate("$('words').textContent")
        page.evaluate("$('stop').click()")
        page.wait("$('live-text').textContent.includes('will stop')")
        assert (tmp_path / FILE).exists()
        assert page.troubles() == []
