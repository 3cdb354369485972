"""Require an optional package, and name the command that adds it, or an extra of adagoal, to this installation."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import shutil
import sys
from pathlib import Path
from shlex import quote
from typing import Any

from adagoal.core.errors import InputError

# Packages that adagoal can use and that no extra contains.
OTHER_PACKAGES = ("pandas", "panda-gym")


def require_package(package: str, extra: str, task: str = "this", argument: str | None = None) -> None:
    """Raise an :class:`InputError` if a package of an extra is not installed; ``task`` is what needs it."""
    if importlib.util.find_spec(package) is None:
        raise InputError(f"{task} needs {package}: {install_command(extra)}", argument)


def install_command(name: str) -> str:
    """Return the command that installs an extra ("deep") or one of the :data:`OTHER_PACKAGES`.

    It depends on how adagoal was installed: from an index, a checkout, a repository or a wheel, with pip, uv or pipx.
    """
    requirement = quote(name if name in OTHER_PACKAGES else _requirement_with_extra(name))
    folders = Path(sys.prefix).parts
    if "pipx" in folders:
        return f"pipx inject adagoal {requirement}" if name in OTHER_PACKAGES else f"pipx install --force {requirement}"
    if "uv" in folders:
        own = quote(_requirement_with_extra("")) + f" --with {name}" if name in OTHER_PACKAGES else requirement
        # An environment of uvx is in the cache of uv.
        return f"uv tool install {own}" if "tools" in folders else f"uvx --from {own} adagoal"
    is_editable = name not in OTHER_PACKAGES and _checkout() is not None
    what = f"-e {requirement}" if is_editable else requirement
    config = Path(sys.prefix, "pyvenv.cfg")
    # An environment made by uv has no pip.
    if config.is_file() and "\nuv = " in f"\n{config.read_text()}":
        return f"uv pip install --python {quote(sys.executable)} {what}"
    own_pip = shutil.which("pip")
    # Another pip comes first on the path if the environment is not activated.
    is_own = own_pip is not None and Path(own_pip).parent == Path(sys.executable).parent
    return f"{'pip' if is_own else quote(sys.executable) + ' -m pip'} install {what}"


def _requirement_with_extra(extra: str) -> str:
    suffix = f"[{extra}]" if extra else ""
    checkout, origin = _checkout(), _origin()
    if checkout is not None:
        return f"{checkout}{suffix}"
    if "url" not in origin:
        return f"adagoal{suffix}"
    repository = origin.get("vcs_info")
    if repository is None:
        return f"adagoal{suffix} @ {origin['url']}"
    revision = repository.get("requested_revision") or repository["commit_id"]
    return f"adagoal{suffix} @ {repository['vcs']}+{origin['url']}@{revision}"


def _checkout() -> Path | None:
    """Return the folder with ``pyproject.toml`` if the package is used from there, as an editable installation is."""
    folder = Path(__file__).parents[3]
    return folder if (folder / "pyproject.toml").is_file() and (folder / "src" / "adagoal").is_dir() else None


def _origin() -> dict[str, Any]:
    """Return where an installer took the package from (PEP 610), empty if it was an index."""
    try:
        text = importlib.metadata.distribution("adagoal").read_text("direct_url.json")
        return dict(json.loads(text or "{}"))
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return {}
