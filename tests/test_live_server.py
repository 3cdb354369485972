"""The live report: its token, its data during a run, and the request to stop."""

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
from adagoal.cli.inspection_commands import LivePublisher
from adagoal.cli.main import run_command_line as command
from adagoal.comparison.method_comparison import ComparisonFolderSource
from adagoal.core.errors import InputError
from adagoal.core.file_io import folder_lock, is_folder_locked
from adagoal.report.exploration_page import LiveRunSource, RunFolderSource
from adagoal.report.live_server import serve_report
from adagoal.runs.job import STOP_REQUEST_FILE
from adagoal.runs.load_result import load_result
from adagoal.runs.result import Result
from data_block import unpack_data_block

SMALL: dict[str, Any] = {"env": "grid", "radius": 6, "env_args": {"rows": 3, "cols": 3}}


@pytest.fixture(scope="module")
def answers() -> list[Result]:
    return [api.explore(**SMALL, budget=budget) for budget in (1000, 4000)]


@pytest.fixture
def source(answers: list[Result], tmp_path: Path) -> LiveRunSource:
    source = LiveRunSource(tmp_path)
    source.publish_result(answers[0])
    return source


@pytest.fixture
def address(source: LiveRunSource) -> Iterator[str]:
    with serve_report(source) as address:
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
    assert not (tmp_path / STOP_REQUEST_FILE).exists()
    assert ask(address + "stop", "POST")[0] == 204
    assert (tmp_path / STOP_REQUEST_FILE).exists()


def test_request_waits_for_new_data(address: str, source: LiveRunSource, answers: list[Result]) -> None:
    status, block, headers = ask(address + "data?after=")
    facts, arrays = unpack_data_block(block)
    assert status == 200
    assert (facts["steps"], facts["running"]) == (1000, True)
    assert "Not finished" in facts["html"]["words"]
    assert sorted(arrays["goal"]) == sorted(answers[0].certificates)
    assert ask(f"{address}data?after={headers['X-Stamp']}")[0] == 204
    source.publish_result(answers[1])
    assert unpack_data_block(ask(f"{address}data?after={headers['X-Stamp']}")[1])[0]["steps"] == 4000
    goal = answers[1].goals[0]
    _, policy = unpack_data_block(ask(f"{address}policy?goal={goal}")[1])
    np.testing.assert_array_equal(policy["policy"], answers[1].policy(goal).actions)
    for wrong in ("99", "-1", "x", "", "9" * 50):
        assert ask(f"{address}policy?goal={wrong}")[0] == 503


def test_page_says_if_there_is_no_data_yet(tmp_path: Path) -> None:
    with serve_report(LiveRunSource(tmp_path)) as address:
        status, page, _ = ask(address)
        assert status == 503
        assert b"the run has not started yet" in page
        port = int(address.split(":")[2].split("/")[0])
        with (
            pytest.raises(InputError, match=f"port: {port} cannot be used"),
            serve_report(LiveRunSource(tmp_path), port),
        ):
            pass


def test_live_report_does_not_change_the_run(tmp_path: Path) -> None:
    """A watched run equals an unwatched one."""
    seen: list[int] = []
    live = LivePublisher(tmp_path, lambda run: seen.append(run.steps))
    watched = api.explore(**SMALL, budget=4000, observe=live)
    alone = api.explore(**SMALL, budget=4000)
    assert seen
    assert {**watched.to_dict(), "wall_seconds": 0} == {**alone.to_dict(), "wall_seconds": 0}
    for name, array in alone.arrays.items():
        np.testing.assert_array_equal(watched.arrays[name], array)
    assert 0 < unpack_data_block(live.page_source.pack_data())[0]["steps"] <= 4000


def test_live_report_shows_the_settings_of_the_run(tmp_path: Path) -> None:
    live = LivePublisher(tmp_path, lambda run: None)
    watched = api.explore(**SMALL, goals=[3, 4], budget=4000, observe=live)
    assert watched.setting.goal_space == (3, 4)
    assert live.page_source.current_source().result.setting == watched.setting


@pytest.mark.parametrize("path", ["//[", "/%", "http://[::1", "\x00"])
def test_malformed_request_is_refused_silently(path: str, address: str, capfd: pytest.CaptureFixture[str]) -> None:
    host, port = address.split("/")[2].split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
        answer = connection.recv(100)
    assert answer.split()[1][:1] == b"4"
    with socket.create_connection(
        (host, int(port)), timeout=20
    ) as connection:  # a client that disconnects in the middle
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(b"GET /")
    assert ask(address)[0] == 200
    assert capfd.readouterr().err == ""


