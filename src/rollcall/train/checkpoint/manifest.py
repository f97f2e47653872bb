"""The manifest of a snapshot: what it contains, and the checksum of every other file. It is written last.

A snapshot without a manifest, or with a file that does not match it, is treated as damaged.
"""

import hashlib
import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

FILE_NAME = "manifest.json"
FORMAT = 1


class Checksum(BaseModel):
    model_config = ConfigDict(frozen=True)

    size_bytes: int
    sha256: str


class Manifest(BaseModel):
    model_config = ConfigDict(frozen=True)

    format: int = FORMAT
    step: int
    epoch: int
    number: int = 0  # of this snapshot in its training, from 1 on
    world_size: int
    optimizer: str | None  # its class: another class cannot use its state
    torch: str
    files: dict[str, Checksum]


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a snapshot. Raises ValueError with a reason if there is none that can be read."""
    try:
        manifest = Manifest.model_validate_json((folder / FILE_NAME).read_bytes())
    except FileNotFoundError:
        raise ValueError("it has no manifest") from None
    except (OSError, ValidationError) as error:
        raise ValueError(f"its manifest cannot be read ({str(error).splitlines()[0]})") from None
    if manifest.format != FORMAT:
        raise ValueError(f"its format is {manifest.format}, this rollcall reads {FORMAT}")
    return manifest


def find_damage(folder: Path, name: str, expected: Checksum) -> str | None:
    """What is wrong with a file of a snapshot, if anything is."""
    try:
        found = compute_checksum(folder / name)
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    if found.size_bytes != expected.size_bytes:
        return f"{name} has {found.size_bytes:,} bytes, expected {expected.size_bytes:,}"
    return None if found == expected else f"{name} is damaged (its checksum differs)"


def compute_checksum(path: Path) -> Checksum:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Checksum(size_bytes=os.fstat(file.fileno()).st_size, sha256=digest)
