#!/usr/bin/env python3
"""The installed torchrun as a test's launcher, without its two seconds of imports for each start.

`Oracle` starts this file once as a server, which imports torch.distributed.run and forks for each command line. The child
gets the caller's arguments, environment, folder, standard streams and process group, and runs torchrun's own main() in
it. What `start` returns has the part of subprocess.Popen's interface that tests use.
"""

import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile

MAX_REQUEST = 1 << 20
PR_SET_PDEATHSIG = 1


class OracleProcess:
    """A torchrun that runs. Its parent is the server, which tells when it has ended, and how."""

    def __init__(self, connection, pid, pipes, is_text):
        self._connection, self.pid, self.returncode = connection, pid, None
        self._is_killed = False
        self.stdout, self.stderr = (None if pipe is None else open(pipe, "r" if is_text else "rb",  # noqa: SIM115
                                                                   errors="replace" if is_text else None) for pipe in pipes)

    def poll(self):
        return self._take(0)

    def _take(self, timeout):
        if self.returncode is None:
            self._connection.settimeout(timeout if timeout != 0 else 1e-6)
            try:
                answer = self._connection.recv(MAX_REQUEST)
            except (TimeoutError, BlockingIOError):
                return None
            status = json.loads(answer)["status"]
            self.returncode = os.waitstatus_to_exitcode(status)
            self._connection.close()
        return self.returncode

    def wait(self, timeout=None):
        if self._take(timeout) is None:
            raise subprocess.TimeoutExpired("torchrun", timeout)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self._is_killed = True
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout=None):
        """(stdout, stderr) up to their ends; then waits for the process."""
        texts = {"stdout": None, "stderr": None}
        with selectors.DefaultSelector() as selector:
            for name in texts:
                stream = getattr(self, name)
                if stream is not None and not stream.closed:
                    selector.register(stream, selectors.EVENT_READ, name)
                    texts[name] = b""
            while selector.get_map():
                events = selector.select(1 if self._is_killed else timeout)
                if not events and self._is_killed:
                    break  # Its orphans have the streams, too.
                if not events:
                    raise subprocess.TimeoutExpired("torchrun", timeout)
                for key, _ in events:
                    if piece := os.read(key.fd, 65536):
                        texts[key.data] += piece
                    else:
                        selector.unregister(key.fileobj)
        for name in texts:
            stream = getattr(self, name)
            if stream is not None and texts[name] is not None:
                if "b" not in stream.mode:
                    texts[name] = texts[name].decode(errors="replace")
                stream.close()
        self.wait(timeout)
        return texts["stdout"], texts["stderr"]


class Oracle:
    """The server and the way to it; ends with the process that made it."""

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="fsdprun_oracle_")
        self._address = os.path.join(self._folder.name, "socket")
        ready, ready_for_server = os.pipe()
        # c10d's C++ warns where an address has no name: that depends on the machine, not on torchrun.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
                       "TORCH_CPP_LOG_LEVEL": "ERROR"}
        self._server = subprocess.Popen([sys.executable, __file__, self._address, str(ready_for_server)], env=environment,
                                        stdin=subprocess.PIPE, pass_fds=[ready_for_server], start_new_session=True)
        os.close(ready_for_server)
        if os.read(ready, 1) != b"!":
            raise RuntimeError("the oracle did not start: torch.distributed.run cannot be imported")
        os.close(ready)

    def close(self):
        self._server.stdin.close()
        self._server.wait()
        self._folder.cleanup()

    def start(self, arguments, environment, cwd=None, stdin=None, stdout=None, stderr=None, text=True):
        """As subprocess.Popen: None is this process's stream, PIPE and DEVNULL mean what they mean there."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(self._address)
        ours, theirs, opened = [None, None], [], []
        for number, stream in enumerate((stdin, stdout, stderr)):
            if stream == subprocess.PIPE and number > 0:
                ours[number - 1], fd = os.pipe()
                opened.append(fd)
            elif stream == subprocess.DEVNULL:
                fd = os.open(os.devnull, os.O_RDWR)
                opened.append(fd)
            elif stream == subprocess.STDOUT:
                fd = theirs[1]
            else:
                fd = number if stream is None else stream if isinstance(stream, int) else stream.fileno()
            theirs.append(fd)
        request = {"arguments": [str(word) for word in arguments], "environment": environment, "cwd": str(cwd or os.getcwd())}
        socket.send_fds(connection, [json.dumps(request).encode()], theirs)
        for fd in opened:
            os.close(fd)
        return OracleProcess(connection, json.loads(connection.recv(MAX_REQUEST))["pid"], ours, text)


def run_torchrun(request, streams):
    """In the forked child: what the interpreter does for a script that calls main(), from the streams on."""
    import atexit
    import ctypes
    import logging
    import random
    import threading
    import traceback

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # A test that is killed leaves no torchrun behind.
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
    os.closerange(3, 256)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["torchrun", *request["arguments"]]
    tempfile.tempdir = None
    random.seed()
    level = os.environ.get("LOGLEVEL", "WARNING")  # Otherwise read when the loggers are made.
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("torch.distributed") and getattr(logger, "level", logging.NOTSET) != logging.NOTSET:
            logger.setLevel(level)
    code = 0
    try:
        from torch.distributed.run import main
        main(request["arguments"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = 120
    os._exit(code)


class Server:
    def __init__(self, address):
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(address)
        self._listener.listen(64)
        self._selector = selectors.DefaultSelector()

    def serve(self):
        """Until the other side of standard input is closed."""
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(0, selectors.EVENT_READ, None)
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                key.data()

    def _accept(self):
        connection, _ = self._listener.accept()
        data, streams, _, _ = socket.recv_fds(connection, MAX_REQUEST, 3)
        pid = os.fork()
        if pid == 0:
            run_torchrun(json.loads(data), streams)
        for fd in streams:
            os.close(fd)
        connection.send(json.dumps({"pid": pid}).encode())
        ended = os.pidfd_open(pid)

        def reap():
            self._selector.unregister(ended)
            os.close(ended)
            try:
                connection.send(json.dumps({"status": os.waitpid(pid, 0)[1]}).encode())
            except OSError:
                pass  # Nobody waits for it any more.
            connection.close()
        self._selector.register(ended, selectors.EVENT_READ, reap)


def main():
    address, ready = sys.argv[1], int(sys.argv[2])
    import torch.distributed.run  # noqa: F401
    from torch.distributed.launcher import api  # noqa: F401
    server = Server(address)
    gc.collect()
    gc.freeze()  # What was imported stays shared between the children.
    os.write(ready, b"!")
    os.close(ready)
    server.serve()


if __name__ == "__main__":
    main()
