"""Pages made of panels: one HTML file that contains its data, scripts, style and Bokeh, and needs no network.

A panel is one Python function that returns data (:class:`PanelContent`) and one script that shows them. A page is a
list of panels (:class:`ReportPage`). ``static/common.js`` says what a script may use; ``static/loader.js`` starts it.
Two panels are here, because several pages have them: curves (:class:`CurvePlot`), and the tables of a Markdown text.

Jinja2 escapes every text. Data are embedded as base64, which cannot be mistaken for markup. The content security
policy names the hashes of our own scripts, so the browser refuses to run any other, whatever a name or label contains.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import re
import statistics
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from adagoal.core.errors import InputError
from adagoal.core.file_io import bytes_content
from adagoal.core.installation import install_command
from adagoal.runs.run_folder import RunKind, open_locked_folder

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure

SourceT = TypeVar("SourceT")
PageArrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class PanelContent:
    """What one panel shows. All panels of a page share one name space of values and one of arrays."""

    values: Mapping[str, Any] = field(default_factory=dict)  # anything that JSON can hold: data.facts.NAME in scripts
    # Arrays are stored as bytes: they may hold NaN and infinity, which JSON does not have.
    arrays: PageArrays = field(default_factory=dict)  # data.NAME in scripts
    html: str = ""  # markup of the panel, from :func:`render_macro`


@dataclass(frozen=True)
class Panel(Generic[SourceT]):
    """One part of a page: a function that returns its content, and the script that shows it."""

    name: str  # id of its element: a script finds it as $("NAME")
    title: str  # heading; without one the HTML of the panel brings its own sections
    collect: Callable[[SourceT], PanelContent | None]  # None leaves the panel out
    # Files in ``static/``, or absolute paths. A live page replaces the HTML of panels without a script.
    scripts: tuple[str | Path, ...] = ()
    group: str = ""  # CSS class of the box around this panel and its neighbours of the same group


@dataclass(frozen=True)
class ReportPage:
    """A page before it is written: its title and its panels with their content."""

    title: str
    contents: Sequence[tuple[Panel[Any], PanelContent]]
    badge: str = ""

    @staticmethod
    def collect(title: str, panels: Sequence[Panel[SourceT]], source: SourceT, badge: str = "") -> ReportPage:
        """Ask every panel for its content."""
        found = ((panel, panel.collect(source)) for panel in panels)
        return ReportPage(title, [(panel, content) for panel, content in found if content is not None], badge)

    def render(self, live: bool = False) -> str:
        """Return the page as HTML; a ``live`` page asks its server for new data."""
        # Several panels may need a script. It is included once, because its constants cannot be declared twice.
        names = dict.fromkeys(script for panel, _ in self.contents for script in panel.scripts)
        scripts = {
            "loader": _read_static_file("loader.js"),
            "panels": "".join(map(_read_static_file, ("common.js", *names))),
        }
        bokeh = _packed_bokeh()
        groups = [(group, list(part)) for group, part in groupby(self.contents, lambda pair: pair[0].group)]
        policy = _content_security_policy((bokeh["sha256"], *map(_script_hash, scripts.values())))
        texts = {"policy": policy, "style": _read_static_file("page.css")}
        block = base64.b64encode(self.pack_data()).decode()
        template = _template_environment().get_template("page.html")
        return template.render(page=self, groups=groups, live=live, scripts=scripts, block=block, bokeh=bokeh, **texts)

    def save(self, folder: Path, kind: RunKind, figures: Mapping[str, Figure]) -> Path:
        """Write ``report.html`` and figures as PNG into the folder of a run; return the path of the page.

        One commit writes them all: after a kill either all files are new or none.
        """
        contents = {"report.html": bytes_content(self.render().encode())}
        for name, figure in figures.items():
            from adagoal.report.figures import figure_to_png

            contents[name] = bytes_content(figure_to_png(figure))
        with open_locked_folder(folder, kind) as run_folder:
            run_folder.save_files(results=contents)
        return folder / "report.html"

    def pack_data(self, **more: Any) -> bytes:
        """Return the data of all panels as one block; ``more`` values describe the state of a live run."""
        values: dict[str, Any] = {"panels": [panel.name for panel, _ in self.contents]}
        values["html"] = {panel.name: content.html for panel, content in self.contents if not panel.scripts}
        arrays: dict[str, NDArray[Any]] = {}
        for panel, content in self.contents:
            # Scripts read one object, so a name used twice would silently hide the values of the first panel.
            taken = content.values.keys() & values.keys() | content.arrays.keys() & arrays.keys()
            assert not taken, f"panel {panel.name}: another panel uses the names {sorted(taken)}"
            values |= content.values
            arrays |= content.arrays
        return pack_data_block(values | more, arrays)


def require_figures_extra() -> None:
    """Raise an :class:`InputError` if Matplotlib, the extra ``figures``, is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError(f"figures need matplotlib: {install_command('figures')}")


