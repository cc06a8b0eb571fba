"""Daemons (fsdp-agent --daemon) run the jobs of launchers (fsdprun --agents): what travels, what is refused, how jobs end."""

import os
import random
import resource
import shutil
import signal
import socket
import time

from daemon_case import NAMED_WORKER, DaemonCase
from events import wait_for_ends, wait_for_files
from job_case import free_port, is_alive
from unittest_main import main

ROUNDS = int(os.environ.get("FSDPRUN_ROUNDS", "3"))
WAITER = "note('pid')\nwait_for('go')"


class DispatchTest(DaemonCase):
    def test_command_folder_environment_output_and_exit_code_travel(self):
        ports = [self.start_daemon(), self.start_daemon()]
        script = self.script("""
            print("out of", RANK, os.getcwd(), sys.argv[1:], repr(os.environ.get("TRAVELS")), os.environ.get("FSDPRUN_TOKEN"), flush=True)
            print("error of", RANK, file=sys.stderr, flush=True)
            note("home", os.environ.get("HOME"))
            wait_for(*(f"home.1.{rank}" for rank in range(WORLD)))  # Who fails ends the others.
            sys.exit(7 if RANK == 3 else 0)
        """)
        folder = self.dir / "a folder"
        folder.mkdir()
        travels = "a b\n=c"
        code, out, err = self.finish(self.start_job(
            ports, "--nproc-per-node=2", "--exit-code=worker", script, "one word", "$x'\n", cwd=folder,
            env={"TRAVELS": travels, "HOME": "/of/the/launcher"}))
        self.assertEqual(code, 7, err)
        for rank in range(4):
            self.assertIn(f"out of {rank} {folder} {['one word', chr(36) + 'x' + chr(39) + chr(10)]!r} {travels!r} None\n", out)  # In one line: others come between lines.
            self.assertIn(f"error of {rank}\n", err)
        self.assertIn("Root Cause", err)
        self.assertEqual(set(self.notes("home").values()), {self.env.get("HOME", "None")})

    def test_only_named_variables_travel(self):
        port = self.start_daemon(env={"OF_DAEMON": "d", "PET_MAX_RESTARTS": "9", "NOTIFY_SOCKET": "/n"})
        script = self.script("""
            note("seen", " ".join(str(os.environ.get(name)) for name in ("ONE_A", "ONE_B", "TWO", "OF_DAEMON", "NOTIFY_SOCKET",
                                                                        "TORCHELASTIC_MAX_RESTARTS", "CUDA_VISIBLE_DEVICES")))
        """)
        env = {"ONE_A": "a", "ONE_B": "b", "TWO": "2", "CUDA_VISIBLE_DEVICES": "5"}
        code, _, err = self.finish(self.start_job([port], "--forward-env=ONE_*,PATH,D,PYTHON*", script, env=env))
        self.assertEqual((code, self.notes("seen")[1, 0]), (0, "a b None d None 0 None"), err)
        code, _, err = self.finish(self.start_job([port], script, env=env))
        self.assertEqual((code, self.notes("seen")[1, 0]), (0, "a b 2 d None 0 None"), err)

    def test_much_output_of_several_nodes_comes_whole(self):
        ports = [self.start_daemon() for _ in range(3)]
        script = self.script("""
            for i in range(20000):
                print(f"<{RANK} {i:06d} " + "x" * 60 + ">")
        """)
        code, out, err = self.finish(self.start_job(ports, script))
        self.assertEqual(code, 0, err)
        lines = out.splitlines()
        for rank in range(3):
            mine = [line for line in lines if line.startswith(f"<{rank} ")]
            self.assertEqual(mine, [f"<{rank} {i:06d} " + "x" * 60 + ">" for i in range(20000)])

    def test_output_that_a_daemons_disk_does_not_take_is_told_of_and_costs_the_exit_code(self):
        limit = 100_000  # Of each file: EFBIG, as on a full disk.
        ports = [self.start_daemon(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))), self.start_daemon()]
        script = self.script("""
            for i in range(5000):
                print(f"<{RANK} {i:06d} " + "x" * 60 + ">")
            note("done")
        """)
        code, out, err = self.finish(self.start_job(ports, script))
        self.assertEqual(code, 74, err)
        self.assertEqual(err.count("some of its workers' output could not be written"), 1, err)
        self.assertEqual(set(self.notes("done")), {(1, 0), (1, 1)}, err)
        lines = {rank: [line for line in out.splitlines() if line.startswith(f"<{rank} ") and line.endswith("x>")] for rank in (0, 1)}
        self.assertEqual(len(lines[1]), 5000)
        self.assertEqual(lines[0], [line.replace("<1", "<0") for line in lines[1][:len(lines[0])]])
        self.assertGreater(len(lines[0]), 1000)

    def test_host_file_says_how_many_workers_a_host_has(self):
        ports = [self.start_daemon(), self.start_daemon()]
        hosts = self.dir / "hosts"
        hosts.write_text(f"# a comment\n127.0.0.1:{ports[0]} slots=3\n\n127.0.0.1:{ports[1]}  # of the command line\n")
        code, out, err = self.run_job(f"--hostfile={hosts}", "--nproc-per-node=2", self.script("print(RANK, os.environ['GROUP_RANK'], flush=True)"))
        self.assertEqual(code, 0, err)
        self.assertEqual(sorted(out.split("\n")[:-1]), ["0 0", "1 0", "2 0", "3 1", "4 1"])

    def test_what_cannot_run_is_told_in_one_place(self):
        ports = [self.start_daemon(), self.start_daemon()]
        code, _, err = self.finish(self.start_job(ports, "--no-python", "no-such-program"))
        self.assertEqual(code, 1)
        self.assertIn("cannot run 'no-such-program'", err)
        hidden = self.dir / "hidden"
        hidden.mkdir()
        launcher = self.start_job(ports, "--no-python", "sh", "-c", "true", cwd=hidden, preexec_fn=hidden.rmdir)
        code, _, err = self.finish(launcher)
        self.assertEqual(code, 1)
        self.assertIn("cannot enter", err)

    def test_a_job_is_restarted_on_its_nodes(self):
        ports = [self.start_daemon(), self.start_daemon()]
        script = self.script("note('run')\nsys.exit(1 if RESTART == 0 and RANK == 1 else 0)")
        code, _, err = self.finish(self.start_job(ports, "--max-restarts=1", script))
        self.assertEqual(code, 0, err)
        self.assertLessEqual({(1, 1), (2, 0), (2, 1)}, set(self.notes("run")))

    def test_a_node_whose_machine_is_started_again_comes_back(self):
        for keeps_folder in (False, True):
            with self.subTest(keeps_folder=keeps_folder):
                ports = [self.start_daemon(), self.start_daemon()]
                name = f"pid-{keeps_folder}"
                script = self.script(f"note({name!r})\nif RESTART == 0:\n    live_on()\nprint('again', RANK, flush=True)")
                job = self.start_job(ports, "--max-restarts=1", script)
                self.wait_for_notes(name, 1, range(2))
                self.lose_machine(ports[1])
                if not keeps_folder:
                    shutil.rmtree(self.folder_of(ports[1]))
                self.start_daemon(port=ports[1])
                code, out, err = self.finish(job)
                self.assertEqual((code, sorted(out.splitlines())), (0, ["again 0", "again 1"]), err)

    def test_a_node_comes_back_only_as_often_as_there_are_restarts(self):
        ports = [self.start_daemon(), self.start_daemon()]
        job = self.start_job(ports, "--max-restarts=1", self.script("note('pid')\nlive_on()"))
        for generation in (1, 2):
            self.wait_for_notes("pid", generation, range(2))
            self.lose_machine(ports[1])
            self.start_daemon(port=ports[1])
        self.assertEqual(self.finish(job)[0], 1)
        self.assertNotIn((3, 1), self.notes("pid"))


