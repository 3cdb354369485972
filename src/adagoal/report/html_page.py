"""A page as one file that needs nothing else: template, style, scripts, Bokeh and the data.

Text is escaped by Jinja2; data stands in the page as base64, which no browser takes for anything else. A content
security policy names the hashes of our scripts, so that nothing else in the page can run, whatever it says.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from jinja2 import Environment

REPORT_FOLDER = Path(__file__).parent


def render_html_page(
    template: str, own: tuple[str, ...], figures: Mapping[str, Any], block: bytes, live: bool = False, **shown: Any
) -> str:
    """The page of a template and its own scripts, with figures of Bokeh and a packed block of data."""
    scripts = {"bokeh": _bokeh_script(), "script": "".join(map(_read_static_file, ("common.js", *own)))}
    return (
        template_environment()
        .get_template(template)
        .render(
            **shown,
            **scripts,
            policy=_content_security_policy(tuple(scripts.values())),
            style=_read_static_file("page.css"),
            figures=json.dumps(figures).replace("<", "\\u003c"),
            block=base64.b64encode(block).decode(),
            live=live,
            licence=_bokeh_licence(),
        )
    )


@cache
def template_environment() -> Environment:
    """Of the templates; everything that they show is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(REPORT_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["sentence"] = lambda text: text[:1].upper() + text[1:]
    return made


@cache
def _read_static_file(name: str) -> str:
    return (REPORT_FOLDER / "static" / name).read_text(encoding="utf-8")


@cache
def _bokeh_script() -> str:
    """The script of Bokeh: the core, as the controls of the page are the browser's own."""
    from bokeh.resources import Resources

    script = str(Resources(mode="inline", components=["bokeh"]).js_raw[0])
    assert "</script" not in script
    return script


@cache
def _bokeh_licence() -> dict[str, str]:
    """Version and licence of Bokeh."""
    import bokeh

    text = Path(bokeh.__file__).with_name("LICENSE.txt").read_text(encoding="utf-8")
    return {"version": bokeh.__version__, "text": text.strip()}


@cache
def _content_security_policy(scripts: tuple[str, ...]) -> str:
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts)
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'"
    )


# Facts and arrays in one compressed block, which a page unpacks with what every browser has.
#
# The block is zlib over three parts, each filled up with blanks to a multiple of eight bytes: the length of the head
# (little-endian), the head as JSON, and the arrays. The head has the ``facts`` and, by name, the type, the shape and
# the place of every array. ``static/common.js`` is the other side.


JAVASCRIPT_TYPES = ("<f8", "<f4", "<i4", "<u4", "<u2", "|u1")
"""What JavaScript has typed arrays for."""


def pack_data_block(facts: object, arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The block; equal input gives equal bytes."""
    places: dict[str, Any] = {}
    body = bytearray()
    for name, array in arrays.items():
        if array.dtype.str not in JAVASCRIPT_TYPES:
            raise ValueError(f"{name} holds {array.dtype}, which no page can read")
        places[name] = {"type": array.dtype.str, "shape": array.shape, "at": len(body)}
        body += _pad_to_eight_bytes(array.tobytes())
    head = _pad_to_eight_bytes(json.dumps({"facts": facts, "arrays": places}, default=_to_python_number).encode())
    return zlib.compress(len(head).to_bytes(8, "little") + head + bytes(body), 6)


def unpack_data_block(block: bytes) -> tuple[Any, dict[str, NDArray[Any]]]:
    """The facts and the arrays of a block."""
    whole = zlib.decompress(block)
    end = 8 + int.from_bytes(whole[:8], "little")
    head = json.loads(whole[8:end])
    arrays = {}
    for name, entry in head["arrays"].items():
        count = int(np.prod(entry["shape"], dtype=int))
        flat = np.frombuffer(whole, entry["type"], count, end + entry["at"])
        arrays[name] = flat.reshape(entry["shape"])
    return head["facts"], arrays


def _to_python_number(value: Any) -> Any:
    """NumPy's numbers as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} is no fact")


def _pad_to_eight_bytes(data: bytes) -> bytes:
    return data + b" " * (-len(data) % 8)
