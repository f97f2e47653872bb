"""Logging for programs with ranks: a file for each rank, the console for rank 0 or for all."""

import logging
from pathlib import Path

from rich.console import Console
from rich.logging import RichHandler

from rollcall.errors import UsageError

FORMAT = "%(asctime)s [%(levelname)s]: %(message)s"
DATE_FORMAT = "%Y-%m-%d %H:%M:%S"


def configure_logger(
    rank: int,
    folder: str | Path | None = ".",
    *,
    level: int | str = logging.INFO,
    console: bool = True,
    all_ranks: bool = False,
) -> logging.Logger:
    """The logger of a rank: `process_<rank>.log` in `folder`, and the console on rank 0.

    `folder=None` writes no file, `console=False` prints nothing, `all_ranks=True` lets every rank print.
    A second call replaces the handlers of the first.
    """
    handlers: list[logging.Handler] = []
    if folder is not None:
        handlers.append(_open_file(Path(folder), rank))
    if console and (all_ranks or rank == 0):
        handlers.append(ConsoleHandler())
    return _set_up(f"rollcall.process_{rank}", handlers, level, FORMAT)


def console_logger(rank: int, name_rank: bool) -> logging.Logger:
    """The logger of a World: every rank prints to the console, and writes no file.

    Under `rollcall run` the console puts the rank before each line; otherwise the line itself must name it.
    """
    line = FORMAT.replace("%(message)s", f"rank {rank}: %(message)s") if name_rank else FORMAT
    return _set_up(f"rollcall.rank_{rank}", [ConsoleHandler()], logging.INFO, line)


class ConsoleHandler(RichHandler):
    """Rich's colours without its layout: a record is never wrapped."""

    def __init__(self) -> None:
        super().__init__(console=Console(stderr=True), markup=False)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = self.render_message(record, self.format(record))
            self.console.print(message, soft_wrap=True)
        except Exception:
            self.handleError(record)


def _open_file(folder: Path, rank: int) -> logging.Handler:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return logging.FileHandler(folder / f"process_{rank}.log", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"log folder {folder} cannot be written ({error.strerror}): use one that can") from error


def _set_up(name: str, handlers: list[logging.Handler], level: int | str, line: str) -> logging.Logger:
    logger = logging.getLogger(name)
    for old in logger.handlers[:]:
        logger.removeHandler(old)
        old.close()
    for handler in handlers:
        handler.setFormatter(logging.Formatter(line, DATE_FORMAT))
        logger.addHandler(handler)
    logger.setLevel(level)
    # The root logger may have a console handler too: every line would be printed twice.
    logger.propagate = False
    return logger
