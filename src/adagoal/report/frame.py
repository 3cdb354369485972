"""The frame of a report page, which every kind of run shares: style, pictures and tables of facts, in one file."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from adagoal.core.files import bytes_content, replace

DPI = 130
STYLE = """
body { font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; color: #1f2933; background: #f6f7f9; margin: 0; }
main { max-width: 64rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.5rem; margin: 0 0 1rem; } h2 { font-size: 1.1rem; margin: 0 0 .6rem; }
section { background: white; border: 1px solid #e2e6ea; border-radius: 8px; padding: 1rem 1.25rem; margin: 0 0 1rem; }
.good { border-left: 6px solid #31588a; } .partial { border-left: 6px solid #d1742f; }
.none { border-left: 6px solid #8a8f98; }
.warning { border-left: 6px solid #b3261e; background: #fdf3f2; }
.badge { background: #ece2d3; color: #7a4a12; border-radius: 4px; padding: 0 .4rem; font-size: .8rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #eef0f2; }
th:first-child, td:first-child { text-align: left; } thead th { cursor: pointer; border-bottom: 2px solid #d5dae0; }
.scroll { max-height: 28rem; overflow: auto; } .scroll thead th { position: sticky; top: 0; background: white; }
dl { display: grid; grid-template-columns: max-content 1fr max-content 1fr; gap: .15rem 1rem; margin: 0; }
dt { color: #616e7c; } dd { margin: 0; overflow-wrap: anywhere; }
figure { margin: 0; } figcaption { color: #616e7c; margin-bottom: .5rem; } img { max-width: 100%; height: auto; }
code { background: #eef0f2; padding: .05rem .3rem; border-radius: 3px; }
"""
SCRIPT = """
for (const head of document.querySelectorAll("thead th")) head.onclick = () => {
  const body = head.closest("table").tBodies[0], k = head.cellIndex, up = head.dataset.up !== "1";
  const key = row => parseFloat(row.cells[k].dataset.v ?? row.cells[k].textContent);
  head.dataset.up = up ? "1" : "0";
  body.append(...[...body.rows].sort((a, b) => (up ? 1 : -1) * (key(a) - key(b))));
};
"""


def page(title: str, body: str, badge: str = "") -> str:
    """A whole page around its sections; ``body`` and ``badge`` are HTML."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body><main>'
        f"<h1>{escape(title)}{badge}</h1>{body}"
        f"</main><script>{SCRIPT}</script></body></html>\n"
    )


def figure(drawn: Figure, caption: str, path: Path) -> str:
    """A section with a figure, which is also written as a file of its own."""
    image = png(drawn)
    replace(path, bytes_content(image))
    return picture(image, caption, width(drawn))


def png(drawn: Figure) -> bytes:
    """A figure as a picture."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # names of states may be in any script
        drawn.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def width(drawn: Figure) -> int:
    """The width of a figure on a page, in pixels."""
    return round(96 * drawn.get_figwidth())


def picture(png: bytes, caption: str, width: int) -> str:
    """A section with a picture that is part of the page."""
    return (
        f'<section><figure><figcaption>{escape(caption)}</figcaption><img width="{width}" alt="{escape(caption)}" '
        f'src="data:image/png;base64,{base64.b64encode(png).decode()}"></figure></section>'
    )


def facts(title: str, shown: Mapping[str, Any]) -> str:
    """A section of names and values."""
    items = "".join(f"<dt>{name}</dt><dd>{escape(str(value))}</dd>" for name, value in shown.items())
    return f"<section><h2>{title}</h2><dl>{items}</dl></section>"
