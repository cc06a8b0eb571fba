"""Workers' output on the launcher's streams: whole lines, nothing lost, no harm from readers; several jobs at once."""

import os
import pathlib
import pty
import re
import select
import subprocess

from events import patience
from job_case import JobCase
from unittest_main import main


class ConsoleTest(JobCase):
    def test_lines_are_never_mixed_or_lost(self):
        rc, out, err = self.run_job("--standalone", "--nproc-per-node=2", self.script("""
            for i in range(20000):
                sys.stdout.write(f"o{RANK} "); sys.stdout.write(f"{i:06d}\\n")
                if i % 4 == 0: sys.stderr.write(f"e{RANK} {i:06d}\\n")
        """))
        self.assertEqual(rc, 0)
        for stream, letter, count in ((out, "o", 20000), (err, "e", 5000)):
            lines = stream.splitlines()
            self.assertEqual([line for line in lines if not re.fullmatch(rf"{letter}[01] \d{{6}}", line)], [])
            for rank in "01":
                mine = [line for line in lines if line[1] == rank]
                self.assertEqual((len(mine), mine), (count, sorted(mine)))

    def test_files_get_everything_in_order(self):
        script = self.script("""
            for i in range(20000):
                print(f"o{RANK} {i:06d}")
                if i % 100 == 0: sys.stdout.flush()
                print(f"e{RANK} {i:06d}", file=sys.stderr)
            print(f"o{RANK} last", end="")
            print(f"e{RANK} last", end="", file=sys.stderr)
        """)
        for shared in (False, True):
            with self.subTest(shared=shared):
                with open(self.dir / "out", "w") as out, open(self.dir / "err", "w") as err:
                    launcher = self.start("--standalone", "--nproc-per-node=2", script, stdout=out,
                                          stderr=out if shared else err)
                    self.assertEqual(launcher.wait(patience()), 0)
                lines = {"o": (self.dir / "out").read_text(), "e": (self.dir / ("out" if shared else "err")).read_text()}
                for letter, text in lines.items():
                    self.assertTrue(text.endswith("\n"))
                    for rank in "01":
                        mine = [line for line in text.splitlines() if line.startswith(letter + rank)]
                        self.assertEqual(mine, [f"{letter}{rank} {i:06d}" for i in range(20000)] + [f"{letter}{rank} last"])
                self.assertEqual(sum(text.count("\n") for text in set(lines.values())), 80004)

    def test_a_full_log_disk_is_told_once_and_loses_nothing(self):
        for options, what in (("size=64k", "No space left"), ("nr_inodes=2", "No space left")):
            with self.subTest(options):
                disk = self.dir / options
                disk.mkdir()
                if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk], capture_output=True).returncode != 0:
                    self.skipTest("a file system cannot be mounted here")
                self.addCleanup(subprocess.run, ["umount", "-l", disk])
                rc, out, err = self.run_job("--standalone", "--nproc-per-node=2", "--max-restarts=1", "--log-dir", disk,
                                            self.script("""
                    for i in range(4000): print(f"{RESTART} {RANK} {i:06d}" + "x" * 30)
                    sys.stdout.flush()
                    note("done")
                    wait_for(f"done.{GENERATION}.0", f"done.{GENERATION}.1")
                    sys.exit(1 - RESTART)
                """), env={"LOGLEVEL": "WARNING", "OMP_NUM_THREADS": "1"})
                self.assertEqual(rc, 0, err)
                self.assertEqual(len(set(out.splitlines())), 16000)
                self.assertEqual(err.count("only shown"), 1, err)
                self.assertIn(what, err)
                for note in self.dir.glob("done.*"):
                    note.unlink()

    def test_partial_lines_of_two_workers_stay_apart(self):
        rc, out, _ = self.run_job("--standalone", "--nproc-per-node=2", self.script("""
            for i in range(5):
                note(f"turn{i}")
                wait_for(f"turn{i}.1.{1 - RANK}")
                print("ab"[RANK], end="", flush=True)
        """))
        self.assertEqual((rc, sorted(out.split())), (0, ["aaaaa", "bbbbb"]))

    def test_a_very_long_line_arrives_whole(self):
        rc, out, _ = self.run_job("--standalone", "--nproc-per-node=2", self.script("print('xy'[RANK] * 1000000)"))
        self.assertEqual((rc, sorted(len(line) for line in out.splitlines())), (0, [1000000, 1000000]))
        self.assertEqual({len(set(line)) for line in out.splitlines()}, {1})

    def test_a_reader_that_leaves_early_does_no_harm(self):
        logs = self.dir / "logs"
        launcher = self.start("--standalone", "--nproc-per-node=2", "--log-dir", logs, self.script("""
            for i in range(20000): print(i)
            note("done")
        """))
        self.assertEqual(launcher.stdout.readline(), "0\n")
        launcher.stdout.close()
        launcher.stdout = None
        rc, _, err = self.finish(launcher)
        self.assertEqual((rc, err), (0, ""))
        self.assertEqual([p.read_text().count("\n") for p in logs.rglob("stdout.log")], [20000, 20000])

    def test_a_slow_reader_holds_up_nobody_and_loses_nothing(self):
        launcher = self.start("--standalone", "--nproc-per-node=2", self.script("""
            for i in range(100000): print(f"line {i}")
            sys.stdout.flush()
            note("done")
        """))
        self.wait_for_notes("done", 1, range(2))
        rc, out, _ = self.finish(launcher)
        self.assertEqual((rc, len(out.splitlines())), (0, 200000))

    def test_a_reader_that_starts_late_costs_no_memory(self):
        launcher = self.start("--standalone", self.script("""
            line = "x" * 1023
            for i in range(64 * 1024): print(line)
            sys.stdout.flush()
            note("done")
        """))
        self.wait_for_notes("done", 1, [0])
        self.wait_for_end_of_all_but(launcher)
        status = pathlib.Path(f"/proc/{launcher.pid}/status").read_text()
        peak_kb = int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1))
        rc, out, _ = self.finish(launcher)
        self.assertEqual((rc, len(out)), (0, 64 << 20))
        self.assertLess(peak_kb, 64 << 10)

    def test_last_line_without_an_end(self):
        rc, out, _ = self.run_job("--standalone", self.script("print('whole'); print('half', end='')"))
        self.assertEqual((rc, out.splitlines()), (0, ["whole", "half"]))

    def test_progress_line_on_a_terminal(self):
        leader, follower = pty.openpty()
        launcher = self.start("--standalone", "--nproc-per-node=2", self.script("""
            note("view", os.environ["FSDPRUN_PROGRESS_VIEW"])
            control = os.fdopen(int(os.environ["FSDPRUN_CONTROL_FD"]), "w")
            print(json.dumps({"v": 1, "type": "progress", "step": 3, "total": 10, "text": f"loss {RANK}.5"}), file=control, flush=True)
            wait_for("go")
            print("a log line")
        """), stdout=follower, stderr=follower, env={"TERM": "xterm"})
        os.close(follower)
        seen = b""
        def read_until(text):
            nonlocal seen
            while text not in seen:
                self.assertTrue(select.select([leader], [], [], patience())[0], seen)
                seen += os.read(leader, 4096)
        read_until(b"step 3/10 loss 0.5")
        (self.dir / "go").touch()
        read_until(b"a log line")
        self.assertEqual(launcher.wait(patience()), 0)
        self.assertEqual(set(self.notes("view").values()), {"terminal"})
        # The progress line is erased before anything else is written, and once more at the end.
        self.assertRegex(seen, rb"loss 0\.5(\r\x1b\[2K(step [^\r\n]*)?)*\r\x1b\[2Ka log line")
        self.assertNotIn(b"loss 1.5", seen)
        os.close(leader)

    def test_two_jobs_at_once(self):
        worker = """
            note(f"here-{os.environ['TORCHELASTIC_RUN_ID']}-{os.environ['MASTER_PORT']}")
            wait_until(lambda: len(list(D.glob("here-*"))) == 4)
        """
        script = self.script(worker)
        jobs = [self.start("--standalone", "--nproc-per-node=2", script) for _ in range(2)]
        for job in jobs:
            rc, _, err = self.finish(job)
            self.assertEqual(rc, 0, err)

    def test_row_63_two_default_static_jobs_at_once(self):
        worker = """
            note(f"here-{os.environ['MASTER_PORT']}")
            wait_until(lambda: len(list(D.glob("here-*"))) == 2)
        """
        script = self.script(worker)
        jobs = [self.start(script) for _ in range(2)]
        for job in jobs:
            rc, _, err = self.finish(job)
            self.assertEqual(rc, 0, err)


if __name__ == "__main__":
    main()
