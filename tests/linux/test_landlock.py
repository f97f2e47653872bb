"""What the kernel refuses to a process that may write in some folders only. There is no way back: each in a child."""

import subprocess
import sys
from pathlib import Path

import pytest

from rollcall.linux import landlock

needs_landlock = pytest.mark.skipif(landlock.version() < 2, reason="the kernel has no Landlock")
RESTRICT = "import os, sys; from rollcall.linux import landlock; assert landlock.write_only_in([sys.argv[1], '/dev']); "


def run(code: str, allowed: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", RESTRICT + code, str(allowed)], capture_output=True, text=True)


@needs_landlock
def test_files_change_in_the_named_folders_only(tmp_path: Path) -> None:
    allowed, other = tmp_path / "allowed", tmp_path / "other"
    allowed.mkdir()
    other.mkdir()
    (other / "old").write_text("old")
    inside = f"a = '{allowed}/a'; d = '{allowed}/d'; open(a, 'w').write('x'); os.mkdir(d); os.rename(a, d + '/a'); "
    refused = (
        f"open('{other}/new', 'w')",
        f"open('{other}/old', 'a')",
        f"os.remove('{other}/old')",
        f"os.rename('{other}/old', '{allowed}/old')",
        f"os.truncate('{other}/old', 0)",
    )
    tries = "".join(f"\ntry: {each}; print('changed')\nexcept OSError as error: print('refused')" for each in refused)
    found = run(inside + tries, allowed)
    assert found.stdout.split() == ["refused"] * len(refused), found.stderr
    assert (other / "old").read_text() == "old"
    assert (allowed / "d" / "a").read_text() == "x"


@needs_landlock
def test_so_it_is_for_programs_that_the_process_starts(tmp_path: Path) -> None:
    (tmp_path / "allowed").mkdir()
    found = run(f"sys.exit(os.system('echo x > {tmp_path}/new') != 0)", tmp_path / "allowed")
    assert found.returncode == 1
    assert not (tmp_path / "new").exists()


@needs_landlock
def test_what_can_be_read_can_still_be_read(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    found = run(f"print(open('{tmp_path}/old').read())", tmp_path / "nothing here")
    assert found.stdout.strip() == "old"
