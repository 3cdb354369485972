"""Models of the verification community: PRISM and JANI programs, and the explicit formats DRN and UMB.

Storm (the extra ``storm``) builds the model's matrix; the run then explores it as a black box. Three things differ
between its models and ours, and none of them changes the least expected number of steps between two states:

* A state may have fewer actions than others. An action that it does not have is marked as absent
  (``Model.absent``): it leads to the start, as the reset does in every state, and a run need not learn that.
* A state that can never be left, deadlocks among them, is terminal: there is nothing but the reset to do.
* Time is discrete, the state is observed, and there is one start. Models of other kinds are refused.

States are labelled by the values of their variables, actions by their names, and the labels of the model are its named
sets of states (``Model.sets``). JANI has no labels of states, but properties with names: one that asks how to reach
some states gives its name to their set.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from adagoal.core import file_io
from adagoal.core.errors import InputError
from adagoal.core.types import Bools, Floats, Longs
from adagoal.envs.model import TabularMDP, model_from_matrix

STORM_SUFFIXES = (".prism", ".nm", ".pm", ".jani", ".drn", ".umb")
"""Of the files that Storm reads; the first three are PRISM programs."""
ABSENT = "absent"


def load_storm_model(path: Path, constants: Mapping[str, Any]) -> TabularMDP:
    """The model in a file; ``constants`` are the values of the undefined constants of a program."""
    with file_io.open_regular_file(path):
        pass  # it is there, and can be read
    storm = _import_stormpy(path)
    with _silence_storm(storm, path):
        if path.suffix in (".drn", ".umb"):
            if constants:
                raise InputError(f"{path.name} is built already and has no constants", "env_args")
            return convert_storm_model(_build_explicit_model(storm, path), path.stem)
        built, named = _build_program(storm, path, constants)
        return convert_storm_model(built, path.stem, named)


def convert_storm_model(built: Any, name: str, named: Mapping[str, str] | None = None) -> TabularMDP:
    """Storm's sparse model as one of ours; see the module's text. ``named``: other names of labels that it has."""
    kind = built.model_type.name
    if kind not in ("DTMC", "MDP") or built.is_partially_observable:
        raise InputError(f"{name} is a {kind}; only DTMCs and MDPs can be explored", "env")
    if built.supports_uncertainty or built.supports_parameters:
        raise InputError(f"{name} has intervals or parameters for probabilities; only numbers can be explored", "env")
    if len(built.initial_states) != 1:
        raise InputError(f"{name} has {len(built.initial_states)} initial states; it must have one", "env")
    matrix, states, (start,) = built.transition_matrix, built.nr_states, built.initial_states
    first = np.array([matrix.get_row_group_start(s) for s in range(states)] + [matrix.nr_rows])
    width = int(np.diff(first).max())
    state = np.repeat(np.arange(states), np.diff(first))
    pair = state * width + np.arange(len(state)) - first[state]
    entries = [(row, entry.column, entry.value) for row in range(len(pair)) for entry in matrix.get_row(row)]
    rows, columns, values = (np.array(part) for part in zip(*entries, strict=True))
    kernel = sparse.csr_matrix((values, (pair[rows], columns)), shape=(states * width, states))
    has = np.zeros(states * width, bool)
    has[pair] = True
    labels = {label: label for label in sorted(built.labeling.get_labels())} | dict(named or {})
    leaves = np.zeros(states, bool)
    leaves[state[rows[columns != state[rows]]]] = True
    return model_from_matrix(
        *(kernel, states, width),
        start=start,
        terminal=~leaves,
        action_mask=has.reshape(states, width),
        name=name,
        labels=_state_valuations(built),
        actions=_choice_names(built, pair, states * width),
        sets={name: _label_members(built, label) for name, label in labels.items()},
    )


def _state_valuations(built: Any) -> list[str]:
    """[S] the variables of every state with their values, or nothing where the file has none."""
    if not built.has_state_valuations():
        return []
    values = built.state_valuations
    variables = list(values.get_all_variables())
    return [
        ",".join(f"{variable.name}={_format_value(values.get_value(s, variable))}" for variable in variables)
        for s in range(built.nr_states)
    ]


def _format_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _choice_names(built: Any, pair: Any, pairs: int) -> list[str]:
    """[S * A] the names of the actions; one without a name is called by its number in the state."""
    names = [ABSENT] * pairs
    width = pairs // built.nr_states
    for row, x in enumerate(pair):
        given = sorted(built.choice_labeling.get_labels_of_choice(row)) if built.has_choice_labeling() else []
        names[x] = ",".join(given) or str(x % width)
    return names


def _label_members(built: Any, label: str) -> Any:
    found = np.zeros(built.nr_states, bool)
    found[list(built.labeling.get_states(label))] = True
    return found


def _build_program(storm: Any, path: Path, constants: Mapping[str, Any]) -> tuple[Any, dict[str, str]]:
    """A PRISM or JANI program, built; and the labels that the names of its properties stand for."""
    properties: list[Any] = []
    if path.suffix == ".jani":
        program, properties = storm.parse_jani_model(path)
    else:
        program = storm.parse_prism_program(path, prism_compatibility=True)
    open_constants = [constant.name for constant in program.constants if not constant.defined]
    for name in constants:
        if name not in open_constants:
            raise InputError(
                f"{path.name} has no open constant {name!r}; {_required_constants(open_constants)}", "env_args"
            )
    missing = [name for name in open_constants if name not in constants]
    if missing:
        raise InputError(f"{path.name} needs values of its constants {', '.join(missing)}", "env_args")
    if constants:
        program, properties = storm.instantiate_constants(program, dict(constants), properties)
    targets = {
        each.get_name(): target
        for each in properties
        if (target := _reachability_target(each.get_raw_formula())) is not None
    }
    options = storm.BuilderOptions(2 * list(targets.values()))  # a single one would end the model at its target
    options.set_build_all_labels()
    options.set_build_state_valuations()
    options.set_build_choice_labels()
    labels = {name: str(target).strip('"') for name, target in targets.items()}
    return storm.build_model(program, options=options), labels


def _reachability_target(formula: Any) -> Any:
    """What a property asks to reach, None where it asks for something else: P=? [F x] and R=? [F x] are about x."""
    inner = getattr(formula, "subformula", None)
    return inner.subformula if inner is not None and inner.is_eventually_formula else None


def _required_constants(names: list[str]) -> str:
    return f"it needs {', '.join(names)}" if names else "it needs none"


def _build_explicit_model(storm: Any, path: Path) -> Any:
    """A DRN or UMB file, built."""
    if path.suffix == ".umb":
        options = storm.io.UmbImportOptions()
        options.build_choice_labeling = options.build_state_valuations = True
        return storm.build_model_from_umb(path, options=options)
    options = storm.io.DirectEncodingParserOptions()
    options.build_choice_labeling = True
    return storm.build_model_from_drn(path, options=options)


def _import_stormpy(path: Path) -> Any:
    """The stormpy package, which is an extra."""
    try:
        import stormpy
    except ImportError:
        raise InputError(f"{path.name} needs the stormpy package: pip install 'adagoal[storm]'", "env") from None
    return stormpy


@contextlib.contextmanager
def _silence_storm(storm: Any, path: Path) -> Iterator[None]:
    """What Storm finds wrong is one line, and nothing is printed beside it."""
    levels: Any = storm.developer.LogLevel
    set_level: Callable[[Any], None] = storm.developer.set_log_level
    before = storm.developer.get_log_level()
    set_level(levels.OFF)
    try:
        yield
    except (RuntimeError, storm.exceptions.StormError) as error:
        raise InputError(f"{path} cannot be built by Storm ({error})", "env") from None
    finally:
        set_level(before)


# MDPs written out choice by choice, for other tools: the formats DRN (Storm) and UMB.
#
# A probability is an interval [low, high]. Where the two agree for every transition, plain numbers are written.


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
        file_io.write_text(path, "\n".join(_format_drn_lines(model)) + "\n")


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
    with file_io.report_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".part-{path.name}")
        try:
            writer(system, part)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
