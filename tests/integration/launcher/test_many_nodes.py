"""Many nodes on one machine, and two nodes on a machine that has too much to do."""

import subprocess
import sys
import time

from job_case import JobCase, free_port
from unittest_main import main

NODES = 200
BUSY = 40


class ManyNodesTest(JobCase):
    def test_row_68_many_launchers_on_one_machine(self):
        """Each is a node. They join, run, fail together, and end."""
        endpoint = f"127.0.0.1:{free_port()}"
        begin = time.monotonic()
        nodes = [self.start(f"--nnodes={NODES}", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=many",
                            "--max-restarts=1", "--no-python", "sh", "-c",
                            "[ $RANK != 77 ] && exec sleep $((100 * (1 - TORCHELASTIC_RESTART_COUNT))); "
                            "exit $((1 - TORCHELASTIC_RESTART_COUNT))") for _ in range(NODES)]
        for node in nodes:
            rc, _, err = self.finish(node)
            self.assertEqual(rc, 0, err)
        print(f"{NODES} nodes joined, failed once and ended in {time.monotonic() - begin:.1f} s", file=sys.stderr)

    def test_row_69_a_busy_machine_evicts_nobody(self):
        script, endpoint = self.script("note('pid'); wait_for('go')"), f"127.0.0.1:{free_port()}"
        nodes = [self.start("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=busy", script)
                 for _ in range(2)]
        self.wait_for_notes("pid", 1, range(2))
        busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(BUSY)]
        try:
            time.sleep(30)  # the fault itself
        finally:
            for process in busy:
                process.kill()
                process.wait()
        (self.dir / "go").touch()
        for node in nodes:
            rc, _, err = self.finish(node)
            self.assertEqual(rc, 0, err)
        self.assertEqual(set(self.notes("pid")), {(1, 0), (1, 1)})


if __name__ == "__main__":
    main()
