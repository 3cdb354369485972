"""Are D and E of a trained policy right, and what would other critics say of the same replay data?

    adagoal train FetchPush-v4 --train-goals scale=10 --steps 64000 --out runs/push
    python benchmarks/deep_distances.py runs/push [FOLDER ...] --out FILE.json      # the critics of the run
    python benchmarks/deep_distances.py runs/push --refit 4000                      # and others, fitted to its replay

The policy plays fresh goals: half from the test goals, half from the training goals. Per folder and critics:

    AUC       probability that D ranks a goal that was reached within L below one that was not
    admitted  share of the missed goals with D <= L
    rho       Spearman correlation of E with the error of D, over all goals and over the test goals alone.
              The error is |D - n| if the goal was first reached after n steps, and max(T - D, 0) if it was missed
    covered   share of the test episodes within distance +- uncertainty of the policy; 90% is promised
    width     mean uncertainty, at most T, on the test goals; rho_uncertainty is its correlation with the error there

Refitted critics evaluate the policy of the run from scratch (fitted Q evaluation). They have the batches and networks
of the run, and differ as :data:`CANDIDATES` says.
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.spatial import KDTree
from scipy.stats import rankdata, spearmanr

import adagoal
from adagoal.core.file_io import write_json
from adagoal.core.random_streams import StreamPurpose, random_stream
from adagoal.deep import networks, value_formulas
from adagoal.deep.config import Config
from adagoal.deep.env_inspection import inspect_env
from adagoal.deep.goal_envs import EnvSource
from adagoal.deep.rollouts import EnvBatch
from adagoal.runs.run_folder import read_saved_run

CANDIDATES: dict[str, dict[str, Any]] = {
    "shared batches (default)": {},
    "own batches": {"own": True},
    "random priors": {"prior": 0.1},
    "classification": {"bins": 51},
    "goals of the space": {"space": 0.2},
    "pessimistic start": {"start": 1.0},
    "quasimetric": {"embed": "quasimetric"},
    "contrastive": {"embed": "contrastive"},
}
"""own: an independent batch for every critic. prior: a fixed random network is added to each critic, times this share
of the range of values. bins: critics classify the cost, with a cross-entropy to the two bins around the target. space:
share of the batch whose goals are drawn from the training space, whether or not anything was achieved there. start: the
critics begin at this share of the largest cost, so a goal is far until data say otherwise. embed: D is a distance
between an embedding of (observation, action) and one of the goal. The quasimetric is a metric residual network (Liu et
al. 2023), which obeys the triangle inequality, and is learnt by fitted Q evaluation. The contrastive distance is learnt
by InfoNCE in both directions, with goals achieved at a geometric time later; over -log gamma it is D (contrastive
successor distances, Myers et al. 2024). It describes the data, not the policy."""
EMBEDDING = 64
ENVS = 25
UPDATES_PER_CALL = 500


class Played(NamedTuple):
    """Fresh episodes of a policy, n of them."""

    starts: Any  # [n, O]
    goals: Any  # [n, G]
    steps: Any  # [n], first step at the goal; infinite if it was missed
    is_test: Any  # [n], whether the goal is one of the test goals


def play(policy: Any, config: Config, sizes: Any, samplers: Any, episodes: int, seed: int) -> Played:
    """Play fresh goals, the first half from the test space and the second half from the training space."""
    rounds = -(-episodes // (2 * ENVS))
    rng = random_stream(seed, StreamPurpose.EVALUATION_GOALS)
    goals = np.concatenate([sample(rng, rounds * ENVS) for sample in samplers])
    envs = EnvBatch([Config(config.env, seed=seed)], [(0, k) for k in range(ENVS)], EnvSource(config.env), sizes)
    played = [
        envs.play_test_round({0: policy.actor}, part, 0, i, StreamPurpose.EVALUATION_EPISODE)
        for i, part in enumerate(goals.reshape(-1, ENVS, sizes.goal))
    ]
    starts = np.concatenate([episode.observation[:, 0] for episode, _ in played]).astype(float)
    distances = np.concatenate([distance for _, distance in played])
    is_test = np.arange(len(goals)) < rounds * ENVS
    return Played(starts, goals, value_formulas.first_step_at_goal(distances, sizes.success), is_test)


def auc(D: Any, reached: Any) -> float:
    """Probability that a reached goal has a smaller D than a missed one; ties count half."""
    n, ranks = int(reached.sum()), rankdata(D)
    return float(1.0 - (ranks[reached].sum() - n * (n + 1) / 2) / (n * (len(reached) - n)))


def errors_of(D: Any, steps: Any, T: int) -> Any:
    """Error of D ``[n]`` in steps."""
    return np.where(np.isfinite(steps), np.abs(D - np.minimum(steps, T)), np.maximum(T - D, 0.0))


def scores(D: Any, E: Any, played: Played, config: Config) -> dict[str, float]:
    """Numbers about D, if some goals were reached and others missed, and rank correlations of E."""
    error, test = errors_of(D, played.steps, config.horizon), played.is_test
    found = {"rho": float(spearmanr(E, error)[0]), "rho_test": float(spearmanr(E[test], error[test])[0])}
    missed = played.steps > config.radius
    if 0 < missed.sum() < len(missed):
        found |= {"auc": auc(D, ~missed), "admitted": float((D[missed] <= config.radius).mean())}
    return found


def novelty(goals: Any, replay: dict[str, Any], success: float) -> Any:
    """Distance from each goal to the nearest goal ever achieved, in radii of success ``[n]``."""
    achieved = replay["achieved"].reshape(-1, goals.shape[1])
    return KDTree(achieved).query(goals)[0] / success


def variants(name: str, costs: Any, far: Any, played: Played, config: Config, extra: Any = None) -> dict[str, Any]:
    """Scores of member costs ``[J, n]``: as they are, D as the maximum, D behind a gate, E with novelty."""
    to_steps = functools.partial(value_formulas.cost_to_steps, gamma=config.gamma)
    D, sigma = to_steps(costs.mean(0)), costs.std(0)
    gated = np.where(far > 2.0, np.maximum(D, config.horizon + far), D)
    found = {
        name: scores(D, sigma, played, config),
        f"{name}; D of the worst critic": scores(to_steps(costs.max(0)), sigma, played, config),
        f"{name}; D beyond L where nothing was reached": scores(gated, sigma, played, config),
        f"{name}; E times novelty": scores(D, sigma * (1.0 + far), played, config),
    }
    if extra is not None:
        found[f"{name}; E the spread of the classes"] = scores(D, extra, played, config)
    return found


def refit(
    config: Config, state: Any, sizes: Any, space_goals: Any, x: Any, updates: int, *, own: bool = False,
    prior: float = 0.0, bins: int = 0, space: float = 0.0, start: float = 0.0, embed: str = "", seed: int = 0,
) -> tuple[Any, Any]:  # fmt: skip
    """Fit critics to the replay of a run; returns costs ``[J, n]`` at inputs ``x`` and the spread of the classes."""
    replay, normalisers, actor = state.replay, state.normalisers, state.nets.actor.online
    J, B, top = config.members, config.batch, 1.0 / (1.0 - config.gamma)
    held = jnp.minimum(replay.added, replay.goal.shape[0])
    n_moved, order = replay.moved.sum(), jnp.argsort(~replay.moved)
    _, widths = networks.layer_widths(config, sizes)
    widths = (*widths[:-1], bins or 1)
    rng = np.random.default_rng(seed)
    critics = jax.tree.map(jnp.asarray, networks.init_network(config, rng, widths, (J,)))
    if embed:
        ends = sizes.observation + sizes.action, sizes.goal
        nets = [networks.init_layers(rng, (end, *config.hidden, EMBEDDING), (J,)) for end in ends]
        online = jax.tree.map(jnp.asarray, nets)
        critics = networks.NetworkState(online, online, jax.vmap(optax.adam(config.learning_rate).init)(online))
    if start:
        layers = [*critics.online[:-1], (critics.online[-1][0], critics.online[-1][1] - start * top)]
        critics = critics._replace(online=layers, target=layers)
    # the initial outputs of a network are of order 0.1, so the factor makes priors of order prior * top
    fixed = jax.tree.map(jnp.asarray, networks.init_layers(rng, widths, (J,)))
    centres = jnp.linspace(-top, 0.0, bins or 2)
    activation = functools.partial(value_formulas.layer_norm_relu, xp=jnp)

    def embeddings(layers: Any, obs_goal: Any, action: Any) -> tuple[Any, Any]:
        observation, goal = jnp.split(obs_goal, [sizes.observation], -1)
        inputs = jnp.concatenate([observation, action], -1), goal
        own, other = (value_formulas.forward_mlp(net, x, activation) for net, x in zip(layers, inputs, strict=True))
        return own, other

    def length(difference: Any) -> Any:
        return jnp.sqrt((difference**2).sum(-1) + 1e-8)

    def outputs(layers: Any, prior_layers: Any, obs_goal: Any, action: Any) -> Any:
        if embed:
            own, other = embeddings(layers, obs_goal, action)
            if embed == "quasimetric":
                half = EMBEDDING // 2
                steps = jax.nn.relu(own - other)[..., :half].max(-1) + length((own - other)[..., half:])
            else:
                steps = -length(own - other) / jnp.log(config.gamma)
            return -top * (1.0 - config.gamma**steps)
        inputs = jnp.concatenate([obs_goal, action], -1)
        out = value_formulas.forward_mlp(layers, inputs, activation)
        if prior:
            out = out + 10.0 * prior * top * value_formulas.forward_mlp(prior_layers, inputs, activation)
        return out if bins else out[..., 0]

    def values(layers: Any, prior_layers: Any, obs_goal: Any, action: Any) -> Any:
        out = outputs(layers, prior_layers, obs_goal, action)
        return jax.nn.softmax(out) @ centres if bins else out

    def sample(key: Any) -> Any:
        keys = jax.random.split(key, 8)
        below = lambda k, n: jnp.minimum((jax.random.uniform(k, (B,)) * n).astype(int), n - 1)  # noqa: E731
        contact = (jax.random.uniform(keys[0], (B,)) < config.contact) & (n_moved > 0)
        episode = jnp.where(contact, order[below(keys[1], jnp.maximum(n_moved, 1))], below(keys[2], held))
        t = below(keys[3], replay.length[episode])
        after = replay.length[episode] - t
        later = t + 1 + below(keys[4], after)
        if embed == "contrastive":
            geometric = jnp.log(jax.random.uniform(keys[7], (B,), minval=1e-9)) / jnp.log(config.gamma)
            later = t + 1 + jnp.minimum(geometric.astype(int), after - 1)
        kind = jax.random.uniform(keys[5], (B,))
        hindsight = kind < (1.0 if embed == "contrastive" else config.relabel)
        goal = jnp.where(hindsight[:, None], replay.achieved[episode, later], replay.goal[episode])
        goal = jnp.where((kind < space)[:, None], space_goals[below(keys[6], len(space_goals))], goal)
        reward = -(jnp.linalg.norm(replay.achieved[episode, t + 1] - goal, axis=-1) > sizes.success).astype(float)
        terminal = replay.terminated[episode] & (t + 1 == replay.length[episode])
        now, following = (normalisers.network_inputs(replay.observation[episode, t + i], goal) for i in (0, 1))
        return networks.TransitionBatch(now, replay.action[episode, t], following, reward, terminal)

    def loss(layers: Any, prior_layers: Any, batch: Any, y: Any) -> Any:
        if embed == "contrastive":
            own, other = embeddings(layers, batch.obs_goal, batch.action)
            squares = (own**2).sum(-1)[:, None] + (other**2).sum(-1) - 2.0 * own @ other.T
            energy = -jnp.sqrt(jnp.maximum(squares, 0.0) + 1e-8)
            return -sum(jnp.diagonal(jax.nn.log_softmax(energy, axis)).mean() for axis in (0, 1))
        out = outputs(layers, prior_layers, batch.obs_goal, batch.action)
        if not bins:
            return jnp.mean((out - y) ** 2)
        place = (y + top) / top * (bins - 1)
        near = jnp.clip(1.0 - jnp.abs(place[:, None] - jnp.arange(bins)), 0.0, 1.0)
        return -jnp.mean((near * jax.nn.log_softmax(out)).sum(-1))

    def update_member(critic: Any, prior_layers: Any, batch: Any) -> Any:
        action = networks.policy_actions(actor, batch.next_obs_goal)
        y = networks.bellman_targets(config, batch, values(critic.target, prior_layers, batch.next_obs_goal, action))
        critic, _ = networks.gradient_step(config, critic, lambda p: loss(p, prior_layers, batch, y))
        # every update, not every tenth: these fits have a tenth of the updates of a run
        target = jax.tree.map(lambda old, new: old + 0.02 * (new - old), critic.target, critic.online)
        return critic._replace(target=target)

    @jax.jit
    def fit(critics: Any, key: Any) -> Any:
        def step(critics: Any, key: Any) -> Any:
            keys = jax.random.split(key, J)
            batch = jax.vmap(sample)(keys) if own else sample(key)
            return jax.vmap(update_member, (0, 0, 0 if own else None))(critics, fixed, batch), None

        return jax.lax.scan(step, critics, jax.random.split(key, UPDATES_PER_CALL))[0]

    for i in range(updates // UPDATES_PER_CALL):
        critics = fit(critics, jax.random.key(1000 * seed + i))
    action = networks.policy_actions(actor, x)
    costs = -jax.vmap(lambda p, q: values(p, q, x, action))(critics.online, fixed)
    spread = None
    if bins:
        chances = jax.nn.softmax(jax.vmap(lambda p, q: outputs(p, q, x, action))(critics.online, fixed)).mean(0)
        spread = np.asarray(jnp.sqrt(jnp.maximum(chances @ centres**2 - (chances @ centres) ** 2, 0.0)))
    return np.asarray(costs, np.float64), spread


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All numbers of one run."""
    from adagoal.deep.training import Training

    result = adagoal.load(folder)
    policy, config = result.policy, result.history.configs[0]
    source = EnvSource(config.env)
    spaces = [("test_goals", config.test_goals), ("train_goals", config.train_goals)]
    sizes, samplers, _ = inspect_env(source, config.horizon, spaces)
    played = play(policy, config, sizes, samplers, options.episodes, options.seed)
    arrays, facts = read_saved_run(folder, lambda saved: saved.checkpoint_files().load_arrays("checkpoint.npz"))
    training = Training([config], 1, (arrays, facts), source)
    training.learn_pending()
    state = jax.tree.map(lambda leaf: leaf[0], training.train_state)
    replay = {"achieved": np.asarray(arrays["learnt.replay.achieved"][0])}
    far = novelty(played.goals, replay, sizes.success)

    x = policy.actor.normalise_inputs(played.starts, played.goals)
    actions = policy.actor(played.starts, played.goals)
    layers = [(weight, bias[:, None]) for weight, bias in policy.critics.layers]
    inputs = np.concatenate([x, actions], -1)[None].astype(np.float32)
    online = -value_formulas.forward_mlp(layers, inputs, value_formulas.layer_norm_relu)[..., 0].astype(float)

    D = policy.critics(x, actions)
    half_width = policy.critics.error_model.predict(D)
    error, test = errors_of(D, played.steps, config.horizon), played.is_test
    about = {
        "env": config.env, "train_goals": config.train_goals, "steps": config.steps, "seed": config.seed,
        "test_success": float((played.steps[test] <= config.radius).mean()),
        "train_success": float((played.steps[~test] <= config.radius).mean()),
        "D_within_L": float((D <= config.radius).mean()),
        "covered": float((error <= half_width)[test].mean()),
        "width": float(np.minimum(half_width[test], config.horizon).mean()),
        "rho_uncertainty": float(spearmanr(half_width[test], error[test])[0]),
    }  # fmt: skip
    found = variants("critics of the run", online, far, played, config)
    if options.refit:
        pool = jnp.asarray(samplers[1](np.random.default_rng(options.seed), 4096), jnp.float32)
        for name in options.critics or CANDIDATES:
            costs, spread = refit(config, state, sizes, pool, jnp.asarray(x), options.refit, **CANDIDATES[name])
            found |= variants(name, costs, far, played, config, spread)
    return {"about": about, "scores": found}


