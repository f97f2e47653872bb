"""Everything that was measured, as JSON (for --compare) and CSV."""

import csv
import io
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from rollcall.bench.settings import BenchSettings, Placement
from rollcall.errors import UsageError, cannot_write

FORMAT = 1
FILE = "bench.json"  # in the folder of the run


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class Row(_Frozen):
    """One op at one size. Bandwidths are of the mean time, as in nccl-tests; 1 GB/s is 1e9 bytes in a second."""

    op: str
    dtype: str
    size_bytes: int
    place: Placement
    iterations: int
    mean_s: float
    min_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    algorithm_gb_s: float
    bus_gb_s: float
    wrong: int  # elements, over all ranks
    rounds_s: tuple[float, ...]  # the median of each round; differences between rounds are noise
    groups: str = ""  # the ranks of the groups that called it at the same time; empty: all ranks
    calls: int = 0  # of a recorded run
    recorded_s: float | None = None  # how long one took there

    @property
    def key(self) -> tuple[str, str, int, str]:
        return f"{self.op}{self.groups}", self.dtype, self.size_bytes, self.place


class Pair(_Frozen):
    """Two hosts: half of a message's round trip between them, and the bandwidth of a large message."""

    start: str
    end: str
    latency_s: float
    gb_s: float


class MpiRow(_Frozen):
    op: str
    size_bytes: int
    mean_s: float
    algorithm_gb_s: float


class Mpi(_Frozen):
    """Open MPI's times on this machine, or why there are none."""

    version: str = ""
    rows: tuple[MpiRow, ...] = ()
    missing: str = ""


class BenchResults(_Frozen):
    format: int = FORMAT
    settings: BenchSettings
    ranks: int
    hosts: tuple[str, ...]  # by rank
    backend: str
    device: str
    versions: dict[str, str]
    seconds: float
    rows: tuple[Row, ...] = ()
    pairs: tuple[Pair, ...] = ()
    left_out: tuple[str, ...] = ()  # what was not measured, and why
    mpi: Mpi | None = None


def read(path: Path) -> BenchResults:
    try:
        results = BenchResults.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {path} ({error.strerror}): name a file of `rollcall bench --json`") from error
    except ValidationError as error:
        raise UsageError(f"{path} is not what `rollcall bench --json` writes: {_first_of(error)}") from error
    if results.format > FORMAT:
        raise UsageError(
            f"{path} has format {results.format}, and this rollcall reads up to {FORMAT}: use a newer rollcall"
        )
    return results


def _first_of(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return f"{first['msg']}{f' at {where}' if where else ''}"


def write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise cannot_write(path, error) from error


def to_csv(results: BenchResults) -> str:
    out = io.StringIO()
    names = [name for name in Row.model_fields if name != "rounds_s"]
    writer = csv.DictWriter(out, ["ranks", "backend", *names], lineterminator="\n")
    writer.writeheader()
    for row in results.rows:
        writer.writerow({"ranks": results.ranks, "backend": results.backend, **row.model_dump(exclude={"rounds_s"})})
    return out.getvalue()
