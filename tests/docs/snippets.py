"""What README.md and docs/*.md contain for a reader to run or copy: fenced blocks and inline commands."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

# A span of inline code is a command if it begins with one of these.
COMMAND = re.compile(r"(scripts/\S|\.ci/\S|build/bin/\S|\.venv/bin/\S|fsdprun |fsdp-train |fsdpctl |ctest |ninja |cmake )")

# Pages whose blocks of C++ make one program, and those of Python another.
IN_PIECES = ("docs/FSDP2.md", "docs/DDP.md")


@dataclass(frozen=True)
class Block:
    """A fenced block. `language` is empty where the fence names none."""

    file: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Command:
    """One command line of a block (continuation lines joined, comment removed) or of inline code."""

    place: str
    text: str

    def words(self) -> list[str]:
        return shlex.split(self.text)


def pages(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def blocks_of(root: Path) -> list[Block]:
    found = []
    for page in pages(root):
        text = page.read_text()
        for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.S | re.M):
            found.append(Block(str(page.relative_to(root)), text[: match.start()].count("\n") + 1, match[1], match[2]))
    return found


def is_piece(block: Block) -> bool:
    """Of a program that a page shows in pieces; pieces_page_test.py runs it."""
    return block.file in IN_PIECES and block.language in ("cpp", "python")


def pieces(root: Path, page: str, language: str) -> list[Block]:
    return [block for block in blocks_of(root) if block.file == page and block.language == language]


def cpp_of_pieces(blocks: list[Block]) -> str:
    """Includes and types, and then a main() of all statements, in the page's order."""
    is_outside = [re.match(r"#include|struct|using", block.text) is not None for block in blocks]
    outside = [block.text for block, is_it in zip(blocks, is_outside) if is_it]
    inside = [block.text for block, is_it in zip(blocks, is_outside) if not is_it]
    return "\n".join([*outside, "int main() {", *inside, "}", ""])


def commands_of_block(block: Block) -> list[Command]:
    lines = re.sub(r"\\\n\s*", "", block.text).splitlines()
    without_comments = (re.sub(r"(^|\s)#.*", "", line).rstrip() for line in lines)
    return [Command(block.place, line) for line in without_comments if line]


def inline_commands(root: Path) -> list[Command]:
    found = []
    for page in pages(root):
        outside = re.sub(r"^```.*?^```$", lambda match: "\n" * match[0].count("\n"), page.read_text(), flags=re.S | re.M)
        for number, line in enumerate(outside.splitlines(), 1):
            found += [Command(f"{page.relative_to(root)}:{number}", span) for span in re.findall(r"`([^`]+)`", line)
                      if COMMAND.match(span)]
    return found
