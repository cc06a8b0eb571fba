"""The page that each worker shares with its agent: where it is, what becomes of it, a worker in Python that writes it."""

import contextlib
import json
import os
import pathlib
import re
import signal
import time

from job_case import JobCase, processes_with, wait_until
from unittest_main import main
from vitals_page import path_of, read

PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs/VITALS.md"

TELL = """
    note("page", os.environ["FSDPRUN_VITALS_FILE"])
    live_on()
"""


SPIN = """
    import mmap, struct
    note("pid", os.getpid())
    if len(sys.argv) > 1:  # It writes its page.
        page = mmap.mmap(os.open(os.environ["FSDPRUN_VITALS_FILE"], os.O_RDWR), 4096)
        def put(word, value):
            struct.pack_into("<q", page, 8 * word, value)
        put(1, os.getpid()); put(3, -1); put(4, time.monotonic_ns()); put(8, 3); put(0, 1)
    step = 0
    while True:
        step += 1
        if len(sys.argv) > 1:
            put(2, step // 1000)
"""


class WrappedTest(JobCase):
    """The worker is a script that starts the program and waits for it."""

    def start_wrapped(self, limit_s, *arguments):
        self.env["LOGLEVEL"] = "WARNING"
        self.logs = self.dir / "logs"
        words = " ".join([self.env["PYTHON_EXEC"], str(self.script(SPIN)), *arguments])
        launcher = self.start("--standalone", "--no-python", "--log-dir", self.logs, f"--hang-timeout={limit_s}",
                              "/bin/bash", "-c", f"{words}; true")
        self.wait_for_notes("pid", 1, [0])
        return launcher, int(self.notes("pid")[1, 0])

    def hangs(self):
        found = []
        for path in self.logs.glob("*/events.jsonl"):
            found += [json.loads(line) for line in path.read_text().splitlines()]
        return [event for event in found if event["event"] == "hang"]

    def end(self, launcher, pid):
        os.kill(pid, signal.SIGCONT)
        launcher.send_signal(signal.SIGTERM)
        self.finish(launcher)

    def test_a_program_that_computes_below_a_script_is_not_idle(self):
        launcher, pid = self.start_wrapped(10)
        time.sleep(20)  # Twice as long as the script may be idle.
        self.assertEqual(self.hangs(), [])
        os.kill(pid, signal.SIGSTOP)
        wait_until(self.hangs, "the program to be found stopped")
        self.assertEqual(self.hangs()[0]["kind"], "stopped")
        self.end(launcher, pid)

    def test_who_writes_the_page_is_named(self):
        launcher, pid = self.start_wrapped(10, "page")
        time.sleep(2)
        os.kill(pid, signal.SIGSTOP)
        wait_until(self.hangs, "the program to be found stopped")
        self.assertEqual((self.hangs()[0]["kind"], self.hangs()[0]["culprits"][0]["pid"]), ("stopped", pid))
        self.end(launcher, pid)


class VitalsTest(JobCase):
    def pages(self, generation, ranks):
        self.wait_for_notes("page", generation, ranks)
        return [pathlib.Path(self.notes("page")[generation, rank]) for rank in ranks]

    def test_each_worker_has_a_page_of_its_own_that_ends_with_the_run(self):
        launcher = self.start("--standalone", "--nproc-per-node=2", self.script(TELL))
        pages = self.pages(1, range(2))
        self.assertEqual(len(set(pages)), 2)
        for page in pages:
            self.assertEqual(page.read_bytes(), bytes(4096))
            self.assertEqual(page.stat().st_mode & 0o777, 0o600)
            self.assertEqual(page.parent.stat().st_mode & 0o777, 0o700)
        launcher.send_signal(signal.SIGTERM)
        self.finish(launcher)
        self.assertFalse(pages[0].parent.exists())

    def test_pages_are_gone_after_a_killed_launcher(self):
        launcher = self.start("--standalone", self.script(TELL))
        page, = self.pages(1, [0])
        launcher.kill()
        self.assert_nothing_left()
        wait_until(lambda: not page.parent.exists(), "the keeper to remove the pages")

    def test_a_worker_that_is_started_again_has_a_new_page(self):
        script = self.script("""
            page = pathlib.Path(os.environ["FSDPRUN_VITALS_FILE"])
            assert page.read_bytes() == bytes(4096)
            page.write_bytes(b"x" * 4096)
            note("page", page)
            if RESTART == 0:
                sys.exit(1)
            live_on()
        """)
        launcher = self.start("--standalone", "--max-restarts=1", script)
        first, = self.pages(1, [0])
        second, = self.pages(2, [0])
        self.assertNotEqual(first, second)
        self.assertFalse(first.exists())
        launcher.send_signal(signal.SIGTERM)
        self.finish(launcher)

    def test_a_page_that_a_worker_cuts_or_removes_ends_nobody_else(self):
        rc, _, err = self.run_job("--standalone", self.script("""
            page = pathlib.Path(os.environ["FSDPRUN_VITALS_FILE"])
            os.truncate(page, 0)
            page.unlink()
            page.parent.rmdir()
        """))
        self.assertEqual(rc, 0, err)

    def test_the_page_of_an_outer_launcher_is_not_inherited(self):
        launcher = self.start("--standalone", self.script(TELL), env={"FSDPRUN_VITALS_FILE": "/outer"})
        page, = self.pages(1, [0])
        self.assertNotEqual(str(page), "/outer")
        launcher.send_signal(signal.SIGTERM)
        self.finish(launcher)

    def test_the_documented_program_writes_it(self):
        example = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.S)[1]
        worker = self.dir / "example.py"
        worker.write_text(f"""
import pathlib
def train(step):
    if step == 1000:
        print("almost", flush=True)
        while not (pathlib.Path({str(self.dir)!r}) / "go").exists():
            time.sleep(0.01)
    return 2.5
{example}
""")
        launcher = self.start("--standalone", worker)
        self.assertEqual(launcher.stdout.readline(), "almost\n")
        page, = [path for path in pathlib.Path("/dev/shm").glob("fsdprun_vitals_*/1.0") if self.is_of(path)]
        told = read(page)
        self.assertEqual((told["version"], told["step"], told["total"], told["phase"], told["loss"]), (1, 1000, 1000, 3, 2.5))
        self.assertGreater(told["step_began_ns"], 0)
        (self.dir / "go").touch()
        rc, _, err = self.finish(launcher)
        self.assertEqual(rc, 0, err)
        # And where nobody reads.
        rc, _, err = self.run_job("-c", f"import sys; sys.argv = []; exec(open({str(worker)!r}).read())", binary=self.env["PYTHON_EXEC"])
        self.assertEqual(rc, 0, err)

    def is_of(self, page):
        """Whether a process of this test has it."""
        found = []
        for pid in processes_with(self.marker):
            with contextlib.suppress(OSError):  # it has ended
                found.append(path_of(pid))
        return page in found


if __name__ == "__main__":
    main()
