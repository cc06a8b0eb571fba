"""A private etcd, for tests of launchers that find each other through one."""

import os
import pathlib
import shutil
import subprocess

from job_case import free_port, wait_until_listening

ROOT = pathlib.Path(__file__).resolve().parents[3]
# The variable is torchrun's, for its own tests.
CANDIDATES = (os.environ.get("TORCHELASTIC_ETCD_BINARY_PATH"), shutil.which("etcd"), str(ROOT / ".cache/etcd/usr/bin/etcd"))
ETCD = next((path for path in CANDIDATES if path and os.access(path, os.X_OK)), None)
REASON_TO_SKIP = "" if ETCD else "scripts/setup --tests brings an etcd"


class EtcdServer:
    """Keeps its data and its log in the folder. It can be started, and stopped, again and again at the same port."""

    def __init__(self, folder, env):
        self.folder, self.env = folder, env
        self.port, self._peer_port = free_port(), free_port()
        self._process = None

    def start(self, scheme="http", *options):
        url, peer = f"{scheme}://127.0.0.1:{self.port}", f"http://127.0.0.1:{self._peer_port}"
        with open(self.folder / "etcd.log", "a") as log:
            self._process = subprocess.Popen(
                [ETCD, "--data-dir", self.folder / "etcd", "--listen-client-urls", url, "--advertise-client-urls", url,
                 "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
                 "--unsafe-no-fsync", *options],
                stdout=log, stderr=log, env={**self.env, "ETCD_UNSUPPORTED_ARCH": os.uname().machine})
        wait_until_listening(self.port)

    def stop(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
