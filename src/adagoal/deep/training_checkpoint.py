"""Checkpoints of training runs: checked before anything is built from them, and trees of arrays as flat dictionaries.

Shapes and types must be those that the learner would make itself (``template``, a tree of shapes). So an index into the
replay buffer is in range, and no update meets a number that is not finite. The facts stored with the arrays must agree
with them: one row per run and cycle, one goal per episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from adagoal.core.file_formats import COUNT_SCHEMA, ArraySpec, check_arrays, check_json_value, object_schema
from adagoal.deep import training_history
from adagoal.deep.config import Config
from adagoal.deep.goal_envs import EnvDimensions
from adagoal.deep.learner import LearnerState
from adagoal.settings.fields import declared_settings, settings_json_schema


def checkpoint_facts_schema() -> dict[str, Any]:
    """Return the JSON schema of the facts of :meth:`adagoal.deep.training.Training.state`."""
    config = settings_json_schema(Config, declared_settings(Config))
    ends = {"type": "array", "minItems": 1, "maxItems": 100_000, "items": {"type": "number"}}
    sizes = dict.fromkeys(("observation", "goal", "action"), COUNT_SCHEMA) | {"low": ends, "high": ends}
    return object_schema(
        configs={"type": "array", "minItems": 1, "maxItems": 10_000, "items": config},
        cycle={**COUNT_SCHEMA, "minimum": 1},
        history=object_schema(
            rows={"type": "array", "items": training_history.HistoryRow.schema},
            wall_seconds={"type": "number", "minimum": 0},
        ),
        env=object_schema(**sizes, success={"type": "number", "minimum": 0}),
    )


def read_configs(facts: Any) -> list[Config]:
    """Return the settings of the runs; raise ``ValueError`` if the facts are not those of a checkpoint."""
    check_json_value(checkpoint_facts_schema(), facts)
    return [Config.from_json(data) for data in facts["configs"]]


def check_checkpoint(
    template: LearnerState,
    arrays: Mapping[str, NDArray[Any]],
    facts: dict[str, Any],
    configs: Sequence[Config],
    sizes: EnvDimensions,
) -> None:
    """Check that arrays and facts fit these runs and each other; raise ``ValueError`` if not."""
    # Schemas first: the checks below index into arrays whose shapes they have established.
    cycle, n_runs, first = int(facts["cycle"]), len(configs), configs[0]
    map_schema = training_history.value_map_schema(n_runs, cycle, min(2, sizes.goal))
    schema = {
        **_learner_state_schema(template, sizes.horizon),
        **_pending_episodes_schema((n_runs, first.episodes), sizes),
        "history.goals": ArraySpec("float64", (cycle, n_runs, first.episodes, sizes.goal)),
        **{f"history.{name}": spec for name, spec in map_schema.items()},
    }
    known = check_arrays(schema, arrays, exact=True)
    n_pending = sum(name.startswith("pending.") for name in arrays)
    if n_pending not in (0, 6):
        raise ValueError("the episodes that wait are incomplete")
    # pending episodes were played in the last cycle, and are not in the replay buffer yet
    added = (cycle - bool(n_pending)) * first.episodes
    capacity = template.replay.goal.shape[1]
    if (arrays["learnt.replay.added"] != added).any() or known["H"] != min(added, capacity):
        raise ValueError("the memory does not hold as many episodes as were played")
    _check_history_rows(facts["history"]["rows"], cycle, configs, first.episodes * sizes.horizon)
    maps = {name: arrays[f"history.{name}"] for name in map_schema if f"history.{name}" in arrays}
    training_history.check_value_maps(maps, -(-cycle // first.eval_every))


def _learner_state_schema(template: LearnerState, horizon: int) -> dict[str, ArraySpec]:
    schema: dict[str, ArraySpec] = {}
    for name, leaf in leaves_by_path(template, "learnt").items():
        shape: tuple[int | str, ...] = leaf.shape
        if name.startswith("learnt.replay.") and not name.endswith(".added"):
            # saved without the empty part, which is most of the file early in a run
            shape = (shape[0], "H", *shape[2:])
        # Lengths are indices into episodes. The others are counts, divisors, or under a square root.
        is_length = name.endswith(".length")
        nonnegative = name.endswith((".weight", ".squares", ".count", ".added")) or ".nu" in name
        low = 1 if is_length else 0 if nonnegative else None
        schema[name] = ArraySpec(leaf.dtype.name, shape, low=low, high=horizon if is_length else None)
    return schema


def _pending_episodes_schema(batch: tuple[int, int], sizes: EnvDimensions) -> dict[str, ArraySpec]:
    T, G = sizes.horizon, sizes.goal
    singles = {
        "observation": (T + 1, sizes.observation),
        "achieved": (T + 1, G),
        "action": (T, sizes.action),
        "goal": (G,),
    }
    return {
        **{f"pending.{n}": ArraySpec("float32", (*batch, *shape), optional=True) for n, shape in singles.items()},
        "pending.length": ArraySpec("int32", batch, low=1, high=T, optional=True),
        "pending.terminated": ArraySpec("bool", batch, optional=True),
    }


def _check_history_rows(rows: list[dict[str, Any]], cycle: int, configs: Sequence[Config], per_cycle: int) -> None:
    if len(rows) != cycle * len(configs):
        raise ValueError("the log does not have one row per run and cycle")
    for index, row in enumerate(rows):
        c, run = divmod(index, len(configs))
        head = row["run"], row["cycle"], row["steps"], row["seed"]
        is_test = c % configs[run].eval_every == 0
        if head != (run, c, c * per_cycle, configs[run].seed) or {"success" in row, "success_any" in row} != {is_test}:
            raise ValueError(f"row {index} of the log is not that of its run and cycle")


# Paths name the arrays, so a file is checked leaf by leaf and reading it unpickles nothing.
def leaves_by_path(tree: Any, prefix: str) -> dict[str, Any]:
    """Return the leaves of a tree by their path."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {prefix + jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def tree_from_arrays(template: Any, arrays: dict[str, NDArray[Any]], prefix: str) -> Any:
    """Return the tree with the structure of ``template`` and the leaves saved under ``prefix``."""
    leaves = []
    for name, leaf in leaves_by_path(template, prefix).items():
        saved = arrays[name]
        if saved.shape != leaf.shape:
            # a ring of the replay buffer, saved without its empty part; axis 0 are the runs
            saved = np.zeros(leaf.shape, saved.dtype)
            saved[:, : arrays[name].shape[1]] = arrays[name]
        leaves.append(saved)
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(template), leaves)
