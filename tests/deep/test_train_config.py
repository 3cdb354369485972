"""Settings of training: checks in Python, and options of the command line."""

from __future__ import annotations

import dataclasses
import math
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adagoal.cli.policy_commands import train
from adagoal.core.errors import InputError
from adagoal.core.validation import declared_settings
from adagoal.deep.config import RECIPES, Config, check_shared_program


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("env", 3),
        ("steps", "many"),
        ("steps", 1e4),
        ("steps", 0),
        ("seed", True),
        ("seed", np.True_),
        ("steps", np.float64(10)),
        ("gamma", np.float32("nan")),
        ("seed", -1),
        ("radius", math.nan),
        ("radius", "40"),
        ("noise", False),
        ("gamma", 1.0),
        ("action_l2", -0.5),
        ("hidden", [64]),
        ("hidden", ()),
        ("hidden", (64, 0)),
        ("hidden", (64, 1.5)),
        ("normaliser", "none"),
        ("algorithm", "sac"),
        ("goal_rule", len),
        ("goal_rule", "nonsense"),
        ("goal_rule", "goid"),
        ("goal_rule", "progress"),
        ("goal_rule", "raregoal:alpha=-1"),
    ],
)
def test_wrong_values_give_an_error_with_their_name(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"^{name}: ") as raised:
        Config(**{"env": "point-mass", name: value})
    assert raised.value.name == name


def test_integers_are_accepted_as_floats() -> None:
    assert Config("point-mass", radius=40).radius == 40


def test_numpy_numbers_become_python_numbers() -> None:
    given = {"steps": np.int64(300), "seed": np.uint8(7), "gamma": np.float32(0.5), "radius": np.int32(3)}
    config = Config("point-mass", hidden=(np.int64(8), 4), **given)  # type: ignore[arg-type]
    found = config.to_json()
    assert {name: (found[name], type(found[name])) for name in given} == {
        "steps": (300, int), "seed": (7, int), "gamma": (0.5, float), "radius": (3, int),
    }  # fmt: skip
    assert [type(width) for width in config.hidden] == [int, int]


@pytest.mark.parametrize(("given", "name"), [({}, "updates"), ({"updates": 9}, "ensemble_updates")])
def test_error_of_a_too_long_horizon_names_the_horizon(given: dict[str, Any], name: str) -> None:
    with pytest.raises(InputError, match=f"^horizon: .* {name} per cycle, more than 100000"):
        Config("point-mass", **given).resolve_for_horizon(10**6)


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_valid(name: str) -> None:
    Config("point-mass", **RECIPES[name])


def test_action_penalty_has_the_measured_value() -> None:
    for fetch, penalty in ((True, 1.0), (False, 0.1)):
        assert Config("any-name").resolve_for_horizon(50, fetch).action_l2 == penalty
    assert Config("FetchPush-v4", action_l2=0.0).resolve_for_horizon(50, fetch=True).action_l2 == 0.0


@pytest.mark.parametrize(
    ("rule", "ensemble", "density"),
    [
        ("unigoal", False, False),
        ("proportional", True, False),
        ("argmax", True, False),
        ("adagoal", True, False),
        ("adagoal-proportional", True, False),
        ("raregoal", False, True),
        ("raregoal:alpha=0.5", False, True),
        ("skewfit", False, True),
        ("goexplore", False, True),
        ("mega", True, True),
        ("omega", True, True),
        ("discover", True, False),
    ],
)
def test_needs_of_a_rule_are_its_declaration(rule: str, ensemble: bool, density: bool) -> None:
    config = Config("point-mass", goal_rule=rule)
    assert (config.needs_ensemble, config.needs_density) == (ensemble, density)


def test_user_rule_may_declare_its_needs(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from adagoal.goal_rules import rule\n\n\ndef plain(known):\n    return known.E\n\n\n"
        "@rule('visits')\ndef counted(known):\n    return 1 / (1 + known.visits)\n"
    )
    plain, counted = (Config("point-mass", goal_rule=f"{file}:{name}") for name in ("plain", "counted"))
    assert (plain.needs_ensemble, plain.needs_density) == (True, True), "nothing declared: everything there is"
    assert (counted.needs_ensemble, counted.needs_density) == (False, True)
    file.unlink()
    assert pickle.loads(pickle.dumps(plain)).required_fields == plain.required_fields, (
        "a worker does not load the file again"
    )


def test_every_setting_is_an_option_with_its_help_and_default() -> None:
    options = {parameter.name: parameter for parameter in train.params}
    for field in dataclasses.fields(Config):
        if field.name == "env":
            continue
        text = getattr(options[field.name], "help", "")
        info = declared_settings(Config)[field.name]
        assert info.help in text
        shown = ",".join(map(str, field.default)) if isinstance(field.default, tuple) else field.default
        shown = info.default_text or shown
        assert shown is not None
        assert re.search(re.escape(f"[default: {shown}]"), text)


def test_settings_that_depend_on_the_horizon_are_resolved() -> None:
    given = {field.name for field in dataclasses.fields(Config) if field.default is None}
    assert {"radius", "gamma", "horizon", "updates"} <= given
    resolved = dataclasses.asdict(Config("point-mass").resolve_for_horizon(50))
    assert [name for name, value in resolved.items() if value is None] == ["radius_ramp"], "None: L follows success"
    for name in given - {"radius_ramp", "action_l2"}:
        with pytest.raises(InputError, match=f"^{name}: must be .* got 0"):
            Config("point-mass", **{name: 0})


def test_runs_of_one_program_may_differ_in_some_settings() -> None:
    first = Config("point-mass")
    check_shared_program([first, dataclasses.replace(first, seed=1, goal_rule="unigoal", relabel=0.5)])
    with pytest.raises(InputError, match="may not differ in batch, gamma"):
        check_shared_program([first, dataclasses.replace(first, batch=64, gamma=0.9)])
    for wrong in ([], first, [first, "point-mass"]):
        with pytest.raises(InputError, match=r"^configs: must be a list of one or more Config"):
            check_shared_program(wrong)  # type: ignore[arg-type]
