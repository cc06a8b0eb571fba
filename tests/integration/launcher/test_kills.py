"""Sudden death of a worker, the keeper, a node, the launcher: what goes on goes on, what must die dies."""

import os
import signal
import subprocess
import time

from events import wait_for_ends
from job_case import JobCase, children_of, free_port, is_alive, keeper_of
from unittest_main import main

# Generation 1 waits to be killed; later ones end well.
PATIENT = """
    note("pid")
    if GENERATION < int(os.environ.get("LAST", "2")):
        live_on()
"""


class KillsTest(JobCase):
    def pids(self, generation, ranks):
        notes = self.wait_for_notes("pid", generation, ranks)
        return [int(notes[generation, r]) for r in ranks]

    def test_killed_worker(self):
        launcher = self.start("--standalone", "--nproc-per-node=2", "--max-restarts=1", self.script(PATIENT))
        first = self.pids(1, range(2))
        os.kill(first[1], signal.SIGKILL)
        self.pids(2, range(2))
        self.assertFalse(is_alive(first[0]))
        rc, _, err = self.finish(launcher)
        self.assertEqual((rc, err), (0, ""))

    def test_killed_keeper(self):
        launcher = self.start("--standalone", "--nproc-per-node=2", "--max-restarts=1", self.script(PATIENT))
        first = self.pids(1, range(2))
        os.kill(keeper_of(launcher), signal.SIGKILL)
        self.pids(2, range(2))
        self.assertEqual([p for p in first if is_alive(p)], [])
        rc, _, err = self.finish(launcher)
        self.assertEqual(rc, 0, err)

    def test_killed_keeper_without_budget_names_the_cause(self):
        launcher = self.start("--standalone", "--nproc-per-node=2", self.script(PATIENT))
        self.pids(1, range(2))
        os.kill(keeper_of(launcher), signal.SIGKILL)
        rc, _, err = self.finish(launcher)
        self.assertEqual(rc, 1)
        self.assertIn("keeper", err)
        self.assert_nothing_left()

    def two_nodes(self, script, **env):
        port = free_port()
        args = ["--nnodes=2", f"--master-port={port}", "--max-restarts=2"]
        nodes = [self.start(*args, f"--node-rank={n}", script, env=env) for n in range(2)]
        return args, nodes

    def test_row_54_killed_node_is_replaced(self):
        script = self.script(PATIENT)
        args, nodes = self.two_nodes(script, LAST="2")
        first = self.pids(1, range(2))
        nodes[1].kill()
        wait_for_ends(first, "both workers of generation 1 to end")
        nodes.append(self.start(*args, "--node-rank=1", script, env={"LAST": "2"}))
        self.pids(2, range(2))
        for node in (nodes[0], nodes[2]):
            rc, _, err = self.finish(node)
            self.assertEqual(rc, 0, err)

    def test_killed_keeper_of_one_node_restarts_both(self):
        _, nodes = self.two_nodes(self.script(PATIENT))
        self.pids(1, range(2))
        os.kill(keeper_of(nodes[1]), signal.SIGKILL)
        self.pids(2, range(2))
        for node in nodes:
            rc, _, err = self.finish(node)
            self.assertEqual(rc, 0, err)

    def test_killed_worker_of_one_node_restarts_both(self):
        _, nodes = self.two_nodes(self.script(PATIENT))
        os.kill(self.pids(1, range(2))[1], signal.SIGKILL)
        self.pids(2, range(2))
        for node in nodes:
            self.assertEqual(self.finish(node)[0], 0)

    def test_row_57_killed_coordinator_ends_the_other_node(self):
        _, nodes = self.two_nodes(self.script(PATIENT), LAST="9")
        first = self.pids(1, range(2))
        nodes[0].kill()
        wait_for_ends(first, "all workers to end")
        rc, _, err = self.finish(nodes[1])
        self.assertEqual(rc, 1)
        self.assertIn("lost the coordinator", err)

    def test_stopped_coordinator_costs_nothing(self):
        """For twice as long as a node may be silent. Its own workers go on, and so do those of the other node."""
        worker = """
            note("pid")
            wait_for("go")
        """
        _, nodes = self.two_nodes(self.script(worker), LOGLEVEL="WARNING")
        first = self.pids(1, range(2))
        nodes[0].send_signal(signal.SIGSTOP)
        time.sleep(6)  # the fault itself
        self.assertEqual([p for p in first if not is_alive(p)], [])
        nodes[0].send_signal(signal.SIGCONT)
        (self.dir / "go").touch()
        said = []
        for node in nodes:
            rc, _, err = self.finish(node)
            self.assertEqual(rc, 0, err)
            said.append(err)
        self.assertEqual(set(self.notes("pid")), {(1, 0), (1, 1)})
        self.assertIn("this launcher did not run for", said[0])

    def test_agent_program_keeps_its_workers_while_the_coordinator_is_stopped(self):
        worker = """
            note("pid")
            wait_for("go")
        """
        script, port = self.script(worker), free_port()
        rendezvous = [f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=day"]
        agent = self.start(*rendezvous, script, binary="fsdp-agent")
        host = self.start("--nnodes=2", "--rdzv-backend=c10d", *rendezvous, script)
        self.pids(1, range(2))
        host.send_signal(signal.SIGSTOP)
        time.sleep(6)  # the fault itself
        host.send_signal(signal.SIGCONT)
        (self.dir / "go").touch()
        for launcher in (host, agent):
            rc, _, err = self.finish(launcher)
            self.assertEqual(rc, 0, err)
        self.assertEqual(set(self.notes("pid")), {(1, 0), (1, 1)})

    def test_agent_program_joins_the_next_coordinator(self):
        script, port = self.script(PATIENT), free_port()
        host_args = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=day", script]
        agent = self.start(f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=day", script, binary="fsdp-agent")
        host = self.start(*host_args)
        first = self.pids(1, range(2))
        self.kill_with_standbys(host)
        wait_for_ends(first, "all workers to end")
        for note in self.dir.glob("pid.*"):
            note.unlink()
        host = self.start("--max-restarts=1", *host_args)
        second = self.pids(1, range(2))
        self.assertFalse(set(first) & set(second))
        os.kill(second[0], signal.SIGKILL)
        for launcher in (host, agent):
            rc, _, err = self.finish(launcher)
            self.assertEqual(rc, 0, err)
        self.assertIn("lost the coordinator", err)

    def test_killed_launcher_leaves_nothing(self):
        worker = """
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    note("grandchild")
                    live_on()
                os._exit(0)
            subprocess.Popen(["sleep", "600"])
            note("pid")
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            live_on()
        """
        launcher = self.start("--standalone", "--nproc-per-node=2", self.script(worker))
        self.pids(1, range(2))
        self.wait_for_notes("grandchild", 1, range(2))
        launcher.kill()
        self.assert_nothing_left()

    def test_killed_launcher_leaves_no_spooled_output(self):
        for options in (("--log-dir=/dev/null",), (f"--log-dir={self.dir / 'logs'}", "--redirects=1")):
            with self.subTest(options):
                launcher = self.start("--standalone", *options, self.script("""
                    print("shown", file=sys.stderr, flush=True)
                    note("pid")
                    live_on()
                """))
                self.pids(1, [0])
                self.assertEqual(launcher.stderr.readline(), "shown\n")
                self.assertEqual(len(list((self.dir / "tmp").glob("fsdprun_spool_*"))), 1)
                launcher.kill()
                self.assert_nothing_left()
                self.assertEqual(list((self.dir / "tmp").glob("fsdprun_spool_*")), [])
                (self.dir / "pid.1.0").unlink()
        self.assertEqual(len(list((self.dir / "logs").iterdir())), 1)  # Logs stay.

    def test_children_left_behind_by_a_worker_are_gone_at_the_end(self):
        worker = """
            subprocess.Popen(["sleep", "600"], start_new_session=True)
            note("pid")
        """
        rc, _, err = self.run_job("--standalone", self.script(worker))
        self.assertEqual(rc, 0, err)
        self.assert_nothing_left()

    def test_row_46_children_of_a_crashed_worker_are_gone_before_the_restart(self):
        """One in the worker's session, one that left it, one that nobody is the parent of any more. A process of the same
        user that is no descendant is left alone."""
        stranger = subprocess.Popen(["sleep", "600"], env={})
        self.addCleanup(stranger.wait)
        self.addCleanup(stranger.kill)
        worker = """
            if RESTART == 0 and RANK == 0:
                children = [subprocess.Popen(["sleep", "600"], start_new_session=own).pid for own in (False, True)]
                children.append(int(subprocess.run(["bash", "-c", "setsid sleep 600 >/dev/null & echo $!"],
                                                   stdout=subprocess.PIPE).stdout))
                note("children", " ".join(map(str, children)))
                os.kill(os.getpid(), signal.SIGKILL)
            if RESTART == 0:
                live_on()
            left = [c for c in map(int, (D / "children.1.0").read_text().split()) if pathlib.Path(f"/proc/{c}").exists()]
            note("left", left)
        """
        rc, _, err = self.run_job("--standalone", "--nproc-per-node=2", "--max-restarts=1", self.script(worker))
        self.assertEqual(rc, 0, err)
        self.assertEqual(len(self.notes("children")[1, 0].split()), 3)
        self.assertEqual(self.notes("left"), {(2, 0): "[]", (2, 1): "[]"})
        self.assertIsNone(stranger.poll())


if __name__ == "__main__":
    main()
