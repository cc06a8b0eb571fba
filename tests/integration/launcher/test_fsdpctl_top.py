"""fsdpctl top in a real terminal: what is on the screen, what keys do, and that the terminal is given back, however it ends."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import unittest

from fsdpctl_case import FsdpctlCase
from job_case import BIN, children_of, is_alive, wait_until
from terminal import TMUX, Terminal
from unittest_main import main

# Tells of itself in its page, and of rank 0's progress with what no terminal may act on.
TELLS = """
    import mmap, struct
    page = mmap.mmap(os.open(os.environ["FSDPRUN_VITALS_FILE"], os.O_RDWR), 4096)
    def tell(word, value):
        struct.pack_into("d" if isinstance(value, float) else "q", page, 8 * word, value)
    for word, value in ((2, 41 + RANK), (3, 1000), (4, time.monotonic_ns()), (6, 12345.0), (8, 3), (9, 250_000_000), (0, 1)):
        tell(word, value)
    control = os.fdopen(int(os.environ["FSDPRUN_CONTROL_FD"]), "w")
    print(json.dumps({"v": 1, "type": "progress", "step": 40, "total": 1000, "text": "\\x1b[2J\\x1b]0;evil\\x07kept"}), file=control,
          flush=True)
    note("pid")
    wait_for("end")
