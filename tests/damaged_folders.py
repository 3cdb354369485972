"""Ways to damage a run folder, for tests of everything that reads one: see :func:`cases`.

A case is a label and a function that damages a folder. The cases damage a file and leave the manifest alone, as a bad
disk does. The ``forged`` functions alter a file and the manifest with it, as an attacker would, so only the validation
of the content can refuse the file.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import itertools
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from adagoal.runs import run_folder as manifests
from adagoal.runs.run_folder import staged_file_path

Damage = Callable[[Path], None]
Case = tuple[str, Damage]


def run_files(folder: Path) -> list[str]:
    """Return the relative paths of all files of a run folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def cases(folder: Path, seed: int, flips: int = 10) -> Iterator[Case]:
    """Yield damages of every kind to every file, among them ``flips`` random bit flips per file."""
    rng = np.random.default_rng(seed)
    names = run_files(folder)
    for name in names:
        size = (folder / name).stat().st_size
        for bit in rng.choice(8 * size, min(flips, 8 * size), replace=False):
            yield f"{name}: bit {bit} turned", _at(name, flip, int(bit))
        for kept in sorted({0, 1, size // 2, size - 1}):
            yield f"{name}: cut to {kept} bytes", _at(name, cut, kept)
        for way in (delete, grow, pipe, device, dangling, folder_instead, sparse):
            yield f"{name}: {way.__name__}", _at(name, way)
        if name.endswith(".json"):
            for label, text in JSON_TEXTS.items():
                yield f"{name}: {label}", _at(name, put, text)
        if name.endswith(".npz"):
            for label, data in ARCHIVES.items():
                yield f"{name}: {label}", _at(name, put, data())
    for one, other in itertools.pairwise(names):
        yield f"{one} and {other} swapped", _swap(one, other)


def _at(name: str, way: Callable[..., None], *arguments: Any) -> Damage:
    return lambda folder: way(folder / name, *arguments)


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def cut(path: Path, kept: int) -> None:
    os.truncate(path, kept)


def delete(path: Path) -> None:
    path.unlink()


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b" ")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "nowhere")


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def sparse(path: Path) -> None:
    os.truncate(path, 2**38)


