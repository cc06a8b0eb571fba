"""fsdpctl asks running jobs and tells them what to do: on this machine through a socket of the user's, elsewhere with the token."""

import json
import os
import signal
import socket
import subprocess

from certificates import Ca
from fsdpctl_case import FsdpctlCase
from job_case import BIN, is_alive, wait_until
from unittest_main import main


class LocalTest(FsdpctlCase):
    def test_state_of_a_job(self):
        host, other = self.start_job()
        wait_until(lambda: self.status()["phase"] == "running", "running workers")
        status = self.status()
        self.assertEqual((status["v"], status["job"], status["generation"], status["world_size"]), (1, "kept", 1, 4))
        self.assertEqual((status["restarts_used"], status["max_restarts"], status["exit_code"]), (0, 2, None))
        self.assertEqual(status["coordinator"]["pid"], host.pid)
        self.assertEqual(sorted((node["state"], node["group_rank"], node["first_rank"], node["workers"], node["connected"])
                                for node in status["nodes"]), [("member", 0, 0, 2, True), ("member", 1, 2, 2, True)])
        text = self.answer("status", "--job", "kept")
        self.assertIn("0-1", text)
        self.assertIn(f"pid {host.pid} on ", text)
        self.order("let_go")
        self.order("end")
        self.assert_all_end_well(host, [other])
        self.assertEqual(self.job_files(), [])
        self.assertEqual(list(self.runtime.glob("fsdprun/jobs/*")), [])

    def test_jobs_of_this_machine(self):
        host, other = self.start_job()
        alone = self.start("--standalone", "--nproc-per-node=1", self.script("wait_for('end')"))
        wait_until(lambda: len(self.job_files()) == 2, "the second job's file")
        jobs = {job["pid"]: job for job in json.loads(self.answer("ps", "--json"))["jobs"]}
        self.assertEqual(set(jobs), {host.pid, alone.pid})
        self.assertEqual((jobs[host.pid]["job"], jobs[alone.pid]["endpoint"]), ("kept", ""))
        self.assertIn(str(alone.pid), self.answer("ps"))
        self.assert_refused(self.fsdpctl("status"), 1, "several jobs run here", "'kept'", "--job")
        self.assert_refused(self.fsdpctl("status", "--job", "none"), 1, "no job here is called 'none'", "'kept'")
        self.assertEqual(self.status("--job", alone.pid)["world_size"], 1)
        self.order("let_go")
        self.order("end")
        self.assert_all_end_well(host, [other, alone])

    def test_a_killed_launcher_leaves_no_job(self):
        alone = self.start("--standalone", "--nproc-per-node=1", self.script("wait_for('end')"))
        wait_until(self.job_files, "the job's file")
        self.end_abruptly(alone)
        # A process that it was about to start has the file's lock until it executes its program.
        wait_until(lambda: not json.loads(self.answer("ps", "--json"))["jobs"], "the job's end in the list")
        self.assertEqual(list(self.runtime.glob("fsdprun/jobs/*")), [])
        self.assert_refused(self.fsdpctl("status"), 1, "no job of this user", "--rdzv-endpoint")

    def test_stop_ends_the_job_in_order(self):
        launchers = self.start_job()
        self.assertIn("being stopped", self.answer("stop"))
        self.wait_for_notes("stopped", 1, self.ranks)
        self.assertEqual(self.status()["phase"], "stopping")
        self.order("let_go")
        for launcher in launchers:
            rc, _, err = self.finish(launcher)
            self.assertEqual(rc, 1, err)

    def test_stop_now_waits_for_nobody(self):
        launchers = self.start_job()
        self.answer("stop")
        self.wait_for_notes("stopped", 1, self.ranks)
        self.answer("stop", "--now")
        for launcher in launchers:
            self.assertEqual(self.finish(launcher)[0], 1)

    def test_restart_is_free_of_charge(self):
        host, other = self.start_job()
        first = self.pids(1)
        self.order("let_go")
        self.assertIn("generation 1 ends", self.answer("restart"))
        self.pids(2)
        self.assertEqual([pid for pid in first if is_alive(pid)], [])
        wait_until(lambda: self.status()["phase"] == "running", "the next world")
        status = self.status()
        self.assertEqual((status["generation"], status["restarts_used"], status["membership_changes"]), (2, 0, 1))
        self.order("end")
        self.assert_all_end_well(host, [other])

    def test_events_and_states_are_followed_to_the_end(self):
        host, other = self.start_job()
        events, states = self.follow("events", "--follow", "--json"), self.follow("status", "--follow", "--json")
        self.assertEqual(json.loads(states.stdout.readline())["generation"], 1)
        self.order("fail.1.3")
        self.order("let_go")
        self.pids(2)
        self.assertIn("rank 3 exited with 7", self.status()["last_failure"]["what"])
        self.order("end")
        self.assert_all_end_well(host, [other])
        said, _ = events.communicate(timeout=60)
        kinds = [json.loads(line)["event"] for line in said.splitlines()]
        self.assertEqual(kinds.count("node_joined"), 2)
        self.assertEqual((kinds.count("world_formed"), kinds[-1]), (2, "job_finished"))
        last = json.loads(states.communicate(timeout=60)[0].splitlines()[-1])
        self.assertEqual((last["phase"], last["exit_code"]), ("finished", 0))
        self.assertEqual((events.returncode, states.returncode), (0, 0))

    def test_who_follows_and_reads_nothing_costs_the_job_nothing(self):
        host, other = self.start_job()
        asking = [self.follow("status", "--follow"), self.follow("events", "--follow")]
        for each in asking:
            each.stdout.readline()
            os.kill(each.pid, signal.SIGSTOP)
        self.order("let_go")
        self.order("end")
        self.assert_all_end_well(host, [other])
        for each in asking:
            each.kill()
            each.wait()

    def test_a_stranger_at_the_socket_is_no_harm(self):
        host, other = self.start_job()
        (path,) = self.runtime.glob("fsdprun/jobs/*.sock")
        for words in (b"", b"GET / HTTP/1.0\r\n\r\n", os.urandom(64)):
            stranger = socket.socket(socket.AF_UNIX)
            self.addCleanup(stranger.close)
            stranger.connect(str(path))
            stranger.sendall(words)
        self.assertEqual(self.status()["generation"], 1)
        self.order("let_go")
        self.order("end")
        self.assert_all_end_well(host, [other])

    def test_wrong_words(self):
        self.assert_refused(self.fsdpctl("statsu"), 2, "'statsu'", "did you mean status")
        self.assert_refused(self.fsdpctl("status", "kept"), 2, "'kept' is no option", "--job")
        self.assert_refused(self.fsdpctl("status", "--rdzv-endpoint", "a:1"), 2, "--rdzv-endpoint needs --job")
        self.assert_refused(self.fsdpctl("status", "--job", "a", "--rdzv-endpoint", "a"), 1, "HOST:PORT")


