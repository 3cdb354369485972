"""The certified explorer keeps its guarantee on models with a known exact solution."""

import gymnasium
import numpy as np
import pytest

import adagoal
from adagoal.certified.confidence_sets import ConfidenceSets
from adagoal.certified.explorer import CertifiedExplorer
from adagoal.certified.gaps import bound_suboptimality
from adagoal.certified.heuristics import Heuristics
from adagoal.core.exploration_run import ExplorationRun
from adagoal.core.goal_space import GoalSpace
from adagoal.core.run_settings import ExplorationSettings
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs import toy_models
from adagoal.envs.model import model_from_rows
from adagoal.envs.simulator import ModelSimulator
from adagoal.exact import solver
from adagoal.goal_rules import BUILTIN_RULES
from adagoal.loop import run_exploration
from adagoal.runs.exploration_session import ExplorationSession
from experiments import exact_policies, extra_models
from transition_recording import record_transition

SMALL = {
    "sparse": (toy_models.random_sparse(n_states=8, n_actions=2, seed=3), 6.0, 1.0),
    "deterministic": (extra_models.random_deterministic(n_states=10, n_actions=2, seed=1), 6.0, 1.0),
    "traps": (extra_models.random_traps(n_states=10, n_actions=2, seed=2), 6.0, 1.5),
    "unreachable": (extra_models.random_unreachable(n_states=10, n_actions=2, seed=0), 5.0, 1.0),
    "rare": (toy_models.rare_exit_chain(n_states=4, p=0.01), 5.0, 1.0),
    "grid": (toy_models.open_grid_model(rows=3, cols=3, slip=0.1), 6.0, 1.0),
}


FAR = ("traps", "unreachable")
"""Models on which a rule that chooses unreachable goals spends its steps on resets."""


def start(mdp, L, epsilon, rule=BUILTIN_RULES["adagoal"], seed=0, delta=0.1, goals=None, branching=None):
    counts = TransitionCounts(mdp.n_states, mdp.n_actions, mdp.start)
    space = GoalSpace.from_states(mdp.n_states, mdp.n_states, goals)
    estimates = CertifiedExplorer(counts, mdp.n_states, L, epsilon, delta, space, branching)
    return ExplorationRun(ModelSimulator(mdp), estimates, rule, np.random.default_rng(seed))


def check_bounds(run, mdp, V, L):
    """Check every lower bound, upper bound and gap against the exact values."""
    estimates = run.estimates
    for j in range(1, len(estimates.D)):
        g = int(estimates.goal_state[j])
        best = V[mdp.start, g]
        assert estimates.D[j] <= best + 1e-9
        assert (estimates.V[:, j] <= V[:, g] + 1e-9).all()
        if np.isfinite(estimates.upper[j]):
            values = solver.policy_values(mdp, estimates.returned[:, j], g)
            value = values[mdp.start]
            assert value <= estimates.upper[j] + 1e-9
            assert values[estimates.counts.seen].max() <= estimates.cap + 1e-9  # required by lemma 10
            assert value - best <= estimates.gap[j] + 1e-9
            assert value - best <= estimates.E[j] + 1e-9


@pytest.mark.parametrize("name", SMALL)
def test_bounds_hold_at_every_plan(name):
    mdp, L, epsilon = SMALL[name]
    V = exact_policies.optimal_values(mdp)
    run = start(mdp, L, epsilon)
    looks = {"next": 1}

    def look(run):
        if run.steps >= looks["next"]:
            check_bounds(run, mdp, V, L)
            looks["next"] = int(1.3 * run.steps) + 1

    assert run_exploration(run, 10**7, look) == "certified"
    check_bounds(run, mdp, V, L)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        *((name, "adagoal") for name in SMALL),
        *((name, "unigoal") for name in SMALL if name not in FAR),
        *(pytest.param(name, "unigoal", marks=pytest.mark.slow) for name in FAR),
    ],
)
def test_answer_passes_the_audit(name, rule):
    mdp, L, epsilon = SMALL[name]
    result = adagoal.explore(ModelSimulator(mdp), L, epsilon, goal_rule=rule, seed=1, budget=10**7)
    assert result.status == "certified"
    assert adagoal.audit(result, mdp).ok
    assert not result.open_goals
    for g in result.goals:
        lower, upper = result.certificate(g)
        assert lower <= upper <= L + epsilon + 1e-9
        assert result.error(g) <= epsilon + 1e-9


