"""The last file of a snapshot to be written: what it holds, and the checksum of every other file.

A snapshot without a manifest, or with a file that is not as the manifest says, is not there.
"""

import hashlib
import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

NAME = "manifest.json"
FORMAT = 1


class File(BaseModel):
    model_config = ConfigDict(frozen=True)

    size_bytes: int
    sha256: str


class Manifest(BaseModel):
    model_config = ConfigDict(frozen=True)

    format: int = FORMAT
    step: int
    epoch: int
    world_size: int
    optimizer: str | None  # its class: the state of another one means nothing to it
    torch: str
    files: dict[str, File]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files.values())


def read(folder: Path) -> Manifest:
    """The manifest of a snapshot; ValueError in words if there is none that can be read."""
    try:
        manifest = Manifest.model_validate_json((folder / NAME).read_bytes())
    except FileNotFoundError:
        raise ValueError("it has no manifest") from None
    except (OSError, ValidationError) as error:
        raise ValueError(f"its manifest cannot be read ({str(error).splitlines()[0]})") from None
    if manifest.format != FORMAT:
        raise ValueError(f"its format is {manifest.format}, this rollcall reads {FORMAT}")
    return manifest


def check_file(folder: Path, name: str, expected: File) -> str | None:
    """What is wrong with a file of a snapshot, if anything is."""
    try:
        found = describe(folder / name)
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    if found.size_bytes != expected.size_bytes:
        return f"{name} has {found.size_bytes:,} bytes in place of {expected.size_bytes:,}"
    return None if found == expected else f"{name} is damaged (its checksum differs)"


def describe(path: Path) -> File:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return File(size_bytes=os.fstat(file.fileno()).st_size, sha256=digest)
