"""What README.md and docs/*.md contain for a reader to run or copy: fenced blocks and inline commands."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

# A span of inline code is a command if it begins with one of these.
COMMAND = re.compile(r"(scripts/\S|\.ci/\S|build/bin/\S|\.venv/bin/\S|fsdprun |fsdp-train |fsdpctl |ctest |ninja |cmake )")


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