class FirstStepsTest(DaemonCase):
    """What goes wrong at first: each says what was attempted, on what, and what to do."""

    def test_two_daemons_at_one_port(self):
        port = self.start_daemon()
        result = self.run_job(*self.daemon_words(port, f"--runtime-dir={self.dir / 'other'}"), binary="fsdp-agent")
        self.assert_one_line_error(result, 1, f"cannot listen on 127.0.0.1:{port}", f"by process {self.daemons[port].pid} (fsdp-agent)",
                                   "give another port")

    def test_an_address_of_another_machine(self):
        result = self.run_job(*self.daemon_words(free_port(), "--listen=192.0.2.77"), binary="fsdp-agent")
        self.assert_one_line_error(result, 1, "cannot listen on 192.0.2.77", "give an address of this machine")

    def test_a_host_without_a_daemon(self):
        port = free_port()
        launcher = self.start_job([port], self.script("pass"))
        line = self.wait_for_line(launcher, f"the daemon at 127.0.0.1:{port} does not run its part of the job")
        self.assertIn("nothing listens there; start fsdp-agent --daemon", line)
        self.assertEqual(self.finish(launcher)[0], 1)
        result = self.run_job(f"--attach=127.0.0.1:{port}/{'0' * 32}")
        self.assert_one_line_error(result, 1, f"127.0.0.1:{port}", "nothing listens there; start fsdp-agent --daemon")

    def test_a_daemon_with_another_token(self):
        port = self.start_daemon()
        result = self.finish(self.start_job([port], self.script("pass"), env={"FSDPRUN_TOKEN": "another"}))
        self.assert_one_line_error(result, 1, f"127.0.0.1:{port}", "token is missing or wrong", "--token-file")

    def test_host_files_that_cannot_be_read(self):
        hosts = self.dir / "hosts"
        hosts.write_text("127.0.0.1 slots=1\n127.0.0.2 slot=1\n")
        for path, words in ((self.dir / "none", ("cannot read", "No such file")), (self.dir, ("cannot read", "Is a directory")),
                            (hosts, ("line 2", "'slot=1' is not slots=N"))):
            self.assert_one_line_error(self.run_job(f"--hostfile={path}", self.script("pass")), 1, "--hostfile", path, *words)

    def test_a_folder_that_takes_no_more(self):
        port = self.start_daemon()
        folder = self.folder_of(port)
        folder.rename(self.dir / "away")
        code, _, err = self.finish(self.start_job([port], self.script("pass")))
        (self.dir / "away").rename(folder)
        self.assertEqual(code, 1, err)
        self.assertIn(f"a daemon keeps its jobs in {folder} (--runtime-dir): see whether there is space", err)
        self.assertEqual(self.finish(self.start_job([port], self.script("pass")))[0], 0)


