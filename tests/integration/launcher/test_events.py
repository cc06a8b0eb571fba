"""Waits of the launcher's tests end in time and say why: they are shown to fail."""

import pathlib
import re
import shutil
import time
import unittest

import events
from job_case import JobCase, free_port, wait_until, wait_until_listening
from unittest_main import main

TESTS = pathlib.Path(__file__).resolve().parents[2]


class EventsTest(JobCase):
    def assert_gives_up(self, wait, *words):
        with self.assertRaises(AssertionError) as caught:
            wait()
        for word in words:
            self.assertIn(word, str(caught.exception))

    def limit(self, seconds):
        """As if ctest had given this script so long from now on."""
        self.addCleanup(setattr, events, "_limit_s", events._limit_s)
        events._limit_s = time.monotonic() - events._begin + seconds

    def test_a_wait_ends_with_the_processes_that_it_is_for(self):
        self.start("--standalone", self.script("print('said', flush=True); sys.exit(3)"))
        self.assert_gives_up(lambda: self.wait_for_notes("never", 1, [0]), "notes never", "all processes of the job have ended",
                             "launcher 0 (exit code 1)", "stdout: said", "ChildFailedError", "exitcode  : 3")

    def test_what_came_before_the_end_is_found(self):
        self.start("--standalone", self.script("note('last')"))
        self.assertEqual(set(self.wait_for_notes("last", 1, [0])), {(1, 0)})

    def test_a_wait_in_vain_tells_what_the_launchers_said(self):
        launcher = self.start("--standalone", self.script("print('said', file=sys.stderr, flush=True); note('pid'); live_on()"))
        (pid,) = self.wait_for_notes("pid", 1, [0]).values()
        self.limit(1)
        self.assert_gives_up(lambda: events.wait_for_ends([int(pid)]), f"process {pid} is still there", "launcher 0 (still running)",
                             "stderr: said", f"process {pid}: ", "worker.py [python in ")

    def test_each_wait_can_give_up(self):
        launcher = self.start("--standalone", self.script("note('pid'); live_on()"))
        self.wait_for_notes("pid", 1, [0])
        for wait in (lambda: self.finish(launcher), lambda: self.wait_for_notes("never", 1, [0]), lambda: wait_until(bool, "nothing"),
                     self.wait_for_nobody):
            self.limit(1)
            self.assert_gives_up(wait, "launcher 0 (")

    def wait_for_nobody(self):
        wait_until_listening(free_port())

    def test_waits_are_shorter_than_what_ctest_allows(self):
        self.limit(1e6)
        self.assertEqual(events.patience(), events.PATIENCE_S)
        self.limit(100)
        self.assertLessEqual(events.patience(), 50)
        self.limit(-1)
        self.assertEqual(events.patience(), 0)

    def test_reads_end_before_ctest_ends_the_script(self):
        """Also of what is started after that time: there each read ends within a second."""
        self.limit(events.KILL_BEFORE_S + events.EXIT_BEFORE_S + 60)
        early = self.start("--standalone", self.script("note('pid'); live_on()"))
        self.wait_for_notes("pid", 1, [0])
        self.limit(events.KILL_BEFORE_S)
        events.watch(self)
        self.assertEqual(early.stderr.readline(), "")
        late = self.start("--standalone", self.script("live_on()"))
        self.assertEqual(late.communicate(), ("", ""))
        self.assertEqual([early.wait(), late.wait()], [-9, -9])

    def test_output_that_somebody_else_holds_open_ends_a_test(self):
        launcher = self.start(binary=shutil.which("sh"), *("-c", "sleep 1000 & exit 0"))
        launcher.wait()
        self.limit(1)
        with self.assertRaisesRegex(AssertionError, "its output is still open"):
            self.drain(launcher)

    def test_no_wait_has_a_limit_of_its_own(self):
        """PATIENCE_S is for times that must not pass, as 10 * PATIENCE_S; who waits asks patience()."""
        found = [f"{path.relative_to(TESTS)}: {line.strip()}" for path in TESTS.rglob("*.py") if path.name not in ("events.py", "test_events.py")
                 for line in path.read_text().splitlines()
                 if re.search(r"(timeout=|wait\(|\+ |select\(.*)PATIENCE_S", line)]
        self.assertEqual(found, [])

    def test_ctest_tells_its_limit(self):
        """The function that declares scripts passes it on, whatever the limit is."""
        text = (TESTS.parent / "cmake/FsdprunTests.cmake").read_text()
        body = text[text.index("function(fsdprun_script_test)"):]
        self.assertIn("FSDPRUN_TEST_TIMEOUT_S=${ARG_TIMEOUT}", body[:body.index("endfunction()")])

    def test_a_case_may_not_hide_what_unittest_calls(self):
        with self.assertRaisesRegex(TypeError, "redefines fail of"):
            type("Hiding", (JobCase,), {"fail": lambda self: None})
        self.assertTrue(issubclass(type("Usual", (JobCase,), {"setUp": lambda self: None}), unittest.TestCase))


if __name__ == "__main__":
    main()