def show(runs: list[dict[str, Any]]) -> str:
    """A line per run, and the scores of every kind of critics, averaged over the runs of an environment."""
    texts = ((f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in run["about"].items()) for run in runs)
    lines = ["  ".join(words) for words in texts]
    for env in dict.fromkeys(run["about"]["env"] for run in runs):
        own = [run["scores"] for run in runs if run["about"]["env"] == env]
        columns = [key for key in ("auc", "admitted", "rho", "rho_test") if key in next(iter(own[0].values()))]
        lines.append(f"{env}, {len(own)} runs".ljust(62) + " ".join(f"{key:>8s}" for key in columns))
        for name in own[0]:
            means = [np.mean([scores[name][key] for scores in own]) for key in columns]
            lines.append(f"  {name:60s}" + " ".join(f"{mean:8.2f}" for mean in means))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--episodes", type=int, default=400)
    parser.add_argument("--seed", type=int, default=777, help="Of the fresh goals and starts.")
    parser.add_argument("--refit", type=int, default=0, help=f"Updates of other critics, in {UPDATES_PER_CALL}s.")
    parser.add_argument("--critics", nargs="*", choices=CANDIDATES, help="Which others; all if left out.")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    runs = []
    for folder in options.folders:
        runs.append(measure(folder, options))
        if options.out is not None:
            write_json(options.out, {"runs": runs})
        print(show(runs[-1:]), flush=True)
    if len(runs) > 1:
        print(show(runs))


if __name__ == "__main__":
    main()
