"""A worker's page (proto/worker_vitals.h) as read from outside."""

import pathlib
import struct

NAMES = ("version", "pid", "step", "total", "step_began_ns", "loss", "tokens_per_second", "tokens", "phase", "step_ns", "collective_wait_ns",
         "data_wait_ns", "save_ns", "collectives_begun", "collectives_ended", "collective_began_ns", "collective_bytes", "text_lock")
DOUBLES = ("loss", "tokens_per_second")
TEXTS = {"collective": 18, "unit": 30}
TEXT_BYTES = 96


def path_of(pid):
    """Of a process's page; None: it has none."""
    words = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next((pathlib.Path(word.partition(b"=")[2].decode()) for word in words if word.startswith(b"FSDPRUN_VITALS_FILE=")), None)


def read(path):
    """{name: value} of the page."""
    page = path.read_bytes()
    found = {name: struct.unpack_from("d" if name in DOUBLES else "q", page, 8 * word)[0] for word, name in enumerate(NAMES)}
    for name, word in TEXTS.items():
        found[name] = page[8 * word:8 * word + TEXT_BYTES].split(b"\0")[0].decode()
    return found
