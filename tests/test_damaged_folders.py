"""Damaged and forged run folders are refused with one line, without a hang and without running their code."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import damaged_folders
from adagoal.core import file_formats, file_io
from adagoal.core.errors import InputError
from adagoal.runs import run_folder as folders
from adagoal.runs.run_folder import (
    CHECKPOINTS_FOLDER,
    MANIFEST_BACKUP_FILE,
    MANIFEST_FILE,
    SavedRun,
    find_saved_run,
    open_locked_folder,
    read_manifest,
    read_saved_run,
)
from sample_folder import KIND, read_numbers, read_results, read_state, state, write_folder


@pytest.fixture
def skip_file_sync(monkeypatch):
    """Skip syncing to disk, which these tests do not need."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def is_one_line_with_name(error: InputError, path: Path) -> None:
    """Whether the message is one line that names the file or the folder."""
    assert str(path) in str(error)
    assert "\n" not in str(error)


def outcome(path: Path) -> str:
    """Return how a reader handles a damaged folder; fail if it accepts altered content."""
    try:
        with damaged_folders.within(20):
            notes: list[str] = []

            def load(saved: SavedRun) -> int:
                number = read_state(saved)
                notes.extend(saved.damage_notes)
                return number

            number = read_saved_run(path, load)
            assert number in (2, 3)
            assert number == 3 or any("the checkpoint before it is used" in note for note in notes)
            assert read_saved_run(path, read_results) == 3
    except InputError as error:
        is_one_line_with_name(error, path)
        return "refused"
    return "accepted" if not notes else "fell back"


def try_damages(template: Path, tmp_path: Path, seed: int, flips: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for label, damage in damaged_folders.cases(template, seed, flips):
        path = tmp_path / "damaged"
        shutil.copytree(template, path)
        damage(path)
        try:
            verdict = outcome(path)
            # A damaged file of the newest state is never accepted silently.
            needed = not label.startswith((MANIFEST_BACKUP_FILE, f"{CHECKPOINTS_FOLDER}/checkpoint-000002"))
            assert (verdict != "accepted") == needed or "swapped" in label
            if " bit " not in label and not label.startswith(
                (f"{MANIFEST_FILE}: folder", f"{MANIFEST_BACKUP_FILE}: folder")
            ):
                with damaged_folders.within(20), open_locked_folder(path, KIND) as folder:
                    folder.start_new_run()
                    folder.save_files(state(3))
                assert read_numbers(path) == (3, None)  # every damaged run can be replaced
        except BaseException as error:
            raise AssertionError(f"{label}: {type(error).__name__}: {error}") from error
        found[verdict] = found.get(verdict, 0) + 1
        shutil.rmtree(path)
    assert not damaged_folders.EVIL.exists()
    return found


def test_no_damaged_folder_is_accepted(tmp_path, skip_file_sync):
    found = try_damages(write_folder(tmp_path / "run", 1, 2, 3), tmp_path, seed=0, flips=15)
    assert sum(found.values()) > 250
    assert found["refused"] > 100
    assert found["fell back"] > 50


@pytest.mark.slow
def test_every_bit_flip_is_detected(tmp_path, skip_file_sync):
    run = write_folder(tmp_path / "run", 1, 2, 3)
    found = try_damages(run, tmp_path, seed=1, flips=1000)
    assert sum(found.values()) > 5000


def test_damaged_checkpoint_is_not_kept_as_backup(tmp_path):
    run = write_folder(tmp_path, 1, 2, 3)
    damaged_folders.flip(run / CHECKPOINTS_FOLDER / "checkpoint-000003.npz", 999)
    with open_locked_folder(run, KIND) as folder:
        assert read_state(folder.saved_run) == 2
        folder.save_files(state(4))
    assert sorted(os.listdir(run / CHECKPOINTS_FOLDER)) == ["checkpoint-000002.npz", "checkpoint-000004.npz"]


def test_damaged_manifest_is_replaced_by_its_backup_with_a_warning(tmp_path):
    run = write_folder(tmp_path, 1, 2)
    damaged_folders.flip(run / MANIFEST_FILE, 100)
    saved = find_saved_run(run)
    assert "its copy manifest.backup.json is used" in saved.damage_notes[0]
    assert read_numbers(run) == (2, 2)
    with open_locked_folder(run, KIND) as folder:
        folder.save_files(state(3))
    assert read_numbers(run) == (3, 2)
    assert find_saved_run(run).damage_notes == []


def test_two_damaged_checkpoints_give_one_line_error(tmp_path):
    run = write_folder(tmp_path, 1, 2)
    for name in os.listdir(run / CHECKPOINTS_FOLDER):
        damaged_folders.flip(run / CHECKPOINTS_FOLDER / name, 50)
    with pytest.raises(InputError, match=r"checkpoint-000002.npz: altered or damaged \(its content does not match"):
        find_saved_run(run).checkpoint_files()


def change(name, value):
    return lambda data: data.__setitem__(name, value)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (change("successor", np.full((10, 3), 5, np.int32)), "'successor' holds 5, not below 5"),
        (change("successor", np.full((10, 3), -1, np.int32)), "'successor' holds -1, less than 0"),
        (change("successor", np.zeros((11, 3), np.int32)), r"'successor' has the shape \(11, 3\) instead of \(10, 3\)"),
        (change("successor", np.zeros((10, 3), int)), "'successor' holds int64, which is of the wrong type"),
        (change("visits", np.zeros(5)), "'visits' holds float64, which is of the wrong type"),
        (change("values", np.array([np.nan, 0, 0, 0, 0])), "'values' holds NaN"),
        (change("values", np.array([-np.inf, 0, 0, 0, 0])), "'values' holds -inf, less than 0"),
        (change("extra", np.array([np.inf])), "'extra' holds an infinity"),
        (change("order", np.array([0, 4, 4])), "'order' does not rise"),
        (change("order", np.zeros((1, 1), int)), "'order' has 2 axes instead of 1"),
        (change("other", np.zeros(1)), "'other' does not belong there"),
        (lambda data: data.pop("seen"), "'seen' is missing"),
        (lambda data: data.pop("__facts__"), "'__facts__' is missing"),
    ],
)
def test_forged_arrays_are_refused_by_the_schema(tmp_path, damage, reason):
    damaged_folders.forged_arrays(write_folder(tmp_path, 1), f"{CHECKPOINTS_FOLDER}/checkpoint-000001.npz", damage)
    with pytest.raises(InputError, match=f"checkpoint-000001.npz: damaged or not readable .entry {reason}"):
        read_numbers(tmp_path)


