"""Run with `make matrix`: tries rollcall on each version of torch and Python below, and writes docs/compatibility.md.

    make matrix                            all versions: takes about an hour and downloads 9 GB
    make matrix MATRIX='--only 2.9.1'      only this torch; the page keeps its rows of other versions
    make matrix MATRIX='--python 3.13'     only this Python
    make matrix MATRIX='--tests record'    only this part of the tests
    make matrix MATRIX='--failed'          only tests that failed the last time, for example on a busy machine
    make matrix MATRIX='--page'            runs no test: writes the page from docs/compatibility.json
    make matrix MATRIX='--keep --folder F' keeps the environments in F, and uses them again the next time

It makes one environment at a time, and removes its folder afterwards: a torch with CUDA takes seven gigabytes.
"""

import argparse
import contextlib
import datetime
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs/compatibility.json"
PAGE = ROOT / "docs/compatibility.md"


@dataclass(frozen=True)
class Versions:
    torch: str
    python: str


# The oldest and the newest torch, two between them; the oldest Python and newer ones.
TRIED = (
    Versions("2.9.1", "3.11"),
    Versions("2.11.0", "3.12"),
    Versions("2.13.0", "3.11"),
    Versions("2.15.0", "3.13"),
    Versions("2.15.0", "3.14"),
)
# The tests that tell whether a version works. Others test what does not depend on torch.
TESTS = {
    "start": ("tests/coordinator/test_run.py", "tests/initialization/test_process_group.py", "tests/functions"),
    "record": (
        "tests/compat",
        "tests/record/hooks",
        "tests/record/test_cuda_timing.py",
        "tests/record/test_recorder.py",
        "tests/record/test_any_launcher.py",
        "tests/record/test_programs.py",
    ),
    "explain": ("tests/explain/test_corpus.py",),
    "train": ("tests/train/test_trainer.py", "tests/train/checkpoint"),
}
PACKAGES = ("hypothesis", "pytest", "pytest-xdist", "tensorboard")
BEGIN, END = "<!-- matrix -->\n", "<!-- end of matrix -->\n"
NOTHING_LOST = "Every hook and every private name works in each row."
_COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped)")


def main() -> int:
    options = read_options()
    chosen = () if options.page else [versions for versions in TRIED if is_asked_for(versions, options)]
    for versions in chosen:
        print(f"torch {versions.torch}, Python {versions.python}", flush=True)
        name = f"{versions.torch} {versions.python}"
        before = read_results().get(name, {}).get("tests", {})
        result = try_versions(versions, chosen_tests(options, before), options)
        again = {each: merge(before[each], now) if options.failed else now for each, now in result["tests"].items()}
        result["tests"] = {**before, **again}
        results = {**read_results(), name: result}  # another call may have tried other versions meanwhile
        RESULTS.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")
    results = read_results()
    PAGE.write_text(page(results))
    return 1 if any(has_failed(result) for result in results.values()) else 0


def read_results() -> dict[str, Any]:
    """By names of versions."""
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


def read_options() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", default="", metavar="TORCH", help="the environments with this torch")
    options.add_argument("--python", default="", metavar="PYTHON", help="the environments with this Python")
    options.add_argument("--tests", default=",".join(TESTS), metavar="START,…", help="a part of the tests")
    options.add_argument("--page", action="store_true", help="write the page from the last results")
    options.add_argument("--folder", type=Path, help="where environments are made (a temporary folder)")
    options.add_argument("--keep", action="store_true", help="leave the environments in the folder, and use them again")
    options.add_argument("--failed", action="store_true", help="run only the tests that failed the last time")
    options.add_argument("--minutes", type=float, default=45, help="the longest that a part of the tests may take (45)")
    options.add_argument("--workers", type=int, default=4, help="tests at a time (4)")
    return options.parse_args()


def is_asked_for(versions: Versions, options: argparse.Namespace) -> bool:
    return options.only in ("", versions.torch) and options.python in ("", versions.python)


def chosen_tests(options: argparse.Namespace, before: dict[str, Any]) -> dict[str, Sequence[str]]:
    """By name of a part: what pytest is to run."""
    if options.failed:
        return {name: sorted(set(tests["failed"])) for name, tests in before.items() if tests["failed"]}
    return {name: TESTS[name] for name in options.tests.split(",")}


