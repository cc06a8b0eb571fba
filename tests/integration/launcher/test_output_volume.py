"""Much output of many workers: nothing is lost or mixed, memory is bounded, and what a full disk and a blocked console
together drop is counted. --lines N: how many each worker writes."""

import os
import pathlib
import re
import subprocess
import sys
import threading

from events import wait_for_files
from job_case import JobCase, processes_with
from unittest_main import main

WRITER = os.environ.get("LINE_WRITER", "build/release/tests/line_writer")
# Sanitizers need more memory.
MEMORY_FACTOR = int(os.environ.get("MEMORY_FACTOR", "1"))
LINES = 20000
WORKERS = 8


class Reader(threading.Thread):
    """Checks a stream of the launcher: the lines of each worker with their prefix, whole, in order; until all are there."""

    def __init__(self, stream, letter, step):
        super().__init__(daemon=True)
        self.stream, self.letter, self.step = stream, letter, step
        self.next = [0] * WORKERS
        self.missing = -(-LINES // step) * WORKERS
        self.wrong = None
        self.start()

    def run(self):
        tails = ["x" * (i % 40) + "\n" for i in range(40)]
        while self.missing and (line := self.stream.readline()):
            rank = int(line[8]) if line[8:9].isdigit() else 0
            number = self.next[rank]
            if line != f"[default{rank}]:{self.letter}{rank} {number:07d} {tails[number % 40]}":
                self.wrong = self.wrong or f"{line[:200]!r} instead of line {number}"
                return
            self.next[rank] += self.step
            self.missing -= 1


class OutputVolumeTest(JobCase):
    def peaks_mb(self):
        """{name: peak memory of the processes of fsdprun}"""
        peaks = {}
        for pid in processes_with(self.marker):
            status = pathlib.Path(f"/proc/{pid}/status").read_text()
            name = re.search(r"Name:\s+(\S+)", status).group(1)
            if name.startswith("fsdp"):
                peaks[name] = int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) >> 10
        return peaks

    def test_row_26_many_lines_of_many_workers(self):
        logs = self.dir / "logs"
        os.mkfifo(self.dir / "go")
        launcher = self.start("--standalone", f"--nproc-per-node={WORKERS}", "--log-dir", logs, "--tee=3", "--no-python", WRITER,
                              LINES)
        # The console takes nothing: no worker waits for it.
        wait_for_files(lambda: len(list(self.dir.glob("done.*"))) == WORKERS, self.dir, "all workers to have written")
        readers = [Reader(launcher.stdout, "o", 1), Reader(launcher.stderr, "e", 10)]
        for reader in readers:
            reader.join()
            self.assertIsNone(reader.wrong)
            self.assertEqual(reader.missing, 0)
        peaks = self.peaks_mb()
        with open(self.dir / "go", "w"):
            rc, out, err = self.finish(launcher)
        self.assertEqual((rc, out, err), (0, "", ""))
        self.assertLess(peaks["fsdprun"], 40 * MEMORY_FACTOR, peaks)
        self.assertLess(peaks["fsdp-keeper"], 12 * MEMORY_FACTOR, peaks)
        self.assertLess(peaks["fsdp-log-writer"], 8 * MEMORY_FACTOR, peaks)
        for rank in range(WORKERS):
            for name, letter, step in (("stdout", "o", 1), ("stderr", "e", 10)):
                (path,) = logs.glob(f"*/attempt_0/{rank}/{name}.log")
                with open(path) as file:
                    for number, line in zip(range(0, LINES, step), file, strict=True):
                        if line != f"{letter}{rank} {number:07d} {'x' * (number % 40)}\n":
                            self.fail(f"{path}: {line!r} instead of line {number}")

    def mount(self, size):
        disk = self.dir / f"disk{size}"
        disk.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], capture_output=True).returncode != 0:
            self.skipTest("a file system cannot be mounted here")
        self.addCleanup(subprocess.run, ["umount", "-l", disk])
        return disk

    # Each line is one write of 1024 bytes, so that no line is torn where a drop begins.
    WORKER = """
        for i in range({count}): os.write(1, f"{{i:08d}}".encode() + b"x" * 1015 + b"\\n")
        note("done")
    """

    def test_row_70_a_full_disk_and_a_blocked_console_drop_what_they_say(self):
        count = 40000
        disk = self.mount("1m")
        launcher = self.start("--standalone", "--log-dir", disk, "--tee=1", self.script(self.WORKER.format(count=count)))
        self.wait_for_notes("done", 1, [0])
        rc, out, _ = self.finish(launcher)
        self.assertEqual(rc, 0)
        lost = [int(n) for n in re.findall(r"\[fsdprun: (\d+) bytes of output are lost", out)]
        lines = [line for line in out.splitlines() if not line.startswith("[fsdprun:")]
        self.assertEqual({len(line) for line in lines}, {len("[default0]:") + 1023})
        numbers = [int(line[11:19]) for line in lines]
        self.assertEqual(numbers, sorted(set(numbers)))
        self.assertEqual(len(lines) * 1024 + sum(lost), count * 1024)
        self.assertGreater(sum(lost), 0)
        (log,) = disk.glob("*/attempt_0/0/stdout.log")
        kept = log.read_text().splitlines()
        self.assertEqual([int(line[:8]) for line in kept], list(range(len(kept))))
        self.assertGreater(len(kept), 800)

    def test_row_70_a_full_disk_alone_loses_nothing_that_was_to_be_kept(self):
        disk = self.mount("64k")
        rc, out, err = self.run_job("--standalone", "--log-dir", disk, "--redirects=1", self.script(self.WORKER.format(count=400)),
                                    env={"LOGLEVEL": "WARNING"})
        self.assertEqual(rc, 0)
        self.assertEqual(err.count("only shown here"), 1, err)
        (log,) = disk.glob("*/attempt_0/0/stdout.log")
        kept = [int(line[:8]) for line in log.read_text().splitlines()]
        shown = [int(line.removeprefix("[default0]:")[:8]) for line in out.splitlines()]
        self.assertEqual(kept + shown, list(range(400)))
        self.assertGreater(len(kept), 0)
        self.assertGreater(len(shown), 0)

    def test_lines_that_a_filtered_file_lacks_are_counted(self):
        disk = self.mount("128k")
        rc, out, err = self.run_job("--standalone", "--log-dir", disk, "--tee=1", "--duplicate-stdout-filters=x",
                                    self.script(self.WORKER.format(count=400)), env={"LOGLEVEL": "WARNING"})
        self.assertEqual((rc, len(out.splitlines())), (0, 400), err)
        (file,) = disk.glob("*/attempt_0/filtered_stdout.log")
        missing = int(re.search(r"(\d+) lines are missing in .*filtered_stdout.log: No space left", err).group(1))
        self.assertEqual(file.read_text().count("\n") + missing, 400, err)


if __name__ == "__main__":
    if "--lines" in sys.argv:
        LINES = int(sys.argv.pop(sys.argv.index("--lines") + 1))
        sys.argv.remove("--lines")
    main()