class SlotsTest(DaemonCase):
    def test_what_is_in_use_is_refused_with_who_uses_it(self):
        port = self.start_daemon(slots=3)
        first = self.start_job([port], "--rdzv-id=night run", "--nproc-per-node=2", self.script(WAITER), env={"USER": "ada"})
        self.wait_for_notes("pid", 1, range(2))
        code, _, err = self.finish(self.start_job([port], "--nproc-per-node=2", self.script("pass", "other.py")))
        self.assertEqual(code, 1)
        for words in ("has 3 slots, of which 1 is free, and 2 are needed", "2 slots by job 'night run' of ada@", "worker.py"):
            self.assertIn(words, err)
        code, _, err = self.finish(self.start_job([port], "--nproc-per-node=1", self.script("pass", "other.py")))
        self.assertEqual(code, 0, err)
        code, _, err = self.finish(self.start_job([port], "--nproc-per-node=4", self.script("pass", "other.py")))
        self.assertIn("has 3 slots, and 4 are needed", err)
        (self.dir / "go").touch()
        self.assertEqual(self.finish(first)[0], 0)
        code, _, err = self.finish(self.start_job([port], "--nproc-per-node=3", self.script("pass", "other.py")))
        self.assertEqual(code, 0, err)

    def test_no_worker_starts_if_one_node_refuses(self):
        free, full = self.start_daemon(slots=1), self.start_daemon(slots=1)
        first = self.start_job([full], self.script(WAITER))
        self.wait_for_notes("pid", 1, range(1))
        code, _, err = self.finish(self.start_job([free, full], self.script("note('never')", "other.py")))
        self.assertEqual(code, 1)
        self.assertIn(f"node 127.0.0.1:{full}: the daemon at 127.0.0.1:{full} does not run its part of the job", err)
        self.assertEqual(self.notes("never"), {})
        self.wait_until_forgotten(free)
        (self.dir / "go").touch()
        self.assertEqual(self.finish(first)[0], 0)

    def test_an_elastic_job_goes_on_without_a_node_that_refuses(self):
        free, full = self.start_daemon(slots=1), self.start_daemon(slots=1)
        first = self.start_job([full], self.script(WAITER))
        self.wait_for_notes("pid", 1, range(1))
        code, _, err = self.finish(self.start_job([free, full], "--nnodes=1:2", "--rdzv-conf=last_call_timeout=1",
                                                  self.script("note('ran')", "other.py")))
        self.assertEqual(code, 0, err)
        self.assertIn("going on without it", err)
        self.assertEqual(set(self.notes("ran")), {(1, 0)})
        (self.dir / "go").touch()
        self.assertEqual(self.finish(first)[0], 0)

    def test_each_device_is_one_jobs(self):
        port = self.start_daemon("--devices=4,GPU-b,6", slots=3)
        body = "note(f'devices-{sys.argv[1]}', os.environ['CUDA_VISIBLE_DEVICES'])\nnote(f'pid-{sys.argv[1]}')\nwait_for('go')"
        jobs = [self.start_job([port], "--nproc-per-node=2", self.script(body), "a")]
        self.wait_for_notes("pid-a", 1, range(2))
        jobs.append(self.start_job([port], self.script(body), "b"))
        self.wait_for_notes("pid-b", 1, range(1))
        self.assertEqual((self.notes("devices-a")[1, 1], self.notes("devices-b")[1, 0]), ("4,GPU-b", "6"))
        code, _, err = self.finish(self.start_job([port], self.script(body), "c"))
        self.assertEqual(code, 1)
        self.assertIn("(devices 4,GPU-b)", err)
        (self.dir / "go").touch()
        self.assertEqual([self.finish(job)[0] for job in jobs], [0, 0])


    def test_a_worker_for_each_device_of_the_daemon(self):
        body = "note(f'devices-{sys.argv[1]}', os.environ['CUDA_VISIBLE_DEVICES'])"
        for name, slots, devices, ranks in (("all", 3, "4,GPU-b,6", 3), ("fewer", 2, "4,GPU-b", 2)):
            with self.subTest(name):
                port = self.start_daemon("--devices=4,GPU-b,6", slots=slots)
                code, _, err = self.finish(self.start_job([port], "--nproc-per-node=gpu", self.script(body), name))
                self.assertEqual(code, 0, err)
                self.assertEqual(self.notes(f"devices-{name}"), {(1, rank): devices for rank in range(ranks)})
        port = self.start_daemon("--devices=none", slots=3)
        code, _, err = self.finish(self.start_job([port], "--nproc-per-node=gpu", self.script(body), "none"))
        self.assertEqual(code, 1)
        self.assertIn("--nproc-per-node: no such device", err)


