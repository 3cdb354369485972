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
        formula = convert(" ".join(match["block"].split()), display="block")
        return f'<div class="formula" markdown="0">{formula}</div>'
    if match["inline"] is not None:
        return convert(" ".join(match["inline"].split()))
    return match[0]
