"""Jobs that go on without their launcher (fsdprun --detach) and are followed again (fsdprun --attach)."""

import signal
import socket

from daemon_case import NAMED_WORKER, DaemonCase
from events import wait_for_ends
from job_case import free_port, wait_until
from unittest_main import main

BODY = """
    note("pid")
    print("begin", RANK, flush=True)
    wait_for("go")
    print("end", RANK, flush=True)
    note("end")
    wait_for(*(f"end.1.{rank}" for rank in range(WORLD)))  # Who fails ends the others.
    sys.exit(3 if RANK == 0 else 0)
"""
ALL_LINES = ["begin 0", "begin 1", "end 0", "end 1"]


class DetachTest(DaemonCase):
    def detach(self, ports, *more, **kwargs):
        """The job's id, once it has started and its launcher has ended."""
        code, out, err = self.finish(self.start_job(ports, "--detach", *more, **kwargs))
        self.assertEqual(code, 0, err)
        self.assertRegex(out, rf"^127\.0\.0\.1:{ports[0]}/[0-9a-f]{{32}}\n$")
        return out.strip()

    def test_output_from_the_beginning_and_exit_code(self):
        ports = [self.start_daemon(), self.start_daemon()]
        job = self.detach(ports, "--exit-code=worker", self.script(BODY))
        self.wait_for_notes("pid", 1, range(2))
        (self.dir / "go").touch()
        code, out, err = self.run_job(f"--attach={job}")
        self.assertEqual((code, sorted(out.splitlines())), (3, ALL_LINES), err)
        self.assertIn("Root Cause", err)
        code, _, err = self.run_job(f"--attach={job}")
        self.assertEqual(code, 1)
        self.assertIn("has no session", err)

    def test_an_attached_terminal_may_go(self):
        ports = [self.start_daemon(), self.start_daemon()]
        job = self.detach(ports, "--exit-code=worker", self.script(BODY))
        first = self.start(f"--attach={job}")
        self.assertIn(first.stdout.readline(), ("begin 0\n", "begin 1\n"))
        first.kill()
        first.wait()
        (self.dir / "go").touch()
        code, out, err = self.run_job(f"--attach={job}")
        self.assertEqual((code, sorted(out.splitlines())), (3, ALL_LINES), err)

    def test_the_end_is_kept_for_who_attaches_later(self):
        port = self.start_daemon()
        job = self.detach([port], "--exit-code=worker", "--nproc-per-node=2", self.script(BODY))
        (self.dir / "go").touch()
        self.wait_for_notes("end", 1, range(2))
        wait_until(lambda: any(self.folder_of(port).glob("*/exit")) and len(self.sessions_of(port)) == 1, "the job to end")
        code, out, err = self.run_job(f"--attach={job}")
        self.assertEqual((code, sorted(out.splitlines())), (3, ALL_LINES), err)

    def test_signals_of_an_attached_launcher_are_the_jobs(self):
        port = self.start_daemon()
        script = self.script("""
            def on_signal(number, _):
                note("saved", number)
                sys.exit(0)
            signal.signal(signal.SIGINT, on_signal)
            note("pid")
            print("ready", flush=True)
            live_on()
        """)
        attached = self.start(f"--attach={self.detach([port], script)}")
        self.assertEqual(attached.stdout.readline(), "ready\n")
        attached.send_signal(signal.SIGINT)
        self.assertEqual(self.finish(attached)[0], 1)
        self.assertEqual(self.notes("saved"), {(1, 0): str(int(signal.SIGINT))})

    def test_ctrl_c_while_the_daemon_is_away_ends_the_attachment_and_says_so(self):
        port = self.start_daemon()
        job = self.detach([port], "--exit-code=worker", "--nproc-per-node=2", self.script(BODY))
        attached = self.start(f"--attach={job}")
        for _ in range(2):
            self.assertIn(attached.stdout.readline(), ("begin 0\n", "begin 1\n"))
        self.kill_daemon(port)
        self.wait_for_line(attached, "cannot be reached", "Ctrl-C")
        attached.send_signal(signal.SIGINT)
        self.assert_one_line_error(self.finish(attached), 128 + signal.SIGINT, "interrupted", "could not be reached", f"--attach {job}")
        self.start_daemon(port=port)
        (self.dir / "go").touch()
        code, out, err = self.run_job(f"--attach={job}")
        self.assertEqual((code, sorted(out.splitlines())), (3, ALL_LINES), err)

    def test_ctrl_c_before_the_daemon_has_answered_ends_at_once(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            where = f"127.0.0.1:{silent.getsockname()[1]}"
            attached = self.start(f"--attach={where}/{'0' * 32}")
            connection, _ = silent.accept()
            attached.send_signal(signal.SIGINT)
            self.assert_one_line_error(self.finish(attached), 128 + signal.SIGINT, "interrupted", where, "had not answered")
            connection.close()

    def test_ctrl_c_while_a_job_is_being_detached_waits_for_the_answer_unless_it_comes_again(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            where = f"127.0.0.1:{silent.getsockname()[1]}"
            launcher = self.start(f"--agents={where}", "--detach", self.script("pass"))
            connection, _ = silent.accept()
            launcher.send_signal(signal.SIGINT)
            self.wait_for_line(launcher, "waiting for the answer of the daemon at", where)
            launcher.send_signal(signal.SIGINT)
            self.assert_one_line_error(self.finish(launcher), 128 + signal.SIGINT, "interrupted", f"--attach {where}/")
            connection.close()

    def test_daemons_that_are_killed_and_started_again(self):
        ports = [self.start_daemon(), self.start_daemon()]
        job = self.detach(ports, "--exit-code=worker", self.script(BODY))
        self.wait_for_notes("pid", 1, range(2))
        attached = self.start(f"--attach={job}")
        for port in ports:
            self.restart_daemon(port)
        (self.dir / "go").touch()
        code, out, err = self.finish(attached)
        self.assertEqual((code, sorted(out.splitlines())), (3, ALL_LINES), err)

    def test_a_job_whose_id_nobody_has_heard_ends(self):
        port = self.start_daemon()
        # One node more may come within ten minutes: the job does not start before.
        launcher = self.start_job([port, free_port()], "--detach", "--nnodes=1:2", "--rdzv-conf=last_call_timeout=600", self.script("pass"))

        def pids_of_parts():
            texts = [path.read_text() for path in self.folder_of(port).glob("*/alive")]
            return [int(text.split()[0]) for text in texts] if len(texts) == 2 and all(texts) else None
        wait_until(pids_of_parts, "the job's launcher and its part at the node")
        pids = pids_of_parts()
        launcher.kill()
        launcher.wait()
        wait_for_ends(pids)
        wait_until(lambda: self.sessions_of(port) == [], "the job to be forgotten")

    def test_what_is_refused_is_told_and_has_no_id(self):
        free, full = self.start_daemon(slots=1), self.start_daemon(slots=1)
        first = self.start_job([full], self.script("note('pid')\nwait_for('go')"))
        self.wait_for_notes("pid", 1, range(1))
        code, out, err = self.finish(self.start_job([free, full], "--detach", self.script("pass", "other.py")))
        self.assertEqual((code, out), (1, ""))
        self.assertIn("has 1 slot, of which 0 are free", err)
        (self.dir / "go").touch()
        self.assertEqual(self.finish(first)[0], 0)

    def test_three_jobs_through_four_daemons_one_killed_one_detached(self):
        ports = [self.start_daemon(slots=3) for _ in range(4)]
        script = self.script(NAMED_WORKER)
        job = self.detach(ports, "--exit-code=worker", script, "detached", 6)
        stays = self.start_job(ports, "--exit-code=worker", script, "stays", 5)
        killed = self.start_job(ports, script, "killed", 0)
        for name in ("detached", "stays", "killed"):
            self.wait_for_notes(f"pid-{name}", 1, range(4))
        killed.kill()
        wait_for_ends([int(pid) for pid in self.notes("pid-killed").values()])
        for name in ("detached", "stays"):
            (self.dir / f"go-{name}").touch()
        for name, launcher, expected in (("stays", stays, 5), ("detached", self.start(f"--attach={job}"), 6)):
            self.assert_named_job(launcher, name, expected, ranks=4)
        self.wait_until_forgotten(*ports)


if __name__ == "__main__":
    main()
