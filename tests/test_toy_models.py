"""The built-in models: layouts, dynamics, closed forms, and bad arguments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from adagoal.core.errors import InputError
from adagoal.envs import mixture_models, toy_models
from adagoal.envs.model import TabularMDP
from adagoal.exact import solver
from experiments import exact_policies, extra_models
from experiments.exact_policies import optimal_policy, reachable_set

UP, RIGHT, DOWN, LEFT = range(4)


def row(mdp: TabularMDP, label: str, action: int) -> dict[str, float]:
    successors, probabilities = mdp.row(mdp.labels.index(label), action)
    return {mdp.labels[s]: p for s, p in zip(successors.tolist(), probabilities.tolist(), strict=True)}


def test_grid_dynamics() -> None:
    mdp = toy_models.grid_from_text("S..\n.#.\n...", slip=0.1, name="ring")
    assert (mdp.n_states, mdp.n_actions, mdp.start, mdp.name) == (8, 4, 0, "ring")
    assert row(mdp, "(0, 1)", DOWN) == {"(0, 1)": 1.0}
    third = pytest.approx(0.1 / 3)
    assert row(mdp, "(0, 1)", RIGHT) == {"(0, 2)": 0.9, "(0, 0)": third, "(0, 1)": pytest.approx(0.2 / 3)}
    assert row(mdp, "(0, 0)", DOWN) == {"(1, 0)": 0.9, "(0, 1)": third, "(0, 0)": pytest.approx(0.2 / 3)}
    assert mdp.layout is not None
    assert mdp.layout.shape == (3, 3)
    assert mdp.layout.walls.sum() == 1
    assert mdp.layout.cells[4].tolist() == [1, 2]


def test_second_room_is_entered_by_slipping() -> None:
    mdp = toy_models.two_room_grid(eta=0.2)
    room = {label: pytest.approx(0.05) for label in ("(8, 8)", "(8, 9)", "(9, 8)", "(9, 9)")}
    assert row(mdp, "(0, 0)", UP) == room | {"(0, 0)": pytest.approx(0.8)}
    right = row(mdp, "(0, 0)", RIGHT)
    assert right == room | {"(0, 1)": pytest.approx(0.72), "(0, 0)": pytest.approx(0.08)}
    assert set(row(mdp, "(8, 8)", LEFT)) == {"(8, 8)"}


def test_two_room_has_52_states() -> None:
    mdp = toy_models.two_room_grid()
    assert mdp.n_states == 52
    assert mdp.labels[mdp.start] == "(0, 0)"
    assert reachable_set(toy_models.two_room_grid(eta=0.0), 1e6).size == 48


def test_open_grid_without_slip_counts_steps() -> None:
    mdp = toy_models.open_grid_model(rows=4, cols=5, slip=0.0)
    assert mdp.layout is not None
    assert solver.optimal_distances(mdp).tolist() == mdp.layout.cells.sum(axis=1).tolist()


@pytest.mark.parametrize("seed", range(5))
def test_mazes_are_connected(seed: int) -> None:
    tree = toy_models.random_maze(rows=6, cols=9, openings=0.0, slip=0.0, seed=seed)
    assert tree.n_states == 2 * 6 * 9 - 1
    assert np.isfinite(solver.optimal_distances(tree)).all()
    mdp = toy_models.random_maze(rows=6, cols=9, openings=0.3, seed=seed)
    assert mdp.n_states > tree.n_states
    assert np.isfinite(solver.optimal_distances(mdp)).all()
    again = toy_models.random_maze(rows=6, cols=9, openings=0.3, seed=seed)
    np.testing.assert_array_equal(mdp.successors, again.successors)


def test_large_maze() -> None:
    assert toy_models.random_maze(rows=32, cols=31).n_states > 2000


def test_grid_from_file(tmp_path: Path) -> None:
    file = tmp_path / "room.txt"
    file.write_text("S.\n..\n")
    mdp = toy_models.grid_from_file(path=str(file))
    assert (mdp.n_states, mdp.name) == (4, "room")
    with pytest.raises(InputError, match="path"):
        toy_models.grid_from_file(path=str(tmp_path / "none.txt"))


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("...\n...", "exactly one start S, has 0"),
        ("S.S", "exactly one start S, has 2"),
        ("S.x", "unknown character 'x' at row 0, column 2"),
        ("S..\n..", "row 1 has 2 cells"),
        ("", "empty"),
    ],
)
def test_bad_layouts(layout: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        toy_models.grid_from_text(layout)
    assert "\n" not in str(caught.value)


def test_bad_start() -> None:
    for start in ((0, 1), (5, 5), (-1, 0)):
        with pytest.raises(InputError, match="start"):
            toy_models.grid_from_text(".#", start=start)
    with pytest.raises(InputError, match="start"):
        toy_models.grid_from_text("S.", start=(0, 1))


@pytest.mark.parametrize("radius", [5.0, 6.0, 10.0, 13.7])
@pytest.mark.parametrize(("n_decisions", "n_actions", "depth"), [(1, 2, 0), (4, 4, 0), (5, 4, 1), (17, 4, 2)])
def test_lower_bound_instance(radius: float, n_decisions: int, n_actions: int, depth: int) -> None:
    radius += 2 * depth
    wait = int((radius - 3) / 2) - depth
    advantage = 0.5 / (2 * (wait + depth + 2))
    for best in (0, n_decisions * n_actions - 1):
        mdp = toy_models.lower_bound_instance(
            n_decisions=n_decisions, n_actions=n_actions, radius=radius, epsilon=0.5, best=best
        )
        if depth == 0:
            assert mdp.n_states == n_decisions + 3
        V = exact_policies.optimal_values(mdp, [1])
        np.testing.assert_allclose(V[0, 0], (wait + depth + 1.5 - advantage) / (0.5 + advantage), rtol=1e-12)
        assert V[0, 0] <= radius
        decision = mdp.labels.index(f"decision {best // n_actions}")
        actions = optimal_policy(mdp, V, [1])[:, 0]
        assert actions[decision] == best % n_actions
        actions[decision] = (best + 1) % n_actions  # a policy that misses the good pair is not epsilon-optimal
        loss = solver.policy_values(mdp, actions, 1)[0] - V[0, 0]
        np.testing.assert_allclose(loss, 2 * 0.5 / (1 + 2 * advantage), rtol=1e-10)


@pytest.mark.parametrize("eta", [0.1, 1e-3, 1e-6])
def test_separation_instance(eta: float) -> None:
    radius, best = 6.0, 2
    mdp = extra_models.separation_instance(n_actions=4, radius=radius, eta=eta, best=best)
    free = exact_policies.optimal_values(mdp, [1], reset=False)
    optimum = 1 + eta + (1 - eta) * (radius - 1)
    np.testing.assert_allclose(free[0, 0], optimum, rtol=1e-10)
    assert free[0, 0] <= radius
    actions = optimal_policy(mdp, free, [1], reset=False)[:, 0]
    assert actions[3] == best
    actions[3] = 0
    np.testing.assert_allclose(solver.policy_values(mdp, actions, 1)[0] - optimum, 2, rtol=1e-9)
    actions[4] = mdp.reset_action
    mistaken = solver.policy_values(mdp, actions, 1)[0]
    np.testing.assert_allclose(mistaken - solver.optimal_distances(mdp, [1])[0], eta * (1 + mistaken), rtol=1e-6)
    assert exact_policies.diameter(mdp, reset=False) > 2 / eta


def test_goal_of_the_fan_is_not_incrementally_reachable() -> None:
    mdp = toy_models.fan_model(n_middle=10)
    np.testing.assert_allclose(solver.optimal_distances(mdp), [0, *[19] * 10, 2], rtol=1e-12)
    assert reachable_set(mdp, 18).tolist() == [0, 11]


def test_random_models_have_their_features() -> None:
    for seed in range(10):
        dense = toy_models.random_dense(n_states=8, n_actions=2, seed=seed)
        assert dense.probabilities.size == 8 * 2 * 8
        sparse = toy_models.random_sparse(branching=4, seed=seed)
        assert (np.diff(sparse.indptr) == 4).all()
        assert np.isfinite(solver.optimal_distances(extra_models.random_deterministic(seed=seed))).all()
        traps = extra_models.random_traps(n_states=15, traps=5, seed=seed)
        assert traps.successors[traps.indptr[10 * 3] :].min() >= 10
        hidden = extra_models.random_unreachable(n_states=15, hidden=5, seed=seed)
        assert np.isinf(solver.optimal_distances(hidden)[10:]).all()
        waiting = extra_models.random_waiting(stay=0.99, seed=seed)
        assert (waiting.probabilities >= 0.99).any()
        exits = extra_models.random_rare_exits(n_states=15, rare=5, p=1e-5, seed=seed)
        far = solver.optimal_distances(exits)[10:]
        assert (far > 1e4).all()


BUILDERS: list[Callable[..., TabularMDP]] = [
    toy_models.two_room_grid,
    toy_models.open_grid_model,
    toy_models.random_maze,
    toy_models.chain_model,
    extra_models.waiting_chain,
    toy_models.rare_exit_chain,
    toy_models.trap_chain,
    toy_models.fan_model,
    toy_models.lower_bound_instance,
    extra_models.separation_instance,
    toy_models.random_dense,
    toy_models.random_sparse,
    extra_models.random_deterministic,
    extra_models.random_traps,
    extra_models.random_unreachable,
    extra_models.random_waiting,
    extra_models.random_rare_exits,
]


@pytest.mark.parametrize("build", BUILDERS)
def test_every_builder_works_without_arguments(build: Callable[..., TabularMDP]) -> None:
    mdp = build()
    assert mdp.name
    assert len(mdp.labels) in (0, mdp.n_states)


@pytest.mark.parametrize(
    ("build", "arguments"),
    [
        (toy_models.two_room_grid, {"eta": 1.0}),
        (toy_models.two_room_grid, {"slip": -0.1}),
        (toy_models.open_grid_model, {"rows": 0}),
        (toy_models.open_grid_model, {"cols": 2.5}),
        (toy_models.random_maze, {"openings": float("nan")}),
        (toy_models.chain_model, {"n_states": 1}),
        (toy_models.chain_model, {"slip": 0.6}),
        (toy_models.rare_exit_chain, {"p": 0.0}),
        (toy_models.trap_chain, {"p": 1.0}),
        (toy_models.fan_model, {"n_middle": 0}),
        (toy_models.lower_bound_instance, {"radius": 3.0}),
        (toy_models.lower_bound_instance, {"best": 4}),
        (toy_models.lower_bound_instance, {"epsilon": 0}),
        (toy_models.lower_bound_instance, {"n_actions": 1, "n_decisions": 2}),
        (extra_models.separation_instance, {"radius": 1.0}),
        (extra_models.separation_instance, {"best": -1}),
        (toy_models.random_dense, {"n_states": "many"}),
        (toy_models.random_sparse, {"branching": 100}),
        (extra_models.random_deterministic, {"seed": -1}),
        (extra_models.random_traps, {"traps": 20}),
        (extra_models.random_unreachable, {"hidden": 0}),
        (extra_models.random_waiting, {"stay": True}),
        (extra_models.random_rare_exits, {"p": 2.0}),
        (toy_models.lower_bound_instance, {"n_decisions": 100_000, "n_actions": 10_000}),
        (toy_models.random_dense, {"n_states": 2_000, "n_actions": 1_000}),
        (toy_models.random_sparse, {"n_states": 100_000, "n_actions": 1_000}),
        (mixture_models.windy_mixture, {"signed": "maybe"}),
        (mixture_models.tree_mixture, {"rooms": 1_000_000, "doors": 100}),
        (mixture_models.inventory_mixture, {"capacity": 99_999, "orders": 100, "d": 8}),
    ],
)
def test_bad_arguments_are_named(build: Callable[..., TabularMDP], arguments: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(arguments))) as caught:
        build(**arguments)
    assert "\n" not in str(caught.value)
