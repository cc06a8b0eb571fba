"""Many launchers that start at once, while the one that they all need is stopped: they are slow, and none is lost."""

import os
import pathlib
import signal
import sys
import time

from job_case import JobCase, free_port, wait_until, wait_until_listening
from unittest_main import main

NODES = 64
STOPPED_S = 5


def connections(port):
    rows = [line.split() for table in ("tcp", "tcp6") for line in pathlib.Path("/proc/net", table).read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == "01" for row in rows)


class CrowdTest(JobCase):
    def test_a_host_that_is_stopped_in_the_middle_of_the_joins_loses_nobody(self):
        port = free_port()
        args = [f"--nnodes={NODES}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=crowd",
                "--no-python", "true"]
        env = {"LOGLEVEL": "WARNING"}
        host = self.start(*args, env=env)
        wait_until_listening(port)
        nodes = [self.start(*args, env=env) for _ in range(NODES - 1)]
        wait_until(lambda: connections(port) >= NODES // 3, "a third of the nodes to connect")
        os.kill(host.pid, signal.SIGSTOP)
        time.sleep(STOPPED_S)  # the fault itself
        os.kill(host.pid, signal.SIGCONT)
        for node in [host, *nodes]:
            rc, _, err = self.finish(node)
            self.assertEqual(rc, 0, err)
            for word in ("silent", "lost its stream", "could not reach"):
                self.assertNotIn(word, err)


if __name__ == "__main__":
    if not sys.platform.startswith("linux"):
        sys.exit(77)
    main()
