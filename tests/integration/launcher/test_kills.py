"""Sudden death of a worker, the keeper, a node, the launcher: what goes on goes on, what must die dies."""

import os
import pathlib
import signal
import time
import unittest

from job_case import TIME_FACTOR, JobCase, free_port, is_alive, wait_until

# Generation 1 waits to be killed; later ones end well.
PATIENT = """
    note("pid")
    while GENERATION < int(os.environ.get("LAST", "2")):
        time.sleep(0.01)
"""


def children_of(pid):
    return [int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def keeper_of(launcher):
    (keeper,) = [p for p in children_of(launcher.pid) if "keeper" in pathlib.Path(f"/proc/{p}/comm").read_text()]
    return keeper


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

    def test_killed_node_is_replaced(self):
        script = self.script(PATIENT)
        args, nodes = self.two_nodes(script, LAST="2")
        first = self.pids(1, range(2))
        nodes[1].kill()
        wait_until(lambda: not any(map(is_alive, first)), 5, "both workers of generation 1 to be gone")
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

    def test_killed_coordinator_ends_the_other_node(self):
        _, nodes = self.two_nodes(self.script(PATIENT), LAST="9")
        first = self.pids(1, range(2))
        nodes[0].kill()
        wait_until(lambda: not any(map(is_alive, first)), 5, "all workers to be gone")
        rc, _, err = self.finish(nodes[1], 20)
        self.assertEqual(rc, 1)
        self.assertIn("lost the coordinator", err)

    def test_agent_program_joins_the_next_coordinator(self):
        script, port = self.script(PATIENT), free_port()
        host_args = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=day", script]
        agent = self.start(f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=day", script, binary="fsdp-agent")
        host = self.start(*host_args)
        first = self.pids(1, range(2))
        host.kill()
        wait_until(lambda: not any(map(is_alive, first)), 5, "all workers to be gone")
        for note in self.dir.glob("pid.*"):
            note.unlink()
        host = self.start("--max-restarts=1", *host_args)
        second = self.pids(1, range(2))
        self.assertFalse(set(first) & set(second))
        os.kill(second[0], signal.SIGKILL)
        for launcher in (host, agent):
            rc, _, err = self.finish(launcher, 30)
            self.assertEqual(rc, 0, err)
        self.assertIn("lost the coordinator", err)

    def test_killed_launcher_leaves_nothing(self):
        worker = """
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    note("grandchild")
                    time.sleep(600)
                os._exit(0)
            subprocess.Popen(["sleep", "600"])
            note("pid")
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        """
        launcher = self.start("--standalone", "--nproc-per-node=2", self.script(worker))
        self.pids(1, range(2))
        self.wait_for_notes("grandchild", 1, range(2))
        launcher.kill()
        started = time.monotonic()
        self.assert_nothing_left(1.0)
        print(f"launcher killed -> nothing left: {1000 * (time.monotonic() - started):.1f} ms")

    def test_children_left_behind_by_a_worker_are_gone_at_the_end(self):
        worker = """
            subprocess.Popen(["sleep", "600"], start_new_session=True)
            note("pid")
        """
        rc, _, err = self.run_job("--standalone", self.script(worker), timeout_s=20)
        self.assertEqual(rc, 0, err)
        self.assert_nothing_left(0.5)

    def test_kill_to_respawn_is_fast(self):
        script = self.dir / "worker.sh"
        script.write_text('#!/bin/sh\necho $$ > "$D/raw.$FSDPRUN_GENERATION.$RANK"\nwhile [ $FSDPRUN_GENERATION -lt 6 ]; do sleep 0.05; done\n')
        script.chmod(0o755)
        launcher = self.start("--standalone", "--nproc-per-node=2", "--max-restarts=5", "--no-python", script)

        def raw(generation, rank):
            try:
                return (self.dir / f"raw.{generation}.{rank}").read_text().strip()
            except FileNotFoundError:
                return ""
        times = []
        for generation in range(1, 6):
            wait_until(lambda: raw(generation, 0) and raw(generation, 1), what="workers")
            os.kill(int(raw(generation, 1)), signal.SIGKILL)
            started = time.monotonic()
            wait_until(lambda: raw(generation + 1, 0) and raw(generation + 1, 1), what="new workers")
            times.append(1000 * (time.monotonic() - started))
        self.assertEqual(self.finish(launcher)[0], 0)
        print("kill -9 -> all respawned [ms]:", " ".join(f"{t:.1f}" for t in sorted(times)))
        self.assertLess(sorted(times)[len(times) // 2], 500 * TIME_FACTOR)


if __name__ == "__main__":
    unittest.main(verbosity=2)