def merge(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The results of all tests, after those that had failed were run again."""
    counts = {**before["counts"], "passed": before["counts"].get("passed", 0) + now["counts"].get("passed", 0)}
    counts = {what: number for what, number in counts.items() if what not in ("failed", "error")}
    return {**now, "counts": counts | ({"failed": len(set(now["failed"]))} if now["failed"] else {})}


def try_versions(versions: Versions, tests: dict[str, Sequence[str]], options: argparse.Namespace) -> dict[str, Any]:
    """What works in an environment with these versions; or why there is none."""
    interpreter = find_python(versions.python)
    if interpreter is None:
        return {"problem": f"there is no Python {versions.python} on this machine", "tests": {}}
    with environment_folder(versions, options.folder, options.keep) as folder:
        try:
            python = make_environment(folder, interpreter, versions)
        except subprocess.CalledProcessError as error:
            return {"problem": f"cannot be installed: {last_line(error.stderr)}", "tests": {}}
        ran = run_tests(python, tests, options.workers, 60 * options.minutes)
        return {**asdict(versions), **examine(python), "tests": dict(ran)}


@contextlib.contextmanager
def environment_folder(versions: Versions, folder: Path | None, is_kept: bool) -> Iterator[Path]:
    """A new folder that is removed afterwards; or one that stays, by the name of the versions."""
    if is_kept:
        kept = (folder or Path(tempfile.gettempdir())) / f"{versions.torch}-{versions.python}"
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
        return
    with tempfile.TemporaryDirectory(prefix="rollcall-matrix-", dir=folder) as temporary:
        yield Path(temporary)


def find_python(version: str) -> str | None:
    """From the path, or from pyenv."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    home = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    kept = sorted(home.glob(f"versions/{version}.*/bin/python"))
    return str(kept[-1]) if kept else shutil.which(f"python{version}")


def make_environment(folder: Path, interpreter: str, versions: Versions) -> str:
    """Installs torch and a wheel of rollcall, as a user does, with its C++ parts compiled. Returns its Python. A kept
    environment that has this rollcall already stays as it is."""
    python = str(folder / "env/bin/python")
    stamp, sources = folder / "sources", hash_of_sources()
    if stamp.exists() and stamp.read_text() == sources:
        return python
    if not Path(python).exists():
        run([interpreter, "-m", "venv", str(folder / "env")])
    pinned = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("torch==")]
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join([*pinned, f"torch=={versions.torch}"]) + "\n")
    words = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", str(constraints)]
    run([*words, "torch", "numpy"])
    run([*words, f"{ROOT}[demo]", *PACKAGES])
    run([*words, "--force-reinstall", "--no-deps", str(ROOT)])  # a kept environment has that of another day
    subprocess.run([python, "-m", "rollcall.native"], cwd=folder, env=environ(), check=False)
    stamp.write_text(sources)
    return python


def hash_of_sources() -> str:
    """Of all that the wheel is made of."""
    paths = sorted(path for path in (ROOT / "src").rglob("*") if path.suffix in (".py", ".pth", ".cpp", ".h"))
    found = hashlib.sha256()
    for path in (ROOT / "pyproject.toml", *paths):
        found.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return found.hexdigest()


def examine(python: str) -> dict[str, Any]:
    """What `rollcall doctor` finds there."""
    with tempfile.TemporaryDirectory() as elsewhere:
        words = [python, "-m", "rollcall", "doctor", "--json"]
        ran = subprocess.run(words, cwd=elsewhere, env=environ(), capture_output=True, text=True, check=False)
    try:
        found = json.loads(ran.stdout)
    except ValueError:
        return {"problem": f"`rollcall doctor` fails: {last_line(ran.stderr)}"}
    compat = {row["name"]: [row["state"], row["lost_without"]] for row in found["compat"] if row["state"] != "ok"}
    return {"compat_count": len(found["compat"]), "compat": compat, "hooks": found["hooks"]}


