"""The moving picture of the README: a report whose time slider is moved, in a headless browser.

    python docs/tools/film.py runs/demo docs/figures/report.gif

Needs Chromium, like tests/test_browser.py.
"""

from __future__ import annotations

import io
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import browser

GOAL = 23
FRAMES = 26
SIZE = (826, 585)


def film(folder: Path, target: Path) -> None:
    """Choose a goal, go through the run, and play the policy in the end."""
    with browser.Browser() as started, tempfile.TemporaryDirectory() as scratch:
        page = started.open((folder / "report.html").resolve().as_uri(), width=1180, height=835)
        page.wait("document.body.dataset.ready === 'yes'")
        page.evaluate("document.getElementById('map').scrollIntoView(); window.scrollBy(0, -95)")
        page.evaluate(f"choose(page.row[{GOAL}])")
        last = page.evaluate("Number($('moment').max)")
        shots = []
        for moment in [*range(last % FRAMES, last, last // FRAMES), last, -1]:
            if moment < 0:
                page.evaluate("for (let i = 0; i < 5; i++) $('try-many').click()")
            else:
                page.evaluate(f"$('moment').value = {moment}; $('moment').dispatchEvent(new Event('input'))")
            time.sleep(0.3)  # until it is drawn
            page.picture(Path(scratch) / "shot.png")
            shots.append(io.BytesIO((Path(scratch) / "shot.png").read_bytes()))
    frames = [Image.open(shot).convert("RGB").resize(SIZE, Image.Resampling.LANCZOS) for shot in shots]
    palette = frames[-1].quantize(96, dither=Image.Dither.NONE)
    first, *others = (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames)
    seconds = [0.22] * (len(frames) - 2) + [1.5, 4.0]
    durations = [int(1000 * s) for s in seconds]
    first.save(target, save_all=True, append_images=others, duration=durations, loop=0, optimize=True)


if __name__ == "__main__":
    film(Path(sys.argv[1]), Path(sys.argv[2]))
