"""PyTorch's elastic/agent/server/test/api_test.py: what an agent does with its workers, and the ranks that it gives them."""

import json
import os
import re
import signal
import socket

from compat_case import CompatCase, c10d, free_port, is_connected, main, wait_until

# Roles and sizes of five nodes, and per node the first RANK, the first ROLE_RANK and ROLE_WORLD_SIZE of its workers.
ROLES = (("ps", 4, 0, 0, 9), ("trainer", 1, 4, 0, 6), ("trainer", 2, 5, 1, 6), ("trainer", 3, 7, 3, 6), ("ps", 5, 10, 4, 9))


class AgentTest(CompatCase):
    def elastic(self, *words, nnodes="1", nproc=2):
        return [f"--nnodes={nnodes}", f"--nproc-per-node={nproc}", *c10d(free_port()), *words, "--no-python"]

    def test_rendezvous(self):
        self.assert_success(self.run_job(*self.elastic(nproc=3), self.dump()))
        environments = self.environments()
        self.assertEqual(sorted(environments), [0, 1, 2])
        for rank, environment in environments.items():
            self.assertEqual((environment["LOCAL_RANK"], environment["GROUP_RANK"], environment["WORLD_SIZE"]), (str(rank), "0", "3"))

    def test_rendezvous_default_master_addr(self):
        """torchrun: the fully qualified name. fsdprun: an address, for which nobody asks a name service."""
        self.assert_success(self.run_job(*self.elastic(), self.dump()))
        address = self.environments()[0]["MASTER_ADDR"]
        if self.launcher == "torchrun":
            self.assertEqual(address, socket.getfqdn())
        else:
            socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)

    def test_rendezvous_master_addr_with_local_addr(self):
        """row_18"""
        self.assert_success(self.run_job(*self.elastic("--local-addr=127.0.0.1"), self.dump()))
        self.assertEqual({e["MASTER_ADDR"] for e in self.environments().values()}, {"127.0.0.1"})

    def test_run_happy_path(self):
        self.assert_success(self.run_job(*self.elastic(), self.bash_probe(), str(self.files)))
        self.assert_world(2)

    def test_run_initialization_failure(self):
        """A rendezvous that cannot be had ends the agent, whatever --max-restarts says."""
        rc, _, err = self.run_job("--nnodes=2", *c10d(free_port(), "--rdzv-conf=is_host=0,join_timeout=1,read_timeout=1"), "--max-restarts=3",
                                  "--no-python", self.bash_probe(), str(self.files))
        self.assertEqual(rc, 1, err)
        self.assert_world(0)

    def test_run_max_retries_exceeded(self):
        """row_41"""
        script = self.program("""
            echo >> "$D/starts.$RANK"
            echo > "$D/$TORCHELASTIC_RESTART_COUNT.$RANK"
            wait_for $TORCHELASTIC_RESTART_COUNT.$((1 - RANK))
            exit 1""")
        rc, _, err = self.run_job(*self.elastic("--max-restarts=3"), script)
        self.assertEqual(rc, 1, err)
        self.assertEqual([len(self.lines(f"starts.{rank}")) for rank in (0, 1)], [4, 4])

    def test_run_membership_change(self):
        """A second node joins: all workers are started again, and no restart is charged."""
        script = self.program("""
            echo $TORCHELASTIC_RESTART_COUNT > "$D/part.$$"; mv "$D/part.$$" "$D/runs.$WORLD_SIZE.$RANK"
            wait_for finish""")
        words = [*self.elastic("--rdzv-conf=last_call_timeout=1,join_timeout=60", "--max-restarts=0", nnodes="1:2", nproc=1), script]
        first = self.start(*words)
        self.wait_for("runs.1.0")
        second = self.start(*words)
        self.wait_for("runs.2.0", "runs.2.1")
        (self.dir / "finish").touch()
        for process in (first, second):
            self.assert_success(self.finish(process))
        self.assertEqual([self.lines(f"runs.2.{rank}") for rank in (0, 1)], [["0"], ["0"]])

    def check_roles(self, env=None):
        port, script = free_port(), self.dump()
        jobs = [["--nnodes=5", f"--node-rank={node}", f"--master-port={port}", f"--nproc-per-node={size}", f"--role={role}", "--no-python",
                 script] for node, (role, size, *_) in enumerate(ROLES)]
        for result in self.run_jobs(*jobs, env=env):
            self.assert_success(result)
        expected = {rank + local: (role, str(node), str(local), str(size), str(role_rank + local), str(role_size), "15")
                    for node, (role, size, rank, role_rank, role_size) in enumerate(ROLES) for local in range(size)}
        names = "ROLE_NAME GROUP_RANK LOCAL_RANK LOCAL_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE WORLD_SIZE".split()
        self.assertEqual({rank: tuple(e[name] for name in names) for rank, e in self.environments().items()}, expected)

    def test_assign_worker_ranks(self):
        """row_15: the table of five nodes with two roles."""
        self.check_roles()

    def test_assign_worker_ranks_indentical(self):
        """With TORCH_ELASTIC_WORKER_IDENTICAL=1 torchrun takes all nodes for equal. Of equal nodes the ranks are the same."""
        port, script = free_port(), self.dump()
        jobs = [["--nnodes=3", f"--node-rank={node}", f"--master-port={port}", "--nproc-per-node=2", "--no-python", script]
                for node in range(3)]
        for result in self.run_jobs(*jobs, env={"TORCH_ELASTIC_WORKER_IDENTICAL": "1"}):
            self.assert_success(result)
        self.assertEqual({rank: (e["GROUP_RANK"], e["ROLE_RANK"], e["WORLD_SIZE"], e["ROLE_WORLD_SIZE"])
                          for rank, e in self.environments().items()},
                         {rank: (str(rank // 2), str(rank), "6", "6") for rank in range(6)})

    def events(self, err):
        return [json.loads(match) for match in re.findall(r'\{"name": "torchelastic\.worker\.status\..*\}$', err, re.M)]

    def test_get_event(self):
        """row_73: the agent's event."""
        rc, _, err = self.run_job(*self.elastic("--event-log-handler=console"), "true", env={"LOGLEVEL": "INFO"})
        self.assertEqual(rc, 0, err)
        (end,) = [event for event in self.events(err) if event["name"] == "torchelastic.worker.status.SUCCEEDED"
                  and event["source"] == "AGENT"]
        self.assertLessEqual({"name", "source", "timestamp", "metadata"}, set(end))
        metadata = end["metadata"]
        self.assertEqual((metadata["run_id"], metadata["role"], metadata["state"], metadata["agent_restarts"]), ("test", "default", "SUCCEEDED", 0))
        self.assertEqual((metadata["global_rank"], metadata["worker_id"], metadata["rdzv_backend"]), (None, None, "c10d"))
        self.assertEqual(json.loads(metadata["metadata"])["group_world_size"], 1)

    def test_get_worker_status_event(self):
        rc, _, err = self.run_job(*self.elastic("--event-log-handler=console"), self.program("exit $((RANK * 7))"), env={"LOGLEVEL": "INFO"})
        self.assertEqual(rc, 1, err)
        (failed,) = [event for event in self.events(err) if event["name"] == "torchelastic.worker.status.FAILED"
                     and event["source"] == "WORKER"]
        metadata = failed["metadata"]
        self.assertEqual((metadata["global_rank"], metadata["group_rank"], metadata["state"]), (1, 0, "FAILED"))
        inner = json.loads(metadata["metadata"])
        self.assertEqual((inner["local_rank"], inner["role_rank"], inner["role_world_size"]), ([1], [1], [2]))

    def test_agent_process_signal_exception(self):
        script = self.program('trap "echo > $D/signalled.$RANK; exit 1" TERM; echo > "$D/runs.$RANK"; wait_for never')
        process = self.start(*self.elastic(), script)
        self.wait_for("runs.0", "runs.1")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(process)[0], 1)
        self.assertTrue((self.dir / "signalled.0").exists() and (self.dir / "signalled.1").exists())

    def test_agent_process_handler_graceful_exception(self):
        """A node that was never needed ends with 0 when the job is over."""
        script = self.program('echo $$ > "$D/part.$RANK"; mv "$D/part.$RANK" "$D/runs.$TORCHELASTIC_RESTART_COUNT.$RANK"; wait_for finish')
        port = free_port()
        words = ["--nnodes=2", "--max-restarts=1", *c10d(port), "--no-python", script]
        nodes = [self.start(*words), self.start(*words)]
        self.wait_for("runs.0.0", "runs.0.1")
        spare = self.start(*words)
        wait_until(lambda: is_connected(spare.pid, port), "the spare to connect")
        # Nothing tells that it was let in, after which it cannot miss the end: the job makes another round first.
        os.kill(int(self.lines("runs.0.0")[0]), signal.SIGKILL)
        self.wait_for("runs.1.0", "runs.1.1")
        (self.dir / "finish").touch()
        for process in (*nodes, spare):
            self.assert_success(self.finish(process))


if __name__ == "__main__":
    main()
