"""--exit-code=worker: the launcher ends as the worker that is the root cause."""

import signal

from job_case import JobCase, free_port
from unittest_main import main

WORKER = "--exit-code=worker"


class ExitCodeTest(JobCase):
    def two_nodes(self, body, *args):
        """Both launchers, the one that hosts the coordinator first."""
        script, port = self.script(body), free_port()
        return [self.start("--nnodes=2", f"--master-port={port}", f"--node-rank={n}", WORKER, *args, script) for n in range(2)]

    def test_code_of_the_root_cause_on_all_nodes(self):
        for failing in range(2):
            with self.subTest(failing=failing):
                nodes = self.two_nodes(f"sys.exit(43) if RANK == {failing} else live_on()")
                self.assertEqual([self.finish(node)[0] for node in nodes], [43, 43])

    def test_a_signal_is_128_and_its_number(self):
        rc, _, err = self.run_job("--standalone", WORKER, self.script("os.kill(os.getpid(), signal.SIGSEGV)"))
        self.assertEqual(rc, 128 + signal.SIGSEGV, err)

    def test_the_restart_that_succeeds_is_no_failure(self):
        rc, _, err = self.run_job("--standalone", WORKER, "--max-restarts=1", self.script("sys.exit(0 if RESTART else 43)"))
        self.assertEqual(rc, 0, err)

    def test_signals_of_an_operator(self):
        for signalled in range(2):
            with self.subTest(signalled=signalled):
                nodes = self.two_nodes("note('ready'); live_on()")
                self.wait_for_notes("ready", 1, range(2))
                nodes[signalled].send_signal(signal.SIGTERM)
                self.assertEqual(self.finish(nodes[signalled])[0], 128 + signal.SIGTERM)
                if signalled == 1:
                    nodes[0].send_signal(signal.SIGINT)  # It waits for another node.
                self.assertEqual(self.finish(nodes[1 - signalled])[0], 128 + (signal.SIGINT if signalled else signal.SIGTERM))
                for path in self.dir.glob("ready.*"):
                    path.unlink()

    def test_a_node_that_still_waits_for_others(self):
        port = free_port()
        for args in (["--node-rank=0"], ["--node-rank=1"]):
            node = self.start("--nnodes=2", f"--master-port={port}", *args, WORKER, self.script(""))
            self.wait_for_run_directory()
            node.send_signal(signal.SIGINT)
            self.assertEqual(self.finish(node)[0], 128 + signal.SIGINT)

    def test_what_is_no_worker_s_failure_is_1(self):
        rc, _, err = self.run_job("--nnodes=2", f"--master-port={free_port()}", "--rdzv-conf=join_timeout=0.2", WORKER, self.script(""))
        self.assertEqual(rc, 1, err)
        self.assertIn("RendezvousTimeoutError", err)


if __name__ == "__main__":
    main()
