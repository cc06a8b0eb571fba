"""What Python's torch brings along, unchanged: its watchdog's client, stores of a script's own, torchrun's events."""

import json
import os
import subprocess
import sys

from job_case import BIN, JobCase, free_port
from unittest_main import main

OWN_STORE = """
    import datetime, torch, torch.distributed as dist
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:" + os.environ["OWN_PORT"], rank=RANK, world_size=WORLD,
                            timeout=datetime.timedelta(seconds=int(os.environ["OWN_LIMIT_S"])))
"""
THEN_ALL_REDUCE = """
    def sum_of_ones():
        one = torch.ones(1)
        dist.all_reduce(one)
        dist.barrier()
        dist.destroy_process_group()
        return int(one.item())
    note("own", sum_of_ones())
    dist.init_process_group("gloo")
    note("env", sum_of_ones())
    note("uses_agent_store", os.environ["TORCHELASTIC_USE_AGENT_STORE"])
"""


class TorchToolsTest(JobCase):
    def test_row_22_a_store_of_the_scripts_own_is_diagnosed(self):
        rc, _, err = self.run_job("--standalone", self.script(OWN_STORE), env={"OWN_PORT": str(free_port()), "OWN_LIMIT_S": "1"})
        self.assertEqual(rc, 1, err)
        self.assertRegex(err, r"What to do  : the script has a tcp:// store of its own at \(127\.0\.0\.1, \d+\), not at MASTER_PORT \d+")
        self.assertIn("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", err)

    def test_row_22_the_variable_lets_rank_0_serve(self):
        """The script's own store, and the one at MASTER_PORT, after a restart."""
        script = self.script("    if not RESTART:\n        sys.exit(1)" + OWN_STORE + THEN_ALL_REDUCE)
        nodes = [self.start("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}", "--rdzv-id=x", "--max-restarts=1",
                            script, env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OWN_PORT": str(own_port), "OWN_LIMIT_S": "100"})
                 for port, own_port in [(free_port(), free_port())] * 2]
        for node in nodes:
            rc, _, err = self.finish(node)
            self.assertEqual(rc, 0, err)
        for kind, text in (("own", "2"), ("env", "2"), ("uses_agent_store", "False")):
            self.assertEqual(self.notes(kind), {(2, 0): text, (2, 1): text})

    def test_row_71_file_timer_client(self):
        rc, _, err = self.run_job("--standalone", "--max-restarts=1", self.script("""
            if RESTART:
                sys.exit(0)
            import torch.distributed.elastic.timer as timer
            timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
            with timer.expires(after=60, scope="short"):
                pass
            with timer.expires(after=0.1, scope="hung"):
                live_on()
        """), env={"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "LOGLEVEL": "WARNING"})
        self.assertEqual(rc, 0, err)
        self.assertIn("timer 'hung' of process", err)

    def shape(self, command):
        """Per event: its name and source, and the names and types of all it says."""
        env = {k: v for k, v in self.env.items() if k != "LOGLEVEL"}
        done = subprocess.run([*map(str, command), "--nproc-per-node=2", f"--master-port={free_port()}", "--event-log-handler=console",
                               "--no-python", "bash", "-c", "test $RANK = 0 || exit 7; exec tail -f /dev/null"],
                              env={**env, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 1, done.stderr)
        shapes = []
        for line in done.stderr.splitlines():
            if line.startswith("{"):
                event = json.loads(line)
                metadata = event["metadata"]
                details = json.loads(metadata["metadata"])
                values = {key: metadata[key] for key in ("global_rank", "group_rank", "role", "rdzv_backend", "agent_restarts", "run_id")}
                state = metadata["state"].replace("TERMINATED", "FAILED")  # torchrun tells those that it stopped as failed.
                shapes.append((state, event["source"], list(event), list(metadata), list(details), details["entry_point"],
                               details.get("local_rank"), details.get("exit_code"), type(metadata["worker_id"]), values))
        return sorted(shapes, key=lambda shape: (shape[1], shape[0], str(shape[6])))

    def test_row_73_events_are_torchruns(self):
        ours = self.shape([BIN / "fsdprun"])
        theirs = self.shape([sys.executable, "-m", "torch.distributed.run"])
        self.assertEqual(ours, theirs)
        self.assertEqual(len(ours), 7)


if __name__ == "__main__":
    main()
