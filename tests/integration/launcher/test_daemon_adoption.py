"""The process of a daemon's session is killed with -9: another one goes on in its place, with the same workers and without a
lost step."""

import contextlib
import os
import pathlib
import random
import signal
import socket
import stat
import textwrap

from daemon_case import DaemonCase
from events import wait_for_ends, wait_for_files
from job_case import is_alive, wait_until
from test_watchdog import CLIENT
from unittest_main import main
from vitals_page import path_of

ROUNDS = int(os.environ.get("FSDPRUN_ROUNDS", "3"))
# A worker that trains: it has its store open all the time, asks it in each step, and goes on until it is told to end.
TRAINER = """
    import socket, struct
    class Store:
        # What TCPStore's clients say, with nothing but the standard library.
        def __init__(self):
            self.socket = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), timeout=60)
            self.socket.sendall(struct.pack("=BI", 0, 0x3C85F7CE))
        def add(self, key, value):
            key = key.encode()
            self.socket.sendall(struct.pack("=BQ", 4, len(key)) + key + struct.pack("=q", value))
            answer = b""
            while len(answer) < 8:
                piece = self.socket.recv(8 - len(answer))
                assert piece, "the store is gone"
                answer += piece
            return struct.unpack("=q", answer)[0]
    store = Store()
    note("pid")
    step = 0
    while not (D / "end").exists():
        step += 1
        print(f"{RANK} step {step}", flush=True)
        assert store.add(f"steps/{RANK}", 1) == step
        note("step", step)
        time.sleep(0.002)
    Store().add("done", 1)
    note("steps", step)
"""


class AdoptionCase(DaemonCase):
    def folder_of_session(self, port):
        (folder,) = self.sessions_of(port)
        return folder

    def session_pid(self, port):
        """0 while it is being started."""
        words = (self.folder_of_session(port) / "alive").read_text().split()
        return int(words[0]) if words else 0

    def kill_session(self, port):
        pid = self.session_pid(port)
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pid

    def wait_for_another_session(self, port, before):
        wait_until(lambda: self.session_pid(port) not in (0, before), "another process of the session")

    def kill_daemon(self, port):
        self.daemons[port].kill()
        self.daemons[port].wait()

    def wait_for_steps(self, ranks, more):
        """Each rank does so many more."""
        seen = {rank: int(self.notes("step")[1, rank]) for rank in ranks}
        wait_for_files(lambda: all(int(self.notes("step")[1, rank]) >= seen[rank] + more for rank in ranks), self.dir, "steps")

    def start_trainers(self, ports, *more, ranks=2):
        job = self.start_job(ports, *more, self.script(TRAINER))
        self.wait_for_notes("step", 1, range(ranks))
        return job, self.notes("pid")

    def finish_trainers(self, job, pids, where=""):
        """All steps were done by the workers that began, and each line of output is there. How often one came twice."""
        (self.dir / "end").touch()
        code, out, err = self.finish(job)
        self.assertEqual(code, 0, f"{where}\n{err}")
        self.assertEqual((self.notes("pid"), {generation for generation, _ in self.notes("pid")}), (pids, {1}), where)
        doubled = 0
        for _, rank in pids:
            steps = int(self.notes("steps")[1, rank])
            mine = [line for line in out.splitlines() if line.startswith(f"{rank} ")]
            self.assertEqual(list(dict.fromkeys(mine)), [f"{rank} step {step}" for step in range(1, steps + 1)], where)
            doubled += len(mine) - steps
        return doubled


