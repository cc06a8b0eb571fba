"""What programs of scripts/gpu have found out, as JSON in files of their own."""

import json
from pathlib import Path
from typing import Any


class UnreadableResult(RuntimeError):
    """The message says who has written what, and where."""


def read_result(path: Path, writer: str) -> Any:
    """`writer`: a program's name. Throws UnreadableResult if what it has written is not JSON, as when it was ended in the middle of it."""
    text = path.read_text(errors="replace")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        end = f"that end with {text[-80:]!r}" if text else "none at all"
        raise UnreadableResult(f"{writer} has written what is not JSON to {path}: {error}; {len(text)} characters, {end}. It was ended "
                               "before it had written all of it, or the disk is full") from error