def run_tests(
    python: str, tests: dict[str, Sequence[str]], workers: int, limit_s: float
) -> Iterator[tuple[str, dict[str, Any]]]:
    """A part that takes longer than the limit is ended: nobody may be there to see that it hangs."""
    today = datetime.date.today().isoformat()
    pytest = [python, "-m", "pytest", "-q", "-n", str(workers), "--dist", "worksteal", "-p", "no:cacheprovider"]
    for name, paths in tests.items():
        words = [*pytest, *paths]
        try:
            ran = subprocess.run(
                words, cwd=ROOT, env=environ(), capture_output=True, text=True, check=False, timeout=limit_s
            )
        except subprocess.TimeoutExpired:
            print(f"  {name}: took longer than {limit_s / 60:g} minutes, and was ended", flush=True)
            yield name, {"code": 124, "counts": {"failed": 1}, "failed": list(paths), "date": today}
            continue
        counts = {what.rstrip("s"): int(number) for number, what in _COUNT.findall(last_line(ran.stdout))}
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", ran.stdout, re.MULTILINE)
        print(f"  {name}: {last_line(ran.stdout)}", *failed, sep="\n    ", flush=True)
        if failed:
            keep_output(f"{Path(python).parents[2].name}-{name}.txt", ran.stdout)
        yield name, {"code": ran.returncode, "counts": counts, "failed": failed, "date": today}


def keep_output(name: str, text: str) -> None:
    """What failing tests said: the environment that they ran in may be gone."""
    path = ROOT / ".rollcall/matrix" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    print(f"    {path}", flush=True)


def environ() -> dict[str, str]:
    """Without what would import rollcall from somewhere else."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}


def run(words: list[str]) -> None:
    subprocess.run(words, env=environ(), check=True, capture_output=True, text=True)


def last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def has_failed(result: dict[str, Any]) -> bool:
    return "problem" in result or any(each["code"] for each in result["tests"].values())


def page(results: dict[str, Any]) -> str:
    """The page, with these results between its two marks. The rest of it is written by hand."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table(results)}{END}{after}"


def table(results: dict[str, Any]) -> str:
    head = ["torch", "Python", *TESTS, "hooks", "private names", "run on"]
    rows = [row(name, results[name]) for name in sorted(results, key=numbers)]
    lost = sorted({line for result in results.values() for line in losses(result)}, key=by_numbers)
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|", *rows, "", *(lost or [NOTHING_LOST])]
    return "\n".join(lines) + "\n"


def row(name: str, result: dict[str, Any]) -> str:
    torch, python = name.split()
    if "problem" in result:
        return f"| {torch} | {python} | {result['problem']} |" + " |" * (len(TESTS) + 2)
    seen, missing = len(result["hooks"]["seen"]), len(result["hooks"]["missing"])
    works = result["compat_count"] - len(result["compat"])
    cells = [count(result["tests"][each]) if each in result["tests"] else "not run" for each in TESTS]
    cells += [f"{seen} of {seen + missing}", f"{works} of {result['compat_count']}", dates(result["tests"])]
    return f"| {torch} | {python} | " + " | ".join(cells) + " |"


def count(tests: dict[str, Any]) -> str:
    counts = tests["counts"]
    total = sum(number for what, number in counts.items() if what != "skipped")
    return f"{counts.get('passed', 0)} of {total}"


def dates(tests: dict[str, Any]) -> str:
    """When they were run, the oldest first: what is there of an older day may have changed since."""
    return ", ".join(sorted({each.get("date", "an earlier day") for each in tests.values()}))


def losses(result: dict[str, Any]) -> Iterator[str]:
    """What does not work there, a line each."""
    if "problem" in result:
        return
    where = f"- torch {result['torch']}, Python {result['python']}"
    for name, (state, lost) in result["compat"].items():
        yield f"{where}: `{name}` does not work ({state}): {lost}."
    for name in result["hooks"]["missing"]:
        yield f"{where}: {name} is not recorded."
    for tests in result["tests"].values():
        for name in tests["failed"]:
            yield f"{where}: `{name}` fails."


def numbers(text: str) -> list[int]:
    """A version is greater by its numbers, not by its letters."""
    return [int(number) for number in re.findall(r"\d+", text)]


def by_numbers(text: str) -> tuple[list[int], str]:
    """Lines with the same numbers have an order, too."""
    return numbers(text), text


if __name__ == "__main__":
    sys.exit(main())