def test_page_of_a_folder_shows_its_last_save(tmp_path: Path) -> None:
    """The page shows the result, or the checkpoint if that is newer or there is no result."""
    api.explore(**SMALL, budget=1000, out=tmp_path)
    source = RunFolderSource(tmp_path)
    first = source.version_stamp()
    assert unpack_data_block(source.pack_data())[0]["steps"] == 1000
    shown: list[int] = []

    def look(run: Any) -> None:
        if not shown:
            facts, arrays = unpack_data_block(source.pack_data())
            shown.append(facts["steps"])
            assert facts["running"]
            assert len(arrays["policy"]) > 0

    result = api.resume(tmp_path, budget=2000, observe=look)
    assert shown == [1000], "the checkpoint with which it began"
    assert source.version_stamp() != first
    assert unpack_data_block(source.pack_data())[0]["steps"] == result.steps == 2000
    with pytest.raises(InputError, match="no run is active"):
        source.request_stop()


def test_run_in_another_process_is_watched_and_stopped(tmp_path: Path) -> None:
    arguments = ["explore", "grid", "--radius", "8", "--epsilon", "0.01", "--quiet", "--out", str(tmp_path)]
    child = subprocess.Popen([sys.executable, "-m", "adagoal", *arguments], stdout=subprocess.PIPE, text=True)
    try:
        until(lambda: (tmp_path / "manifest.json").exists())
        with serve_report(RunFolderSource(tmp_path)) as address:
            assert ask(address)[0] == 200
            assert unpack_data_block(ask(address + "data")[1])[0]["running"]
            assert ask(address + "stop", "POST")[0] == 204
            out, _ = child.communicate(timeout=60)
            assert child.returncode == 3
            assert "Not finished (interrupted)" in out
            assert not unpack_data_block(ask(address + "data")[1])[0]["running"]
    finally:
        child.kill()
    assert load_result(tmp_path).status == "interrupted"
    assert not (tmp_path / STOP_REQUEST_FILE).exists(), "a request is for one run"


def test_old_stop_request_is_ignored(tmp_path: Path) -> None:
    (tmp_path / STOP_REQUEST_FILE).touch()
    assert api.explore(**SMALL, budget=1000, out=tmp_path).steps == 1000
    assert not (tmp_path / STOP_REQUEST_FILE).exists()


def test_comparison_is_watched_while_it_runs(tmp_path: Path) -> None:
    source = ComparisonFolderSource(tmp_path)
    with pytest.raises(InputError, match="no run is finished yet"):
        source.current_page().render(live=True)
    arguments = ["compare", "chain", "--radius", "5", "--goal-rules", "adagoal,unigoal", "--seeds", "1", "--jobs", "1"]
    assert command([*arguments, "--budget", "2000", "--out", str(tmp_path), "--quiet"]) == 0
    before = source.version_stamp()
    assert "certified" in str(unpack_data_block(source.pack_data())[0]["tables"])
    assert 'data-live="yes"' in source.current_page().render(live=True)
    facts, _ = unpack_data_block(source.pack_data())
    assert {line["name"] for line in facts["curves"][0]["lines"]} == {"certified, adagoal", "certified, unigoal"}
    assert (facts["running"], facts["stops"]) == (False, False)
    next((tmp_path / "cells").iterdir()).unlink()
    assert source.version_stamp() != before
    assert len({line["name"] for line in unpack_data_block(source.pack_data())[0]["curves"][0]["lines"]}) == 1
    (tmp_path / "cells" / "other.json").write_text("{}")
    with pytest.raises(InputError, match="damaged, or not from adagoal compare; remove it"):
        source.pack_data()


def test_watching_takes_no_lock(tmp_path: Path) -> None:
    assert not is_folder_locked(tmp_path)
    with folder_lock(tmp_path):
        assert is_folder_locked(tmp_path)
    assert not is_folder_locked(tmp_path)


def test_watch_needs_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert command(["watch", str(folder)]) == 2
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.skipif(driver.found() is None, reason=driver.HOW)
def test_the_page_follows_the_run(source: LiveRunSource, address: str, answers: list[Result], tmp_path: Path) -> None:
    with driver.Browser() as browser:
        page = browser.open(address)
        page.wait("document.body.dataset.ready === 'yes' && !$('stop').hidden")
        page.evaluate("choose(page.row[4])")
        assert "after 1,000 steps" in page.evaluate("$('moment-text').textContent")
        source.publish_result(answers[1])
        page.wait("$('moment-text').textContent.includes('after 4,000 steps')")
        assert f"{answers[1].certificate(4).lower:.3f}" in page.evaluate("$('interval-text').textContent"), (
            "the goal stays chosen"
        )
        assert "4,000 steps" in page.evaluate("$('words').textContent")
        page.evaluate("$('stop').click()")
        page.wait("$('live-text').textContent.includes('will stop')")
        assert (tmp_path / STOP_REQUEST_FILE).exists()
        assert page.troubles() == []