def render_macro(template: str, name: str, *arguments: Any) -> str:
    """Return the markup that a macro of a template makes; the template escapes all its arguments."""
    return str(getattr(_template_environment().get_template(template).module, name)(*arguments))


@cache
def _template_environment() -> Environment:
    # Worker processes import this module through the comparison, and render nothing.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        # By default Jinja2 prints nothing for a misspelt variable; this makes it an error.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["sentence"] = lambda text: text[:1].upper() + text[1:]
    return environment


@cache
def _read_static_file(name: str | Path) -> str:
    return (Path(__file__).parent / "static" / name).read_text(encoding="utf-8")


@cache
def _packed_bokeh() -> dict[str, str]:
    """Return BokehJS compressed, the hash under which the browser may run it, and its version and licence."""
    # Copied from the Bokeh package, which with its dependencies would be a tenth of the installation.
    version, folder = "3.9.2", Path(__file__).parent / "static" / "bokeh"
    # The core and the plotting functions. Widgets are left out: the page uses the controls of the browser.
    files = [folder / f"{name}-{version}.min.js" for name in ("bokeh", "bokeh-api")]
    script = "\n".join(f"/* BEGIN {file.name} */\n{file.read_text(encoding='utf-8')}" for file in files)
    licence = (folder / "LICENSE.txt").read_text(encoding="utf-8").strip()
    # Compressed, the page is less than half as large; loader.js unpacks it.
    packed = base64.b64encode(zlib.compress(script.encode())).decode()
    return {"packed": packed, "sha256": _script_hash(script), "version": version, "licence": licence}


@cache
def _script_hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _content_security_policy(hashes: Sequence[str]) -> str:
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    return (
        # connect-src: a live page fetches its data from its own server. Everything else is in the file.
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'"
    )


def pack_data_block(values: object, arrays: PageArrays) -> bytes:
    """Return values and arrays as one compressed block that ``unpack`` in ``common.js`` reads.

    The block is zlib over three parts: the length of the head (8 bytes, little-endian), the head as JSON, and the
    arrays. The head has the values and, by name, the type, shape and offset of every array. Equal input gives equal
    bytes.
    """
    places: dict[str, Any] = {}
    data = bytearray()
    for name, array in arrays.items():
        # These types have a typed array in JavaScript. int64 has one of BigInt, with which numbers cannot be mixed.
        if array.dtype.str not in ("<f8", "<f4", "<i4", "<u4", "<u2", "|u1"):
            raise ValueError(f"{name} has the type {array.dtype}, which no page can read")
        # tobytes writes C order, in which the scripts index, whatever the layout of the array in memory.
        places[name] = {"type": array.dtype.str, "shape": array.shape, "at": len(data)}
        data += _pad_to_eight_bytes(array.tobytes())
    head = _pad_to_eight_bytes(json.dumps({"facts": values, "arrays": places}, default=_to_python_number).encode())
    return zlib.compress(len(head).to_bytes(8, "little") + head + bytes(data), 6)


def _to_python_number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} cannot be written as JSON")


def _pad_to_eight_bytes(data: bytes) -> bytes:
    # A typed array of JavaScript must begin at a multiple of its element size.
    return data + b" " * (-len(data) % 8)