class AdoptionTest(AdoptionCase):
    def test_workers_keep_their_pages(self):
        port = self.start_daemon()
        job, pids = self.start_trainers([port], ranks=1)
        page = path_of(int(pids[1, 0]))
        first = self.kill_session(port)
        self.wait_for_another_session(port, first)
        wait_until(lambda: str(page) in pathlib.Path(f"/proc/{self.session_pid(port)}/maps").read_text(), "the next process to map the page")
        self.finish_trainers(job, pids)
        wait_until(lambda: not page.parent.exists(), "the pages to be removed")

    def test_at_random_moments_no_step_is_lost_and_no_line(self):
        seed = int(os.environ.get("FSDPRUN_SEED", random.randrange(2**32)))
        moments = random.Random(seed)
        ports = [self.start_daemon(), self.start_daemon()]
        job, pids = self.start_trainers(ports)
        for number in range(ROUNDS):
            port = ports[0] if number == 0 else moments.choice(ports)  # The first has rank 0, and its store.
            self.wait_for_steps(range(2), moments.randrange(1, 60))
            killed = [self.kill_session(port)]
            if moments.random() < 0.3:
                # Another one while that is being started, maybe before it has its keeper.
                self.wait_for_another_session(port, killed[0])
                killed.append(self.kill_session(port))
            if moments.random() < 0.3:
                self.kill_daemon(port)
                self.start_daemon(port=port)
            self.wait_for_another_session(port, killed[-1])
        self.wait_for_steps(range(2), 3)
        doubled = self.finish_trainers(job, pids, f"seed {seed}")
        self.assertLess(doubled, 1000 * ROUNDS, f"seed {seed}")

    def test_session_and_daemon_are_killed_together(self):
        port = self.start_daemon(slots=2)
        job, pids = self.start_trainers([port], "--nproc-per-node=2")
        self.kill_daemon(port)
        killed = self.kill_session(port)
        self.wait_for_steps(range(2), 5)
        self.start_daemon(port=port, slots=2)
        self.wait_for_another_session(port, killed)
        code, _, err = self.finish(self.start_job([port], self.script("pass", "other.py")))
        self.assertEqual(code, 1)
        self.assertIn("of which 0 are free", err)
        self.finish_trainers(job, pids)

    def test_a_worker_that_ends_while_nobody_looks_has_its_exit_code(self):
        for number, script in enumerate(("sys.exit(5)", "os.kill(os.getpid(), signal.SIGSEGV)", "raise ValueError('of the worker')")):
            with self.subTest(script):
                port = self.start_daemon()
                name = f"worker{number}.py"
                job = self.start_job([port], "--exit-code=worker", self.script(
                    f"note('pid{number}')\nwait_for('go{number}')\nprint('last words', flush=True)\n{script}", name))
                self.wait_for_notes(f"pid{number}", 1, range(1))
                worker = int(self.notes(f"pid{number}")[1, 0])
                self.kill_daemon(port)
                self.kill_session(port)
                (self.dir / f"go{number}").touch()
                wait_for_ends([worker])
                self.start_daemon(port=port)
                code, out, err = self.finish(job)
                self.assertEqual((code, out), ((5, 128 + signal.SIGSEGV, 1)[number], "last words\n"), err)
                self.assertEqual(err.count("Root Cause"), 1, err)

    def test_a_restart_goes_on_over_it(self):
        """The generation after the one that was adopted is like any other."""
        ports = [self.start_daemon(), self.start_daemon()]
        script = self.script("""
            note("pid")
            wait_for(f"go{RESTART}")
            sys.exit(3 if RANK == 0 and RESTART == 0 else 0)
        """.replace("RESTART", "int(os.environ['TORCHELASTIC_RESTART_COUNT'])"))
        job = self.start_job(ports, "--max-restarts=1", script)
        self.wait_for_notes("pid", 1, range(2))
        for port in ports:
            self.wait_for_another_session(port, self.kill_session(port))
        (self.dir / "go0").touch()
        self.wait_for_notes("pid", 2, range(2))
        for port in ports:
            self.wait_for_another_session(port, self.kill_session(port))
        (self.dir / "go1").touch()
        code, _, err = self.finish(job)
        self.assertEqual(code, 0, err)

    def test_a_watchdog_goes_on(self):
        """Who sets a timer while there is no agent does not fail, and the next one hears of it."""
        port = self.start_daemon()
        script = self.script(textwrap.dedent(CLIENT) + textwrap.dedent("""
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGUSR2])
            timer("before", 1000)
            note("pid")
            wait_for("go")
            timer("meanwhile", 0, signal.SIGUSR1)
            note("set")
            signal.sigwait([signal.SIGUSR1])
            timer("after", 0, signal.SIGUSR2)
            signal.sigwait([signal.SIGUSR2])
        """))
        job = self.start_job([port], script, env={"TORCHELASTIC_ENABLE_FILE_TIMER": "1"})
        self.wait_for_notes("pid", 1, range(1))
        self.kill_daemon(port)
        self.kill_session(port)
        (self.dir / "go").touch()
        self.wait_for_notes("set", 1, range(1))
        self.start_daemon(port=port)
        code, _, err = self.finish(job)
        self.assertEqual((code, len(self.notes("pid"))), (0, 1), err)

    def test_a_stop_reaches_workers_that_were_adopted(self):
        port = self.start_daemon()
        script = self.script("""
            def on_signal(number, _):
                note("signal", number)
                wait_for("go")
                note("saved")
                sys.exit(0)
            signal.signal(signal.SIGTERM, on_signal)
            note("pid")
            live_on()
        """)
        job = self.start_job([port], script)
        self.wait_for_notes("pid", 1, range(1))
        self.wait_for_another_session(port, self.kill_session(port))
        job.send_signal(signal.SIGTERM)
        self.wait_for_notes("signal", 1, range(1))
        self.wait_for_another_session(port, self.kill_session(port))  # Its grace goes on.
        (self.dir / "go").touch()
        code, _, err = self.finish(job)
        self.assertEqual((code, len(self.notes("saved")), self.notes("signal")[1, 0]), (1, 1, "15"), err)