class RemoteTest(FsdpctlCase):
    def where(self, job="kept"):
        return ["--rdzv-endpoint", f"127.0.0.1:{self.port}", "--job", job]

    def test_with_the_token(self):
        self.env["FSDPRUN_TOKEN"] = "right"
        launchers = self.start_job()
        self.assertEqual(self.status(*self.where())["job"], "kept")
        self.assert_refused(self.fsdpctl("status", *self.where(), FSDPRUN_TOKEN="wrong"), 1, "token")
        self.assert_refused(self.fsdpctl("stop", *self.where("other")), 1, "'other'")
        self.assertEqual(self.status(*self.where())["phase"], "running")
        self.answer("stop", *self.where())
        self.order("let_go")
        for launcher in launchers:
            self.assertEqual(self.finish(launcher)[0], 1)

    def test_with_certificates(self):
        ca = Ca(self.dir / "pki")
        launchers = self.start_job(*ca.options("node"))
        self.assertEqual(self.status(*self.where(), *ca.options("operator"))["job"], "kept")
        self.assertEqual(self.fsdpctl("status", *self.where()).returncode, 1)
        stranger = Ca(self.dir / "strange")
        self.assertEqual(self.fsdpctl("status", *self.where(), *stranger.options("operator")).returncode, 1)
        self.order("let_go")
        self.order("end")
        self.assert_all_end_well(launchers[0], launchers[1:])

    def test_where_nobody_listens(self):
        done = self.fsdpctl("status", *self.where())
        self.assert_refused(done, 1, f"127.0.0.1:{self.port}")

    def test_a_coordinator_of_its_own(self):
        coordinator, nodes = self.start_coordinator(), self.start_nodes()
        self.pids(1)
        self.assertEqual(self.status()["coordinator"]["pid"], coordinator.pid)
        self.assertEqual(self.status(*self.where())["coordinator"]["pid"], coordinator.pid)
        self.order("let_go")
        self.order("end")
        self.assert_all_end_well(coordinator, nodes)


if __name__ == "__main__":
    main()