@pytest.mark.parametrize("slip", [0.0, 0.2])
def test_goals_far_beyond_the_radius_share_a_column(slip):
    """Column 0 is a lower bound on the distance to each of these goals, at every state."""
    mdp, L, epsilon = toy_models.open_grid_model(rows=9, cols=9, slip=slip), 2.9, 1.0
    truth, run = exact_policies.optimal_values(mdp), start(mdp, L, epsilon)
    estimates, shared = run.estimates, []

    def look(run):
        rest = estimates.goals[estimates.column[estimates.goals] == 0]
        assert (estimates.V[:, [0]] <= truth[:, rest] + 1e-9).all()
        shared.append(int(run.counts.seen[rest].sum()))

    assert run_exploration(run, 10**7, look) == "certified"
    assert shared[-1] > 0
    result = adagoal.explore(ModelSimulator(mdp), L, epsilon, seed=1)
    assert adagoal.audit(result, mdp).ok
    beyond = result.certificates.keys() - set(result.goals)
    assert beyond
    assert all(result.certificate(g).lower > L for g in beyond)


def test_two_room_is_certified_within_the_documented_steps():
    result = adagoal.explore("two-room", radius=40, epsilon=1.0, delta=0.1, seed=0)
    assert result.status == "certified"
    assert result.steps <= 2_000_000
    assert len(result.goals) == 48
    assert adagoal.audit(result).ok


@pytest.mark.parametrize("leak", [0.0, 1.0])
def test_gap_bounds_the_worst_model(leak):
    """Lemma 9 on a tiny model: no kernel inside the confidence sets exceeds the bound."""
    mdp = toy_models.random_sparse(n_states=5, n_actions=2, seed=5, branching=2)
    run = start(mdp, 8.0, 0.5)
    run_exploration(run, 30_000)
    e = run.estimates
    e.refresh_columns(np.ones(len(e.D), bool))
    m = e.confidence.empirical_model()
    rng = np.random.default_rng(0)
    others = [_inside(mdp, m, rng, leak) for _ in range(200)]
    tried = 0
    for j in range(1, len(e.D)):
        g = int(e.goal_state[j])
        if g == mdp.start or not e.Y[mdp.start, j] <= Heuristics.small_strategy.upper_cap_factor * e.cap - 1:
            continue
        policy, rival, inside = e.best[:, j].copy(), np.zeros(5, np.int16), np.arange(mdp.n_states) == g
        V, Y = e.V[:, j].copy(), e.Y[:, j].copy()
        order = e.seen_states
        gap, upper, most, _ = bound_suboptimality(order, inside, m, V, Y, policy, len(order) == 5, rival)
        for other in others:
            best = exact_policies.optimal_values(other, np.array([g]))[:, 0]
            value = solver.policy_values(other, policy, g)
            if (best >= e.V[:, j] - 1e-9).all() and (value <= e.Y[:, j] + 1e-9).all():
                assert value[mdp.start] - best[mdp.start] <= gap + 1e-9
                assert value[mdp.start] <= upper + 1e-9
                assert value.max() <= most + 1e-9
                tried += 1
    assert tried > 100


