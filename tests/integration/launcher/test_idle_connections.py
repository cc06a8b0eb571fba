"""Thousands of connections that say nothing: the job goes on, also when there is no descriptor left for another."""

import contextlib
import os
import resource
import socket
import sys

from job_case import JobCase, free_port
from unittest_main import main

COUNT = int(os.environ.get("IDLE_CONNECTIONS", "10000"))
WAITER = "note('pid')\nwait_for('go')"


class IdleConnectionsTest(JobCase):
    def setUp(self):
        super().setUp()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        if hard < COUNT + 1000:
            self.skipTest(f"this test needs {COUNT + 1000} descriptors, and may have {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def connections(self, port, count, stack, greeting=b""):
        """So many at once. Addresses of 127.0.0.0/8 take turns, as each has ports for some ten thousand."""
        for number in range(count):
            idle = stack.enter_context(socket.socket())
            idle.bind((f"127.0.{1 + number // 5000}.1", 0))
            idle.connect(("127.0.0.1", port))
            if greeting:
                idle.sendall(greeting)

    def run_beside_idle(self, limit, greeting):
        """A node joins a job of two while there are idle connections; the host may have `limit` descriptors."""
        port, script = free_port(), self.script(WAITER)
        args = ["--nnodes=2", f"--master-port={port}", script]
        env = {"LOGLEVEL": "WARNING", "FSDPRUN_TOKEN": "right"}
        host = self.start("--node-rank=0", *args, env=env,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)))
        node = self.start("--node-rank=1", *args, env=env)
        self.wait_for_notes("pid", 1, range(2))
        with contextlib.ExitStack() as stack:
            self.connections(port, COUNT, stack, greeting)
            (self.dir / "go").touch()
            for launcher in (node, host):
                rc, _, err = self.finish(launcher)
                self.assertEqual(rc, 0, err)
        return err

    def test_as_many_as_there_are_descriptors_for(self):
        for greeting in (b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"):
            with self.subTest(greeting=greeting):
                for path in [self.dir / "go", *self.dir.glob("pid.*")]:
                    path.unlink(missing_ok=True)
                self.run_beside_idle(COUNT + 1000, greeting)

    def test_more_than_there_are_descriptors_for(self):
        err = self.run_beside_idle(1024, b"")
        lines = [line for line in err.splitlines() if "no file descriptor left" in line]
        self.assertGreaterEqual(len(lines), 1, err)
        self.assertLessEqual(len(lines), 20, err)


if __name__ == "__main__":
    if not sys.platform.startswith("linux"):
        sys.exit(77)
    main()
