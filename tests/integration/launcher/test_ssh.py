"""Nodes that have nothing but sshd (fsdprun --ssh): what travels and how, what goes wrong at a host, how jobs end."""

import contextlib
import os
import pathlib
import signal
import unittest

from events import wait_for_ends
from job_case import BIN, MARKER, JobCase, free_port, is_alive, processes_with, wait_until
from ssh_server import REASON_TO_SKIP, SshServer
from unittest_main import main

HOSTS = [f"127.0.0.{number}" for number in range(1, 5)]
IMMORTAL = "signal.signal(signal.SIGINT, signal.SIG_IGN)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nnote('pid')\nlive_on()"


def file_of(pid, name):
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}", name).read_bytes()
    return b""


def parent_of(pid):
    fields = file_of(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0


@unittest.skipIf(REASON_TO_SKIP, REASON_TO_SKIP)
class SshCase(JobCase):
    def setUp(self):
        super().setUp()
        variables = {MARKER: self.marker, "D": self.dir, "TMPDIR": self.env["TMPDIR"], "XDG_CONFIG_HOME": self.env["XDG_CONFIG_HOME"]}
        self.sshd = SshServer(self.dir / "sshd", variables)
        self.addCleanup(self.sshd.stop)

    def start_job(self, hosts, *more, **kwargs):
        return self.start("--ssh", f"--ssh-command={self.sshd.command}", "--agents=" + ",".join(hosts), *more, **kwargs)

    def run_hosts(self, hosts, *more, **kwargs):
        return self.finish(self.start_job(hosts, *more, **kwargs))

    def clients_of(self, job):
        """{host: pid} of the job's ssh."""
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit() and parent_of(entry.name) == job.pid:
                words = file_of(entry.name, "cmdline").decode().split("\0")
                if words[0] == "ssh":
                    found[next(word for word in words if word in HOSTS)] = int(entry.name)
        return found


class DispatchTest(SshCase):
    def test_command_folder_environment_output_and_exit_code_travel(self):
        script = self.script("""
            print("out of", RANK, os.getcwd(), sys.argv[1:], os.environ.get("TRAVELS"), os.environ.get("FSDPRUN_TOKEN"), flush=True)
            print("error of", RANK, file=sys.stderr, flush=True)
            note("login", f"{os.environ.get('TERM')} {'SSH_CONNECTION' in os.environ} {sys.stdin.read()!r}")
            wait_for(*(f"login.1.{rank}" for rank in range(WORLD)))  # Who fails ends the others.
            sys.exit(7 if RANK == 3 else 0)
        """)
        folder = self.dir / "a folder, of 'mine'"
        folder.mkdir()
        words = ["one word", "$x'\n\"`", "*", "", "\\", "!!"]
        code, out, err = self.run_hosts(HOSTS[:2], "--nproc-per-node=2", "--exit-code=worker", script, *words, cwd=folder,
                                        env={"TRAVELS": "a b\n=c", "TERM": "of the launcher", "FSDPRUN_TOKEN": "t"})
        self.assertEqual(code, 7, err)
        for rank in range(4):
            self.assertIn(f"out of {rank} {folder} {words!r} a b\n=c None\n", out)
            self.assertIn(f"error of {rank}\n", err)
        self.assertIn("Root Cause", err)
        self.assertEqual({text.split(" ", 1)[1] for text in self.notes("login").values()}, {"True ''"})
        self.assertNotIn("of the launcher", "".join(self.notes("login").values()))

    def test_four_hosts_of_a_file_with_their_slots(self):
        hosts = self.dir / "hosts"
        hosts.write_text(f"# a comment\n{HOSTS[0]} slots=2\n\n{HOSTS[1]}:{self.sshd.port}  # of the command line\n{HOSTS[2]}\n{HOSTS[3]} slots=1\n")
        code, out, err = self.run_job("--ssh", f"--ssh-command={self.sshd.command}", f"--hostfile={hosts}", "--nproc-per-node=1", "--tee=1",
                                      self.script("print(RANK, os.environ['GROUP_RANK'], flush=True)"))
        self.assertEqual(code, 0, err)
        self.assertEqual(sorted(out.splitlines()), [f"[default{local}]:{rank} {group}" for local, rank, group in
                                                    [(0, 0, 0), (0, 2, 1), (0, 3, 2), (0, 4, 3), (1, 1, 0)]])

    def test_much_output_comes_whole_and_what_a_login_prints_is_none(self):
        wrapper = self.dir / "a program"
        wrapper.write_text(f"#!/bin/sh\necho Welcome to\necho this host >&2\nexec {BIN}/fsdprun \"$@\"\n")
        wrapper.chmod(0o755)
        script = self.script("""
            for i in range(20000):
                print(f"<{RANK} {i:06d} " + "x" * 60 + ">")
        """)
        code, out, err = self.run_hosts(HOSTS[:2], f"--ssh-program={wrapper}", script)
        self.assertEqual((code, err), (0, ""))
        lines = out.splitlines()
        self.assertEqual(len(lines), 40000)
        for rank in range(2):
            self.assertEqual([line for line in lines if line.startswith(f"<{rank} ")],
                             [f"<{rank} {i:06d} " + "x" * 60 + ">" for i in range(20000)])

    def test_a_job_is_restarted_on_its_hosts(self):
        script = self.script("note('run')\nsys.exit(1 if RESTART == 0 and RANK == 1 else 0)")
        code, _, err = self.run_hosts(HOSTS[:2], "--max-restarts=1", script)
        self.assertEqual(code, 0, err)
        self.assertLessEqual({(1, 1), (2, 0), (2, 1)}, set(self.notes("run")))

    def test_a_login_that_sshd_turns_away_is_tried_again(self):
        tried = self.dir / "tried"
        wrapper = self.dir / "ssh"
        wrapper.write_text(f"#!/bin/sh\necho >> {tried}\nif [ $(wc -l < {tried}) -le 2 ]; then\n"
                           "  echo 'kex_exchange_identification: Connection closed by remote host' >&2\n  exit 255\nfi\n"
                           f'exec {self.sshd.command} "$@"\n')
        wrapper.chmod(0o755)
        code, out, err = self.run_job("--ssh", f"--ssh-command={wrapper}", f"--agents={HOSTS[0]}", self.script("print('here', flush=True)"))
        self.assertEqual((code, out, err), (0, "here\n", ""))
        self.assertEqual(len(tried.read_text()), 3)

    def test_no_process_shows_what_is_sent(self):
        job = self.start_job(HOSTS[:2], self.script("note('pid')\nwait_for('go')"), "of-the-program",
                             env={"FSDPRUN_TOKEN": "token-of-the-user", "MY_PASSWORD": "password-of-the-user"})
        self.wait_for_notes("pid", 1, range(2))
        clients = self.clients_of(job)
        self.assertEqual(len(clients), 2)
        for pid in clients.values():
            self.assertIn(b"--ssh-node", file_of(pid, "cmdline"))
            self.assertNotIn(b"token-of-the-user", file_of(pid, "environ"))
        nodes = [pid for pid in processes_with(self.marker) if b"--ssh-node" in file_of(pid, "cmdline") and pid not in clients.values()]
        self.assertEqual(len(nodes), 2)
        for pid in nodes:
            self.assertNotIn(b"of-the-user", file_of(pid, "environ"))
        for pid in processes_with(self.marker):
            self.assertNotIn(b"of-the-user", file_of(pid, "cmdline"))
            if pid != job.pid and b"worker.py" not in file_of(pid, "cmdline"):
                self.assertNotIn(b"of-the-program", file_of(pid, "cmdline"))
        (self.dir / "go").touch()
        self.assertEqual(self.finish(job)[0], 0)


class HostTest(SshCase):
    """What goes wrong at a host is told with ssh's last words and what to do, and no worker starts."""

    def assert_refused(self, result, *words):
        code, out, err = result
        self.assertEqual((code, out, self.notes("ran")), (1, "", {}), err)
        for word in words:
            self.assertIn(word, err)

    def run_ran(self, hosts, *more):
        return self.run_hosts(hosts, *more, self.script("note('ran')"))

    def test_a_host_that_cannot_be_reached(self):
        closed = f"{HOSTS[1]}:{free_port()}"
        self.assert_refused(self.run_ran([HOSTS[0], closed]), f"node {HOSTS[1]}: ssh to {closed} ended with code 255", "Connection refused",
                            "no sshd listens there", "The job needs 2 nodes, and 1 is left")
        self.assert_refused(self.run_ran(["no-such-host.invalid"]), "node no-such-host.invalid", "Could not resolve", "spelled right")

    def test_an_elastic_job_goes_on_without_it(self):
        code, _, err = self.run_ran([HOSTS[0], f"{HOSTS[1]}:{free_port()}"], "--nnodes=1:2", "--rdzv-conf=last_call_timeout=1")
        self.assertEqual((code, set(self.notes("ran"))), (0, {(1, 0)}), err)
        self.assertIn("going on without it", err)

    def test_keys_that_do_not_fit(self):
        self.sshd.write_client_config(key="other_key")
        self.assert_refused(self.run_ran(HOSTS[:1]), f"node {HOSTS[0]}", "Permission denied (publickey)", "ssh-copy-id")
        self.sshd.write_client_config("StrictHostKeyChecking yes", "UserKnownHostsFile /dev/null")
        self.assert_refused(self.run_ran(HOSTS[:1]), "Host key verification failed", "~/.ssh/known_hosts")

    def test_a_program_that_is_not_there_or_another(self):
        self.assert_refused(self.run_ran(HOSTS[:1], "--ssh-program=/no/such folder/fsdprun"), "ended with code 127",
                            "there is no /no/such folder/fsdprun there", "--ssh-program")
        self.assert_refused(self.run_ran(HOSTS[:1], f"--ssh-program={self.dir}"), "ended with code 126", "cannot be run there")
        other = self.dir / "other"
        for text, *words in (("echo fsdprun: unknown option >&2\nexit 2", "unknown option", "no fsdprun of this release"),
                             ("echo fsdprun-node-is-here 1 0.0.7\nread order", "fsdprun 0.0.7 (protocol 1)", "install the same release"),
                             ("exit 3", "ended with code 3, without a word", f"'ssh {HOSTS[0]} true'")):
            with self.subTest(text):
                other.write_text(f"#!/bin/sh\n{text}\n")
                other.chmod(0o755)
                self.assert_refused(self.run_ran(HOSTS[:1], f"--ssh-program={other}"), *words)

    def test_no_ssh_here(self):
        result = self.run_job("--ssh", "--ssh-command=/no/such/ssh", "--agents=a,b", self.script("note('ran')"))
        self.assert_refused(result, "cannot start /no/such/ssh: no such program here", "--ssh-command")

    def test_a_folder_that_is_not_there(self):
        hidden = self.dir / "hidden"
        hidden.mkdir()
        self.assert_refused(self.run_hosts(HOSTS[:1], "--no-python", "sh", "-c", "true", cwd=hidden, preexec_fn=hidden.rmdir), "cannot enter")

    def test_host_files_and_options_that_mean_nothing(self):
        hosts = self.dir / "hosts"
        for text, *words in ((f"{HOSTS[0]}\n{HOSTS[1]}\n{HOSTS[0]}:22\n", f"{HOSTS[0]}:22 is there twice"),
                             (f"{HOSTS[0]} slots=none\n", "line 1", "'slots=none'"), ("\n-oProxyCommand=touch\n", "line 2", "is no HOST")):
            with self.subTest(text):
                hosts.write_text(text)
                self.assert_one_line_error(self.run_job("--ssh", f"--hostfile={hosts}", "x.py"), 1, str(hosts), *words)
        for options, *words in ((["--ssh"], "--ssh needs the nodes"), (["--agents=a", "--ssh-program=/p"], "--ssh-program is for --ssh only"),
                                (["--agents=a", "--ssh", "--detach"], "--ssh and --detach exclude each other")):
            with self.subTest(options):
                self.assert_one_line_error(self.run_job(*options, "x.py"), 1, *words)


class EndTest(SshCase):
    def wait_for_workers(self, ranks):
        return {rank: int(pid) for (_, rank), pid in self.wait_for_notes("pid", 1, range(ranks)).items()}

    def test_ctrl_c_ends_the_job_in_order(self):
        job = self.start_job(HOSTS[:2], self.script("""
            def on_signal(number, _):
                note("saved", number)
                print("saved", RANK, flush=True)
                sys.exit(0)
            signal.signal(signal.SIGINT, on_signal)
            note("pid")
            live_on()
        """))
        self.wait_for_workers(2)
        job.send_signal(signal.SIGINT)
        code, out, err = self.finish(job)
        self.assertEqual((code, sorted(out.splitlines())), (1, ["saved 0", "saved 1"]), err)
        self.assertEqual(set(self.notes("saved").values()), {str(int(signal.SIGINT))})

    def test_a_second_ctrl_c_ends_the_grace(self):
        job = self.start_job(HOSTS[:2], "--shutdown-timeout=600", self.script("""
            signal.signal(signal.SIGINT, lambda *_: note("told"))
            note("pid")
            live_on()
        """))
        workers = self.wait_for_workers(2)
        job.send_signal(signal.SIGINT)
        self.wait_for_notes("told", 1, range(2))
        job.send_signal(signal.SIGINT)
        self.assertEqual(self.finish(job)[0], 1)
        self.assertFalse(any(is_alive(pid) for pid in workers.values()))

    def test_ctrl_c_while_hosts_do_not_answer(self):
        silent = self.dir / "silent"
        silent.write_text(f"#!/bin/sh\ntouch {self.dir}/asked\nexec cat >/dev/null\n")
        silent.chmod(0o755)
        job = self.start_job(HOSTS[:2], f"--ssh-program={silent}", self.script("pass"))
        wait_until((self.dir / "asked").exists, "a host to be asked")
        job.send_signal(signal.SIGINT)
        self.assertEqual(self.finish(job)[0], 1)

    def test_a_launcher_that_is_killed_leaves_nothing(self):
        job = self.start_job(HOSTS[:2], self.script(IMMORTAL))
        self.wait_for_workers(2)
        job.kill()
        self.finish(job)
        while left := processes_with(self.marker):
            wait_for_ends(left)

    def test_a_launcher_that_is_killed_before_the_start_leaves_nothing(self):
        job = self.start_job(HOSTS[:1], "--nnodes=1:2", "--rdzv-conf=last_call_timeout=300", self.script("note('ran')"))
        wait_until(lambda: any(b"--ssh-node" in file_of(pid, "cmdline") for pid in processes_with(self.marker) if parent_of(pid) != job.pid),
                   "the node's part")
        job.kill()
        self.finish(job)
        while left := processes_with(self.marker):
            wait_for_ends(left)
        self.assertEqual(self.notes("ran"), {})

    def test_an_ssh_that_is_killed_is_the_loss_of_its_node(self):
        job = self.start_job(HOSTS[:2], self.script(IMMORTAL))
        workers = self.wait_for_workers(2)
        os.kill(self.clients_of(job)[HOSTS[1]], signal.SIGKILL)
        code, _, err = self.finish(job)
        self.assertEqual(code, 1, err)
        self.assertIn(f"node {HOSTS[1]}", err)
        self.assertFalse(any(is_alive(pid) for pid in workers.values()))

    def test_an_elastic_job_goes_on_without_a_node_whose_connection_breaks(self):
        job = self.start_job(HOSTS[:2], "--nnodes=1:2", "--max-restarts=1", "--rdzv-conf=last_call_timeout=300", self.script("""
            note("pid")
            if RESTART == 0:
                live_on()
        """))
        workers = self.wait_for_workers(2)
        servers = {parent_of(pid) for pid in processes_with(self.marker)
                   if b"--ssh-node" in file_of(pid, "cmdline") and parent_of(pid) != job.pid}
        self.assertEqual(len(servers), 2)
        os.kill(max(servers), signal.SIGKILL)
        code, _, err = self.finish(job)
        self.assertEqual(code, 0, err)
        self.assertEqual(len([key for key in self.notes("pid") if key[0] == 2]), 1)
        self.assertFalse(any(is_alive(pid) for pid in workers.values()))


if __name__ == "__main__":
    main()