@pytest.mark.parametrize("unsure", ["rival", "policy"])
def test_gap_is_nearly_attained_at_the_edge_of_the_confidence_set(unsure):
    """Lemmas 7 and 8: a kernel with KL(p_hat, p) = r loses nearly as much as the bound allows, and not more.

    In the start one action goes along a corridor of five states. The other one leads to state 3, or to state 6, from
    which it takes as long as from the start. Either of them is the policy, and the other one its rival.
    """
    rows = [{1: 1.0}, {3: 0.3, 6: 0.7}, {2: 1.0}, {0: 1.0}, {3: 1.0}, {0: 1.0}, {4: 1.0}, {0: 1.0}, {5: 1.0}, {0: 1.0}]
    rows += [{0: 1.0}, {0: 1.0}, {1: 1.0}, {0: 1.0}]
    counts = TransitionCounts(7, 2, start=0, width=2)
    for x, row in enumerate(rows):
        counts.add_steps(np.repeat(x, len(row)), np.array(list(row)))
        tries = np.round([(2000 if len(row) > 1 else 10**6) * p for p in row.values()]).astype(int)
        counts.add_steps(np.repeat(x, tries.sum()), np.repeat(list(row), tries))
    confidence = ConfidenceSets(counts, 7, 14, 7, delta=0.1, branching=2)
    confidence.update_radii()
    m, inside = confidence.empirical_model(), np.arange(7) == 5
    policy = np.where(np.arange(7) == 0, unsure == "policy", 0).astype(np.int16)
    V, Y = np.zeros(7), np.where(inside, 0.0, 12.0)
    gap, *_ = bound_suboptimality(np.arange(7), inside, m, V, Y, policy, True, np.zeros(7, np.int16))
    better, p_hat, edge = (1 if unsure == "rival" else -1), m.p_split[1], 0.0
    while p_hat @ np.log(p_hat / (p_hat + better * (edge + 1e-5) * np.array([1, -1]))) <= m.r[1]:
        edge += 1e-5
    p = m.p_split[1, 0] + better * edge
    other = model_from_rows([{3: p, 6: 1 - p} if x == 1 else row for x, row in enumerate(rows)], 2)
    lost = solver.policy_values(other, policy, 5)[0] - exact_policies.optimal_values(other, np.array([5]))[0, 0]
    assert lost > 0.04
    assert lost <= gap <= lost + 0.03


@pytest.mark.parametrize("few", [(1, 2), (4, 1), (7, 0)])
def test_probing_visits_the_most_uncertain_pair(few):
    """One pair has 20 tries, all others 2,000: the explorer goes there and tries the pair in every other step.

    The policy that attains the bound would continue to the goal or reset; the explorer does neither.
    """
    mdp, rng = toy_models.open_grid_model(rows=3, cols=3, slip=0.1), np.random.default_rng(0)
    counts = TransitionCounts(mdp.n_states, mdp.n_actions, mdp.start)
    for s, a in np.ndindex(mdp.n_states, mdp.n_actions):
        successors, p = mdp.row(s, a)
        for to in rng.choice(successors, 20 if (s, a) == few else 2000, p=p):
            record_transition(counts, s, a, int(to))
    counts.seen[:] = True
    e = CertifiedExplorer(counts, mdp.n_states, 6.0, 1.0, 0.1)
    while e.refresh_columns(np.ones(len(e.D), bool)):
        e.polished[:] = 0.0
    j = int(e.column[8])
    e._bound_action_gaps(np.array([j]))
    state, tried = mdp.start, []
    for _ in range(40):
        tried.append((state, int(e.probing[state, j])))
        assert 0 <= tried[-1][1] < mdp.n_actions
        successors, p = mdp.row(*tried[-1])
        state = int(successors[p.argmax()])
    assert tried.count(few) >= 18


def test_large_model_resumes_as_uninterrupted():
    """Local backups use the last plan, which the counts do not determine, so the checkpoint stores it."""
    mdp = toy_models.open_grid_model(rows=21, cols=21)
    runs = [start(mdp, 40.0, 8.0, branching=4) for _ in range(2)]
    estimates, other = (run.estimates for run in runs)
    run_exploration(runs[0], 60_000)
    estimates.counts.add_steps(np.array([0]), np.array([0]))  # a transition after the last plan
    arrays, facts = estimates.state()
    other.counts.restore(estimates.counts.state())
    other.restore({name: np.array(a) for name, a in arrays.items()}, facts)
    plan, again = (e.exploration_plan().policy for e in (estimates, other))
    assert plan.uses_ball.sum() > 100
    np.testing.assert_array_equal(plan.uses_ball, again.uses_ball)
    np.testing.assert_array_equal(plan.p[plan.uses_ball], again.p[plan.uses_ball])
    np.testing.assert_array_equal(plan.r[plan.uses_ball], again.r[plan.uses_ball])
    np.testing.assert_array_equal(plan.q, again.q)
    arrays["ball_r"] = arrays["ball_r"][1:]
    with pytest.raises(ValueError, match="ball_r"):
        other.restore({name: np.array(a) for name, a in arrays.items()}, facts)


