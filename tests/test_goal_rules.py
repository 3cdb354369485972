"""Goal rules have the weights that their papers define."""

import json

import numpy as np
import pytest

from adagoal import goal_rules
from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.core.exploration_run import GoalAttempts


def known(**changes):
    base = {
        "D": np.array([0.0, 2.0, 5.0, 50.0]),
        "E": np.array([0.0, 1.0, 3.0, 40.0]),
        "L": 10.0,
        "eligible": np.array([False, True, True, True]),
        "visits": np.array([100.0, 4.0, 1.0, 0.0]),
        "attempts": np.array([0.0, 10.0, 10.0, 0.0]),
        "successes": np.array([0.0, 10.0, 5.0, 0.0]),
        "recent": np.array([0.0, 1.0, 0.8, 0.0]),
        "previous": np.array([0.0, 1.0, 0.3, 0.0]),
        "onward_D": np.array([0.0, 9.0, 3.0, 0.0]),
        "onward_E": np.array([0.0, 0.0, 1.0, 0.0]),
    }
    return goal_rules.GoalInfo(**{**base, **changes})


@pytest.mark.parametrize(
    ("rule", "weights"),
    [
        ("adagoal", [0, 0, 1, 0]),
        ("argmax", [0, 0, 0, 1]),
        ("adagoal-proportional", [0, 1, 3, 0]),
        ("proportional", [0, 1, 3, 40]),
        ("unigoal", [0, 1, 1, 1]),
        ("raregoal", [0, 0.25, 1, 10]),
        ("raregoal:alpha=0.5", [0, 0.25, 1, 2]),
        ("skewfit", [0, 1, 1, 0]),
        ("mega", [0, 0, 1, 0]),
        ("goid", [0, 0, 1, 1]),
        ("goexplore", [0, 5**-0.5, 2**-0.5, 0]),
    ],
)
def test_weights(rule, weights):
    np.testing.assert_allclose(goal_rules.resolve_rule(rule)(known()), weights)


def test_progress_mixes_in_a_uniform_share():
    np.testing.assert_allclose(goal_rules.progress(known()), np.array([0, 0.4 / 3, 0.4 / 3 + 0.6, 0.4 / 3]))


def test_attempts_are_counted_in_their_order():
    """Success has two moving averages; episodes with goal -1 do not count, and the arrays grow with the goals."""
    attempts = GoalAttempts(1)
    attempts.add_episodes([2, -1, 2], [True, True, False])
    attempts.add_episodes([], [])
    total, reached, recent, previous = attempts.arrays_of_goals(
        np.array([0, 2]), frozenset({"successes", "recent", "previous"})
    )
    np.testing.assert_array_equal((total, reached), [[0, 2], [0, 1]])
    np.testing.assert_allclose(recent, [0, 0.2 * (1 - 0.2)])
    np.testing.assert_allclose(previous, [0, 0.05 * (1 - 0.05)])


def test_ties_go_to_the_goal_tried_least():
    same = known(E=np.array([0.0, 3.0, 3.0, 3.0]), D=np.ones(4), attempts=np.array([0.0, 2.0, 1.0, 1.0]))
    np.testing.assert_array_equal(goal_rules.adagoal(same), [0, 0, 1, 0])


@pytest.mark.parametrize("name", goal_rules.BUILTIN_RULES)
def test_every_rule_always_gives_weight_to_some_goal(name):
    """Some eligible goal has weight even without visits, attempts or goals within the radius."""
    zeros = np.zeros(4)
    empty = known(
        D=np.full(4, 99.0), E=zeros, visits=zeros, attempts=zeros, successes=zeros, recent=zeros, previous=zeros
    )
    weights = goal_rules.BUILTIN_RULES[name](empty)
    assert weights.sum() > 0
    assert weights[0] == 0
    assert (weights >= 0).all()


def test_draw_follows_the_weights():
    rng = np.random.default_rng(0)
    drawn = np.bincount([goal_rules.sample_goal(np.array([0.0, 1.0, 3.0]), rng) for _ in range(4000)], minlength=3)
    assert drawn[0] == 0
    assert abs(drawn[2] / 4000 - 0.75) < 0.03


def test_rule_from_a_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def nearest(known):\n    return (known.eligible & (known.D == 2.0)).astype(float)\n")
    np.testing.assert_array_equal(goal_rules.resolve_rule(f"{file}:nearest")(known()), [0, 1, 0, 0])


@pytest.mark.parametrize(
    "spec", ["nope", "raregoal:beta=1", "raregoal:alpha=x", "missing.py:f", f"{__file__}:no_such_function"]
)
def test_bad_rules_give_one_line_error(spec):
    with pytest.raises(InputError, match=r"^goal_rule: "):
        goal_rules.resolve_rule(spec)


