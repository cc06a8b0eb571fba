"""A private etcd, for tests of launchers that find each other through one."""

import base64
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import urllib.request

from events import patience
from job_case import free_port, wait_until_listening

ROOT = pathlib.Path(__file__).resolve().parents[3]
# The variable is torchrun's, for its own tests.
CANDIDATES = (os.environ.get("TORCHELASTIC_ETCD_BINARY_PATH"), shutil.which("etcd"), str(ROOT / ".cache/etcd/usr/bin/etcd"))
ETCD = next((path for path in CANDIDATES if path and os.access(path, os.X_OK)), None)
REASON_TO_SKIP = "" if ETCD else "scripts/setup --tests brings an etcd"


class EtcdServer:
    """Keeps its data and its log in the folder. It can be started, and stopped, again and again at the same port.
    `on`: makes a command one that runs on another machine, with that address."""

    def __init__(self, folder, env, address="127.0.0.1", on=None):
        self.folder, self.env, self.address, self._on = folder, env, address, on
        self.port, self._peer_port = free_port(), free_port()
        self._process = None

    def start(self, scheme="http", *options):
        url, peer = f"{scheme}://{self.address}:{self.port}", f"http://127.0.0.1:{self._peer_port}"
        with open(self.folder / "etcd.log", "a") as log:
            self._process = subprocess.Popen(
                [*(self._on() if self._on else []), ETCD, "--data-dir", self.folder / "etcd", "--listen-client-urls", url, "--advertise-client-urls", url,
                 "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
                 "--unsafe-no-fsync", *options],
                stdout=log, stderr=log, env={**self.env, "ETCD_UNSUPPORTED_ARCH": os.uname().machine})
        if self._on is None:
            wait_until_listening(self.port)

    def stop(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def forget(self):
        """Its data are gone, while it is stopped."""
        with contextlib.suppress(FileNotFoundError):  # it was stopped before it had made it
            shutil.rmtree(self.folder / "etcd")

    def call(self, method, **message):
        """etcd's API as JSON; bytes are in base64."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v3/kv/{method}", json.dumps(message).encode())
        with urllib.request.urlopen(request, timeout=patience()) as answer:
            return json.load(answer)

    def entry(self, key):
        """What etcd knows of the key, with the value in base64; None if it is not there."""
        found = self.call("range", key=base64.b64encode(key.encode()).decode()).get("kvs", [])
        return found[0] if found else None

    def entries(self):
        everything = base64.b64encode(b"\0").decode()
        return self.call("range", key=everything, range_end=everything).get("kvs", [])

    def delete_all(self):
        everything = base64.b64encode(b"\0").decode()
        self.call("deleterange", key=everything, range_end=everything)
