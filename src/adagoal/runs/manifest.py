"""The manifest of a run folder: which files belong to the run, with their sizes and hashes.

    "format": 1, "kind": "exploration", "generation": 13,
    "states":  [{"checkpoint.npz": {"generation": 13, "size": ..., "sha256": ...}}, {... the one before it}],
    "results": {"result.json": {"generation": 12, "size": ..., "sha256": ...}, ...},
    "obsolete": [...], "checksum": ...

A generation is a save. An entry's generation is the save that wrote the file: what did not change is not written again.
The checksum is over everything else; a manifest is accepted only if it is byte for byte what this module would write.
It guards against damage, not against forgery: whoever alters a file can alter the manifest with it. That is why what
was read is checked against its schema as well.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adagoal.core import files
from adagoal.core.errors import InputError
from adagoal.core.schema import check_json_value

MANIFEST_FORMAT = 1
"""Of the manifest and of every ``result.json``."""
KINDS = ("exploration", "training")
MANIFEST_FILE, MANIFEST_BACKUP_FILE = "manifest.json", "manifest.backup.json"

_FILE_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\.[a-z]{1,8}")
_ENTRY_SCHEMA = {
    "type": "object",
    "required": ["generation", "size", "sha256"],
    "additionalProperties": False,
    "properties": {
        "generation": {"type": "integer", "minimum": 0, "maximum": 10**12},
        "size": {"type": "integer", "minimum": 0, "maximum": 2**50},
        "sha256": {"type": "string", "minLength": 64, "maxLength": 64},
    },
}
_ENTRIES_SCHEMA = {"type": "object", "additionalProperties": _ENTRY_SCHEMA}
_MANIFEST_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["format", "kind", "generation", "states", "results", "obsolete", "checksum"],
    "additionalProperties": False,
    "properties": {
        "format": {"enum": [MANIFEST_FORMAT]},
        "kind": {"enum": list(KINDS)},
        "generation": {"type": "integer", "minimum": 1, "maximum": 10**12},
        "states": {"type": "array", "maxItems": 2, "items": _ENTRIES_SCHEMA},
        "results": _ENTRIES_SCHEMA,
        "obsolete": {"type": "array", "maxItems": 1000, "items": {"type": "string"}},
        "checksum": {"type": "string"},
    },
}


@dataclass(frozen=True)
class ManifestEntry:
    """One file, as it was written."""

    generation: int
    size: int
    sha256: str


ManifestEntries = dict[str, ManifestEntry]


@dataclass(frozen=True)
class Manifest:
    """What a run folder holds."""

    kind: str
    generation: int
    checkpoints: tuple[ManifestEntries, ...]
    """The files of the last checkpoint and of the one before it."""
    results: ManifestEntries
    obsolete_files: tuple[str, ...] = ()
    """Files of an earlier run, which this commit makes void."""

    def to_bytes(self) -> bytes:
        """The file; equal manifests give equal bytes."""
        data = {
            "format": MANIFEST_FORMAT,
            "kind": self.kind,
            "generation": self.generation,
            "states": [_entries_to_json(state) for state in self.checkpoints],
            "results": _entries_to_json(self.results),
            "obsolete": list(self.obsolete_files),
        }
        checksum = hashlib.sha256(_dump_manifest_json(data)).hexdigest()
        return _dump_manifest_json({**data, "checksum": checksum}) + b"\n"


def is_valid_file_name(name: str) -> bool:
    """Whether a file may have this name in a run folder; nothing outside the folder can be named."""
    return _FILE_NAME_PATTERN.fullmatch(name) is not None and name not in (MANIFEST_FILE, MANIFEST_BACKUP_FILE)


def read_manifest(path: Path) -> tuple[Manifest, bytes]:
    """A manifest and its bytes; what is wrong with it is one line."""
    with files.open_regular_file(path) as (file, size), files.report_read_errors(path):
        if size > 2**20:
            raise ValueError("larger than a manifest can be")
        raw = file.read(size)
        data = files.parse_json(raw)
        found = data.get("format") if isinstance(data, dict) else None
        if isinstance(found, int) and found != MANIFEST_FORMAT:
            raise InputError(f"{path}: format {found} is not known to this version (it reads format {MANIFEST_FORMAT})")
        check_json_value(_MANIFEST_SCHEMA, data)
        states = tuple({name: ManifestEntry(**entry) for name, entry in state.items()} for state in data["states"])
        results = {name: ManifestEntry(**entry) for name, entry in data["results"].items()}
        names = [*(name for state in (*states, results) for name in state), *data["obsolete"]]
        manifest = Manifest(data["kind"], data["generation"], states, results, tuple(data["obsolete"]))
        if not all(map(is_valid_file_name, names)):
            raise ValueError("it names files that cannot be in a run folder")
        if manifest.to_bytes() != raw:
            raise InputError(f"{path}: altered or damaged (its checksum does not match)")
    return manifest, raw


def _entries_to_json(entries: ManifestEntries) -> dict[str, Any]:
    return {name: vars(entry) for name, entry in entries.items()}


def _dump_manifest_json(data: object) -> bytes:
    return json.dumps(data, indent=1).encode()