def _inside(mdp, m, rng, leak):
    """Draw a kernel with KL(p_hat, p) <= r on the observed successors, at the edge of the set.

    With ``leak`` the pairs also lead to states that were not observed, with masses as large as lemma 3 allows.
    """
    unseen = leak * rng.random(len(m.q)) ** 2 * m.q * (m.support < mdp.n_states)
    unseen *= min(1.0, m.window_log / max(m.window_visits @ -np.log(1 - unseen * (unseen < 1)), 1e-9))
    rows = []
    for x in range(mdp.n_states * mdp.n_actions):
        o = m.support[x]
        states, p = m.successor[x, :o], m.p_split[x, :o]
        if o == 0 or (p == 0).any():
            rows.append(dict(zip(*(a.tolist() for a in mdp.row(*divmod(x, mdp.n_actions))), strict=True)))
            continue
        target, step = rng.dirichlet(np.full(o, 0.3)) + 1e-9, 1.0
        while True:
            other = (1 - step) * p + step * target / target.sum()
            if np.sum(p * np.log(p / other)) <= m.r[x]:
                break
            step *= 0.7
        row = {int(s): float((1 - unseen[x]) * w) for s, w in zip(states, other / other.sum(), strict=True)}
        if unseen[x] > 0:
            row[int(rng.choice([s for s in range(mdp.n_states) if s not in row]))] = float(unseen[x])
        rows.append(row)
    return model_from_rows(rows, mdp.n_actions, start=mdp.start)


def test_curriculum():
    mdp = toy_models.open_grid_model(rows=3, cols=4, slip=0.1)
    every = adagoal.explore(ModelSimulator(mdp), "all", 1.0, seed=0)
    assert every.status == "certified"
    assert len(every.goals) == mdp.n_states
    assert every.radius < 2 * solver.optimal_distances(mdp).max()
    assert adagoal.audit(every, mdp).ok
    slower = adagoal.explore(ModelSimulator(mdp), "all:1.5", 1.0, seed=0)
    assert slower.radius == 2 * 1.5**3
    assert adagoal.audit(slower, mdp).ok
    partial = adagoal.explore("two-room", "auto", 1.0, seed=0, budget=150_000)
    assert partial.status == "budget"
    assert partial.radius >= 4
    assert adagoal.audit(partial).ok


def test_user_assumptions_are_stated_in_the_result():
    asked = adagoal.explore("grid", 5, 1.0, budget=2000, method_args={"branching": 4})
    assert sum("as you declared" in line for line in asked.warnings) == 1
    assert not any("as you declared" in line for line in adagoal.explore("grid", 5, 1.0, budget=2000).warnings)


def test_goal_subset_and_branching():
    mdp, L, epsilon = SMALL["grid"]
    some = adagoal.explore(ModelSimulator(mdp), L, epsilon, goals=[1, 3], seed=0)
    everything = adagoal.explore(ModelSimulator(mdp), L, epsilon, seed=0)
    known = adagoal.explore(ModelSimulator(mdp), L, epsilon, seed=0, method_args={"branching": 4})
    assert set(some.goals) <= {1, 3}
    assert some.steps < everything.steps
    assert known.steps < everything.steps
    assert adagoal.audit(known, mdp).ok


def test_unseen_goals_count_as_missing():
    """An environment may number states as they are found, so there may be more goals than rows."""
    counts = TransitionCounts(1, 1, 0)
    estimates = CertifiedExplorer(counts, 3, 5.0, 1.0, 0.1)
    for state in (1, 2):
        assert estimates.D[0] <= 5.0  # two goals are missing, then one
        counts.grow_states(state + 1)
        estimates.refresh_columns(np.ones(len(estimates.D), bool))  # more rows alone change nothing
        record_transition(counts, state - 1, 0, state)
        counts.seen[state] = True
        counts.visits[state - 1] += 1
        estimates.refresh_columns(np.zeros(len(estimates.D), bool))
        assert estimates.D[state + 1] <= 5.0
    assert estimates.D[0] == np.inf


