"""What a checkpoint of a training must hold, checked before anything is built from it.

The shapes and types are those that the learner would make itself (``like``, a tree of shapes), so that an index into
the memory is in range and no update meets a number that is not finite. The facts beside the arrays must tell the same
story: one row per run and cycle, as many goals and episodes as cycles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from adagoal.core.file_formats import COUNT_SCHEMA, ArraySpec, check_arrays, check_json_value, object_schema
from adagoal.deep import env_inspection, training_history
from adagoal.deep.config import Config
from adagoal.deep.goal_envs import EnvDimensions
from adagoal.deep.learner import LearnerState
from adagoal.deep.training_history import LENGTH_SCHEMA, ROW_HEAD_SCHEMA, ROW_MEASURES_SCHEMA
from adagoal.settings.fields import declared_settings, settings_json_schema

ROW = object_schema(**ROW_HEAD_SCHEMA) | {
    "properties": ROW_HEAD_SCHEMA | ROW_MEASURES_SCHEMA,
    "additionalProperties": {"type": "number"},
}


def checkpoint_facts_schema() -> dict[str, Any]:
    """The schema of the facts of :meth:`adagoal.deep.training.Training.state`."""
    config = settings_json_schema(Config, declared_settings(Config))
    return object_schema(
        configs={"type": "array", "minItems": 1, "maxItems": 10_000, "items": config},
        cycle={**COUNT_SCHEMA, "minimum": 1},
        history=object_schema(rows={"type": "array", "items": ROW}, wall_seconds=LENGTH_SCHEMA),
        env=env_inspection.ENV_FACTS_SCHEMA,
    )


def read_configs(facts: Any) -> list[Config]:
    """The settings of the runs; a ``ValueError`` where the facts are not those of a checkpoint."""
    check_json_value(checkpoint_facts_schema(), facts)
    return [Config.from_json(data) for data in facts["configs"]]


def check_checkpoint(
    like: LearnerState,
    arrays: Mapping[str, NDArray[Any]],
    facts: dict[str, Any],
    runs: Sequence[Config],
    sizes: EnvDimensions,
) -> None:
    """Whether arrays and facts fit these runs and each other; a ``ValueError`` says what does not."""
    cycle, first = int(facts["cycle"]), runs[0]
    schema = _learner_state_schema(like, sizes.horizon) | _pending_episodes_schema(len(runs), first.episodes, sizes)
    schema["history.goals"] = ArraySpec("float64", (cycle, len(runs), first.episodes, sizes.goal))
    kept = training_history.value_map_schema(len(runs), cycle, min(2, sizes.goal))
    schema |= {f"history.{name}": rule for name, rule in kept.items()}
    unknown = arrays.keys() - schema
    if unknown:
        raise ValueError(f"entry {min(unknown)[:80]!r} does not belong there")
    found = check_arrays(schema, arrays)
    waiting = [name for name in arrays if name.startswith("pending.")]
    if waiting and len(waiting) < 6:
        raise ValueError("the episodes that wait are incomplete")
    added = (cycle - bool(waiting)) * first.episodes
    capacity = like.replay.goal.shape[1]
    if (arrays["learnt.replay.added"] != added).any() or found["H"] != min(added, capacity):
        raise ValueError("the memory does not hold as many episodes as were played")
    _check_history_rows(facts["history"]["rows"], cycle, runs, first.episodes * sizes.horizon)
    held = {name: arrays[f"history.{name}"] for name in kept if f"history.{name}" in arrays}
    training_history.check_value_maps(held, -(-cycle // first.eval_every))


def _learner_state_schema(like: LearnerState, horizon: int) -> dict[str, ArraySpec]:
    schema: dict[str, ArraySpec] = {}
    for name, leaf in leaves_by_path(like, "learnt").items():
        shape: tuple[int | str, ...] = leaf.shape
        if name.startswith("learnt.replay.") and not name.endswith(".added"):
            shape = (shape[0], "H", *shape[2:])  # saved without the empty part
        positive = name.endswith((".weight", ".squares", ".count", ".added")) or ".nu" in name
        low: float | None = 1 if name.endswith(".length") else 0 if positive else None
        schema[name] = ArraySpec(leaf.dtype.name, shape, low=low, high=horizon if name.endswith(".length") else None)
    return schema


def _pending_episodes_schema(runs: int, episodes: int, sizes: EnvDimensions) -> dict[str, ArraySpec]:
    """The episodes that were played and not learnt from yet (:class:`adagoal.deep.rollout_workers.EpisodeBatch`)."""
    steps, head = sizes.horizon, (runs, episodes)
    return {
        "pending.observation": ArraySpec("float32", (*head, steps + 1, sizes.observation), optional=True),
        "pending.achieved": ArraySpec("float32", (*head, steps + 1, sizes.goal), optional=True),
        "pending.action": ArraySpec("float32", (*head, steps, sizes.action), optional=True),
        "pending.goal": ArraySpec("float32", (*head, sizes.goal), optional=True),
        "pending.length": ArraySpec("int32", head, low=1, high=steps, optional=True),
        "pending.terminated": ArraySpec("bool", head, optional=True),
    }


def _check_history_rows(rows: list[dict[str, Any]], cycle: int, runs: Sequence[Config], per_cycle: int) -> None:
    if len(rows) != cycle * len(runs):
        raise ValueError("the log does not have one row per run and cycle")
    for place, row in enumerate(rows):
        at, run = divmod(place, len(runs))
        told = row["run"], row["cycle"], row["steps"], row["seed"]
        tested = ("success" in row, "success_any" in row)
        if told != (run, at, at * per_cycle, runs[run].seed) or tested != 2 * (at % runs[run].eval_every == 0,):
            raise ValueError(f"row {place} of the log is not that of its run and cycle")


# Trees of arrays as flat dictionaries, for files that hold nothing but named arrays.


def leaves_by_path(tree: Any, prefix: str) -> dict[str, Any]:
    """Leaves of a tree by their path."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {prefix + jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def tree_to_arrays(tree: Any, prefix: str) -> dict[str, NDArray[Any]]:
    """Leaves of a tree as arrays named by their path."""
    return {name: np.asarray(leaf) for name, leaf in leaves_by_path(tree, prefix).items()}


def tree_from_arrays(like: Any, arrays: dict[str, NDArray[Any]], prefix: str) -> Any:
    """The tree with the structure of ``like`` and the leaves saved under ``prefix``, which are known to fit."""
    leaves = [_pad_replay_ring(arrays[name], leaf.shape) for name, leaf in leaves_by_path(like, prefix).items()]
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(like), leaves)


def _pad_replay_ring(saved: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Replay rings are saved without their empty part: fill it up again (axis 1 is the ring)."""
    if saved.shape == shape:
        return saved
    full = np.zeros(shape, saved.dtype)
    full[:, : saved.shape[1]] = saved
    return full
