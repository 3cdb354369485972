"""The documents: links, named tests, commands, tutorials, and the site."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from adagoal.cli.main import cli

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "docs" / "tools"), str(ROOT)]

import mathematics  # noqa: E402
import notebooks  # noqa: E402
import stage  # noqa: E402

from experiments.catalogue import CATALOGUE  # noqa: E402

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/learn/*.py")])
CODE = re.compile(r"^(```+).*?^\1|`[^`\n]+`", re.S | re.M)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
BUILT = ("reference/", "demo/")
"""Folders that the build makes."""


def text(page: Path) -> str:
    """Return a page in Markdown, or the text cells of a notebook."""
    if page.suffix == ".md":
        return page.read_text()
    return "\n\n".join(cell.source for cell in notebooks.cells(page) if cell.kind == notebooks.TEXT)


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as the site and code hosts make them."""
    heads = re.findall(r"^#+ (.+)$", re.sub(CODE, lambda m: m[0].strip("`"), text(page)), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_targets(page: Path) -> None:
    for link in LINK.findall(CODE.sub("", text(page))):
        path, _, anchor = link.partition("#")
        if re.match(r"\w+:", link) or path.removeprefix("../").startswith(BUILT):
            continue
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{link} is missing"
        assert not anchor or anchor in anchors(found), f"{link}: no such heading"


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "zensical.toml").read_text()
    named = set(re.findall(r'"([\w/-]+\.md)"', text))
    ours = {str(page.relative_to(ROOT / "docs").with_suffix(".md")) for page in PAGES if page.parent != ROOT}
    made = {"reference/commands.md", "reference/python.md", "changes.md", "contributing.md"}
    assert named == ours | made
    assert tomllib.loads(text)["project"]["theme"]["font"] is False, "fonts come from the page, not from the network"


def test_lemmas_name_functions_and_tests_that_exist() -> None:
    """The tables "From lemma to line": `file.py: name`, `file.py::test`, or a further name in the file before it."""
    seen = 0
    for page in (ROOT / "docs").glob("theory*.md"):
        for row in re.findall(r"^\| (.+)$", text(page).partition("## From lemma to line")[2], re.M):
            source = ""
            for path, names in re.findall(r"(?<!\()`(?:([\w/]+\.py))?:{0,2} ?([\w.]*)`", row.partition(" | ")[2]):
                if path:
                    source = (ROOT / ("" if path.startswith("tests/") else "src/adagoal") / path).read_text()
                for name in names.split(".") if names else []:
                    assert re.search(rf"^ *(def|class) {name}\b", source, re.M), f"{page.name}: {path} {names}"
                    seen += 1
    assert seen > 80


def commands(page: Path) -> list[list[str]]:
    """Yield the words of every command in the blocks of a page that begin with a prompt."""
    blocks = re.findall(r"^```console\n(.*?)^```", text(page), re.S | re.M)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]


