"""Run the examples in the docstrings of the public functions and of ``adagoal.Result``."""

import doctest
import inspect
from typing import Any

import pytest

import adagoal

FUNCTIONS = [name for name in adagoal.__all__ if inspect.isfunction(getattr(adagoal, name))]


def public_members() -> dict[str, Any]:
    """Return the public functions, ``Result``, and its public methods and properties, by name."""
    members = {name: getattr(adagoal, name) for name in (*FUNCTIONS, "Result")}
    fields = adagoal.Result.__dataclass_fields__
    own = {n: m for n, m in vars(adagoal.Result).items() if not n.startswith("_") and n not in fields}
    return members | {f"Result.{name}": member for name, member in own.items()}


@pytest.fixture(scope="module")
def result() -> adagoal.Result:
    """The result that the examples use, as the docstring of ``Result`` says."""
    return adagoal.explore("grid", radius=3, env_args={"rows": 2, "cols": 2}, seed=0)


def test_public_functions_are_found():
    assert {"explore", "train", "load", "show", "mixture"} <= set(FUNCTIONS)
    assert {"Result.certificate", "Result.save", "Result.n_states"} <= public_members().keys()


@pytest.mark.parametrize("name", public_members())
def test_examples(name, result, tmp_path, monkeypatch):
    """Every public name has an example, and it prints what the docstring says."""
    monkeypatch.chdir(tmp_path)
    text = inspect.getdoc(public_members()[name]) or ""
    example = doctest.DocTestParser().get_doctest(text, {"adagoal": adagoal, "result": result}, name, None, 0)
    assert example.examples, f"{name} has no example"
    assert doctest.DocTestRunner().run(example).failed == 0
