"""PyTorch's elastic/agent/server/test/local_elastic_agent_test.py, with the c10d backend or the one given by --backend."""

import json
import os

from compat_case import CompatCase, free_port, fsdprun_only, main, wait_for_ends

# Tells its process id and waits for the end of the test.
RUN = """
echo $$ > "$D/part.$$"; mv "$D/part.$$" "$D/runs.$WORLD_SIZE.$RANK"
wait_for finish
"""
ERROR = {"message": {"message": "RuntimeError: failed on purpose", "extraInfo": {"py_callstack": "Traceback\nRuntimeError: failed on purpose",
                                                                            "timestamp": "1600000000"}}}


class LocalAgentTest(CompatCase):
    def options(self, *words, nnodes="1", nproc=2):
        return [f"--nnodes={nnodes}", f"--nproc-per-node={nproc}", *self.meeting(), *words, "--no-python"]

    def test_dummy_compute(self):
        self.assert_success(self.run_job(*self.options(), "true"))

    def test_run_happy_function(self):
        self.assert_success(self.run_job(*self.options(nproc=4), self.bash_probe(), str(self.files)))
        self.assert_world(4)

    def test_check_master_addr_port_override(self):
        port = free_port()
        self.assert_success(self.run_job("--master-addr=localhost", f"--master-port={port}", "--no-python", self.dump()))
        environment = self.environments()[0]
        self.assertEqual((environment["MASTER_ADDR"], environment["MASTER_PORT"]), ("localhost", str(port)))

    def test_run_check_env_function(self):
        """The probe needs the whole table."""
        self.assert_success(self.run_job(*self.options(nproc=1), self.bash_probe(), str(self.files), env={"OMP_NUM_THREADS": "1"}))
        self.assert_world(1)

    def test_check_nccl_async_error_handling_env(self):
        """row_17"""
        self.assert_success(self.run_job(*self.options(nproc=1), self.dump(), env={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}))
        self.assertEqual(self.environments()[0]["TORCH_NCCL_ASYNC_ERROR_HANDLING"], "0")

    def test_check_nccl_async_error_handling_env_default(self):
        self.assert_success(self.run_job(*self.options(nproc=1), self.dump()))
        self.assertEqual(self.environments()[0]["TORCH_NCCL_ASYNC_ERROR_HANDLING"], "1")

    def test_agent_local_watchdog_setup_enabled(self):
        script = self.program('[[ -p $TORCHELASTIC_TIMER_FILE ]] && echo "$TORCHELASTIC_TIMER_FILE" > "$D/timer"')
        self.assert_success(self.run_job(*self.options(nproc=1), script, env={"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}))
        self.assertFalse(os.path.exists(self.lines("timer")[0]))
        own = str(self.dir / "own_timer")
        self.assert_success(self.run_job(*self.options(nproc=1), script,
                                         env={"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TORCHELASTIC_TIMER_FILE": own}))
        self.assertEqual(self.lines("timer"), [own])

    def test_agent_local_watchdog_setup_disabled(self):
        self.assert_success(self.run_job(*self.options(nproc=1), self.dump()))
        self.assertNotIn("TORCHELASTIC_TIMER_FILE", self.environments()[0])

    @fsdprun_only
    def test_agent_local_watchdog_setup_enabled_with_healthcheck(self):
        """The port is open while a worker runs; what it answers is the matter of row 72's tests."""
        port = free_port()
        script = self.program(f"""
            exec 5<>/dev/tcp/127.0.0.1/{port} && printf 'GET /healthz HTTP/1.0\\r\\n\\r\\n' >&5 && read -r line <&5
            echo "$line" > "$D/answer" """)
        self.assert_success(self.run_job(*self.options(nproc=1), script, env={
            "TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TORCHELASTIC_HEALTH_CHECK_PORT": str(port)}))
        self.assertIn(" 200 ", self.lines("answer")[0])

    def test_agent_local_watchdog_setup_disabled_with_healthcheck(self):
        """torchrun's open source version starts no server and goes on."""
        self.assert_success(self.run_job(*self.options(nproc=1), self.dump(), env={"TORCHELASTIC_HEALTH_CHECK_PORT": str(free_port())}))
        self.assertNotIn("TORCHELASTIC_TIMER_FILE", self.environments()[0])

    def test_run_distributed_sum_homogeneous_with_custom_log_lines(self):
        """row_25: prefixes of two nodes with ranks of their own."""
        words = ["--tee=3", "--role=trainer", "--no-python", self.program("echo hello; echo careful >&2")]
        port = free_port()
        jobs = [["--nnodes=2", f"--node-rank={node}", f"--master-port={port}", "--nproc-per-node=2", *words] for node in (0, 1)]
        for node, (rc, out, err) in enumerate(self.run_jobs(
                *jobs, env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[${role_name}-${local_rank}:${rank}]:"})):
            self.assertEqual(rc, 0, err)
            for local in (0, 1):
                prefix = f"[trainer-{local}:{2 * node + local}]:"
                self.assertIn(f"{prefix}hello\n", out)
                self.assertIn(f"{prefix}careful\n", err)

    def test_run_sad_function(self):
        """row_37: the error file of the root cause becomes the launcher's own."""
        script = self.program(f"""
            if [[ $RANK == 1 ]]; then echo '{json.dumps(ERROR)}' > "$TORCHELASTIC_ERROR_FILE"; exit 3; fi
            wait_for never""")
        own = self.dir / "launcher_error.json"
        rc, _, err = self.run_job(*self.options(), script, env={"TORCHELASTIC_ERROR_FILE": str(own)})
        self.assertEqual(rc, 1, err)
        self.assert_summary(err, "failed on purpose", "rank      : 1 (local_rank: 1)", "exitcode  : 3 (pid:")
        message = json.loads(own.read_text())["message"]
        self.assertEqual((message["message"], message["errorCode"]), (ERROR["message"]["message"], 3))

    def test_run_bipolar_function(self):
        """Even ranks succeed and odd ones fail, on each of three starts."""
        script = self.program("""
            echo >> "$D/starts.$RANK"
            echo > "$D/$TORCHELASTIC_RESTART_COUNT.$RANK"
            for rank in 0 1 2 3; do wait_for $TORCHELASTIC_RESTART_COUNT.$rank; done
            exit $((RANK % 2))""")
        rc, _, err = self.run_job(*self.options("--max-restarts=2", nproc=4), script)
        self.assertEqual(rc, 1, err)
        self.assertEqual([len(self.lines(f"starts.{rank}")) for rank in range(4)], [3] * 4)

    def check_roles(self, sizes):
        """Nodes of the roles master, trainer and ps, in the order in which they come."""
        port, script = free_port(), self.dump()
        nodes = [(role, size) for role, all_sizes in sizes.items() for size in all_sizes]
        jobs = [[f"--nnodes={len(nodes)}", f"--node-rank={number}", f"--master-port={port}", f"--nproc-per-node={size}", f"--role={role}",
                 "--no-python", script] for number, (role, size) in enumerate(nodes)]
        for result in self.run_jobs(*jobs, env={"OMP_NUM_THREADS": "1"}):
            self.assert_success(result)
        found = self.environments()
        self.assertEqual(sorted(found), list(range(sum(size for _, size in nodes))))
        for role, all_sizes in sizes.items():
            of_role = [e for e in found.values() if e["ROLE_NAME"] == role]
            self.assertEqual(sorted(int(e["ROLE_RANK"]) for e in of_role), list(range(sum(all_sizes))))
            self.assertEqual({e["ROLE_WORLD_SIZE"] for e in of_role}, {str(sum(all_sizes))})

    def test_correct_rank_assignment_heterogeneous(self):
        self.check_roles({"master": [1], "trainer": [2, 3], "ps": [2, 1, 4]})

    def test_correct_rank_assignment_homogeneous(self):
        self.check_roles({"master": [1], "trainer": [2, 2, 2], "ps": [1, 1]})

    def two_nodes(self, nnodes, script, *words):
        words = self.options("--rdzv-conf=last_call_timeout=1,join_timeout=60,keep_alive_interval=1,keep_alive_max_attempt=2", *words,
                             nnodes=nnodes, nproc=1)
        command = [*words, self.program(script)]
        first = self.start(*command)
        self.wait_for_entries(self.dir / "tmp", 1)
        return command, first

    def test_double_agent_fault_tolerance(self):
        """One of two is killed while both work, and comes back."""
        command, first = self.two_nodes("2", RUN, "--max-restarts=2")
        second = self.start(*command)
        self.wait_for("runs.2.0", "runs.2.1")
        second.kill()
        second.wait()
        for path in self.dir.glob("runs.2.*"):
            path.unlink()
        again = self.start(*command)
        self.wait_for("runs.2.0", "runs.2.1")
        (self.dir / "finish").touch()
        for process in (first, again):
            self.assert_success(self.finish(process))

    def test_no_exit_barrier_on_failure(self):
        """row_59: when one agent's worker fails for good, the other ends at once."""
        command, first = self.two_nodes("2", 'echo > "$D/runs.$RANK"; if [[ $RANK == 1 ]]; then wait_for runs.0; exit 1; fi; wait_for never')
        second = self.start(*command)
        results = [self.finish(process) for process in (first, second)]
        self.assertEqual([rc for rc, _, _ in results], [1, 1])

    def test_double_agent_elastic(self):
        """Of at least one and at most two nodes one is killed; the other goes on."""
        command, first = self.two_nodes("1:2", RUN, "--max-restarts=1")
        second = self.start(*command)
        self.wait_for("runs.2.0", "runs.2.1")
        second.kill()
        second.wait()
        self.wait_for("runs.1.0")
        (self.dir / "finish").touch()
        self.assert_success(self.finish(first))

    def drift(self, *words):
        """One node ends long before the other."""
        command, first = self.two_nodes("2", """
            echo $$ > "$D/part.$$"; mv "$D/part.$$" "$D/runs.$RANK"
            if [[ $RANK == 1 ]]; then wait_for finish; fi""", *words)
        second = self.start(*command)
        self.wait_for("runs.0", "runs.1")
        wait_for_ends([int(self.lines("runs.0")[0])])
        (self.dir / "finish").touch()
        for process in (first, second):
            self.assert_success(self.finish(process))

    def test_workers_drift_success(self):
        """row_60"""
        self.drift()

    @fsdprun_only
    def test_workers_drift_fail(self):
        """Without an exit barrier nothing has to wait for it."""
        self.drift("--exit-barrier-timeout=0")

    def test_barrier_failed(self):
        """Both have succeeded; that their barrier cannot be met any more harms nobody."""
        command, first = self.two_nodes("2", 'echo $$ > "$D/runs.$RANK"')
        second = self.start(*command)
        for process in (first, second):
            self.assert_success(self.finish(process))

    def test_rank_restart_after_failure(self):
        """row_41: rank 1 kills itself on the first start only."""
        script = self.program('echo >> "$D/starts.$RANK"; [[ $RANK != 1 || $TORCHELASTIC_RESTART_COUNT != 0 ]] || kill -KILL $$')
        self.assert_success(self.run_job(*self.options("--max-restarts=3"), script))
        self.assertEqual(len(self.lines("starts.1")), 2)


if __name__ == "__main__":
    main()
