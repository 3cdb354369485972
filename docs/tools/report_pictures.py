"""The pictures of the pages: the film of the README, and those of docs/guide.md and docs/train.md.

    adagoal explore two-room --radius 40 --epsilon 1 --delta 0.1 --seed 0 --out build/demo
    python docs/tools/report_pictures.py build/demo docs/figures

The other runs are made here, in two minutes. Needs Chromium, like tests/test_report_in_browser.py.
"""

from __future__ import annotations

import io
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

from adagoal.cli.main import run_command_line

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import browser

GOAL = 30
FILM_FRAMES = 26
FILM_SIZE = (826, 735)
RUNS = {
    "graph": "explore Taxi-v4 --start-seed 0 --radius 8 --epsilon 1",
    "compare": "compare grid --radius 8 --goal-rules adagoal,unigoal,raregoal --seeds 3 --budget 100000",
    "deep": "train point-mass --steps 16000",
}
"""The commands, by the name of the picture."""


def open_page(started: browser.Browser, file: Path, width: int, height: int, dark: bool = False) -> browser.Page:
    """Open the page of a run and wait until it is drawn."""
    page = started.open(file.resolve().as_uri(), width=width, height=height, dark=dark)
    page.wait("document.body.dataset.ready === 'yes'")
    time.sleep(0.5)  # until it is painted
    return page


def draw_pictures(started: browser.Browser, demo: Path, target: Path) -> None:
    """Write the pictures of the demo, and of runs that are made for them."""
    for name, size, dark in (
        ("grid", (1180, 1400), False),
        ("grid-dark", (1180, 1400), True),
        ("phone", (390, 844), False),
    ):
        open_page(started, demo / "report.html", *size, dark).picture(target / f"report-{name}.png")
    with tempfile.TemporaryDirectory() as scratch:
        for name, command in RUNS.items():
            folder = Path(scratch) / name
            assert run_command_line([*command.split(), "--out", str(folder), "--quiet"]) == 0
            file = folder / ("table.html" if name == "compare" else "report.html")
            open_page(started, file, 1200, 1130).picture(target / f"report-{name}.png")


def film(started: browser.Browser, demo: Path, target: Path) -> None:
    """Choose a goal, go through the run, and play the policy in the end."""
    page = open_page(started, demo / "report.html", 1180, 1050)
    page.evaluate(f"choose(page.row[{GOAL}])")
    last = page.evaluate("Number($('moment').max)")
    shots = []
    with tempfile.TemporaryDirectory() as scratch:
        for moment in [*range(last % FILM_FRAMES, last, last // FILM_FRAMES), last, -1]:
            if moment < 0:
                page.evaluate("for (let i = 0; i < 5; i++) $('try-many').click()")
            else:
                page.evaluate(f"$('moment').value = {moment}; $('moment').dispatchEvent(new Event('input'))")
            time.sleep(0.3)  # until it is drawn
            page.picture(Path(scratch) / "shot.png")
            shots.append(io.BytesIO((Path(scratch) / "shot.png").read_bytes()))
    frames = [Image.open(shot).convert("RGB").resize(FILM_SIZE, Image.Resampling.LANCZOS) for shot in shots]
    # The colours of open goals are in the middle, those of the measured steps at the end.
    both = Image.new("RGB", (FILM_SIZE[0], 2 * FILM_SIZE[1]))
    both.paste(frames[len(frames) // 2])
    both.paste(frames[-1], (0, FILM_SIZE[1]))
    palette = both.quantize(96, dither=Image.Dither.NONE)
    first, *others = (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames)
    durations = [220] * (len(frames) - 2) + [1500, 4000]  # milliseconds
    first.save(target, save_all=True, append_images=others, duration=durations, loop=0, optimize=True)


if __name__ == "__main__":
    demo, figures = Path(sys.argv[1]), Path(sys.argv[2])
    with browser.Browser() as chromium:
        film(chromium, demo, figures / "report.gif")
        draw_pictures(chromium, demo, figures)
