"""TensorBoard output of training: every number once, at its step, also after a resume."""

from __future__ import annotations

import dataclasses
import importlib.util
import struct
from pathlib import Path
from typing import Any

import pytest
from small_training import CONFIG

from adagoal import resume, train
from adagoal.cli.main import run_command_line


def written(folder: Path) -> list[tuple[str, int, float]]:
    """Return (tag, steps, value) of all events of a folder; a record is length, checksum, data, checksum."""
    event_pb2 = importlib.import_module("tensorboardX.proto.event_pb2")
    found = []
    for path in sorted(folder.glob("events*"), key=lambda path: path.stat().st_mtime_ns):
        data = path.read_bytes()
        while data:
            (size,) = struct.unpack("<Q", data[:8])
            event: Any = event_pb2.Event.FromString(data[12 : 12 + size])
            found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
            data = data[16 + size :]
    return found


def test_every_number_is_written_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    configs = [dataclasses.replace(CONFIG, seed=seed) for seed in (0, 1)]
    train(configs, out=tmp_path / "run", workers=1, tensorboard=tmp_path / "board")
    longer = resume(tmp_path / "run", budget=60, workers=1, tensorboard=tmp_path / "board")
    for seed in (0, 1):
        found = written(tmp_path / "board" / f"adagoal-proportional-seed{seed}")
        success = dict.fromkeys((steps, value) for tag, steps, value in found if tag == "success")
        expected = [(point["steps"], point["success"]) for point in longer.curve(seed)]
        assert set(expected) <= set(success)
        losses = [steps for tag, steps, _ in found if tag == "critic_loss"]
        assert losses == sorted(set(losses))
        assert {"distance", "error", "radius", "reachable", "train_success", "actor_loss"} <= {tag for tag, *_ in found}


def test_missing_tensorboard_gives_one_line_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "tensorboardX" else find(name, *a)
    )
    words = ["train", "point-mass", "--steps", "40", "--tensorboard", str(tmp_path / "board")]
    assert run_command_line([*words, "--out", str(tmp_path / "run"), "--quiet"]) == 2
    assert "--tensorboard: this needs tensorboardX" in capsys.readouterr().err
    assert not (tmp_path / "board").exists()