class SkewedStart(gymnasium.Env):
    """Nothing moves. The first state is 0, and seldom 1: no action has two successors, but a virtual start has."""

    observation_space, action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = int(self.np_random.random() < 0.01)
        return self.state, {}

    def step(self, action):
        return self.state, 0.0, False, False, {}


def test_branching_counts_the_first_states_of_a_random_start():
    given = {"radius": 3.0, "epsilon": 0.5, "start_seed": "random"}
    with pytest.raises(adagoal.InputError, match="branching=1: the random start has several first states"):
        adagoal.explore(SkewedStart(), **given, method_args={"branching": 1})
    result = adagoal.explore(SkewedStart(), **given, method_args={"branching": 2})
    assert any("the random start has no more than 2 first states" in line for line in result.warnings)


def test_wrong_branching_is_reported():
    with pytest.raises(adagoal.InputError, match="branching=2"):
        adagoal.explore("grid", 6, 1.0, seed=0, method_args={"branching": 2})


def test_same_seed_gives_same_run():
    runs = [adagoal.explore("grid", 10, 1.0, seed=7, budget=15_000) for _ in range(2)]
    assert runs[0].to_dict() | {"wall_seconds": 0} == runs[1].to_dict() | {"wall_seconds": 0}
    for name, array in runs[0].arrays.items():
        np.testing.assert_array_equal(array, runs[1].arrays[name])


@pytest.mark.parametrize("radius", [10, "auto"])
def test_resume_equals_uninterrupted_run(tmp_path, radius, monkeypatch):
    """A run that crashes after any checkpoint and is resumed has the same result."""
    whole = adagoal.explore("grid", radius, 1.0, seed=3, budget=20_000)
    count = 0

    def crash(run):
        nonlocal count
        count += 1
        if count == 60:
            raise SystemExit  # a crash: nothing is saved after the last checkpoint

    with monkeypatch.context() as patch:
        patch.setattr("adagoal.runs.run_folder.save_interval_elapsed", lambda since, cost: True)
        with pytest.raises(SystemExit):
            adagoal.explore("grid", radius, 1.0, seed=3, budget=20_000, out=tmp_path, observe=crash)
    again = adagoal.resume(tmp_path)
    assert again.to_dict() | {"wall_seconds": 0} == whole.to_dict() | {"wall_seconds": 0}
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(array, again.arrays[name])


def test_kill_between_two_curriculum_stages_loses_nothing(tmp_path, monkeypatch):
    """The run can be resumed if it is killed just before it writes the answer of the first stage."""
    whole = adagoal.explore("grid", "auto", 1.0, seed=3, budget=20_000)
    with monkeypatch.context() as patch:
        patch.setattr("adagoal.runs.run_folder.save_interval_elapsed", lambda since, cost: True)

        def kill(result):
            raise SystemExit

        patch.setattr("adagoal.runs.result.Result.contents", kill)
        with pytest.raises(SystemExit):
            adagoal.explore("grid", "auto", 1.0, seed=3, budget=20_000, out=tmp_path)
    again = adagoal.resume(tmp_path)
    assert again.to_dict() | {"wall_seconds": 0} == whole.to_dict() | {"wall_seconds": 0}


def test_partial_results_claim_only_proven_goals():
    result = adagoal.explore("two-room", 40, 1.0, seed=0, budget=20_000)
    assert result.status == "budget"
    assert result.open_goals
    assert set(result.open_goals) <= set(result.goals)
    assert any(np.isinf(result.certificate(g).upper) for g in result.open_goals)


