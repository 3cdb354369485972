"""Formulas between dollar signs, as MathML: browsers typeset it themselves, without scripts and without a network."""

from __future__ import annotations

import re

from latex2mathml.converter import convert

_PARTS = re.compile(
    r"(?P<fence>^(?P<ticks>```+|~~~+).*?^(?P=ticks)\s*?$)"
    r"|(?P<code>(?P<tick>`+)(?!`).+?(?<!`)(?P=tick)(?!`))"
    r"|\$\$(?P<block>.+?)\$\$"
    r"|(?<![\\$\w])\$(?P<inline>(?=\S)[^$]+?(?<=\S))\$(?![\d$])",
    re.S | re.M,
)


def typeset(text: str) -> str:
    """Markdown whose formulas, outside of code, are replaced."""
    return _PARTS.sub(_replaced, text)


def _replaced(match: re.Match[str]) -> str:
    if match["block"] is not None:
        formula = convert(_spaced(match["block"]), display="block")
        return f'<div class="formula" markdown="0">{formula}</div>'
    if match["inline"] is not None:
        formula = convert(_spaced(match["inline"]))
        # In a span, because at the start of a line a bare formula would be a block of its own.
        return f'<span class="inline-formula">{formula}</span>'
    return match[0]


def _spaced(formula: str) -> str:
    """In one line, with the spaces around functions that TeX would make, and := in one piece."""
    line = " ".join(formula.split()).replace(":=", r"\; ≔ \;")
    line = re.sub(r"(?<=[\w})\]])\s*\\(ln|exp)\b", r" \\, \\\1", line)
    return re.sub(r"\\ln\s+(?=[\w\\])", r"\\ln \\, ", line)