"""


def rows_of(text):
    """{rank: row} of the table of ranks."""
    found = (re.match(r" *(\d+) ", line) for line in text.splitlines())
    return {int(match[1]): match.string for match in found if match}


class TopCase(FsdpctlCase):
    def setUp(self):
        super().setUp()
        self.env.update({"PATH": f"{BIN}:{self.env['PATH']}"})
        self.env.pop("NO_COLOR", None)
        self.terminal = None

    def tearDown(self):
        if self.terminal:
            self.terminal.close()
        super().tearDown()

    def open_terminal(self, *size):
        self.terminal = Terminal(self.dir, self.env, *size)
        return self.terminal

    def open_top(self, *words, size=(80, 24)):
        terminal = self.open_terminal(*size)
        terminal.run(" ".join(["fsdpctl top", *words]))
        terminal.wait_for("RANK NODE", "q:quit")
        return terminal

    def top_pid(self):
        """Of the fsdpctl in the terminal."""
        (shell,) = [int(pid) for pid in self.terminal.tmux("list-panes", "-t", "test", "-F", "#{pane_pid}").split()]
        (pid,) = children_of(shell)
        return pid

    def end_well(self, launchers):
        self.order("let_go")
        self.order("end")
        self.assert_all_end_well(launchers[0], launchers[1:])


@unittest.skipUnless(TMUX, "there is no tmux")
class ScreenTest(TopCase):
    def test_what_is_shown_and_what_keys_do(self):
        launchers = self.start_job()
        terminal = self.open_top()
        text = terminal.wait_for("generation 1, 4 ranks on 2 nodes of 2:2", "restarts 0 of 2 (2 left)", "ranks 1-4 of 4")
        self.assertIn("fsdpctl top  kept  running: ", text.splitlines()[0])
        self.assertEqual(sorted(rows_of(text)), [0, 1, 2, 3])
        wait_until(lambda: terminal.text().count(" asleep") == 4, "what all ranks do")
        pids = self.pids(1)
        for rank, row in rows_of(terminal.text()).items():
            self.assertEqual(int(row.split()[2]), pids[rank])
        terminal.press("r")
        self.assertEqual(list(rows_of(terminal.wait_for(", reversed"))), [3, 2, 1, 0])
        terminal.press("r", "s", "s")
        terminal.wait_for("by step time")
        terminal.press("n")
        self.assertIn("0-1", terminal.wait_for("ADDRESS", "nodes 1-2 of 2"))
        terminal.press("n", "p")
        terminal.wait_for("no worker has a problem", "problems only")
        terminal.press("p", "e")
        terminal.wait_for("EVENTS", "world_formed")
        terminal.press("e", "?")
        terminal.wait_for("reverse the order")
        terminal.press("q")
        terminal.wait_for("RANK NODE")
        with open(terminal.tmux("display-message", "-p", "-t", "test", "#{pane_tty}").strip(), "w") as tty:
            tty.write("\0337\033[20;1Hsomebody's line\0338")
        terminal.wait_for("somebody's line")
        terminal.press("C-l")
        terminal.wait_for("RANK NODE", but=("somebody's line",))
        terminal.press("q")
        text = terminal.wait_for("fsdpctl top: job kept goes on: generation 1, running")
        self.assertIn("$ fsdpctl top\n", text)  # What was there before.
        self.assertNotIn("RANK NODE", text)
        self.assertTrue(terminal.is_as_before())
        self.end_well(launchers)

    def test_what_workers_say_and_nothing_that_they_say_to_the_terminal(self):
        launchers = self.start_job(worker=TELLS)
        terminal = self.open_top(size=(160, 30))
        terminal.wait_for("step     40 of 1000 (4.0 %)", "[2J ]0;evil kept", " 12.3k ", "forward")
        wait_until(lambda: {rank: row.split()[4:6] for rank, row in rows_of(terminal.text()).items()}
                   == {rank: [str(41 + rank), "250ms"] for rank in range(4)}, "the steps of all ranks")
        self.assertEqual(terminal.tmux("display-message", "-p", "-t", "test", "#{pane_title}").count("evil"), 0)
        workers = json.loads(self.answer("top", "--json"))["workers"]
        self.assertEqual([(worker["rank"], worker["pid"], worker["own"]["step"], worker["own"]["tokens_per_s"]) for worker in workers],
                         [(rank, pid, 41 + rank, 12345.0) for rank, pid in enumerate(self.pids(1))])
        self.assertEqual([worker["rank"] for worker in self.status("--workers")["workers"]], [0, 1, 2, 3])
        self.assertNotIn("workers", self.status())
        self.assertIn("250ms", self.answer("status", "--workers"))
        self.end_well(launchers)

    def test_the_window_counts_not_what_the_environment_says_of_its_size(self):
        launchers = self.start_job()
        terminal = self.open_terminal()
        terminal.run("COLUMNS=200 LINES=50 fsdpctl top")
        text = terminal.wait_for("RANK NODE", "q:quit")
        self.assertIn("q:quit", text.splitlines()[23])
        self.assertIn("fsdpctl top  kept", text.splitlines()[0])
        terminal.resize(100, 30)
        wait_until(lambda: len(terminal.lines()) == 30 and "q:quit" in terminal.lines()[29], "the last line of the larger window")
        self.end_well(launchers)

    def test_a_new_size_is_no_key(self):
        launchers = self.start_job()
        terminal = self.open_top()
        terminal.press("?")
        terminal.wait_for("reverse the order")
        terminal.resize(80, 10)
        terminal.wait_for("Up and Down scroll")
        terminal.press("Down")
        self.assertIn("fsdpctl top: keys", terminal.wait_for("fsdpctl top", but=("Up Down k j",)))
        self.end_well(launchers)

    def test_who_is_stopped_is_seen_at_once(self):
        launchers = self.start_job()
        terminal = self.open_top()
        pid = self.pids(1)[2]
        os.kill(pid, signal.SIGSTOP)
        text = terminal.wait_for("STOPPED (T)", "1 stopped")
        self.assertIn("STOPPED (T)", rows_of(text)[2])
        terminal.press("p")
        self.assertEqual(list(rows_of(terminal.wait_for("ranks 1-1 of 1"))), [2])
        self.assertIn("\x1b[31m", "".join(terminal.lines("-e")).replace("\x1b[1m", "").replace("\x1b[1;31m", "\x1b[31m"))
        terminal.press("p")
        terminal.wait_for("HANG", "rank 2 ")  # Of the watch, after some seconds.
        os.kill(pid, signal.SIGCONT)
        terminal.wait_for("RANK NODE", but=("HANG", "STOPPED", "TROUBLE"))
        self.end_well(launchers)

    def test_without_colours(self):
        self.env["NO_COLOR"] = "1"
        launchers = self.start_job()
        terminal = self.open_top()
        pid = self.pids(1)[2]
        os.kill(pid, signal.SIGSTOP)
        terminal.wait_for("STOPPED (T)")
        self.assertNotRegex("".join(terminal.lines("-e")), r"\x1b\[[0-9;]*3[0-7]m")
        os.kill(pid, signal.SIGCONT)
        self.end_well(launchers)


@unittest.skipUnless(TMUX, "there is no tmux")
class SixtyFourRanksTest(TopCase):
    def test_the_table_scrolls_in_windows_of_any_size(self):
        words = [*self.meeting(), "--nnodes=2", "--nproc-per-node=32", "--no-python", "sleep", "600"]
        launchers = [self.start(*words)]
        wait_until(self.job_files, "the job's file")
        launchers.append(self.start(*words))
        wait_until(lambda: self.status()["phase"] == "running", "running workers")
        terminal = self.open_top()
        text = terminal.wait_for("64 ranks on 2 nodes", "of 64")
        header = text.splitlines()[0][:40]
        self.assertEqual(len(terminal.lines()), 24)
        page = len(rows_of(text))
        self.assertGreater(page, 8)
        self.assertEqual(list(rows_of(text)), list(range(page)))
        terminal.press("G")
        text = terminal.wait_for("-64 of 64")
        self.assertEqual(list(rows_of(text))[-1], 63)
        self.assertEqual(text.splitlines()[0][:40], header)
        terminal.press("Up")
        terminal.wait_for("-63 of 64")
        terminal.press("Home")
        terminal.wait_for("ranks 1-")
        terminal.press("4", "0", "Enter")
        self.assertEqual(list(rows_of(terminal.wait_for("ranks 41-")))[0], 40)
        terminal.press("/", "6", "4", "Enter")
        terminal.wait_for("there is no rank or node 64")
        terminal.press("Home")
        terminal.wait_for("ranks 1-")
        terminal.press("NPage")
        first = list(rows_of(terminal.wait_for("of 64", but=("ranks 1-",))))[0]
        self.assertIn(first, range(page - 3, page + 1))  # Lines may have come above the table since.
        terminal.resize(120, 50)
        terminal.wait_for("PSS", "DOING")
        wait_until(lambda: len(rows_of(terminal.text())) > page, "more rows than before")
        terminal.resize(40, 10)
        self.assertEqual(len(terminal.wait_for("RANK NODE", "ranks ").splitlines()), 10)
        terminal.resize(20, 4)
        terminal.wait_for("too small: 20x4")
        terminal.resize(80, 24)
        terminal.wait_for("RANK NODE", "of 64")
        whole = self.answer("top", "--once")
        self.assertEqual(sorted(rows_of(whole)), list(range(64)))
        terminal.press("q")
        terminal.wait_for("goes on")
        self.answer("stop", "--now")
        for launcher in launchers:
            self.finish(launcher)


@unittest.skipUnless(TMUX, "there is no tmux")
class EndTest(TopCase):
    def end_of_top(self, *words):
        """The screen once the shell has said the exit code, which asks for it."""
        self.terminal.run("echo rc=$?.")
        text = self.terminal.wait_for(*words, found=r"rc=\d+\.")  # Not what is typed.
        self.assertTrue(self.terminal.is_as_before())
        return re.search(r"rc=(\d+)\.", text)[1]

    def test_the_end_of_the_job_stays_on_the_screen(self):
        launchers = self.start_job()
        terminal = self.open_top()
        self.end_well(launchers)
        terminal.wait_for("the job ended with exit code 0")
        terminal.press("q")
        terminal.wait_for("fsdpctl top: job kept ended with exit code 0")
        self.assertEqual(self.end_of_top(), "0")

    def test_ctrl_c_and_ctrl_z(self):
        launchers = self.start_job()
        terminal = self.open_top()
        terminal.press("C-z")
        terminal.wait_for("Stopped", "$ fsdpctl top")
        wait_until(terminal.is_as_before, "the terminal as it was")
        terminal.run("fg")
        terminal.wait_for("RANK NODE", "q:quit", but=("Stopped",))
        pid = self.top_pid()
        os.kill(pid, signal.SIGSTOP)  # Nothing could be put right before.
        terminal.wait_for("Stopped")
        terminal.run("fg")
        terminal.wait_for("RANK NODE", "q:quit", but=("Stopped",))
        terminal.press("C-c")
        terminal.wait_for("job kept goes on")
        self.assertEqual(self.end_of_top(), "130")
        self.end_well(launchers)

    def test_signals_that_were_ignored_stay_so(self):
        launchers = self.start_job()
        terminal = self.open_terminal()
        terminal.run("(trap '' INT TSTP; fsdpctl top)")
        terminal.wait_for("RANK NODE", "q:quit")
        terminal.press("C-c", "C-z", "e", "C-l")  # With those two the system throws away what is on its way to the screen.
        terminal.wait_for("EVENTS", "q:quit")
        terminal.press("q")
        terminal.wait_for("job kept goes on")
        self.assertEqual(self.end_of_top(), "0")
        self.end_well(launchers)

    def test_output_that_is_stopped_holds_up_nobody(self):
        launchers = self.start_job()
        terminal = self.open_top()
        pid = self.top_pid()
        terminal.press("C-s", "?")
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not is_alive(pid), "its end")
        self.assertEqual(self.end_of_top(), "143")
        self.end_well(launchers)

    def test_signals_and_crashes(self):
        launchers = self.start_job()
        self.open_terminal().run("ulimit -c 0")
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGSEGV, signal.SIGABRT):
            with self.subTest(number.name):
                self.terminal.run("clear; fsdpctl top")
                self.terminal.wait_for("RANK NODE", "q:quit")
                pid = self.top_pid()
                os.kill(pid, number)
                wait_until(lambda pid=pid: not is_alive(pid), "its end")
                self.assertEqual(self.end_of_top(), str(128 + number))
        self.end_well(launchers)

    def test_the_terminal_goes(self):
        launchers = self.start_job()
        self.open_top()
        pid = self.top_pid()
        self.terminal.close()
        wait_until(lambda: not is_alive(pid), "its end")
        self.terminal = None
        self.end_well(launchers)

    def test_another_job_of_the_same_id_is_not_the_job(self):
        words = ["--nnodes=1", "--nproc-per-node=1", "--rdzv-backend=c10d", "--no-python", "sleep", "600"]
        jobs = [self.start(*words) for _ in range(2)]
        wait_until(lambda: len(self.job_files()) == 2, "the files of both jobs")
        terminal = self.open_top("--job", str(jobs[0].pid))
        terminal.wait_for(f"coordinator pid {jobs[0].pid} ", "running: ")
        self.end_abruptly(jobs[0])
        terminal.wait_for("LINK     the job's coordinator", f"pid {jobs[0].pid} on", f"coordinator pid {jobs[0].pid} ")
        terminal.press("q")
        terminal.wait_for("fsdpctl top: job none: connection lost")
        self.answer("stop", "--now", "--job", str(jobs[1].pid))
        self.finish(jobs[1])

    def test_a_coordinator_that_is_stopped(self):
        coordinator, nodes = self.start_coordinator(), self.start_nodes()
        self.pids(1)
        terminal = self.open_top(size=(160, 24))
        wait_until(lambda: terminal.text().count(" asleep") == 4, "what all ranks do")
        os.kill(coordinator.pid, signal.SIGSTOP)
        text = terminal.wait_for("LINK     no answer of the coordinator for ")
        ages = [row.split()[-2] for row in rows_of(text).values()]  # 5.1s, 1m02s
        self.assertTrue(all("m" in age and age[-2:] != "ms" or float(age[:-1]) >= 5 for age in ages), text)  # As of now, not of then.
        os.kill(coordinator.pid, signal.SIGCONT)
        terminal.wait_for("RANK NODE", but=("LINK",))
        self.order("let_go")
        self.order("end")
        self.assert_all_end_well(coordinator, nodes)

    def test_the_coordinator_goes_and_comes_back(self):
        coordinator, nodes = self.start_coordinator(), self.start_nodes()
        self.pids(1)
        terminal = self.open_top()
        terminal.wait_for("running: ")
        self.end_abruptly(coordinator)
        terminal.wait_for("LINK     connection lost, asking again: ", "RANK NODE")
        coordinator = self.start(*self.coordinator_words())
        self.wait_for_line(coordinator, "takes the job over")
        text = terminal.wait_for(f"coordinator pid {coordinator.pid} ", but=("LINK",))
        self.assertEqual(sorted(rows_of(text)), [0, 1, 2, 3])
        self.order("let_go")
        self.order("end")
        self.assert_all_end_well(coordinator, nodes)
        terminal.wait_for("ended with exit code 0")
        terminal.press("q")
        terminal.wait_for("fsdpctl top: job kept ended with exit code 0")


class UnreadTerminalTest(TopCase):
    def rss_kb(self, pid):
        with open(f"/proc/{pid}/status") as status:
            return int(re.search(r"VmRSS:\s+(\d+)", status.read())[1])

    def test_nobody_reads_the_terminal(self):
        launchers = self.start_job()
        master, terminal = pty.openpty()
        self.addCleanup(os.close, master)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 200, 0, 0))
        top = subprocess.Popen([BIN / "fsdpctl", "top"], env={**self.env, "TERM": "xterm", "LC_ALL": "C.UTF-8"}, stdin=terminal,
                               stdout=terminal, stderr=terminal, start_new_session=True)
        self.addCleanup(top.kill)
        self.addCleanup(os.close, terminal)
        shown = b""
        while b"q:quit" not in shown:
            shown += os.read(master, 65536)
        before = self.rss_kb(top.pid)
        for _ in range(5):  # Far more than a terminal has room for.
            os.write(master, b"?x" * 100)
            wait_until(lambda: not self.unread_keys(terminal), "the keys to be read")
        self.assertLess(self.rss_kb(top.pid), before + 8 * 1024)
        top.terminate()
        self.assertEqual(top.wait(timeout=60), -signal.SIGTERM)
        self.end_well(launchers)

    def unread_keys(self, terminal):
        return struct.unpack("i", fcntl.ioctl(terminal, termios.FIONREAD, b"\0" * 4))[0]


class NoScreenTest(TopCase):
    def test_without_a_terminal_it_says_what_can_be_done(self):
        self.assert_refused(self.fsdpctl("top"), 1, "is no terminal", "--once")
        self.assert_refused(self.fsdpctl("top", "--once"), 1, "no job of this user")
        launchers = self.start_job()
        text = self.answer("top", "--once")
        self.assertEqual(sorted(rows_of(text)), [0, 1, 2, 3])
        self.assertNotIn("\x1b", text)
        self.assertLess(max(map(len, self.answer("top", "--once", COLUMNS="60").splitlines())), 61)
        self.end_well(launchers)

    @unittest.skipUnless(TMUX, "there is no tmux")
    def test_on_a_terminal_that_cannot_draw(self):
        terminal = self.open_terminal(160, 24)
        for name in ("dumb", "none-such", ""):
            terminal.run(f"clear; TERM={name} fsdpctl top; echo rc=$?")
            terminal.wait_for("rc=1", "--once", f"TERM={name}" if name else "which terminal")

    @unittest.skipUnless(TMUX, "there is no tmux")
    def test_without_a_job_there_is_no_screen(self):
        terminal = self.open_terminal()
        terminal.run("fsdpctl top; echo rc=$?")
        terminal.wait_for("rc=1", "no job of this user")


if __name__ == "__main__":
    main()
