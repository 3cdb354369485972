"""The list of compiled functions that small runs call is complete, and other processes can compile it.

``python tests/test_precompilation.py`` writes the list again; with the name of a group it prints that group.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numba
import numpy as np
import pytest

import adagoal
from adagoal import methods
from adagoal.cli.main import run_command_line
from adagoal.core import compiled_code
from adagoal.core.compiled_code import parse_type
from adagoal.runs.progress_display import ProgressDisplay

CHAIN: dict[str, Any] = {"env": "chain", "env_args": {"n_states": 5, "slip": 0.1}, "radius": 4, "budget": 300}
WINDY: dict[str, Any] = {"env": "mixture-windy", "radius": 3, "budget": 300}
METHOD_RUNS: dict[str, dict[str, Any]] = {
    "certified": {"env": "two-room", "radius": 40, "epsilon": 1.0, "delta": 0.1},  # make demo
    "ucbvi": {**CHAIN, "method_args": {"bonus": "simplified", "horizon": 8}},
    "bpi-ucbvi": {**CHAIN, "goals": [3]},
    **dict.fromkeys(("likelihood", "vtr-pooled", "vtr"), WINDY),
}
OTHER_RUNS: dict[str, list[dict[str, Any]]] = {
    "audit": [{**CHAIN, "env_args": {"n_states": 5, "slip": slip}} for slip in (0.0, 0.1)],
    "other models": [{"env": "chain", "radius": 3}, {"env": "FrozenLake-v1", "radius": 4, "budget": 2_000}],
}


class Line(gymnasium.Env[int, int]):
    """A chain of five states in Python code, without a known model."""

    observation_space = gymnasium.spaces.Discrete(5)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.position = 0
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.position = min(max(self.position + 2 * int(action) - 1, 0), 4)
        return self.position, 0.0, False, False, {}


def describe_type(kind: Any) -> Any:
    """Return a Numba type as JSON, as ``parse_type`` reads it."""
    if isinstance(kind, numba.types.Array):
        return f"{kind.dtype} {kind.ndim}{kind.layout}{'' if kind.mutable else ' readonly'}"
    if isinstance(kind, numba.types.BaseNamedTuple):
        cls = kind.instance_class
        return {f"{cls.__module__}.{cls.__qualname__}": [describe_type(field) for field in kind.types]}
    if isinstance(kind, numba.types.BaseTuple):
        return [describe_type(item) for item in kind.types]
    return str(kind)


def run_group(group: str) -> None:
    """Play the small runs of a group."""
    if group == "audit":
        for arguments in OTHER_RUNS[group]:
            adagoal.audit(adagoal.explore(**arguments))
    elif group == "other models":
        for arguments in OTHER_RUNS[group]:
            adagoal.audit(adagoal.explore(**arguments))
        adagoal.explore(Line(), radius=3, budget=500)
        with tempfile.TemporaryDirectory() as folder:
            adagoal.explore(**CHAIN, out=folder)
            adagoal.play(folder, episodes=2)
    else:
        adagoal.explore(**METHOD_RUNS.get(group, CHAIN), method=group)


def record_group(group: str) -> list[list[Any]]:
    """Run a group in this process, and return the functions that it called.

    Large functions come first: if one were the last, a single process would work on it while the others wait.
    """
    run_group(group)
    rows = [
        [name, *map(describe_type, types)]
        for name, function in compiled_code.COMPILED_FUNCTIONS.items()
        for types in function.overloads
    ]
    return sorted(rows, key=lambda row: -code_size(row[0]))


def code_size(name: str) -> int:
    """Return the size of a function's machine code in the cache."""
    function = compiled_code.COMPILED_FUNCTIONS[name]
    files = Path(function.stats.cache_path).glob(".".join(name.split(".")[-2:]) + "-*.nbc")
    return max(file.stat().st_size for file in files)


def record_in_process(group: str) -> list[list[Any]]:
    """Return the functions of a group, as a new process calls them.

    A process that compiles also lists functions that compiled functions call, so another one follows.
    """
    for _ in range(3):
        done = subprocess.run([sys.executable, __file__, group], stdout=subprocess.PIPE, check=True)
        n_compiled, rows = json.loads(done.stdout)
        if n_compiled == 0:
            break
    return list(rows)


def record_all() -> dict[str, list[list[Any]]]:
    """Return the functions of every group; the audit and other models without those of the certified explorer."""
    groups = {group: record_in_process(group) for group in (*methods.METHODS, *OTHER_RUNS)}
    for group in OTHER_RUNS:
        groups[group] = [row for row in groups[group] if row not in groups["certified"]]
    return groups


def sorted_rows(rows: list[list[Any]]) -> list[str]:
    """Rows without their order, which depends on the machine."""
    return sorted(map(json.dumps, rows))


def listed_groups() -> dict[str, list[list[Any]]]:
    groups: dict[str, list[list[Any]]] = json.loads(compiled_code.SIGNATURE_FILE.read_bytes())
    return groups


def test_list_has_the_functions_of_the_demo() -> None:
    assert sorted_rows(record_in_process("certified")) == sorted_rows(listed_groups()["certified"])


@pytest.mark.slow
def test_list_has_the_functions_of_every_method() -> None:
    recorded, listed = record_all(), listed_groups()
    assert recorded.keys() == listed.keys()
    for group, rows in recorded.items():
        assert sorted_rows(rows) == sorted_rows(listed[group]), group


