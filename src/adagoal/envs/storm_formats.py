"""Models of model checkers: reads PRISM and JANI programs and DRN and UMB files, and writes DRN and UMB files.

Storm (the extra ``storm``) builds the matrix of a model; a run then explores it as a black box. Three differences
between Storm's models and ours do not change the least expected number of steps between two states:

* A state may have fewer actions than others. An action that it does not have is absent (``Model.absent``): it leads to
  the start, as the reset does, and a run need not learn that.
* A state that can never be left, such as a deadlock, is terminal: the reset is its only action.
* Time is discrete, the state is observed, and there is one start. Other models are refused.

State labels are the values of the variables, action labels the names of actions, and the labels of the model become
named sets of states (``Model.sets``). A property that asks to reach some states describes one more set. JANI has no
labels of states, but named properties, whose sets every model has. The user can add expressions over the variables and
files of properties. Storm parses all of them.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from adagoal.core import file_io
from adagoal.core.array_types import Bools, Floats, Longs
from adagoal.core.errors import InputError, to_single_line
from adagoal.core.installation import install_command
from adagoal.envs.model import TabularMDP, model_from_matrix

PROGRAM_SUFFIXES = (".prism", ".nm", ".pm", ".jani")  # the first three are PRISM programs
STORM_SUFFIXES = (*PROGRAM_SUFFIXES, ".drn", ".umb")
PROPERTY_SUFFIXES = (".props", ".pctl")


def load_storm_model(path: Path, constants: Mapping[str, Any]) -> TabularMDP:
    """Read a model from a file; ``constants`` are the values of the open constants of a program."""
    # Reports a missing file in our words, not in Storm's.
    with file_io.open_regular_file(path):
        pass
    storm = _import_storm(path.name, "env")
    with _silence_storm(storm, f"{path} cannot be built by Storm"):
        if path.suffix in (".drn", ".umb"):
            if constants:
                names = ", ".join(constants)
                raise InputError(f"{path.name} has no constants, got {names}; leave them out", "env_args")
            return _convert_storm_model(_build_explicit_model(storm, path), path.stem, {})
        storm_model, described_sets = _build_program(storm, path, constants)
        return _convert_storm_model(storm_model, path.stem, described_sets)


def find_described_states(path: Path, constants: Mapping[str, Any], texts: Iterable[str]) -> dict[str, Bools]:
    """Return the sets of states of a program, each [S], that expressions over its variables or property files describe.

    The name of a set is the expression, the name of the property, or what an unnamed property asks to reach.
    """
    storm = _import_storm(path.name, "env")
    with _silence_storm(storm, f"Storm cannot find these states of {path.name}", None):
        return _build_program(storm, path, constants, texts)[1]


def _import_storm(what: str, argument: str) -> Any:
    try:
        import stormpy
    except ImportError:
        raise InputError(f"{what} needs stormpy: {install_command('storm')}", argument) from None
    return stormpy


def _convert_storm_model(storm_model: Any, name: str, described_sets: Mapping[str, Any]) -> TabularMDP:
    """Convert a sparse model of Storm; ``described_sets`` are sets of states besides those of its labels."""
    from scipy import sparse

    kind = storm_model.model_type.name
    if kind not in ("DTMC", "MDP") or storm_model.is_partially_observable:
        raise InputError(f"{name} is a {kind}; only DTMCs and MDPs can be explored", "env")
    if storm_model.supports_uncertainty or storm_model.supports_parameters:
        raise InputError(f"{name} has intervals or parameters for probabilities; only numbers can be explored", "env")
    if len(storm_model.initial_states) != 1:
        raise InputError(f"{name} has {len(storm_model.initial_states)} initial states; it must have one", "env")
    matrix, n_states, (start,) = storm_model.transition_matrix, storm_model.nr_states, storm_model.initial_states
    # Storm's rows are choices, in groups of different size; ours are pairs, n_actions for every state.
    first_row = np.array([matrix.get_row_group_start(s) for s in range(n_states)] + [matrix.nr_rows])
    n_actions = int(np.diff(first_row).max())
    state_of_row = np.repeat(np.arange(n_states), np.diff(first_row))
    pair_of_row = state_of_row * n_actions + np.arange(len(state_of_row)) - first_row[state_of_row]
    entries = [(row, entry.column, entry.value) for row in range(len(pair_of_row)) for entry in matrix.get_row(row)]
    rows, columns, values = (np.array(part) for part in zip(*entries, strict=True))
    kernel = sparse.csr_matrix((values, (pair_of_row[rows], columns)), shape=(n_states * n_actions, n_states))
    action_mask, can_leave = np.zeros(n_states * n_actions, bool), np.zeros(n_states, bool)
    action_mask[pair_of_row] = True
    # A state that cannot be left is terminal: the reset is its only useful action.
    can_leave[state_of_row[rows[columns != state_of_row[rows]]]] = True
    labels = storm_model.labeling
    return model_from_matrix(
        kernel,
        n_states,
        n_actions,
        start=start,
        terminal=~can_leave,
        action_mask=action_mask.reshape(n_states, n_actions),
        name=name,
        labels=_state_valuations(storm_model),
        actions=_choice_names(storm_model, pair_of_row, n_actions),
        sets={label: list(labels.get_states(label)) for label in sorted(labels.get_labels())} | dict(described_sets),
    )


def _state_valuations(storm_model: Any) -> list[str]:
    """[S] the variables of every state with their values, or an empty list if the file has none."""
    if not storm_model.has_state_valuations():
        return []
    valuations = storm_model.state_valuations
    variables = list(valuations.get_all_variables())

    def format_value(value: Any) -> str:
        return str(value).lower() if isinstance(value, bool) else str(value)

    return [
        ",".join(f"{variable.name}={format_value(valuations.get_value(s, variable))}" for variable in variables)
        for s in range(storm_model.nr_states)
    ]


def _choice_names(storm_model: Any, pair_of_row: Longs, n_actions: int) -> list[str]:
    """[S * A] names of actions; the name of an unnamed action is its number."""
    names = ["absent"] * (storm_model.nr_states * n_actions)
    for row, pair in enumerate(pair_of_row):
        has_names = storm_model.has_choice_labeling()
        labels = sorted(storm_model.choice_labeling.get_labels_of_choice(row)) if has_names else []
        names[pair] = ",".join(labels) or str(pair % n_actions)
    return names


def _build_program(
    storm: Any, path: Path, constants: Mapping[str, Any], texts: Iterable[str] = ()
) -> tuple[Any, dict[str, Bools]]:
    """Build a PRISM or JANI program; also return the sets that the texts or its own properties describe."""
    properties: list[Any] = []
    if path.suffix == ".jani":
        program, properties = storm.parse_jani_model(path)
    else:
        program = storm.parse_prism_program(path, prism_compatibility=True)
    open_constants = [constant.name for constant in program.constants if not constant.defined]
    for name in constants:
        if name not in open_constants:
            needed = ", ".join(open_constants) or "none"
            raise InputError(f"{path.name} has no open constant {name!r}; it needs {needed}", "env_args")
    missing = [name for name in open_constants if name not in constants]
    if missing:
        raise InputError(
            f"{path.name} needs values of its constants {', '.join(missing)}; give {missing[0]}=...", "env_args"
        )
    if constants:
        program, properties = storm.instantiate_constants(program, dict(constants), properties)
    targets = {} if texts else {one.get_name(): _find_target(one) for one in properties}
    for text in texts:
        targets |= _parse_targets(storm, program, path.name, text)
    targets = {name: target for name, target in targets.items() if target is not None}
    # Each formula twice: Storm ends a model at the target of a single formula.
    options = storm.BuilderOptions(2 * list(targets.values()))
    options.set_build_all_labels()
    options.set_build_state_valuations()
    options.set_build_choice_labels()
    model = storm.build_model(program, options=options)
    sets = {name: np.zeros(model.nr_states, bool) for name in targets}
    for name, members in sets.items():
        members[list(storm.model_checking(model, targets[name]).get_truth_values_vector())] = True
        if not members.any() and texts:
            raise InputError(f"no state of {path.name} satisfies {name!r}")
    return model, sets


def _parse_targets(storm: Any, program: Any, name: str, text: str) -> dict[str, Any]:
    """Return the formulas of the states that an expression or a file of properties describes, by name."""
    is_file = text.endswith(PROPERTY_SUFFIXES)
    if is_file:
        with file_io.open_regular_file(Path(text)) as (file, _):
            content = file.read().decode()
    with _silence_storm(storm, f"{text!r} is no label of {name} and no expression over its variables", None):
        properties = storm.parse_properties(content if is_file else text, program)
    targets = [(one.get_name(), target) for one in properties if (target := _find_target(one)) is not None]
    if not targets:
        raise InputError(f"{text}: no property asks to reach some states, as P=? [ F x ] and R=? [ F x ] do")
    if not is_file and len(targets) > 1:
        raise InputError(f"{text!r} contains {len(targets)} expressions; separate goals by commas")
    if not is_file:
        return {text: targets[0][1]}
    # Storm numbers properties without a name.
    return {getattr(target, "label", str(target)) if name.isdecimal() else name: target for name, target in targets}


def _find_target(storm_property: Any) -> Any:
    """Return the formula of the states to reach: x of P=? [F x], P=? [y U x], R=? [F x] and x; None if it has none."""
    formula = storm_property.get_raw_formula()
    if formula.is_multi_objective_formula:
        return None
    # Only operators (P, R, T, LRA) can have a bound. Other formulas are true or false in a state.
    if not hasattr(formula, "has_bound"):
        return formula
    path = formula.subformula
    if path.is_eventually_formula:
        return path.subformula
    return path.right_subformula if path.is_until_formula or path.is_bounded_until_formula else None


def _build_explicit_model(storm: Any, path: Path) -> Any:
    if path.suffix == ".umb":
        options = storm.io.UmbImportOptions()
        options.build_choice_labeling = options.build_state_valuations = True
        return storm.build_model_from_umb(path, options=options)
    options = storm.io.DirectEncodingParserOptions()
    options.build_choice_labeling = True
    return storm.build_model_from_drn(path, options=options)


@contextlib.contextmanager
def _silence_storm(storm: Any, problem: str, argument: str | None = "env") -> Iterator[None]:
    """Turn Storm's exceptions into errors of one line, and switch off its log."""
    set_level: Callable[[Any], None] = storm.developer.set_log_level
    level_before = storm.developer.get_log_level()
    set_level(storm.developer.LogLevel.OFF)
    try:
        yield
    except (RuntimeError, storm.exceptions.StormError) as error:
        raise InputError(f"{problem} ({to_single_line(error, 500)})", argument) from None
    finally:
        set_level(level_before)


