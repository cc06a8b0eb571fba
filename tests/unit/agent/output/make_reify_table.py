"""Writes reify_table.inc: what the installed torchrun does with --redirects, --tee and --local-ranks-filter. With --check
it only compares. Each row ends with standard output and error of local ranks 0 and 1: what is kept (F: a file, -: none,
0: /dev/null), then what the console shows (C: lines as they are, P: lines with a prefix, -: nothing)."""

import os
import pathlib
import sys
import tempfile

from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, Std

VALUES = ("0", "1", "2", "3", "0:1,1:2", "0:2,1:0", "1:3")
FILTERS = ("", "0", "1", "0,1", "7")
TABLE = pathlib.Path(__file__).with_name("reify_table.inc")


def cell(path, tee):
    kept = {"": "-", os.devnull: "0"}.get(path, "F")
    return kept + ("P" if tee else "C" if path == "" else "-")


def row(log_dir, redirects, tee, shown):
    ranks = {int(r) for r in shown.split(",")} if shown else None
    specs = DefaultLogsSpecs(log_dir, Std.from_str(redirects), Std.from_str(tee), ranks)
    dest = specs.reify({0: {}, 1: {}})
    cells = []
    for rank in (0, 1):
        for paths, tees in ((dest.stdouts, dest.tee_stdouts), (dest.stderrs, dest.tee_stderrs)):
            cells.append(cell(paths[rank], tees.get(rank, os.devnull) != os.devnull))
    return f'{{"{redirects}", "{tee}", "{shown}", "{" ".join(cells)}"}},\n'


def main():
    with tempfile.TemporaryDirectory() as log_dir:
        table = "".join(row(log_dir, r, t, f) for r in VALUES for t in VALUES for f in FILTERS)
        assert row(os.devnull, "3", "3", "0").endswith('"-C -C -C -C"},\n')
    if "--check" not in sys.argv:
        TABLE.write_text(table)
    elif TABLE.read_text() != table:
        sys.exit(f"{TABLE} is not what the installed torchrun does; run {__file__}")


if __name__ == "__main__":
    main()
