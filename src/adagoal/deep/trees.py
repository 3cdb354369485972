"""Trees of arrays as flat dictionaries, for files that hold nothing but named arrays."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from adagoal.core.errors import InputError


def flatten(tree: Any, prefix: str) -> dict[str, NDArray[Any]]:
    """Leaves of a tree as arrays named by their path."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {prefix + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def unflatten(like: Any, arrays: dict[str, NDArray[Any]], prefix: str) -> Any:
    """The tree with the structure of ``like`` and the leaves saved under ``prefix``."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    found = []
    for path, leaf in leaves:
        name = prefix + jax.tree_util.keystr(path)
        if name not in arrays or arrays[name].dtype != leaf.dtype:
            raise InputError(f"the checkpoint does not fit this version ({name} is missing or of another type)")
        found.append(_grown(arrays[name], leaf))
    return jax.tree_util.tree_unflatten(structure, found)


def _grown(saved: NDArray[Any], like: Any) -> NDArray[Any]:
    """Replay rings are saved without their empty part: fill it up again (axis 1 is the ring)."""
    if saved.shape == like.shape:
        return saved
    full = np.zeros(like.shape, like.dtype)
    full[:, : saved.shape[1]] = saved
    return full