class ExplicitChoice(NamedTuple):
    """A choice of a state: an action, its successors, and the interval of each probability, [low, high]."""

    action: str
    successors: Longs
    low: Floats
    high: Floats


class ExplicitState(NamedTuple):
    """A state of an MDP for other tools."""

    name: str  # may be empty
    # Steps that any choice takes, for the reward model "steps". Some programs do not read rewards of choices.
    cost: float
    labels: list[str]  # the start has the label "init"
    choices: list[ExplicitChoice]


def write_explicit_model(path: Path, comment: str, states: Sequence[ExplicitState]) -> None:
    """Write a DRN or UMB file; the suffix of the path is the format. Storm converts DRN to UMB.

    If low = high for all transitions, the file contains plain numbers.
    """
    is_exact = all((choice.low == choice.high).all() for state in states for choice in state.choices)
    text = "\n".join(_format_drn_lines(comment, states, is_exact)) + "\n"
    if path.suffix == ".drn":
        file_io.write_text(path, text)
        return
    storm = _import_storm("umb", "format")
    build = storm.build_model_from_drn if is_exact else storm.build_model_from_drn[storm.Interval]
    options = storm.io.DirectEncodingParserOptions()
    options.build_choice_labeling = True
    with tempfile.TemporaryDirectory() as folder:
        drn, umb = Path(folder, "model.drn"), Path(folder, "model.umb")
        drn.write_text(text)
        storm.io.export_to_umb(build(drn, options=options), umb)
        file_io.write_atomically(path, file_io.bytes_content(umb.read_bytes()))


def _format_drn_lines(comment: str, states: Sequence[ExplicitState], is_exact: bool) -> Iterator[str]:
    yield f"// {comment}"
    yield from ("@type: MDP", f"@value_type: {'double' if is_exact else 'double-interval'}", "@parameters", "")
    yield from ("@reward_models", "steps", "@nr_states", str(len(states)))
    yield from ("@nr_choices", str(sum(len(state.choices) for state in states)), "@model")
    for number, state in enumerate(states):
        yield " ".join([f"state {number} [{state.cost:g}]", *map(_to_identifier, state.labels)])
        if state.name:
            yield f"// {' '.join(state.name.split())}"
        for choice in state.choices:
            yield f"\taction {_to_identifier(choice.action)} [0]"
            bounds = zip(choice.successors.tolist(), choice.low.tolist(), choice.high.tolist(), strict=True)
            yield from (
                f"\t\t{t} : {low!r}" if is_exact else f"\t\t{t} : [{low!r}, {high!r}]" for t, low, high in bounds
            )


def _to_identifier(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_") or "_"
