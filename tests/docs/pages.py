"""Reads the pages of the documentation: their links, headings, code blocks and code spans."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted(REPOSITORY.glob("docs/**/*.md"))
_BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
_END_OF_COMMAND = {"|", "&&", "||", ";", "&", ">", "2>"}


@dataclass(frozen=True)
class Page:
    """One Markdown file."""

    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def prose(self) -> str:
        """The text without its code blocks."""
        return _BLOCK.sub("", self.text)

    @property
    def blocks(self) -> list[tuple[str, str]]:
        """Language and content of each code block."""
        return _BLOCK.findall(self.text)

    @property
    def spans(self) -> list[str]:
        """What stands between backquotes in a sentence or table. A table escapes its bars."""
        return [span.replace("\\|", "|") for span in _SPAN.findall(self.prose)]

    @property
    def links(self) -> list[str]:
        """Targets of links and pictures that are not on the web."""
        without_code = _SPAN.sub("`code`", self.prose)
        return [target for target in _LINK.findall(without_code) if not target.startswith(("http:", "https:"))]

    @property
    def anchors(self) -> set[str]:
        return {anchor(heading) for heading in _HEADING.findall(self.prose)}

    @property
    def shell_lines(self) -> Iterator[str]:
        """Each line that a reader types: of `sh` blocks all, of `console` blocks those after a `$`."""
        for language, content in self.blocks:
            lines = content.replace("\\\n", " ").splitlines()
            if language == "sh":
                yield from lines
            elif language == "console":
                yield from (line[2:] for line in lines if line.startswith("$ "))

    def typed(self, program: str) -> list[list[str]]:
        """The arguments of each call of a program in a code block."""
        lines = (shlex.split(line, comments=True) for line in self.shell_lines)
        return [call for words in lines for call in _calls(program, words)]

    def mentioned(self, program: str) -> list[list[str]]:
        """The same in sentences and tables. What has `…` in it leaves words out, so it is passed over."""
        whole = (shlex.split(span) for span in self.spans if "…" not in span and span.count("'") % 2 == 0)
        return [call for words in whole for call in _calls(program, words)]


def anchor(heading: str) -> str:
    """The anchor that GitHub makes from a heading."""
    kept = re.sub(r"[^\w\- ]", "", heading.lower())
    return kept.replace(" ", "-")


def _calls(program: str, words: list[str]) -> list[list[str]]:
    """The arguments of each call of a program in a line, also behind `srun` or in a pipe."""
    places = [place for place, word in enumerate(words) if word == program and _is_command(words[:place])]
    return [call for place in places if (call := _until_end(words[place + 1 :]))]


def _is_command(before: list[str]) -> bool:
    """Whether a word stands where a shell expects a command."""
    return not before or before[-1] in _END_OF_COMMAND or before[0] == "srun" or "=" in before[-1]


def _until_end(words: list[str]) -> list[str]:
    ends = [place for place, word in enumerate(words) if word in _END_OF_COMMAND]
    return words[: ends[0]] if ends else words
