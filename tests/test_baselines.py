"""Each baseline has the property that its paper proves, on models with a known answer.

Unless a test says otherwise the constants are scaled (see baselines/self_directed.py), so the confidence of the papers
does not apply; the seeds are fixed.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import adagoal
from adagoal.api import explore as api
from adagoal.baselines import gosprl, self_directed
from adagoal.baselines.disco import VALAE
from adagoal.baselines.gosprl import Gosprl
from adagoal.baselines.incremental import RoundBasedMethod
from adagoal.baselines.lae import LAE, enough_episodes
from adagoal.baselines.self_directed import solve_visgo
from adagoal.cli.main import run_command_line as command
from adagoal.comparison import method_comparison
from adagoal.core.environment import Policy
from adagoal.core.errors import InputError
from adagoal.core.exploration_run import ExplorationRun
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs import registry, toy_models
from adagoal.envs.model import TabularMDP
from adagoal.envs.simulator import ModelSimulator
from adagoal.exact import solver
from adagoal.goal_rules import adagoal as rule
from adagoal.loop import run_self_directed
from adagoal.planning.model_arrays import TransitionKernel
from adagoal.runs.result import Result
from experiments import arena, exact_policies, extra_models, incremental, required_steps
from experiments.__main__ import run as run_experiment
from experiments.exact_policies import reachable_set
from transition_recording import record_transition

EPSILON = 1.0
MODEL_SEEDS = range(12)
ROUNDING = 2 * gosprl.VALUE_PRECISION
"""Relative error of the values behind the diameter."""


def small_model(seed: int) -> tuple[TabularMDP, float]:
    """Return a random model and a radius between 3 and 8 in the middle of its distances."""
    make = (
        lambda: toy_models.random_sparse(n_states=8, n_actions=2, branching=3, seed=seed),
        lambda: extra_models.random_traps(n_states=8, n_actions=2, traps=2, branching=2, seed=seed),
        lambda: extra_models.random_waiting(n_states=6, n_actions=2, stay=0.5, branching=2, seed=seed),
        lambda: extra_models.random_deterministic(n_states=8, n_actions=2, seed=seed),
    )
    mdp = make[seed % 4]()
    distances = solver.optimal_distances(mdp)
    return mdp, float(np.clip(np.median(distances[np.isfinite(distances)]), 3.0, 8.0))


def explore(mdp: TabularMDP, L: float, method: str, constants: str, seed: int) -> Result:
    arguments = {"constants": constants}
    return api.explore(ModelSimulator(mdp), L, EPSILON, method=method, method_args=arguments, seed=seed, budget=10**7)


def values(mdp: TabularMDP, result: Result) -> dict[int, float]:
    return {g: solver.policy_value(mdp, result.policy(g)) for g in result.goals}


@pytest.mark.parametrize("constants", ["scaled=0.003", "scaled=0.01"])
def test_ucbexplore_finds_what_is_incrementally_reachable(constants: str) -> None:
    """In 12 models: S_L-arrow is a subset of K, K of S_(L + epsilon)-arrow; every policy takes at most L + epsilon."""
    for seed in MODEL_SEEDS:
        mdp, L = small_model(seed)
        result = explore(mdp, L, "ucbexplore", constants, seed)
        assert result.status == "stopped"
        low, high = (set(incremental.incremental_set(mdp, r).tolist()) for r in (L, L + EPSILON))
        assert low <= set(result.goals) <= high
        assert max(values(mdp, result).values()) <= L + EPSILON


@pytest.mark.parametrize("constants", ["scaled=0.01", "scaled=0.1"])
def test_disco_finds_what_is_incrementally_reachable_with_good_policies(constants: str) -> None:
    """In 12 models: K as above; every policy is within epsilon of the best one restricted to S_L-arrow."""
    for seed in MODEL_SEEDS:
        mdp, L = small_model(seed)
        result = explore(mdp, L, "disco", constants, seed)
        assert result.status == "stopped"
        low, high = (set(incremental.incremental_set(mdp, r).tolist()) for r in (L, L + EPSILON))
        assert low <= set(result.goals) <= high
        best = incremental.restricted_distances(mdp, np.isin(np.arange(mdp.n_states), list(low)))
        for goal, value in values(mdp, result).items():
            assert goal not in low or value <= best[goal] + EPSILON


@pytest.mark.parametrize(
    ("mdp", "L"),
    [
        (toy_models.open_grid_model(), 8.0),
        (toy_models.chain_model(n_states=8, slip=0.1), 6.0),
        (toy_models.trap_chain(), 10.0),
    ],
)
def test_disco_passes_the_audit_if_both_reachable_sets_agree(mdp: TabularMDP, L: float) -> None:
    """S_L-arrow = G_L, and restricted policies are as good as free ones: C1 and C2 hold."""
    assert incremental.incremental_set(mdp, L).tolist() == reachable_set(mdp, L).tolist()
    verdict = api.audit(explore(mdp, L, "disco", "scaled=0.0005", 0), mdp)
    assert verdict.c1
    assert verdict.c2


def test_disco_can_fail_the_audit_although_both_reachable_sets_agree() -> None:
    """FrozenLake: S_L-arrow = G_L for L = 20, but a policy restricted to it loses more than epsilon on some goal."""
    mdp = registry.make_exact_model("FrozenLake-v1", {}, None)
    assert mdp is not None
    inside = incremental.incremental_set(mdp, 20.0)
    assert inside.tolist() == reachable_set(mdp, 20.0).tolist()
    best = incremental.restricted_distances(mdp, np.isin(np.arange(mdp.n_states), inside))
    assert (best - solver.optimal_distances(mdp))[inside].max() > 2.0


def test_incremental_methods_miss_the_goal_of_the_fan() -> None:
    mdp = toy_models.fan_model(n_middle=10)
    assert api.explore("fan", 4.0, method="gosprl", method_args={"constants": "scaled=0.01"}).goals == [0, 11]
    for method in ("ucbexplore", "disco", "valae", "lae"):
        assert 11 not in explore(mdp, 4.0, method, "scaled=0.01", 0).goals


@pytest.mark.parametrize("method", ["ucbexplore", "disco"])
def test_many_rare_states_do_not_shorten_the_way(method: str) -> None:
    """Ten states have probability 1/10 each. The bound must give 19 steps, not 6 from the sum of their widths."""
    assert explore(
        toy_models.fan_model(n_middle=10), 6.0, method, "paper" if method == "disco" else "scaled=0.001", 0
    ).goals == [0]


# --- VALAE and LAE ---


def finished(
    method: type[RoundBasedMethod], seed: int, constants: str, phases: int = 9
) -> tuple[TabularMDP, RoundBasedMethod]:
    """Return a small model and the method at its stop, or earlier in the given phase."""
    mdp, L = small_model(seed)
    explorer = method(counts_of(mdp), L, EPSILON, 0.1, None, constants)
    run = ExplorationRun(ModelSimulator(mdp), explorer, rule, np.random.default_rng(seed))
    run_self_directed(run, 10**7, lambda run: explorer.phase < phases)
    assert explorer.stopped == (phases == 9)
    return mdp, explorer


def policy_values(mdp: TabularMDP, explorer: RoundBasedMethod) -> dict[int, float]:
    """Return the expected steps of the policy of every member of K."""
    known = np.flatnonzero(explorer.known_states).tolist()
    return {g: solver.policy_value(mdp, Policy(g, explorer.goal_policy(g), mdp.reset_action)) for g in known}


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(s, marks=pytest.mark.slow) for s in range(4, 24))])
def test_lae_finds_what_is_incrementally_reachable_with_good_policies(seed: int) -> None:
    """S_L-arrow is a subset of K, K of S_(L + epsilon)-arrow; policies lose a share of epsilon / L at most."""
    mdp, explorer = finished(LAE, seed, "scaled=0.002")
    low, high = (set(incremental.incremental_set(mdp, r).tolist()) for r in (explorer.L, explorer.L + EPSILON))
    assert low <= set(np.flatnonzero(explorer.known_states).tolist()) <= high
    best = incremental.restricted_distances(mdp, explorer.known_states)
    for goal, value in policy_values(mdp, explorer).items():
        assert value <= best[goal] * (1.0 + explorer.relative_accuracy)


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(s, marks=pytest.mark.slow) for s in range(4, 24))])
def test_valae_finds_a_set_and_then_good_policies(seed: int) -> None:
    """S_L-arrow is a subset of K, K of S_2L-arrow; with a smaller scale, policies are within epsilon of the best on K.

    Its answer is the part of K within the radius.
    """
    mdp, explorer = finished(VALAE, seed, "scaled=0.1", phases=1)
    low, high = (set(incremental.incremental_set(mdp, r * explorer.L).tolist()) for r in (1, 2))
    assert low <= set(np.flatnonzero(explorer.known_states).tolist()) <= high
    mdp, explorer = finished(VALAE, seed, "scaled=0.00001")
    best = incremental.restricted_distances(mdp, explorer.known_states)
    for goal, value in policy_values(mdp, explorer).items():
        assert value <= best[goal] + EPSILON
        assert explorer.D[goal] > explorer.L or value <= explorer.L + EPSILON


@pytest.mark.parametrize("method", [LAE, VALAE])
def test_policies_are_planned_on_samples_after_the_set_was_final(method: type[RoundBasedMethod]) -> None:
    """The policies use only samples drawn after K was final: fewer than all samples, but enough."""
    _, explorer = finished(method, 0, "scaled=0.002" if method is LAE else "scaled=0.00001")
    n = explorer.round_samples.sum(1)[np.repeat(explorer.known_states, explorer.counts.n_actions)]
    assert 0 < explorer.dropped_samples.sum() < explorer.counts.n.sum()
    assert n.min() > 0
    assert (explorer.round_samples >= 0).all()


@pytest.mark.parametrize("method", [LAE, VALAE])
def test_checkpoint_after_a_failed_rollout_can_be_resumed(method: type[RoundBasedMethod]) -> None:
    """A failed rollout may leave counts with successors that the method has not processed."""
    mdp, explorer = finished(method, 0, "scaled=0.002" if method is LAE else "scaled=0.00001")
    explorer.counts.grow_successors(2 * explorer.counts.count.shape[1])
    arrays, facts = explorer.state()
    other = method(explorer.counts, explorer.L, EPSILON, 0.1, None, explorer.constants)
    other.restore(arrays, json.loads(json.dumps(facts)))
    np.testing.assert_array_equal(other.round_samples, explorer.round_samples)
    assert policy_values(mdp, other) == policy_values(mdp, explorer)


def test_lae_plays_as_many_episodes_as_its_lemma_asks_for() -> None:
    """The smallest n with 8 log(8 n^2 L0 / delta)^2 / sqrt(n) <= accuracy."""
    n = enough_episodes(320.0, 0.5, 0.1)
    short, long = (8.0 * np.log(8.0 * m * m * 320.0 / 0.1) ** 2 / np.sqrt(m) for m in (n * (1 - 1e-6), n))
    assert long <= 0.5 * (1 + 1e-6) < short * (1 + 1e-6)


def test_visgo_is_optimistic_and_exact_without_bonus() -> None:
    """Reference: the operator in the docstring of the module, for all states at once, from zero."""
    mdp = toy_models.random_sparse(n_states=7, n_actions=2, seed=5)
    S, A, goal, cap = 7, 2, 6, 40.0
    counts = required_steps.exact(mdp, np.full(S * A, 1000.0))
    kernel = TransitionKernel(
        counts.successor, counts.count / counts.n[:, None], counts.support, counts.terminal, counts.start
    )
    usable, iota = np.repeat(np.arange(S) < 5, A), np.full(S * A, 0.3)
    p, targets = counts.empirical_kernel(), np.arange(S)[None] == goal
    for root, flat in ((0.0, 0.0), (3.0, 60.0)):
        V = np.zeros(S)
        for _ in range(5000):
            mean = p @ V
            bonus = np.maximum(
                root * np.sqrt(np.maximum(p @ V**2 - mean**2, 0) * 0.3 / counts.n), flat * 0.3 / counts.n
            )
            Q = np.where(usable, np.maximum(1 + mean * counts.n / (counts.n + 1) - bonus, 0), np.inf).reshape(S, A)
            V = np.minimum(np.minimum(Q.min(1), 1 + V[counts.start]), cap)
            V[goal] = 0.0
        found, _ = solve_visgo(kernel, usable, targets, counts.n, iota, root, flat, 1e-10, cap)
        np.testing.assert_allclose(found[0], V, rtol=1e-6)
        best = incremental.restricted_distances(mdp, np.arange(S) < 5)[goal]
        assert V[counts.start] <= best
        if root == 0.0:
            assert V[counts.start] == pytest.approx(best, rel=0.02)  # except for one sample in a thousand


def test_ucbexplore_does_not_count_the_reset_step() -> None:
    """A deterministic chain with a state at distance L: the estimated mean is exactly L."""
    result = api.explore(
        "chain",
        3.0,
        0.5,
        env_args={"slip": 0.0},
        method="ucbexplore",
        method_args={"constants": "scaled=0.001"},
        budget=10**6,
    )
    assert result.status == "stopped"
    assert 3 in result.goals


# --- GOSPRL ---


def collected(mdp: TabularMDP, explorer: Gosprl, seed: int) -> str:
    run = ExplorationRun(ModelSimulator(mdp), explorer, rule, np.random.default_rng(seed))
    return run_self_directed(run, 10**8)


def counts_of(mdp: TabularMDP) -> TransitionCounts:
    return TransitionCounts(mdp.n_states, mdp.n_actions, mdp.start)


@pytest.mark.parametrize("seed", range(6))
def test_gosprl_meets_every_sampling_requirement(seed: int) -> None:
    mdp = toy_models.random_sparse(n_states=10, n_actions=3, seed=seed)
    required = np.random.default_rng(seed).integers(0, 200, mdp.n_states * mdp.n_actions)
    explorer = Gosprl(counts_of(mdp), 10.0, EPSILON, 0.1)
    explorer.diameter, explorer.required_counts = 1.0, lambda: required.astype(float)  # type: ignore[method-assign]
    assert collected(mdp, explorer, seed) == "stopped"
    assert (explorer.counts.n >= required).all()
    assert (
        explorer.counts.n.sum() <= 2 * exact_policies.diameter(mdp) * required.sum()
    )  # the rate of the paper: B D, at most


@pytest.mark.parametrize(("constants", "seeds"), [("scaled=0.05", 8), ("paper", 2)])
def test_gosprl_diameter_lies_between_once_and_twice_the_truth(constants: str, seeds: int) -> None:
    for seed in range(seeds):
        mdp = toy_models.random_dense(n_states=4 + seed % 3, n_actions=2, seed=seed)
        explorer = Gosprl(
            counts_of(mdp), 10.0, 1e3, 0.1, None, constants
        )  # epsilon is so large that the run stops after this phase
        assert collected(mdp, explorer, seed) == "stopped"
        assert explorer.diameter is not None
        D = exact_policies.diameter(mdp)
        assert D * (1 - ROUNDING) <= explorer.diameter <= 2 * D * (1 + ROUNDING)


@pytest.mark.parametrize("seed", range(8))
def test_gosprl_passes_the_audit_if_every_state_is_reachable(seed: int) -> None:
    mdp = toy_models.random_dense(n_states=6, n_actions=2, seed=seed)
    L = float(np.median(solver.optimal_distances(mdp)))
    result = explore(mdp, L, "gosprl", "scaled=0.01", seed)
    assert result.status == "stopped"
    verdict = api.audit(result, mdp)
    assert verdict.c1
    assert verdict.c2


# --- BPI-UCBVI ---


def best_and_policy_values(mdp: TabularMDP, goal: int, H: int, table: np.ndarray) -> tuple[float, float]:
    """Return expected steps from s0 to the goal or H, of the best policy and of the table [H, S]."""
    S, A = mdp.n_states, mdp.n_actions
    p = np.concatenate([mdp.kernel().toarray().reshape(S, A, S), np.zeros((S, 1, S))], 1)
    p[:, A, mdp.start] = 1.0
    best = policy_values = np.zeros(S)
    for h in reversed(range(H)):
        best, policy_values = (1 + p @ best).min(1), 1 + p[np.arange(S), table[h]] @ policy_values
        best[goal] = policy_values[goal] = 0.0
    return float(best[mdp.start]), float(policy_values[mdp.start])


@pytest.mark.parametrize("seed", range(6))
def test_bpi_finds_a_good_policy_for_one_goal(seed: int) -> None:
    """The method stops with a policy within epsilon of the best one over H stages."""
    mdp = toy_models.random_sparse(n_states=5, n_actions=3, branching=2, seed=seed)
    goal = int(np.argsort(solver.optimal_distances(mdp))[3])
    arguments = {"constants": "scaled=0.01", "horizon": 12}
    result = api.explore(
        *(ModelSimulator(mdp), 40.0, 0.3), goals=[goal], method="bpi-ucbvi", method_args=arguments, seed=seed,
        budget=10**8,
    )  # fmt: skip
    assert (result.status, result.goals) == ("stopped", [goal])
    best, policy_values = best_and_policy_values(mdp, goal, 12, result.policy(goal).actions)
    assert best <= policy_values <= best + 0.3


def test_bpi_needs_one_goal() -> None:
    with pytest.raises(InputError, match="one goal"):
        api.explore("chain", 4.0, method="bpi-ucbvi")


# --- required steps ---


@pytest.mark.parametrize(
    ("method", "constants", "env", "L"),
    [
        ("ucbexplore", "scaled=0.003", "trap-chain", 10.0),
        ("ucbexplore", "scaled=0.003", "rare-exit", 10.0),
        ("disco", "scaled=0.01", "trap-chain", 10.0),
        ("disco", "paper", "rare-exit", 10.0),
        ("disco", "scaled=0.001", "grid", 8.0),
        ("valae", "scaled=0.00001", "grid", 8.0),
        ("lae", "scaled=0.003", "trap-chain", 10.0),
        ("gosprl", "scaled=0.1", "trap-chain", 10.0),
        ("gosprl", "scaled=0.01", "grid", 8.0),
        ("gosprl", "scaled=0.01", "fan", 4.0),
    ],
)
def test_methods_stop_no_earlier_than_the_required_steps(method: str, constants: str, env: str, L: float) -> None:
    """The computed number of steps is a lower bound, within a factor of ten."""
    mdp = registry.make_exact_model(env, {}, None)
    assert mdp is not None
    least = required_steps.RIVALS[method](mdp, L, EPSILON, 0.1, constants)
    assert least <= explore(mdp, L, method, constants, 0).steps <= 10 * least


def test_gosprl_does_not_stop_if_a_state_is_unreachable() -> None:
    mdp = registry.make_exact_model("CliffWalking-v1", {}, None)
    assert mdp is not None
    assert required_steps.gosprl(mdp, 20.0, EPSILON, 0.1) == np.inf


# --- the shared planner, resume and command line ---


def test_planner_is_optimistic_and_exact_without_widths() -> None:
    mdp = toy_models.random_sparse(n_states=7, n_actions=2, seed=5)
    counts, rng = counts_of(mdp), np.random.default_rng(0)
    for s in range(7):
        for a in range(2):
            successors, p = mdp.row(s, a)
            for target in rng.choice(successors, 4000, p=p):
                record_transition(counts, s, a, int(target))
    known, goal = np.arange(7) < 5, np.arange(7) == 6
    best = incremental.restricted_distances(mdp, known)[6]
    (low,), _ = self_directed.solve_restricted_paths(
        counts, self_directed.optimistic_rows(counts, 1.0, 0.1), known, goal[None], 1e-6, 1e6
    )
    (near,), (policy,) = self_directed.solve_restricted_paths(
        counts, self_directed.empirical_rows(counts), known, goal[None], 1e-9, 1e6
    )
    assert low[0] <= best
    assert near[0] == pytest.approx(best, rel=0.1)
    assert (policy[[5]] == mdp.reset_action).all()


@pytest.mark.parametrize("constants", ["scaled=", "scaled=0", "scaled=-1", "half", "scaled=nan"])
def test_constants_are_checked(constants: str) -> None:
    with pytest.raises(InputError, match="constants"):
        api.explore("chain", 4.0, method="disco", method_args={"constants": constants})


@pytest.mark.parametrize("method", ["ucbexplore", "disco", "valae", "lae", "gosprl"])
def test_resume_equals_uninterrupted_run(method: str, tmp_path: Path) -> None:
    scales = {"ucbexplore": "scaled=0.00001", "valae": "scaled=0.000001", "lae": "scaled=0.001"}
    size = {"rows": 3, "cols": 3} if method in ("valae", "lae") else {}
    chosen = {"method": method, "method_args": {"constants": scales.get(method, "scaled=0.003")}, "seed": 3}
    whole = adagoal.explore("grid", 8.0, env_args=size, **chosen)  # type: ignore[arg-type]
    part = adagoal.explore("grid", 8.0, env_args=size, budget=whole.steps // 3, out=tmp_path, **chosen)  # type: ignore[arg-type]
    assert part.status == "budget"
    rest = adagoal.resume(tmp_path, budget=10**8)
    assert (rest.status, rest.steps, rest.goals) == ("stopped", whole.steps, whole.goals)
    np.testing.assert_array_equal(rest.arrays["policy"], whole.arrays["policy"])
    np.testing.assert_array_equal(rest.arrays["visits"], whole.arrays["visits"])


def test_baselines_run_from_the_command_line(tmp_path: Path) -> None:
    line = ["explore", "chain", "--radius", "5", "--method", "ucbexplore", "--constants", "scaled=0.00002"]
    assert command([*line, "--out", str(tmp_path), "--quiet"]) == 0
    assert adagoal.load(tmp_path).setting.method_args == {"constants": "scaled=0.00002"}
    assert command(["audit", str(tmp_path)]) == 0
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--method", "disco", "--constants", "half"], "must be paper or scaled=c"),
        (["--method", "disco", "--constants", "scaled=-1"], "must be paper or scaled=c"),
        (["--constants", "scaled=0.1"], "none of certified uses them"),
        (
            ["--method", "disco", "--constants", "paper", "--method-arg", "constants=paper"],
            "none of disco:constants uses them",
        ),
    ],
)
def test_bad_constants_give_one_line_error(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["explore", "chain", "--radius", "5", *arguments, "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --constants: ")
    assert said in error
    assert error.count("\n") == 1


def test_constants_of_a_comparison_do_not_replace_given_ones() -> None:
    envs = {"chain": {"radius": 5.0, "epsilon": 1.0}}
    specs = ("certified", "disco", "gosprl:constants=paper")
    found = method_comparison.build_settings(envs, specs, ("adagoal",), 1, constants="scaled=0.1")
    assert [s.method_args for s in found] == [{}, {"constants": "scaled=0.1"}, {"constants": "paper"}]


def test_comparisons_run_a_baseline_once_per_seed() -> None:
    envs = {"chain": {"radius": 5.0, "epsilon": 1.0}}
    found = method_comparison.build_settings(
        envs, ("certified", "disco:constants=scaled=0.1"), ("adagoal", "unigoal"), 2
    )
    assert [setting.method for setting in found].count("disco") == 2


def test_arena_does_not_repeat_finished_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a small arena twice; the second time runs nothing."""
    monkeypatch.setattr(arena, "WORLDS", ({"env": "chain", "env_args": {"n_states": 4}, "radius": 3.0},))
    monkeypatch.setattr(arena, "GOAL_RULES", ("adagoal",))
    monkeypatch.setattr(arena, "OTHERS", ("disco:constants=scaled=0.01", "gosprl:constants=paper"))
    line = ["arena", "--seeds", "2", "--jobs", "1", "--budget", "50000", "--out", str(tmp_path), "--quiet"]
    assert run_experiment(line) == 0
    text = (tmp_path / "arena.md").read_text()
    assert "| disco:constants=scaled=0.01 | own | 1 of 1 | 2 of 2 | 2 |" in text
    found = {row["method"]: row for row in json.loads((tmp_path / "arena.json").read_text())}
    assert 1_000 < found["gosprl:constants=paper"]["asked"] <= found["gosprl:constants=paper"]["own_stop"]
    assert "asked" not in found["disco:constants=scaled=0.01"]
    assert found["certified"]["each"]["passes"] == [True, True]
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "cells").iterdir()}
    assert run_experiment(line) == 0
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "cells").iterdir()} == before
    assert (tmp_path / "arena.png").exists()
