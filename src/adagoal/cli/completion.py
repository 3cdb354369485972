"""``adagoal completion``: tab completion of commands, options, folders and names.

The names are repeated here, because a shell waits for them: importing the environments or the methods takes longer than
a key press. A test compares them with their registries.
"""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, get_completion_class

from adagoal.core.user_code import PluginGroup, list_plugin_names

EXPLORED_ENVS = (
    *("two-room", "grid", "grid-file", "maze", "chain", "rare-exit", "trap-chain"),
    *("fan", "lower-bound", "random-dense", "random-sparse", "mixture-windy", "mixture-slippery", "mixture-weather"),
    *("mixture-tree", "mixture-inventory", "mixture-signed"),
    *("FrozenLake-v1", "CliffWalking-v1", "Taxi-v4", "MiniGrid-Empty-5x5-v0"),
)
TRAINED_ENVS = (
    *("point-mass", "FetchReach-v4", "FetchPush-v4", "FetchPickAndPlace-v4", "FetchSlide-v4"),
    *("PointMaze_UMaze-v3", "PointMaze_Medium-v3", "AntMaze_UMaze-v5"),
)
METHODS = (
    *("certified", "ucbvi", "bayes", "ucbexplore", "disco", "valae", "lae", "gosprl", "bpi-ucbvi", "intervals"),
    *("likelihood", "vtr-pooled", "vtr"),
)
GOAL_RULES = (
    *("adagoal", "adagoal-proportional", "proportional", "argmax", "unigoal", "raregoal", "skewfit", "mega", "omega"),
    *("discover", "goid", "progress", "goexplore"),
)


def complete_env(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the environments that a command can use; Gymnasium has more."""
    if ctx.command.name == "train":
        return _matching(TRAINED_ENVS, incomplete)
    both = (*EXPLORED_ENVS, *TRAINED_ENVS) if ctx.command.name == "check" else EXPLORED_ENVS
    return _matching((*both, *list_plugin_names(PluginGroup.ENVIRONMENTS)), incomplete)


def complete_name(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the values of ``--method``, ``--goal-rule`` and of lists of them, whose last entry is completed."""
    is_rule = param.name in ("goal_rule", "goal_rules")
    group = PluginGroup.GOAL_RULES if is_rule else PluginGroup.METHODS
    begin, comma, last = incomplete.rpartition(",")
    names = _matching((*(GOAL_RULES if is_rule else METHODS), *list_plugin_names(group)), last)
    return [f"{begin}{comma}{name}" for name in names]


def complete_folder(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete a folder."""
    return [CompletionItem(incomplete, type="dir")]


def _matching(names: tuple[str, ...], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


@click.command(epilog='Example: adagoal completion bash, as eval "$(adagoal completion bash)" in ~/.bashrc')
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands, options, environments, methods and goal rules in a shell.

    Put one line into the start-up file of the shell. bash: eval "$(adagoal completion bash)" in ~/.bashrc. zsh:
    eval "$(adagoal completion zsh)" in ~/.zshrc. fish: adagoal completion fish | source in
    ~/.config/fish/config.fish.
    """
    from adagoal.cli.main import cli

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(cli, {}, "adagoal", "_ADAGOAL_COMPLETE").source())