def put(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _swap(one: str, other: str) -> Damage:
    def damage(folder: Path) -> None:
        shutil.move(folder / one, folder / "swap")
        shutil.move(folder / other, folder / one)
        shutil.move(folder / "swap", folder / other)

    return damage


JSON_TEXTS: dict[str, bytes] = {
    "nothing": b"",
    "null": b"null",
    "a list": b"[]",
    "an empty object": b"{}",
    "nested": b"[" * 100_000 + b"]" * 100_000,
    "nested a little": b'{"format": ' + b"[" * 40 + b"]" * 40 + b"}",
    "a huge integer": b'{"format": 1, "steps": ' + b"9" * 100_000 + b"}",
    "a huge float": b'{"format": 1, "steps": 1e999}',
    "a long float": b'{"format": 1, "steps": 0.' + b"1" * 100_000 + b"}",
    "NaN": b'{"format": 1, "steps": NaN}',
    "Infinity": b'{"format": 1, "steps": -Infinity}',
    "a key twice": b'{"format": 1, "format": 2}',
    "not UTF-8": b'{"format": "\xff\xfe"}',
    "a lone surrogate": b'{"format": "\\ud800"}',
    "zeros": bytes(1000),
    "a later format": b'{"format": 99}',
}


class _Evil:
    """Creates the file ``EVIL`` when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/adagoal-test-code-was-run",)


EVIL = Path("/tmp/adagoal-test-code-was-run")


def archive(entries: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name, data in entries.items():
            file.writestr(name, data)
    return buffer.getvalue()


def npy(descr: str, shape: str, data: bytes, magic: bytes = b"\x93NUMPY\x01\x00") -> bytes:
    head = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    head += b" " * (-(len(head) + len(magic) + 3) % 64) + b"\n"
    return magic + len(head).to_bytes(2, "little") + head + data


def _bomb() -> bytes:
    """Return about 3 MB that unpack to 3 GB: one compressed block of zeros, repeated."""
    packer, buffer, chunk, parts = zlib.compressobj(9, zlib.DEFLATED, -15), io.BytesIO(), bytes(2**24), 2**6
    head = packer.compress(npy("'<f8'", f"({2**27},)", b"")) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(chunk) + packer.flush(zlib.Z_FULL_FLUSH)
    with zipfile.ZipFile(buffer, "w") as file:
        for number in range(3):
            file.writestr(f"x{number}.npy", head + parts * block + packer.copy().flush())
        for entry in file.filelist:
            entry.compress_type, entry.file_size = zipfile.ZIP_DEFLATED, 128 + parts * len(chunk)
    return buffer.getvalue()


def _lying() -> bytes:
    """Return an archive with an entry that declares a smaller size than it has."""
    data = bytearray(archive({"x.npy": npy("'<f8'", "(1000,)", bytes(8000))}, zipfile.ZIP_STORED))
    at = data.rindex(b"PK\x01\x02") + 24
    data[at : at + 4] = (100).to_bytes(4, "little")
    return bytes(data)


_MAKERS: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "not a zip": lambda: b"PK\x03\x04" + bytes(200),
    "an empty zip": lambda: archive({}),
    "a pickle": lambda: pickle.dumps(_Evil()),
    "a pickled array": lambda: archive({"x.npy": npy("'|O'", "(1,)", pickle.dumps(_Evil()))}),
    "a pickled entry": lambda: archive({"x.npy": pickle.dumps(_Evil()), "x": pickle.dumps(_Evil())}),
    "a structured type": lambda: archive({"x.npy": npy("[('a', '<f8'), ('b', '|O')]", "(1,)", bytes(16))}),
    "another byte order": lambda: archive({"x.npy": npy("'>f8'", "(1,)", bytes(8))}),
    "strange booleans": lambda: archive({"x.npy": npy("'|b1'", "(4,)", b"\x00\x01\x02\xff")}),
    "an impossible type": lambda: archive({"x.npy": npy("'<i3'", "(1,)", bytes(3))}),
    "a negative size": lambda: archive({"x.npy": npy("'<f8'", "(-1,)", b"")}),
    "a huge size": lambda: archive({"x.npy": npy("'<f8'", "(99999999999999999,)", bytes(8))}),
    "a huge size times zero": lambda: archive({"x.npy": npy("'<f8'", "(0, 999999999999999999)", b"")}),
    "a long size": lambda: archive({"x.npy": npy("'<f8'", "(" + "9" * 5000 + ",)", b"")}),
    "many axes": lambda: archive({"x.npy": npy("'<f8'", "(" + "1, " * 60 + ")", bytes(8))}),
    "a nested head": lambda: archive({"x.npy": npy("(" * 2000, "(1,)", bytes(8))}),
    "a later version": lambda: archive({"x.npy": npy("'<f8'", "(1,)", bytes(8), b"\x93NUMPY\x09\x00")}),
    "a short entry": lambda: archive({"x.npy": npy("'<f8'", "(4,)", bytes(8))}),
    "many entries": lambda: archive({f"{i}.npy": b"" for i in range(10_001)}, zipfile.ZIP_STORED),
    "facts that are no JSON": lambda: archive({"__facts__.npy": npy("'|u1'", "(4,)", b"{[}]")}),
    "an entry that lies": _lying,
    "a bomb": _bomb,
}
ARCHIVES = {label: functools.cache(make) for label, make in _MAKERS.items()}
"""Invalid .npz files by name; each function makes the bytes."""


# --- forgery: the manifest altered with the file ---


def seal(folder: Path) -> None:
    """Rewrite the manifest to match the present files."""
    manifest, _ = manifests.read_manifest(folder / manifests.MANIFEST_FILE)

    def entry(path: Path, old: manifests.ManifestEntry) -> manifests.ManifestEntry:
        data = path.read_bytes()
        return manifests.ManifestEntry(old.generation, len(data), hashlib.sha256(data).hexdigest())

    states = tuple(
        {name: entry(staged_file_path(folder, name, old.generation), old) for name, old in state.items()}
        for state in manifest.checkpoints
    )
    results = {name: entry(folder / name, old) for name, old in manifest.results.items()}
    raw = replace(manifest, checkpoints=states, results=results).to_bytes()
    for name in (manifests.MANIFEST_FILE, manifests.MANIFEST_BACKUP_FILE):
        (folder / name).write_bytes(raw)


def forged(folder: Path, name: str, content: bytes) -> None:
    """Write content to a file (path relative to the folder) and update the manifest."""
    (folder / name).write_bytes(content)
    seal(folder)


def forged_arrays(folder: Path, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the arrays of a file, and the manifest with it."""
    with np.load(folder / name) as file:
        arrays = {key: file[key] for key in file.files}
    change(arrays)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    forged(folder, name, buffer.getvalue())


def forged_json(folder: Path, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a JSON file, and the manifest with it."""
    data = json.loads((folder / name).read_text())
    change(data)
    forged(folder, name, json.dumps(data, indent=1).encode())


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    """Fail if the block takes longer than this many seconds."""

    def late(*_: object) -> None:
        raise TimeoutError(f"took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def make_hostile(folder: Path) -> Path:
    """Add files that Python or a library might run or read; return the path that their code would create."""
    marker = folder.parent / f"{folder.name}-ran"
    for name in ("numpy", "struct", "json", "types", "ctypes", "click", "matplotlib"):
        (folder / f"{name}.py").write_text(
            f"open({str(marker)!r}, 'a').write('{name} ')\nraise ImportError('hostile')\n"
        )
    (folder / ".numba_config.yaml").write_text("cache_dir: forged\n")
    (folder / "matplotlibrc").write_bytes(b"backend: \xff")
    (folder / "libglfw.so").write_bytes(b"no library")
    (folder / "evil-1.0.dist-info").mkdir()
    (folder / "evil-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (folder / "evil-1.0.dist-info" / "entry_points.txt").write_text("[gymnasium.envs]\n__root__ = struct:evil\n")
    return marker


def command_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the console script ``adagoal`` in this directory."""
    script = folder.parent / "adagoal_script.py"
    script.write_text("from adagoal.cli.main import main\n\nif __name__ == '__main__':\n    main()\n")
    words = [sys.executable, str(script), *arguments]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
