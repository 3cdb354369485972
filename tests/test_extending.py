"""The examples of docs/extending.md run as they stand there."""

import re
from pathlib import Path

import adagoal
from adagoal import methods

BLOCKS = re.findall(r"```python\n(.*?)```", (Path(__file__).parent.parent / "docs/extending.md").read_text(), re.S)


def test_goal_rule_example(tmp_path):
    file = tmp_path / "my_rule.py"
    file.write_text(BLOCKS[0])
    result = adagoal.explore("grid", 10, 1.0, goal_rule=f"{file}:frontier", seed=0, budget=10**6)
    assert result.status == "certified"
    assert adagoal.audit(result).ok


def test_method_example(monkeypatch):
    monkeypatch.setattr(methods, "METHODS", dict(methods.METHODS))
    space: dict[str, object] = {}
    exec(BLOCKS[1], space)
    exec(BLOCKS[2], space)
    result = adagoal.explore("grid", 10, 1.0, method="plain", env_args={"slip": 0.0}, seed=0, budget=10**5)
    assert result.status == "stopped"
    assert not result.guarantee
    assert len(result.goals) == 20
