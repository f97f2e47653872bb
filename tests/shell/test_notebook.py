"""`%load_ext rollcall` in a real Jupyter kernel, by nbclient."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.rollcall_command import Runner

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

EXAMPLE = Path(__file__).parents[2] / "examples" / "ranks_in_a_notebook.ipynb"
Outputs = list[Any]
# Until the launcher has said where the ranks are.
HANGS = """%%ranks
import sys, time
from pathlib import Path
said = Path(sys._getframe().f_code.co_filename).with_name("launcher.txt")
while not rank and "where the ranks are" not in said.read_text():
    time.sleep(0.2)
dist.barrier()"""


@pytest.fixture
def executed(rollcall: Runner, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Outputs]]:
    """The outputs of each cell. The kernel's own files are in the folder of the test."""
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, str(rollcall.folder / name))
    for name, value in rollcall.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)  # with it, a kernel writes some outputs elsewhere

    def execute(notebook: Any, allow_errors: bool = False) -> list[Outputs]:
        client = nbclient.NotebookClient(
            notebook,
            timeout=120,
            allow_errors=allow_errors,
            kernel_name="python3",
            resources={"metadata": {"path": str(rollcall.folder)}},
        )
        client.execute()
        return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]

    return execute


def of_cells(*cells: str) -> Any:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])


def text(outputs: Outputs) -> str:
    return "".join(output.get("text", "") for output in outputs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_example(executed: Callable[..., list[Outputs]], rollcall: Runner) -> None:
    """Equal answers once, others by rank; variables stay; a picture per rank; explain as a rich result; tables."""
    _, summed, by_rank, pictures, _, explained, table, _ = executed(nbformat.read(EXAMPLE, as_version=4))
    assert text(summed) == "0-3 │ tensor([6., 6.])\n"
    assert sorted(text(by_rank).splitlines()) == [f"  {rank} │ {rank * 10}" for rank in range(4)]
    assert ["image/png" in output.data for output in pictures if output.output_type == "display_data"] == [True, True]
    assert text(pictures).startswith("0 │ <Figure")
    assert "<caption>who waited for whom" in explained[0].data["text/html"]
    assert "4 of 4 ranks recorded" in explained[0].data["text/plain"]
    assert table[0].data["text/plain"].startswith("rank\n0 ")
    assert rollcall.wait_until_gone() == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_errors(executed: Callable[..., list[Outputs]]) -> None:
    """A cell that fails on a rank is an error of the notebook, with that rank's traceback, and the ranks stay; a cell
    that hangs is explained in the notebook; what cannot work is one sentence."""
    cells = (
        "%load_ext rollcall",
        "%%ranks 2 --hang-after 1\nx = rank",
        "%%ranks\n1 / (1 - rank)",
        "%%ranks\nx",
        "%%ranks 3\nx",
        "%%ranks --rank 7\nx",
        HANGS,
        "%%ranks\nimport os\nos._exit(3) if rank else time.sleep(60)",
        "%%ranks\nx",
    )
    _, _, failed, kept, other, missing, hung, gone, none = executed(of_cells(*cells), allow_errors=True)
    assert failed[-1].evalue == "ZeroDivisionError: division by zero (on rank 1)"
    assert "1 / (1 - rank)" in failed[-1].traceback[0]
    assert "0 │ 1.0" in text(failed)
    assert sorted(text(kept).splitlines()) == ["  0 │ 0", "  1 │ 1"]
    assert "this notebook has 2 ranks already" in text(other)
    assert "there is no rank 7: they are 0-1" in text(missing)
    assert "rank 1 waits in barrier" in text(hung)
    assert "rank 1 exited with code 3" in text(gone)
    assert "the ranks have ended" in text(gone)
    assert "there are no ranks yet: say how many" in text(none)