@pytest.mark.parametrize(
    "facts", [b'{"steps": -1, "rng": 0}', b'{"steps": Infinity, "rng": 0}', b'{"steps": 1}', b"[]"]
)
def test_forged_facts_are_refused_by_the_schema(tmp_path, facts):
    name = f"{CHECKPOINTS_FOLDER}/checkpoint-000001.npz"
    damaged_folders.forged_arrays(write_folder(tmp_path, 1), name, change("__facts__", np.frombuffer(facts, np.uint8)))
    with pytest.raises(InputError, match=r"checkpoint-000001.npz: damaged or not readable \((it|steps) "):
        read_numbers(tmp_path)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (change("status", "certified!"), "status breaks the rule enum"),
        (change("steps", -5), "steps breaks the rule minimum 0"),
        (change("steps", True), "steps must be integer"),
        (change("steps", 1.0), "steps must be integer"),
        (change("goals", [{"goal": "x"}]), r"goals\[0\].goal must be integer"),
        (lambda data: data.pop("goals"), "it has no entry 'goals'"),
    ],
)
def test_forged_json_is_refused_by_the_schema(tmp_path, damage, reason):
    damaged_folders.forged_json(write_folder(tmp_path, 1), "result.json", damage)
    with pytest.raises(InputError, match=f"result.json: damaged or not readable .{reason}"):
        read_numbers(tmp_path)


@pytest.mark.parametrize("label", damaged_folders.ARCHIVES)
def test_forged_archives_are_refused_before_they_are_unpacked(tmp_path, label):
    write_folder(tmp_path, 1)
    damaged_folders.forged(tmp_path, f"{CHECKPOINTS_FOLDER}/checkpoint-000001.npz", damaged_folders.ARCHIVES[label]())
    with damaged_folders.within(5), pytest.raises(InputError, match=r"checkpoint-000001.npz: damaged or not readable"):
        read_numbers(tmp_path)
    if label not in ("an empty zip", "a huge size times zero"):  # these are empty and harmless
        path = tmp_path / CHECKPOINTS_FOLDER / "checkpoint-000001.npz"
        damaged = pytest.raises(InputError, match=r"checkpoint-000001.npz: damaged or not readable")
        with damaged, file_io.report_read_errors(path), path.open("rb") as file:
            file_io.take_out_facts(file_formats.read_npz(file, path.stat().st_size))
    assert not damaged_folders.EVIL.exists()


@pytest.mark.parametrize("label", damaged_folders.JSON_TEXTS)
def test_forged_json_texts_are_refused(tmp_path, label):
    write_folder(tmp_path, 1)
    damaged_folders.forged(tmp_path, "result.json", damaged_folders.JSON_TEXTS[label])
    with damaged_folders.within(5), pytest.raises(InputError, match=r"result.json: damaged or not readable"):
        read_numbers(tmp_path)


def test_forged_manifest_cannot_name_files_outside_the_folder(tmp_path):
    run, outside = write_folder(tmp_path / "run", 1), tmp_path / "outside.txt"
    outside.write_text("years of work")
    manifest, _ = read_manifest(run / MANIFEST_FILE)
    for name in ("../outside.txt", "/etc/passwd", ".hidden", "a/../../outside.txt"):
        forged = folders.Manifest(KIND, 5, manifest.checkpoints, manifest.results, obsolete_files=(name,))
        (run / MANIFEST_FILE).write_bytes(forged.to_bytes())
        with pytest.raises(InputError, match="names files that cannot be in a run folder"):
            read_manifest(run / MANIFEST_FILE)
        with open_locked_folder(run, KIND) as folder:
            assert "copy" in folder.saved_run.damage_notes[0]
    assert outside.exists()


def test_symbolic_link_instead_of_the_data_folder_is_not_followed(tmp_path):
    run, other = write_folder(tmp_path / "run", 1), tmp_path / "other"
    shutil.move(run / CHECKPOINTS_FOLDER, other)
    (other / "notes-000001.txt").write_text("years of work")
    (run / CHECKPOINTS_FOLDER).symlink_to(other)
    with pytest.raises(InputError, match="is a symbolic link"), open_locked_folder(run, KIND):
        pass
    assert (other / "notes-000001.txt").exists()
