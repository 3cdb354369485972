"""Gathers the pages of the documentation site in a folder, from which ``make docs`` builds it.

    python docs/tools/stage.py build/docs

The pages are the Markdown files of ``docs/``, the tutorials (played here, so that what they show is what happened), and
the reference. Links to files of the repository become links to pages that show them.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import mathematics
import notebooks
import reference

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
_LINK = re.compile(r"\]\((?P<path>[^)\s:#]+)(?P<anchor>#[^)\s]*)?\)")
_PICTURE = re.compile(r"^!\[(?P<caption>[^\]]+)\]\((?P<path>[^)\s]+)\)$", re.M)
# A click opens the picture in its full size, which some plots need.
_FIGURE = (
    '<figure markdown="span">[![{alt}]({path})]({path})<figcaption markdown="span">{caption}</figcaption></figure>'
)
_LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json"}


def stage(target: Path, tutorials: Mapping[str, list[notebooks.Cell]]) -> None:
    """Write every page into the folder, which is made anew; ``tutorials`` are those of docs/learn, played."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(DOCS, target, ignore=shutil.ignore_patterns("*.md", "*.py", "__pycache__", "tools"))
    for page in sorted(DOCS.rglob("*.md")):
        _write(target, page.relative_to(DOCS), page.read_text(), page.parent)
    _write(target, Path("changes.md"), (ROOT / "CHANGELOG.md").read_text(), ROOT)
    _write(target, Path("contributing.md"), (ROOT / "CONTRIBUTING.md").read_text(), ROOT)
    _write(target, Path("reference/commands.md"), reference.commands(), DOCS / "reference")
    _write(target, Path("reference/python.md"), reference.names(), DOCS / "reference")
    for name, played in tutorials.items():
        (target / "learn" / f"{name}.ipynb").write_text(notebooks.notebook(played))
        text = notebooks.page(played, target / "learn", name)
        more = f"\n---\n\n[This page as a Jupyter notebook]({name}.ipynb){{ download }}\n"
        _write(target, Path("learn") / f"{name}.md", text + more, DOCS / "learn")


def tutorials() -> list[Path]:
    """Their files, in order."""
    return sorted((DOCS / "learn").glob("*.py"))


def _write(target: Path, name: Path, text: str, home: Path) -> None:
    """One page. ``home`` is the folder from which its links start."""

    def moved(match: re.Match[str]) -> str:
        linked = (home / match["path"]).resolve()
        if linked.parent == DOCS / "learn" and linked.suffix == ".py":
            linked = linked.with_suffix(".md")
        if not linked.is_relative_to(ROOT) or not (linked.is_relative_to(DOCS) or linked.exists()):
            return match[0]
        place = linked.relative_to(DOCS) if linked.is_relative_to(DOCS) else _shown(target, linked)
        return f"]({_relative(place, name)}{match['anchor'] or ''})"

    path = target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(mathematics.typeset(_PICTURE.sub(_captioned, _LINK.sub(moved, text))))


def _captioned(match: re.Match[str]) -> str:
    """Return a picture that stands alone in a line with a visible caption."""
    caption = match["caption"]
    return _FIGURE.format(alt=caption.replace("`", ""), path=match["path"], caption=caption)


def _shown(target: Path, linked: Path) -> Path:
    """The page, below the target, that shows a file or a folder of the repository."""
    inside = linked.relative_to(ROOT)
    known = {"CHANGELOG.md": "changes.md", "CONTRIBUTING.md": "contributing.md", "README.md": "index.md"}
    if str(inside) in known:
        return Path(known[str(inside)])
    place = Path("source") / f"{str(inside).replace('/', '-').replace('.', '-')}.md"
    if not (target / place).exists():
        files = sorted(file for file in linked.iterdir() if file.is_file()) if linked.is_dir() else [linked]
        parts = [f"# {inside}"]
        for file in files:
            title = f"{file.relative_to(ROOT)}"
            parts.append(f'````{_LANGUAGES.get(file.suffix, "text")} title="{title}"\n{file.read_text()}````')
        (target / place).parent.mkdir(exist_ok=True)
        (target / place).write_text("\n\n".join(parts) + "\n")
    return place


def _relative(place: Path, page: Path) -> str:
    return "../" * len(page.parent.parts) + place.as_posix()


if __name__ == "__main__":
    stage(Path(sys.argv[1]).resolve(), {file.stem: notebooks.play(file) for file in tutorials()})
