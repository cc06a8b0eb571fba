"""Support for tests of daemons: several on this machine, each with a port and a folder of its own."""

import signal

from job_case import JobCase, free_port


class DaemonCase(JobCase):
    def setUp(self):
        super().setUp()
        self.daemons = {}  # port -> process

    def folder_of(self, port):
        return self.dir / f"daemon-{port}"

    def daemon_words(self, port, *more, slots=4):
        return ["--daemon", f"--listen=127.0.0.1:{port}", f"--slots={slots}", f"--runtime-dir={self.folder_of(port)}",
                "--launcher-grace=3", *more]

    def start_daemon(self, *more, port=None, slots=4, **kwargs):
        """Its port, once it listens."""
        port = port or free_port()
        daemon = self.start(*self.daemon_words(port, *more, slots=slots), binary="fsdp-agent", **kwargs)
        self.daemons[port] = daemon
        self.wait_for_line(daemon, "daemon at")
        return port

    def start_job(self, ports, *more, **kwargs):
        return self.start("--agents=" + ",".join(f"127.0.0.1:{port}" for port in ports), *more, **kwargs)

    def sessions_of(self, port):
        return [path for path in self.folder_of(port).glob("*") if path.is_dir()]

    def stop_daemons(self):
        """In order, as systemd does: nothing of them stays."""
        for port, daemon in self.daemons.items():
            if daemon.poll() is None:
                daemon.send_signal(signal.SIGTERM)
        for port, daemon in self.daemons.items():
            code, _, err = self.finish(daemon)
            if code != -signal.SIGKILL:
                self.assertEqual(code, 0, err)
                self.assertFalse(self.folder_of(port).exists(), list(self.folder_of(port).rglob("*")) if self.folder_of(port).exists() else "")

    def tearDown(self):
        try:
            self.stop_daemons()
        finally:
            super().tearDown()
