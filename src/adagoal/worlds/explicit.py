"""MDPs written out choice by choice, for other tools: the formats DRN (Storm) and UMB.

A probability is an interval [low, high]. Where the two agree for every transition, plain numbers are written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adagoal.core import files
from adagoal.core.errors import InputError
from adagoal.core.types import Bools, Floats, Longs

STEP_REWARD_NAME = "steps"
"""The name of the reward model that counts steps."""


@dataclass(frozen=True)
class ExplicitModel:
    """S states, R choices in the order of their states, each with its successors; the start is labelled ``init``."""

    comment: str
    """What a reader of the file must know."""
    start: int
    state_names: tuple[str, ...]
    """[S] for people; they may be empty"""
    first_choice: Longs
    """[S + 1] the choices of state s are first[s] to first[s + 1]"""
    choice_actions: tuple[str, ...]
    """[R] of the choices' actions"""
    choice_costs: Floats
    """[R] steps that a choice costs"""
    indptr: Longs
    """[R + 1] the transitions of choice c are indptr[c] to indptr[c + 1]"""
    successors: Longs
    """[nnz]"""
    low: Floats
    """[nnz]"""
    high: Floats
    """[nnz]"""
    label_sets: Mapping[str, Bools]
    """Labels: named sets of states, each [S]"""

    @property
    def is_exact(self) -> bool:
        """Whether all probabilities are plain numbers."""
        return bool((self.low == self.high).all())

    def labels_of_state(self, state: int) -> list[str]:
        """The labels of a state."""
        own = [name for name, members in self.label_sets.items() if members[state]]
        return ["init", *own] if state == self.start else own


def write_explicit_model(model: ExplicitModel, path: Path) -> None:
    """Write the file; its ending says in which format."""
    if path.suffix == ".umb":
        _write_umb_file(model, path)
    else:
        files.write_text(path, "\n".join(_format_drn_lines(model)) + "\n")


def _format_drn_lines(model: ExplicitModel) -> Iterator[str]:
    """The lines of a DRN file."""
    yield from (f"// {line}" for line in model.comment.splitlines())
    yield from ("@type: MDP", f"@value_type: {'double' if model.is_exact else 'double-interval'}", "@parameters", "")
    yield from ("@reward_models", STEP_REWARD_NAME, "@nr_states", str(len(model.first_choice) - 1))
    yield from ("@nr_choices", str(len(model.choice_actions)), "@model")
    for state in range(len(model.first_choice) - 1):
        yield " ".join([f"state {state} [0]", *map(_to_identifier, model.labels_of_state(state))])
        if model.state_names[state]:
            yield f"// {' '.join(model.state_names[state].split())}"
        for choice in range(model.first_choice[state], model.first_choice[state + 1]):
            yield f"\taction {_to_identifier(model.choice_actions[choice])} [{model.choice_costs[choice]:g}]"
            for k in range(model.indptr[choice], model.indptr[choice + 1]):
                low, high = float(model.low[k]), float(model.high[k])
                yield f"\t\t{model.successors[k]} : " + (f"{low!r}" if model.is_exact else f"[{low!r}, {high!r}]")


def _to_identifier(name: str) -> str:
    """A name that every reader takes for one word."""
    return re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_") or "_"


def _write_umb_file(model: ExplicitModel, path: Path) -> None:
    """A UMB file, through umbi."""
    try:
        from umbi import ats as umb
        from umbi.datatypes import Interval
    except ImportError:
        raise InputError("umb needs the umbi package: pip install 'adagoal[storm]'", "format") from None
    system = umb.ExplicitAts(num_players=1)
    for _ in model.state_names:
        system.add_state()
    system.set_initial_states([model.start])
    actions = sorted(set(model.choice_actions))
    system.choice_action_to_name, system.num_choice_actions = actions, len(actions)
    number = {name: place for place, name in enumerate(actions)}
    state_of = np.repeat(np.arange(len(model.first_choice) - 1), np.diff(model.first_choice))
    for choice, name in enumerate(model.choice_actions):
        made = system.add_state_choice(int(state_of[choice]))
        made.action = number[name]
        for k in range(model.indptr[choice], model.indptr[choice + 1]):
            low, high = float(model.low[k]), float(model.high[k])
            made.add_branch(int(model.successors[k]), low if model.is_exact else Interval(low, high))
    for name, members in model.label_sets.items():
        system.add_ap_annotation(name=name).set_state_values(members.tolist())
    system.add_reward_annotation(name=STEP_REWARD_NAME).set_choice_values(model.choice_costs.tolist())
    system.model_info = umb.ModelInfo(description=model.comment)
    _write_atomically(umb.write, system, path)


def _write_atomically(writer: Any, system: Any, path: Path) -> None:
    """Let another library write a file that gets its name only once it is whole."""
    with files.report_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".part-{path.name}")
        try:
            writer(system, part)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
