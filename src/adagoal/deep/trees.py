"""Trees of arrays as flat dictionaries, for files that hold nothing but named arrays."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray


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
