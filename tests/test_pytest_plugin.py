"""The pytest fixtures ``reach`` and ``explored``, in separate pytest processes."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]
SYSTEM = """
import adagoal

class Count:
    def __init__(self):
        self.n = 0

    def up(self):
        self.n += 1
        if self.n == 5:
            raise ValueError("five")

    def down(self):
        self.n = max(self.n - 1, 0)

def n(count):
    return count.n

def big(n):
    return n > 3

def machine(**arguments):
    return adagoal.machine(Count, ["up", "down"], n, deterministic=True, **arguments)
"""


def run_pytest(tmp_path: Path, *options: str) -> str:
    """Run the tests of a folder in another process, which finds the plug-in by the entry point of pyproject.toml."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    # An installed adagoal has the same entry point, and pytest uses one of them.
    installed = tmp_path / "plugin-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 0\n")
    lines = [f"{name} = {module}" for name, module in points.items()]
    (installed / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines]) + "\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        "/dev/null",
        "-rA",
        "-p",
        "no:cacheprovider",
        str(tmp_path),
        *options,
    ]
    place = {"PYTHONPATH": f"{ROOT / 'src'}:{tmp_path}"}
    return subprocess.run(command, env=place, capture_output=True, text=True).stdout


CASES = [
    ("reach(machine(), 3, within=4)", "passed", "3 is reached within 3 expected calls (certified after"),
    ("reach(machine(), '4')", "passed", "assert n(machine) == 4"),
    ("reach(machine(), big)", "passed", "big is reached within 4 expected calls"),
    ("reach(machine(), 'crash:ValueError')", "passed", "with pytest.raises(ValueError)"),
    ("reach(machine(), 4, within=3)", "failed", "4 cannot be reached within 3 calls: every way takes at least"),
    ("reach(machine(), 'nowhere')", "failed", "within 20 calls: no state is called so, but "),
    ("reach(machine(), lambda n: n < 0)", "failed", "<lambda> cannot be reached within 20 calls: it holds in no state"),
    ("explored(machine(), goals=['3'])", "failed", "Failed: goals: leave it out, because every state counts"),
    ("explored(machine(), radius=4)", "passed", "5 states within 4 calls (certified after"),
    ("explored(machine())", "failed", "crash:ValueError within 10 calls (certified after"),
    ("explored(machine(), expected=['crash:ValueError'])", "passed", "6 states within 10 calls"),
    ("explored(machine(), radius=4, budget=3)", "failed", "nothing is certified, the run ended as 'budget'"),
    ("explored(machine(), radius=0)", "failed", "Failed: radius: must be a number in [1, 1e+09]"),
    ("explored(machine(invariants=[lambda c: c.n < 2]))", "failed", "fails:<lambda> within 10 calls"),
]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[ElementTree.Element]:
    """What pytest reports of each case, all run in one process."""
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "system.py").write_text(SYSTEM)
    tests = [f"def test_{i}(reach, explored):\n    {body}\n" for i, (body, *_) in enumerate(CASES)]
    (folder / "test_it.py").write_text("\n".join(["from system import *\n", *tests]))
    run_pytest(folder, f"--junitxml={folder / 'report.xml'}", "-o", "junit_logging=all")
    return list(ElementTree.parse(folder / "report.xml").iter("testcase"))


@pytest.mark.parametrize("number", range(len(CASES)), ids=[body for body, *_ in CASES])
def test_fixtures_report_success_and_failure(reports: list[ElementTree.Element], number: int) -> None:
    body, outcome, text = CASES[number]
    report = reports[number]
    failure = report.find("failure")
    assert report.get("name") == f"test_{number}"
    assert (failure is None) == (outcome == "passed")
    output = "\n".join([*report.itertext(), "" if failure is None else failure.get("message", "")])
    assert text in output
    # The script is printed if there is a path to the state.
    has_way = outcome == "passed" if "reach" in body else text.startswith(("crash:", "fails:"))
    assert ("machine.up()" in output) == has_way


def test_documented_example(tmp_path: Path) -> None:
    for file in (ROOT / "examples" / "circuit-breaker").glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text())
    output = run_pytest(tmp_path)
    assert "2 passed, 1 xfailed" in output, output
    assert "is reached within 7 expected calls" in output


def test_pytest_loads_nothing_heavy() -> None:
    code = "import sys, adagoal.api.pytest_plugin; print({'numpy', 'numba', 'hypothesis'} & set(sys.modules) or 'none')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "none\n"
