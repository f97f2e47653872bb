"""A rehearsed rank touches nothing. Each program runs in a process of its own: its functions for files are replaced."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rollcall.linux import landlock
from rollcall.rehearse.rank import files

START = """
import numpy, os, shutil, socket, sys
from pathlib import Path
from rollcall.rehearse.rank import files
root = Path(sys.argv[1])
files.install(root, root, str(root.parents[1] / "temporary"))
"""


def ran(folder: Path, program: str) -> str:
    words = [sys.executable, "-c", START + program, str(folder / "run/files/rank-0")]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_what_is_written_goes_to_the_folder_of_the_run_and_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("old")
    said = ran(
        tmp_path,
        """
os.makedirs("a/b", exist_ok=True)
Path("a/b/new.txt").write_text("new")
with open("old.txt", "a") as file:
    file.write(" and new")
os.replace("a/b/new.txt", "a/b/moved.txt")
print(open("old.txt").read(), os.path.exists("a/b/moved.txt"), os.listdir("a/b"))
os.remove("old.txt")
shutil.rmtree("a")
print(os.path.exists("a/b/moved.txt"))
""",
    )
    assert said.splitlines() == ["old and new True ['moved.txt']", "False"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["old.txt", "run"]
    assert (tmp_path / "old.txt").read_text() == "old"


def test_no_connection_is_opened(tmp_path: Path) -> None:
    program = """
try:
    socket.create_connection(("127.0.0.1", 9))
except OSError as error:
    print(error.strerror)
"""
    assert "opens no connection" in ran(tmp_path, program)


def test_another_rank_sees_a_file_of_the_first_once_it_has_come_to_the_same_op() -> None:
    journal = files.Journal(lambda: ops)
    ops = 3
    journal.note_written("/a/marker")
    assert [journal.is_there("/a/marker", its) for its in (3, 4, 9)] == [False, True, True]
    ops = 5
    journal.note_removed("/a/marker")
    assert [journal.is_there("/a/marker", its) for its in (3, 4, 5, 6)] == [False, True, True, False]


def test_links_databases_and_text_of_numpy_go_there_too(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("old")
    said = ran(
        tmp_path,
        """
import sqlite3
os.makedirs("made/inner")
Path("made/inner/a.txt").write_text("a")
shutil.copytree("made", "copied")
os.symlink("old.txt", "link.txt")
os.link("old.txt", "second.txt")
for name in ("link.txt", "second.txt"):
    Path(name).write_text("new")
numpy.savetxt("numbers.txt", numpy.ones(2))
database = sqlite3.connect("data.sqlite")
database.execute("create table words (word)")
database.close()
try:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"", ("127.0.0.1", 9))
except ConnectionRefusedError:
    print("refused")
os.chdir("copied/inner")
print(open("a.txt").read())
""",
    )
    assert said.splitlines() == ["refused", "a"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["old.txt", "run"]
    assert (tmp_path / "old.txt").read_text() == "old"


def test_what_was_there_before_is_gone_for_the_rank_that_removes_or_moves_it(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    for name in ("a", "b"):
        (tmp_path / "old" / name).write_text(name)
    said = ran(
        tmp_path,
        """
os.remove("old/a")
os.replace("old/b", "c")
print(os.path.exists("old/a"), os.path.exists("old/b"), os.listdir("old"), open("c").read())
os.rmdir("old")
print(os.path.exists("old"))
os.mkdir("old")
Path("old/new").write_text("new")
try:
    os.rmdir("old")
except OSError as error:
    print(error.strerror)
os.remove("old/new")
print(os.listdir("old"))
""",
    )
    assert said.splitlines() == ["False False [] b", "False", "Directory not empty", "[]"]
    assert sorted(each.name for each in (tmp_path / "old").iterdir()) == ["a", "b"]


def test_an_open_file_of_others_keeps_its_mode_and_its_times(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("old")
    before = old.stat()
    ran(tmp_path, 'fd = os.open("old", os.O_RDONLY); os.fchmod(fd, 0o777); os.chmod(fd, 0o777); os.utime(fd, (0, 0))')
    assert (old.stat().st_mode, old.stat().st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


def test_a_socket_of_others_is_refused_and_one_of_the_rank_itself_is_not(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as others:
        others.bind(str(tmp_path / "others"))
        others.listen()
        said = ran(
            tmp_path,
            """
mine = socket.socket(socket.AF_UNIX)
mine.bind(str(root.parents[1] / "mine"))
mine.listen()
for path in (root.parents[1] / "mine", "others"):
    try:
        socket.socket(socket.AF_UNIX).connect(str(path))
        print("connected")
    except ConnectionRefusedError:
        print("refused")
""",
        )
    assert said.split() == ["connected", "refused"]


@pytest.mark.skipif(landlock.version() < 2, reason="the kernel has no Landlock")
def test_programs_and_code_in_c_are_refused_to_write(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    said = ran(
        tmp_path,
        """
import ctypes
print(os.system("echo x > new; rm -f old") != 0, ctypes.CDLL(None).unlink(b"old"))
""",
    )
    assert said == "True -1"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["old", "run"]