def test_types_survive_json() -> None:
    rows = [row for rows in listed_groups().values() for row in rows]
    assert len(rows) > 60
    for name, *types in rows:
        assert hasattr(compiled_code.find_function(name), "overloads")
        assert [describe_type(parse_type(text)) for text in types] == types


SAMPLE = """
import numba
from adagoal.core.compiled_code import COMPILED_FUNCTIONS, compiled, compiled_helper

@compiled_helper(fastmath=True)
def twice(x):
    return 2 * x

@compiled
def add_twice(x, y):
    return x + twice(y)

@compiled
def add_first(x, y):
    return x + twice(y[0])
"""


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module with compiled functions and its own empty cache."""
    (tmp_path / "sample_kernels.py").write_text(SAMPLE)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(compiled_code, "COMPILED_FUNCTIONS", {})
    yield importlib.import_module("sample_kernels")
    del sys.modules["sample_kernels"]


def test_other_processes_fill_the_cache(sample: Any) -> None:
    signatures = {
        "sample_kernels.add_twice": [["int64", "int64"], ["float64", "float64"]],
        "sample_kernels.add_first": [["float64", "float64 1C"]],
        "sample_kernels.missing": [["int64"]],
    }
    present = list(signatures)[:2]
    assert compiled_code.find_missing(present) == present
    lines: list[str] = []
    with compiled_code.watch_compilation(lines.append):
        assert compiled_code.compile_in_processes({name: signatures[name] for name in present}) == 3
        assert compiled_code.compile_in_processes({name: signatures[name] for name in present}) == 0
        assert lines[0] == "compiling, first run only: 0 of 2 functions"
        assert "2 of 2 functions" in lines[-1]
        # A failed process is ignored: the run compiles the function itself, or raises then.
        assert compiled_code.compile_in_processes(signatures) <= 1
        n_lines = len(lines)
        assert sample.add_twice(1, 2) == 5
        assert sample.add_twice(1.0, 2.0) == 5.0
        assert sample.add_first(1.0, np.array([2.0])) == 5.0
        assert len(lines) == n_lines, "everything was in the cache"
        assert sample.add_twice(1, 2.0) == 5.0
        assert lines[-2:] == ["compiling, first run only: add_twice", "compiling, first run only: twice"]
    assert compiled_code.find_missing(present) == []


def test_helper_called_from_python_runs_as_python(sample: Any) -> None:
    assert sample.twice(2) == 4
    assert sample.add_twice(1, 2) == 5
    assert sample.twice(2) == 4, "also after it was compiled"
    assert sample.twice("ab") == "abab"
    assert sample.twice.dispatcher.targetoptions["fastmath"]


def test_functions_do_not_take_options_from_their_callers(sample: Any) -> None:
    """Otherwise results would depend on which function was compiled first."""
    for function in compiled_code.COMPILED_FUNCTIONS.values():
        assert {"fastmath", "error_model", "forceinline"} <= function.targetoptions.keys()


def test_progress_display_shows_compilation(sample: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressDisplay():
        sample.add_twice(1, 2)
    assert capsys.readouterr().err == "compiling, first run only: add_twice\n"
    with ProgressDisplay(quiet=True):
        sample.add_twice(1.0, 2)
    assert capsys.readouterr().err == ""


def test_first_run_announces_compilation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    announced: list[Path] = []
    monkeypatch.setattr(compiled_code, "is_numba_cache_empty", lambda folder: announced.append(folder) or True)
    chain = ["explore", "chain", "--radius", "2", "--env-arg", "n_states=3"]
    assert run_command_line([*chain, "--out", str(tmp_path / "a"), "--no-such-option"]) == 2
    assert not announced
    capsys.readouterr()
    assert run_command_line([*chain, "--out", str(tmp_path / "b")]) == 0
    assert capsys.readouterr().err.splitlines()[0] == "compiling, first run only ..."
    assert run_command_line([*chain, "--out", str(tmp_path / "c"), "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_warm_reports_what_it_compiled(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    given: list[compiled_code.Signatures] = []
    answers = iter([7, 0])
    monkeypatch.setattr(
        compiled_code, "compile_in_processes", lambda signatures: given.append(signatures) or next(answers)
    )
    assert run_command_line(["warm"]) == 0
    assert capsys.readouterr().out.startswith("compiled 7 functions in 0 s on ")
    assert given[0].keys() == {row[0] for rows in listed_groups().values() for row in rows}
    assert run_command_line(["warm"]) == 0
    assert capsys.readouterr().out == f"all {len(given[0])} functions are compiled already\n"


def test_cache_counts_as_empty_if_the_folder_in_use_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__pycache__" / "module.f-1.py311.nbi").touch()
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    assert not compiled_code.is_numba_cache_empty(package)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert compiled_code.is_numba_cache_empty(package)


if __name__ == "__main__":
    if sys.argv[1:]:
        recorded = record_group(sys.argv[1])
        misses = [function.stats.cache_misses.total() for function in compiled_code.COMPILED_FUNCTIONS.values()]
        print(json.dumps([sum(misses), recorded]))
    else:
        lines = (
            f" {json.dumps(group)}: [\n  " + ",\n  ".join(map(json.dumps, rows)) + "\n ]"
            for group, rows in record_all().items()
        )
        compiled_code.SIGNATURE_FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