def options(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_documents_are_valid(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands in blocks are parsed; those in a sentence may have placeholders, and only their options are checked."""
    monkeypatch.chdir(tmp_path)
    for program, *words in commands(page):
        for word in words:
            if word.startswith("runs/"):
                (tmp_path / word).mkdir(parents=True, exist_ok=True)
        if program == "adagoal" and words:
            context = click.Context(cli, info_name="adagoal")
            name, command, rest = cli.resolve_command(context, words)
            assert command is not None
            command.make_context(name, rest, parent=context, resilient_parsing="--help" in rest)
        elif program == "python" and words[0].endswith(".py"):
            source = (ROOT / words[0]).read_text()
            flags = [word for word in words[1:] if word.startswith("--")]
            assert not [flag for flag in flags if f'"{flag}"' not in source], words
        elif program == "python" and words[:2] == ["-m", "experiments"]:
            assert not words[2:] or words[2] in CATALOGUE, words
        elif program == "make":
            for target in words:
                assert "=" in target or re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M), words
    for name, rest in re.findall(r"`adagoal (\w+)([^`]*)`", text(page)):
        command = cli.get_command(click.Context(cli), name)
        assert command is not None, name
        flags = re.findall(r"(?<!\S)--[a-z][\w-]*", rest)
        assert set(flags) <= options(command) | {"--help", "--help-all"}, f"adagoal {name}{rest}"
    for name in re.findall(r"`python -m experiments ([a-z]\w*)", text(page)):
        assert name in CATALOGUE, name
    for file in re.findall(r"`python (benchmarks/\w+\.py)", text(page)):
        assert (ROOT / file).exists(), file


def test_links_to_classes_point_to_their_files() -> None:
    links = [(page, *link) for page in PAGES for link in re.findall(r"\[`([A-Z]\w+)`\]\(([^)]+\.py)\)", text(page))]
    assert links
    for page, name, path in links:
        assert re.search(rf"^class {name}\b", (page.parent / path).read_text(), re.M), f"{page.name}: {name} in {path}"


def test_formulas_become_mathml_and_code_does_not() -> None:
    text = "Let $L \\ge 1$ cost `$5` or $5 and $6.\n\n```\n$x$\n```\n\n$$\\sum_i x_i$$\n"
    shown = mathematics.typeset(text)
    assert shown.count("<math") == 2
    assert "`$5` or $5 and $6." in shown
    assert "```\n$x$\n```" in shown


def test_cells_of_a_notebook(tmp_path: Path) -> None:
    file = tmp_path / "small.py"
    file.write_text("# %% [markdown]\n# # Title\n#\n# Text.\n\n# %%\nx = 2\nprint('said')\nx + 1\n")
    text, code = notebooks.play(file)
    assert text.source == "# Title\n\nText."
    assert code.output == "said\n3"
    assert "```python\nx = 2" in notebooks.page([text, code], tmp_path, "small")


@pytest.fixture(scope="module")
def executed() -> dict[str, list[notebooks.Cell]]:
    """Every executed tutorial; the last one, which trains, is not executed."""
    *files, trains = stage.tutorials()
    return {file.stem: notebooks.play(file) for file in files} | {trains.stem: notebooks.cells(trains)}


def test_tutorials_print_what_they_say(executed: dict[str, list[notebooks.Cell]]) -> None:
    outputs = {name: "\n".join(cell.output for cell in cells if cell.output) for name, cells in executed.items()}
    first, own, reading, linear, _ = (outputs[name] for name in sorted(outputs))
    assert first.startswith("certified")
    assert first.endswith("True")
    assert "certified after" in own
    assert "every certificate holds" in reading
    assert "void" in reading
    assert linear.startswith("certified after")
    assert "misspecified" in linear


@pytest.mark.slow
def test_training_tutorial() -> None:
    assert "".join(cell.output for cell in notebooks.play(stage.tutorials()[-1]))


@pytest.fixture(scope="module")
def site(executed: dict[str, list[notebooks.Cell]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site without the report of the demo. The build fails on broken links and anchors."""
    folder = tmp_path_factory.mktemp("site")
    stage.stage(folder / "build" / "docs", executed)
    (folder / "build" / "docs" / "demo").mkdir()
    (folder / "build" / "docs" / "demo" / "report.html").write_text("<p>a report</p>")
    (folder / "zensical.toml").write_text((ROOT / "zensical.toml").read_text())
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def test_site_loads_nothing_from_other_hosts(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        loaded = re.findall(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="?(https?://[^"> ]+)', page.read_text())
        assert not loaded, f"{page.name} loads {loaded} from elsewhere"


FIRST_FOUND = {
    "install": "install.html",
    "pandas": "guide.html#read-results-with-pandas",
    "resume": "guide.html#resume-an-interrupted-run",
    "my own environment": "environments.html",
    "my own goals": "goals.html",
    "report": "guide.html#report",
    "workers": "large.html#slow-environments-several-workers",
    "PRISM": "models.html#prism-jani-drn-and-umb",
    "Stable-Baselines3": "sb3.html",
    "symbols": "theory.html#symbols",
    "lemma 12": "theory-sharper.html#lemma-12-hops",
    "ray cluster": "large.html#on-a-cluster",
}


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
def test_search_finds_the_right_page_first(site: Path) -> None:
    command = ["node", ROOT / "docs" / "tools" / "search.mjs", site, *FIRST_FOUND]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert {query: next(iter(pages), None) for query, pages in found.items()} == FIRST_FOUND