@dataclass(frozen=True)
class Curve:
    """One curve. Curves of one name share a colour and a switch."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    seed: int | None = None  # None: the curve of all seeds, for instance their median


@dataclass(frozen=True)
class CurvePlot:
    """One plot with several curves."""

    title: str
    x: str  # label of the axis
    y: str
    lines: Sequence[Curve]
    reference_lines: Mapping[str, float] = field(default_factory=dict)  # heights of horizontal lines, by name
    log_axes: bool = True


def curves_by_seed(name: str, points: Iterable[tuple[int, float, float]]) -> list[Curve]:
    """Return the curve of medians and one curve per seed, from points (seed, x, y) in any order."""
    by_seed: dict[int, list[tuple[float, float]]] = {}
    by_x: dict[float, list[float]] = {}
    for seed, x, y in points:
        by_seed.setdefault(seed, []).append((x, y))
        by_x.setdefault(x, []).append(y)
    medians = [(x, statistics.median(ys)) for x, ys in by_x.items()]
    curves: list[tuple[int | None, list[tuple[float, float]]]] = [(None, medians), *by_seed.items()]
    return [Curve(name, [x for x, _ in sorted(c)], [y for _, y in sorted(c)], seed) for seed, c in curves if c]


def curve_page(title: str, text: str, plots: Sequence[CurvePlot]) -> ReportPage:
    """Return the page of a Markdown text and its curves."""
    panels = (
        Panel[str]("curves", "Curves", lambda _: curves_panel(plots), ("curves.js",)),
        Panel[str]("tables", "", tables_panel, ("tables.js",)),
    )
    return ReportPage.collect(title, panels, text)


def curves_panel(plots: Sequence[CurvePlot]) -> PanelContent | None:
    """Return the curves: all points in two arrays, and for every curve the range that belongs to it."""
    if not plots:
        return None
    lines = [line for plot in plots for line in plot.lines]
    ends = np.cumsum([len(line.x) for line in lines]).tolist()
    # One iterator for all plots: each plot takes as many ranges as it has lines, and zip stops before the next one.
    ranges = iter(zip([0, *ends[:-1]], ends, strict=True))
    curves = []
    for plot in plots:
        drawn = zip(plot.lines, ranges, strict=False)
        entries = [{"name": line.name, "seed": line.seed, "from": start, "to": end} for line, (start, end) in drawn]
        labels = {"title": plot.title, "x": plot.x, "y": plot.y, "log": plot.log_axes}
        curves.append({**labels, "marks": dict(plot.reference_lines), "lines": entries})
    arrays = {axis: np.array([v for line in lines for v in getattr(line, axis)], float) for axis in ("x", "y")}
    html = render_macro("shared.html", "curves", [plot.title for plot in plots])
    return PanelContent({"curves": curves}, arrays, html)


def tables_panel(text: str) -> PanelContent:
    """Return the paragraphs and tables of a Markdown text."""
    parts = parse_markdown(text)
    tables = [part["rows"] for part in parts if part["rows"]]
    return PanelContent({"tables": tables}, {}, render_macro("shared.html", "tables", parts))


def parse_markdown(text: str) -> list[dict[str, Any]]:
    """Return the paragraphs (``words``) and tables (``rows``, the head first) of a Markdown text in their order."""
    # The page shows plain text, so the marks of emphasis and code are removed.
    parts: list[dict[str, Any]] = []
    lines = [line.strip() for line in text.splitlines()]
    for kind, group in groupby(lines, lambda line: "table" if line.startswith("|") else "words" if line else ""):
        if kind == "words":
            parts.append({"words": re.sub(r"[*`]", "", " ".join(group)), "rows": []})
        elif kind == "table":
            rows = [[re.sub(r"[*`]", "", cell).strip() for cell in line.strip("|").split("|")] for line in group]
            is_rule = [all(re.fullmatch(r":?-+:?", cell) for cell in row) for row in rows]
            parts.append({"words": "", "rows": [row for row, rule in zip(rows, is_rule, strict=True) if not rule]})
    return parts
