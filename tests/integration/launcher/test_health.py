"""The port of TORCHELASTIC_HEALTH_CHECK_PORT answers probes in every phase of a job."""

import http.client
import json
import signal
import socket

from job_case import JobCase, free_port, wait_until, wait_until_listening
from unittest_main import main


class HealthTest(JobCase):
    def setUp(self):
        super().setUp()
        self.port = free_port()
        self.probed = {"TORCHELASTIC_HEALTH_CHECK_PORT": str(self.port)}

    def ask(self, target):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", target)
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return answer.status, json.loads(body) if target == "/status" else body.strip()

    def status(self):
        code, status = self.ask("/status")
        self.assertEqual(code, 200)
        return status

    def test_row_72_during_rendezvous(self):
        launcher = self.start("--nnodes=2", f"--master-port={free_port()}", self.script(""), env=self.probed)
        wait_until_listening(self.port)
        self.assertEqual(self.ask("/healthz"), (200, "rendezvous"))
        status = self.status()
        self.assertEqual((status["phase"], status["generation"], status["progress_age_s"]), ("rendezvous", 0, None))
        launcher.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(launcher)[0], 1)

    def test_row_72_running_workers_and_a_hung_one(self):
        launcher = self.start("--standalone", "--max-restarts=1", self.script("""
            if not RESTART:
                sys.exit(1)
            note("start")
            wait_for("report")
            with os.fdopen(int(os.environ["FSDPRUN_CONTROL_FD"]), "w") as control:
                print(json.dumps({"v": 1, "type": "progress", "step": 7, "total": 100}), file=control, flush=True)
                live_on()
        """), env=self.probed)
        self.wait_for_notes("start", 2, [0])
        status = self.status()
        self.assertEqual((status["phase"], status["generation"], status["restarts"]), ("running", 2, 1))
        self.assertEqual((status["has_progress"], status["healthy"]), (False, True))
        self.assertEqual(self.ask("/healthz?max_progress_age=3600"), (200, "running"))
        (self.dir / "report").touch()
        wait_until(lambda: self.status()["has_progress"], "progress")
        age_s = self.status()["progress_age_s"]
        wait_until(lambda: self.status()["progress_age_s"] > age_s, "time to pass")  # It hangs.
        code, text = self.ask("/healthz?max_progress_age=0")
        self.assertEqual(code, 503)
        self.assertRegex(text, r"no progress for [\d.e-]+ s")
        self.assertEqual(self.ask("/healthz"), (200, "running"))
        launcher.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(launcher)[0], 1)

    def test_row_72_while_the_coordinator_does_not_answer(self):
        port, script = free_port(), self.script("note('start'); live_on()")
        host = self.start("--nnodes=2", f"--master-port={port}", "--node-rank=0", script)
        self.start("--nnodes=2", f"--master-port={port}", "--node-rank=1", script, env=self.probed)
        self.wait_for_notes("start", 1, range(2))
        self.assertEqual(self.ask("/healthz"), (200, "running"))
        host.send_signal(signal.SIGSTOP)
        wait_until(lambda: self.status()["notice"] == "the coordinator does not answer", "the notice")
        self.assertEqual(self.ask("/healthz"), (200, "running"))  # The workers go on: no reason to end this node.
        host.send_signal(signal.SIGCONT)
        wait_until(lambda: self.status()["notice"] == "", "the notice to go")
        host.send_signal(signal.SIGTERM)

    def test_slow_and_broken_clients_stop_nobody(self):
        self.start("--standalone", self.script("note('start'); live_on()"), env=self.probed)
        self.wait_for_notes("start", 1, [0])
        slow = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(40)]
        slow[-1].sendall(b"\0" * 5000)
        self.assertIn(b" 431 ", slow[-1].recv(100))
        self.assertEqual(self.ask("/healthz"), (200, "running"))
        for client in slow:
            client.close()

    def test_a_bad_value_is_warned_of(self):
        for value in ("x", "70000"):
            rc, _, err = self.run_job("--standalone", self.script(""), env={"TORCHELASTIC_HEALTH_CHECK_PORT": value, "LOGLEVEL": "WARNING"})
            self.assertEqual(rc, 0, err)
            self.assertIn(f"TORCHELASTIC_HEALTH_CHECK_PORT={value} is no number from 0 to 65535", err)

    def test_a_port_in_use_is_warned_of(self):
        with socket.create_server(("", self.port)):
            rc, _, err = self.run_job("--standalone", self.script("note('start')"), env=self.probed | {"LOGLEVEL": "WARNING"})
        self.assertEqual(rc, 0, err)
        self.assertIn(f"cannot listen on port {self.port} of TORCHELASTIC_HEALTH_CHECK_PORT", err)


if __name__ == "__main__":
    main()