class LossTest(AdoptionCase):
    """What cannot be adopted is lost as ever, and nothing of it stays."""

    def test_a_keeper_that_is_killed_takes_its_workers_with_it(self):
        port = self.start_daemon()
        job, pids = self.start_trainers([port], ranks=1)
        worker = int(pids[1, 0])
        keeper = self.keeper_of(worker)
        self.wait_for_another_session(port, self.kill_session(port))
        self.wait_for_steps(range(1), 2)
        os.kill(keeper, signal.SIGKILL)
        wait_for_ends([worker])
        code, _, err = self.finish(job)
        self.assertEqual(code, 1)
        self.assertIn("keeper died", err)

    def test_session_and_keeper_are_killed_together(self):
        port = self.start_daemon()
        job, pids = self.start_trainers([port], ranks=1)
        worker = int(pids[1, 0])
        os.kill(self.keeper_of(worker), signal.SIGKILL)
        self.kill_session(port)
        wait_for_ends([worker])
        self.assertEqual(self.finish(job)[0], 1)

    def test_a_session_that_its_daemon_kills_stays_dead(self):
        port = self.start_daemon()
        job, pids = self.start_trainers([port], ranks=1)
        session = self.session_pid(port)
        os.kill(session, signal.SIGSTOP)  # So that it does not end in order.
        for number in (signal.SIGTERM, signal.SIGINT):  # Two of one kind may be one.
            self.daemons[port].send_signal(number)
        wait_for_ends([session, int(pids[1, 0])])
        self.assertEqual(self.finish(self.daemons[port])[0], 0)
        self.assertNotEqual(self.finish(job)[0], 0)

    def test_a_session_that_is_stopped_for_longer_than_the_lease_loses_its_place(self):
        ports = [self.start_daemon(), self.start_daemon()]
        job, pids = self.start_trainers(ports, "--max-restarts=3", "--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=1")
        stopped = self.session_pid(ports[1])
        os.kill(stopped, signal.SIGSTOP)
        of_stopped = [int(pid) for pid in pids.values() if self.parent_of(self.keeper_of(int(pid))) == stopped]
        wait_for_ends([int(pid) for pid in pids.values() if int(pid) not in of_stopped])  # The others are stopped for want of it.
        self.assertEqual([is_alive(pid) for pid in of_stopped], [True])
        os.kill(stopped, signal.SIGCONT)
        wait_for_ends(of_stopped)
        self.wait_for_notes("step", 2, range(2))
        (self.dir / "end").touch()
        code, _, err = self.finish(job)
        self.assertEqual(code, 0, err)

    def test_strangers_at_the_keepers_socket(self):
        port = self.start_daemon()
        job, pids = self.start_trainers([port], ranks=1)
        path = self.folder_of_session(port) / "keeper"
        self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)
        for says in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x01\0\0\0\x05", b"\xff" * 100):
            with socket.socket(socket.AF_UNIX) as visitor:
                visitor.connect(str(path))
                visitor.sendall(says)
                visitor.settimeout(60)
                with contextlib.suppress(ConnectionResetError):
                    self.assertEqual(visitor.recv(1), b"")
        self.assertTrue(is_alive(int(pids[1, 0])))
        self.wait_for_another_session(port, self.kill_session(port))
        self.wait_for_steps(range(1), 2)
        self.finish_trainers(job, pids)


if __name__ == "__main__":
    main()