def test_an_error_in_a_library_is_reported_with_the_line_of_the_user():
    with pytest.raises(EnvironmentFailure, match=r"JSONDecodeError: .* \(test_goal_rules\.py, line \d+\)$"):
        goal_rules.compute_weights(lambda known: json.loads("{"), known())


def test_errors_of_user_rules_and_built_in_rules(monkeypatch):
    """An exception of a user rule becomes an EnvironmentFailure with its cause; one of a built-in rule is unchanged."""

    def broken(known):
        raise ZeroDivisionError("by nothing")

    line = r"^goal_rule: the rule raised ZeroDivisionError: by nothing \(test_goal_rules\.py, line \d+\)$"
    with pytest.raises(EnvironmentFailure, match=line) as raised:
        goal_rules.compute_weights(broken, known())
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    monkeypatch.setitem(goal_rules.BUILTIN_RULES, "broken", broken)
    with pytest.raises(ZeroDivisionError):
        goal_rules.compute_weights(goal_rules.resolve_rule("broken"), known())


@pytest.mark.parametrize("weights", [[1.0], [0, 0, 0, 0], [0, -1, 2, 0], [0, np.nan, 1, 0], [0, np.inf, 1, 0]])
def test_weights_are_checked(weights):
    with pytest.raises(InputError, match=r"^goal_rule: a rule returns one finite weight >= 0 per goal"):
        goal_rules.compute_weights(lambda known: np.array(weights), known())


def test_omega_weights_the_goal_space_more_as_it_is_covered():
    drawn = {"experienced": np.array([False, False, True, True]), "eligible": np.ones(4, bool), "D": np.full(4, 3.0)}
    near, far = (goal_rules.omega(known(**drawn, divergence=kl)) for kl in (3.0, 103.0))
    np.testing.assert_allclose(near, [0.5, 0.5, 0.0, 0.0])
    np.testing.assert_allclose(far, [0.005, 0.005, 0.0, 0.99], atol=1e-9)
    beyond = goal_rules.omega(known(**{**drawn, "D": np.array([30.0, 3.0, 3.0, 3.0])}, divergence=3.0))
    np.testing.assert_allclose(beyond, [0.0, 0.5, 0.0, 0.5])


def test_divergence_of_counts():
    even = known(eligible=np.ones(4, bool), visits=np.full(4, 7.0))
    assert goal_rules.goal_divergence(even) == pytest.approx(0.0, abs=1e-12)
    shares = np.array([8.0, 1.0, 1.0, 1.0]) / 11
    apart = known(eligible=np.ones(4, bool), visits=np.array([7.0, 0.0, 0.0, 0.0]))
    assert goal_rules.goal_divergence(apart) == pytest.approx(np.mean(np.log(0.25 / shares)))


def test_discover_prefers_goals_towards_the_target():
    assert goal_rules.discover(known()).tolist() == [0, 0, 1, 0], "farther from the start, nearer to the target"
    assert goal_rules.resolve_rule("discover:beta=0,alpha=0")(known()).tolist() == [0, 1, 0, 0], "the nearest"
    with pytest.raises(InputError, match=r"^goal_rule: discover needs a target"):
        goal_rules.discover(known(onward_D=None))


def test_rules_declare_what_they_need():
    """Every built-in rule declares fields of GoalInfo; a function that declares nothing gets all of them."""
    fields = frozenset(goal_rules.GoalInfo.__dataclass_fields__)
    for rule in goal_rules.BUILTIN_RULES.values():
        assert goal_rules.required_fields(rule, frozenset({"none of these"})) <= fields
    assert goal_rules.required_fields(goal_rules.resolve_rule("raregoal:alpha=0.5"), fields) == {"visits"}
    assert goal_rules.required_fields(lambda known: known.E, frozenset({"D", "E"})) == {"D", "E"}


@pytest.mark.parametrize("name", goal_rules.BUILTIN_RULES)
def test_rules_do_not_depend_on_undeclared_fields(name):
    """The field ``attempts`` may break ties without declaration; this test has no ties."""
    needed = goal_rules.required_fields(goal_rules.BUILTIN_RULES[name], frozenset()) | {"L", "eligible", "attempts"}
    nonsense = {f: np.full(4, 7.0) for f in goal_rules.GoalInfo.__dataclass_fields__ if f not in needed}
    np.testing.assert_array_equal(
        goal_rules.BUILTIN_RULES[name](known(**nonsense)), goal_rules.BUILTIN_RULES[name](known())
    )