def test_resume_right_after_a_new_successor_in_a_quiet_window(tmp_path, monkeypatch):
    """The resumed run knows that the window has ended (lemma 3b)."""
    whole = adagoal.explore("two-room", 40, 1.0, seed=0, budget=3000)
    for stop in range(5, 60, 18):
        seen = 0

        def crash(run, stop=stop):
            nonlocal seen
            seen += 1
            if seen == stop:
                raise SystemExit

        with monkeypatch.context() as patch:
            patch.setattr("adagoal.runs.run_folder.save_interval_elapsed", lambda since, cost: True)
            with pytest.raises(SystemExit):
                adagoal.explore("two-room", 40, 1.0, seed=0, budget=3000, out=tmp_path / str(stop), observe=crash)
        again = adagoal.resume(tmp_path / str(stop))
        assert again.to_dict() | {"wall_seconds": 0} == whole.to_dict() | {"wall_seconds": 0}


def test_the_shares_of_delta_in_a_curriculum_sum_to_one():
    run = start(SMALL["grid"][0], 2.0, 1.0)
    estimates, shares = run.estimates, []
    first = estimates.confidence.union_logs[0]
    for stage in range(1, 60):
        estimates.set_radius(2.0**stage, stage)
        shares.append(np.exp(first - estimates.confidence.union_logs[0]))
    assert 0.9 < sum(shares) <= 1.0
    whole = ExplorationSession.from_settings(
        ExplorationSettings("grid", radius="all"), ModelSimulator(SMALL["grid"][0]), BUILTIN_RULES["adagoal"]
    ).run.estimates
    assert whole.confidence.union_logs[0] == pytest.approx(first + np.log(2))


def test_the_events_share_delta():
    """The shares of all four lemmas, with the weights of restarts and windows, sum to at most delta."""
    run = start(SMALL["grid"][0], 5.0, 1.0)
    estimates, pairs, goals = run.estimates, run.counts.n_states * run.counts.n_actions, run.counts.n_states
    restarts = np.arange(2, 10**6)
    weights = np.where(restarts <= 4, 0.25, 1.0 / (restarts * (restarts - 1.0)))
    assert weights.sum() == pytest.approx(1.0, abs=1e-5)
    states = run.counts.n_states
    risks = np.array([states * goals, pairs, pairs]) * np.exp(-estimates.confidence.union_logs)
    window, windows = estimates.confidence.window, 0.0
    for window.window_number in range(1, 10**5):
        windows += np.exp(-window.log_inverse_delta)
    assert risks.sum() + windows == pytest.approx(0.1, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "value"),
    [("radius", "wide"), ("radius", True), ("epsilon", "a"), ("delta", None), ("seed", "x"), ("budget", 2.5)],
)
def test_wrong_types_give_one_line_error(name, value):
    with pytest.raises(adagoal.InputError, match=f"{name}: must be"):
        adagoal.explore("grid", **{"radius": 5, name: value})


def test_numpy_numbers_and_round_float_budgets_are_accepted(tmp_path):
    numbers = {"radius": np.float64(5), "seed": np.int64(1), "budget": 1e3, "goals": np.array([3, 4])}
    result = adagoal.explore("grid", **numbers, out=tmp_path)
    assert adagoal.load(tmp_path).setting == result.setting


def test_longest_seed_is_saved_exactly(tmp_path):
    result = adagoal.explore("grid", 5, seed=2**128 - 1, budget=10, out=tmp_path)
    assert adagoal.load(tmp_path).setting.seed == result.setting.seed == 2**128 - 1
    for wrong in (2**128, 10**5000):  # Python refuses to print the latter
        with pytest.raises(adagoal.InputError, match=r"^seed: must be a whole number in 0..2\*\*128 - 1, got a whole"):
            adagoal.explore("grid", 5, seed=wrong)


def test_memory_grows_with_visited_states():
    counts = TransitionCounts(16, 2, 0)
    estimates = CertifiedExplorer(counts, 10**6, 30.0, 1.0, 0.1)
    for state in range(1, 256):  # a tree: every state is near the start, so it has a column
        if state == counts.n_states:
            counts.grow_states(2 * state)
        record_transition(counts, (state - 1) // 2, (state - 1) % 2, state)
        counts.seen[state] = True
        counts.visits[(state - 1) // 2] += 1
        estimates.refresh_columns(np.zeros(1, bool))
    assert len(estimates.D) == 257  # one per visited state, and one for all unseen states
    assert sum(table.nbytes for table in estimates._wide_arrays.values()) < 2**22
