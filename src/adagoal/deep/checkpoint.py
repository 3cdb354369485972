"""Checkpoints: one ``.npz`` of plain arrays, written beside and moved into place, read without pickle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from adagoal.core import files as storage
from adagoal.core.errors import InputError

FORMAT = 1


def write_arrays(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    """``np.savez``, atomically."""
    storage.replace(path, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]


def flatten(tree: Any, prefix: str) -> dict[str, NDArray[Any]]:
    """Leaves of a pytree as arrays named by their path."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {prefix + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def unflatten(like: Any, arrays: dict[str, NDArray[Any]], prefix: str) -> Any:
    """The pytree with the structure of ``like`` and the leaves saved under ``prefix``."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    found = []
    for path, leaf in leaves:
        name = prefix + jax.tree_util.keystr(path)
        if name not in arrays or arrays[name].dtype != leaf.dtype:
            raise InputError(
                f"--resume: the checkpoint does not fit this version ({name} is missing or of another type)"
            )
        found.append(_grown(arrays[name], leaf))
    return jax.tree_util.tree_unflatten(structure, found)


def _grown(saved: NDArray[Any], like: Any) -> NDArray[Any]:
    """Replay rings are saved without their empty part: fill it up again (axis 1 is the ring)."""
    if saved.shape == like.shape:
        return saved
    full = np.zeros(like.shape, like.dtype)
    full[:, : saved.shape[1]] = saved
    return full


def text(data: Any) -> NDArray[Any]:
    """JSON as an array of bytes, so that it fits in the ``.npz``."""
    return np.frombuffer(json.dumps(data).encode(), np.uint8)


def untext(array: NDArray[Any]) -> Any:
    return json.loads(array.tobytes().decode())


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of a checkpoint; one clear line if it is not one."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise InputError(f"--resume: {path.parent} holds no {path.name}") from None
    except Exception as error:  # zip, zlib, header and key errors all mean the same to the user
        raise InputError(f"--resume: {path} is damaged or not readable ({type(error).__name__})") from None
    if "format" not in arrays or int(arrays["format"]) != FORMAT:
        raise InputError(f"--resume: {path} is not a checkpoint of this version")
    return arrays