class EndTest(DaemonCase):
    def test_ctrl_c_ends_the_job_in_order(self):
        ports = [self.start_daemon(), self.start_daemon()]
        script = self.script("""
            def on_signal(number, _):
                note("saved", number)
                sys.exit(0)
            signal.signal(signal.SIGINT, on_signal)
            note("pid")
            live_on()
        """)
        job = self.start_job(ports, script)
        self.wait_for_notes("pid", 1, range(2))
        job.send_signal(signal.SIGINT)
        code, _, err = self.finish(job)
        self.assertEqual(code, 1, err)
        self.assertEqual(set(self.notes("saved").values()), {str(int(signal.SIGINT))})
        self.wait_until_forgotten(*ports)

    def test_a_second_ctrl_c_ends_the_grace(self):
        port = self.start_daemon()
        script = self.script("signal.signal(signal.SIGINT, lambda *_: note('told'))\nnote('pid')\nlive_on()")
        job = self.start_job([port], "--shutdown-timeout=600", script)
        self.wait_for_notes("pid", 1, range(1))
        job.send_signal(signal.SIGINT)
        self.wait_for_notes("told", 1, range(1))
        job.send_signal(signal.SIGINT)
        self.assertEqual(self.finish(job)[0], 1)
        self.assertFalse(is_alive(int(self.notes("pid")[1, 0])))

    def test_a_second_ctrl_c_ends_the_wait_for_a_daemon_that_does_not_answer(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            where = f"127.0.0.1:{silent.getsockname()[1]}"
            job = self.start(f"--agents={where}", self.script("pass"))
            connection, _ = silent.accept()
            job.send_signal(signal.SIGINT)
            self.wait_for_line(job, "waiting for the answer of the daemon at", where, "Ctrl-C")
            job.send_signal(signal.SIGINT)
            self.assert_one_line_error(self.finish(job), 1, "ended by SIGINT")
            connection.close()

    def test_the_job_of_a_lost_launcher_ends(self):
        port = self.start_daemon(slots=1)
        job = self.start_job([port], self.script("note('pid')\nlive_on()"))
        self.wait_for_notes("pid", 1, range(1))
        job.kill()
        wait_for_ends([int(self.notes("pid")[1, 0])])
        self.wait_until_forgotten(port)
        code, _, err = self.finish(self.start_job([port], self.script("pass", "other.py")))
        self.assertEqual(code, 0, err)

    def test_a_part_that_is_killed_with_its_keeper_is_a_lost_node(self):
        port = self.start_daemon(slots=1)
        job = self.start_job([port], self.script("note('pid')\nlive_on()"))
        self.wait_for_notes("pid", 1, range(1))
        worker = int(self.notes("pid")[1, 0])
        (alive,) = self.folder_of(port).glob("*/alive")
        for pid in (self.keeper_of(worker), int(alive.read_text().split()[0])):
            os.kill(pid, signal.SIGKILL)
        wait_for_ends([worker])
        self.assertEqual(self.finish(job)[0], 1)
        code, _, err = self.finish(self.start_job([port], self.script("pass", "other.py")))
        self.assertEqual(code, 0, err)

    def test_the_end_of_a_job_does_not_wait_for_a_machine_that_is_gone(self):
        ports = [self.start_daemon(), self.start_daemon()]
        job = self.start_job(ports, self.script("note('pid')\nlive_on()"))
        self.wait_for_notes("pid", 1, range(2))
        self.lose_machine(ports[1])
        code, _, err = self.finish(job)
        self.assertEqual(code, 1, err)
        self.assertIn(f"node 127.0.0.1:{ports[1]}", err)
        self.assertIn("cannot be reached; its output ends here", err)
        self.assertNotIn("not all of its nodes have ended", err)

    def test_a_daemon_that_is_told_to_end_ends_its_jobs_in_order(self):
        port = self.start_daemon()
        script = self.script("""
            def on_signal(number, _):
                note("saved", number)
                sys.exit(0)
            signal.signal(signal.SIGTERM, on_signal)
            note("pid")
            live_on()
        """)
        job = self.start_job([port], script)
        self.wait_for_notes("pid", 1, range(1))
        self.daemons[port].send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(self.daemons[port])[0], 0)
        self.assertEqual(set(self.notes("saved")), {(1, 0)})
        self.assertEqual(self.finish(job)[0], 1)

    def test_a_daemon_whose_terminal_is_closed_goes_on(self):
        # Whoever runs the tests may have them ignore it (nohup).
        port = self.start_daemon(env={"LOGLEVEL": "INFO"}, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
        job = self.start_job([port], self.script(WAITER + "\nprint('last words', flush=True)"))
        self.wait_for_notes("pid", 1, range(1))
        self.daemons[port].send_signal(signal.SIGHUP)
        self.wait_for_line(self.daemons[port], "SIGHUP: going on")
        code, _, err = self.finish(self.start_job([port], self.script("pass", "other.py")))
        self.assertEqual(code, 0, err)
        (self.dir / "go").touch()
        self.assertEqual(self.finish(job)[:2], (0, "last words\n"))
        self.assertIsNone(self.daemons[port].poll())

    def test_three_jobs_through_four_daemons_one_is_killed(self):
        ports = [self.start_daemon(slots=3) for _ in range(4)]
        script = self.script(NAMED_WORKER)
        jobs = {name: self.start_job(ports, "--exit-code=worker", f"--rdzv-id={name}", script, name, code)
                for name, code in (("a", 0), ("b", 5), ("c", 0))}
        for name in jobs:
            self.wait_for_notes(f"pid-{name}", 1, range(4))
        jobs["c"].kill()
        wait_for_ends([int(pid) for pid in self.notes("pid-c").values()])
        for name in "ab":
            (self.dir / f"go-{name}").touch()
        for name, expected in (("a", 0), ("b", 5)):
            self.assert_named_job(jobs[name], name, expected, ranks=4)
        self.wait_until_forgotten(*ports)


class RestartTest(DaemonCase):
    """A daemon is killed and started again: the sessions, which are no part of it, are taken over."""

    def test_jobs_go_on_and_their_slots_stay_taken(self):
        port = self.start_daemon(slots=2)
        body = """
            note("pid")
            print("before", flush=True)
            wait_for("go")
            print("after", flush=True)
            note("end")
            wait_for("end.1.0", "end.1.1")  # Who fails ends the others.
            sys.exit(9)
        """
        job = self.start_job([port], "--nproc-per-node=2", "--exit-code=worker", "--rdzv-id=kept", self.script(body))
        self.wait_for_notes("pid", 1, range(2))
        self.restart_daemon(port, slots=2)
        code, _, err = self.finish(self.start_job([port], self.script("pass", "other.py")))
        self.assertEqual(code, 1)
        self.assertIn("2 slots by job 'kept'", err)
        (self.dir / "go").touch()
        code, out, err = self.finish(job)
        self.assertEqual((code, sorted(out.split())), (9, ["after", "after", "before", "before"]), err)

    def test_a_session_that_is_just_being_started_has_its_slots_and_its_launcher(self):
        port = self.start_daemon(slots=2)
        job = self.start_job([port], "--nproc-per-node=2", "--rdzv-id=kept", self.script(WAITER + "\nprint('after', flush=True)"))
        self.wait_for_notes("pid", 1, range(2))
        self.kill_daemon(port)
        (alive,) = self.folder_of(port).glob("*/alive")
        number = alive.read_text()
        os.truncate(alive, 0)  # As before a session has said its number.
        self.start_daemon(port=port, slots=2)
        code, _, err = self.finish(self.start_job([port], self.script("pass", "other.py")))
        self.assertEqual(code, 1)
        self.assertIn("2 slots by job 'kept'", err)
        result = self.run_job(f"--attach=127.0.0.1:{port}/{alive.parent.name}")
        self.assert_one_line_error(result, 1, "taking the session over", "try again")
        with open(alive, "r+") as file:
            file.write(number)
        (self.dir / "go").touch()
        self.assertEqual(self.finish(job)[:2], (0, "after\n" * 2))

    def test_a_daemon_that_is_told_to_end_ends_what_it_has_not_taken_over_yet(self):
        port = self.start_daemon()
        job = self.start_job([port], self.script("note('pid')\nlive_on()"))
        self.wait_for_notes("pid", 1, range(1))
        self.kill_daemon(port)
        (alive,) = self.folder_of(port).glob("*/alive")
        number = alive.read_text()
        os.truncate(alive, 0)
        self.start_daemon(port=port, env={"LOGLEVEL": "INFO"})
        self.daemons[port].send_signal(signal.SIGTERM)
        self.wait_for_line(self.daemons[port], "signal 15")
        with open(alive, "r+") as file:
            file.write(number)
        self.assertEqual(self.finish(self.daemons[port])[0], 0)
        wait_for_ends([int(self.notes("pid")[1, 0])])
        job.kill()

    def test_a_job_that_ends_while_its_daemon_is_away(self):
        port = self.start_daemon()
        job = self.start_job([port], "--exit-code=worker", self.script(WAITER + "\nprint('last words', flush=True)\nsys.exit(5)"))
        self.wait_for_notes("pid", 1, range(1))
        self.kill_daemon(port)
        (self.dir / "go").touch()
        wait_for_ends([int(self.notes("pid")[1, 0])])
        self.start_daemon(port=port)
        code, out, err = self.finish(job)
        self.assertEqual((code, out), (5, "last words\n"), err)

    def test_a_daemon_that_is_away_for_long_at_the_end_of_a_job_shows_its_output_then(self):
        ports = [self.start_daemon(), self.start_daemon()]
        job = self.start_job(ports, "--max-restarts=1", self.script(WAITER + "\nprint('last words of', RANK, flush=True)"))
        self.wait_for_notes("pid", 1, range(2))
        self.kill_daemon(ports[1])
        (self.dir / "go").touch()
        wait_for_ends([int(pid) for pid in self.notes("pid").values()])
        time.sleep(5)  # The fault itself: longer than a node that is lost is waited for.
        self.start_daemon(port=ports[1])
        code, out, err = self.finish(job)
        self.assertEqual((code, sorted(out.splitlines())), (0, ["last words of 0", "last words of 1"]), err)
        self.assertNotIn("starting it again", err)

    def test_at_random_moments_no_step_is_lost_and_no_line(self):
        seed = int(os.environ.get("FSDPRUN_SEED", random.randrange(2**32)))
        moments = random.Random(seed)
        ports = [self.start_daemon(), self.start_daemon()]
        script = self.script("""
            note("pid")
            step = 0
            while not (D / "end").exists():
                print(f"{RANK} step {step}", flush=True)
                note("step", step)
                step += 1
                time.sleep(0.002)
            note("steps", step)
        """)
        job = self.start_job(ports, script)
        self.wait_for_notes("pid", 1, range(2))
        self.wait_for_notes("step", 1, range(2))
        pids = self.notes("pid")
        for _ in range(ROUNDS):
            seen = int(self.notes("step")[1, 0])
            target = seen + moments.randrange(1, 60)
            wait_for_files(lambda: int(self.notes("step")[1, 0]) >= target, self.dir, f"step {target} (seed {seed})")
            self.restart_daemon(moments.choice(ports))
        (self.dir / "end").touch()
        code, out, err = self.finish(job)
        self.assertEqual(code, 0, f"seed {seed}\n{err}")
        self.assertEqual((self.notes("pid"), set(self.notes("pid"))), (pids, {(1, 0), (1, 1)}), f"seed {seed}")
        for rank in range(2):
            steps = int(self.notes("steps")[1, rank])
            mine = [line for line in out.splitlines() if line.startswith(f"{rank} ")]
            self.assertEqual(mine, [f"{rank} step {step}" for step in range(steps)], f"seed {seed}")

    def test_only_one_daemon_has_a_folder(self):
        port = self.start_daemon()
        result = self.run_job(*self.daemon_words(free_port(), f"--runtime-dir={self.folder_of(port)}"), binary="fsdp-agent")
        self.assert_one_line_error(result, 1, "another daemon uses", self.folder_of(port))


if __name__ == "__main__":
    main()
