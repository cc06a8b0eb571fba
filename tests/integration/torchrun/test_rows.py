"""Rows of the contract that neither a test of PyTorch's has nor one of ../launcher."""

import os

import differential_cases
from compat_case import CompatCase, free_port, fsdprun_only, main, wait_for_files

# Speaks the store's protocol as PyTorch's client does, without PyTorch.
STORE_CLIENT = """
import os, socket, struct, sys
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
def text(value): return struct.pack("<Q", len(value)) + value
def read(count):
    data = b""
    while len(data) < count:
        piece = store.recv(count - len(data))
        assert piece, "the store has closed the connection"
        data += piece
    return data
def read_text(): return read(struct.unpack("<Q", read(8))[0])
def send(op, *parts): store.sendall(bytes([op]) + b"".join(parts))
def wait(*keys):
    send(6, struct.pack("<Q", len(keys)), *map(text, keys))
    assert read(1) == b"\\0"
def get(key):
    wait(key)
    send(3, text(key))
    return read_text()
send(0, struct.pack("<I", 0x3C85F7CE))
send(13, struct.pack("<I", 77 + RANK))
assert struct.unpack("<I", read(4))[0] == 77 + RANK
send(1, text(b"/key%d" % RANK), text(b"value%d" % RANK))
for rank in range(WORLD):
    assert get(b"/key%d" % rank) == b"value%d" % rank
send(4, text(b"/count"), struct.pack("<q", 1))
struct.unpack("<q", read(8))
send(2, text(b"/swap%d" % RANK), text(b""), text(b"new"))
assert read_text() == b"new"
send(5, struct.pack("<Q", 1), text(b"/missing"))
assert read(1) == b"\\1"
send(8, text(b"/swap%d" % RANK))
assert struct.unpack("<q", read(8))[0] == 1
send(11, struct.pack("<Q", 2), text(b"/a%d" % RANK), text(b"1"), text(b"/b%d" % RANK), text(b"2"))
keys = [b"/a%d" % rank for rank in range(WORLD)]
wait(*keys)
send(10, struct.pack("<Q", len(keys)), *map(text, keys))
assert [read_text() for _ in keys] == [b"1"] * WORLD
send(9, text(b"/b%d" % RANK), text(b"3"))
assert get(b"/b%d" % RANK) == b"23"
open(f"{os.environ['D']}/talked.{RANK}", "w").close()
"""


class RowsTest(CompatCase):
    def test_row_01_usage_and_help(self):
        """Nothing at all is a usage error. The help has every option of torchrun's, in both spellings."""
        rc, _, err = self.run_job()
        self.assertEqual(rc, 2)
        self.assertIn("usage", err.lower())
        rc, out, _ = self.run_job("--help")
        self.assertEqual((rc, self.run_job("-h")[0]), (0, 0))
        for name in ("nnodes nproc-per-node rdzv-backend rdzv-endpoint rdzv-id rdzv-conf standalone max-restarts monitor-interval start-method "
                     "event-log-handler role module no-python run-path log-dir redirects tee local-ranks-filter duplicate-stdout-filters "
                     "duplicate-stderr-filters node-rank master-addr master-port local-addr logs-specs numa-binding signals-to-handle "
                     "virtual-local-rank").split():
            self.assertIn(f"--{name}", out)
            if self.launcher == "fsdprun":
                self.assertIn(f"--{name.replace('-', '_')}", out)

    @fsdprun_only
    def test_row_02_usage_errors_and_row_03_refused_values_are_one_line(self):
        """That the exit codes are torchrun's is what test_differential.py shows."""
        for case in differential_cases.refused():
            with self.subTest(case.name):
                words = [word.replace("{port}", str(free_port())) for word in case.words]
                rc, _, err = self.run_job(*words, "--no-python", "true")
                self.assertEqual((rc in (1, 2), len(err.splitlines())), (True, 1), err)
                self.assertNotIn("Traceback", err)

    def test_row_06_variables_and_the_command_line(self):
        """The command line wins. A switch is a number."""
        count = self.program('echo > "$D/rank.$RANK"')
        for words, env, size in (([], {}, 3), (["--nproc-per-node=2"], {}, 2), ([], {"PET_STANDALONE": "1"}, 3), ([], {"PET_STANDALONE": "0"}, 3)):
            self.assert_success(self.run_job(f"--master-port={free_port()}", *words, "--no-python", count, env={"PET_NPROC_PER_NODE": "3", **env}))
            found = list(self.dir.glob("rank.*"))
            self.assertEqual(len(found), size)
            for path in found:
                path.unlink()
        self.assert_refused(self.run_job("--no-python", count, env={"PET_MODULE": "yes"}), 1, "PET_MODULE", "yes")

    def test_row_08_modules_programs_scripts_and_unbuffered_output(self):
        """-u is in effect: what was printed without a newline can be seen before the worker ends."""
        (self.dir / "pkg").mkdir()
        (self.dir / "pkg" / "mod.py").write_text("import sys; print('module', *sys.argv[1:])\n")
        wrapper = self.program(f'echo "wrapper $1"; exec {self.env["PYTHON_EXEC"]} "$@"', "wrapper")
        port = f"--master-port={free_port()}"
        rc, out, err = self.run_job(port, "-m", "pkg.mod", "a", cwd=self.dir)
        self.assertEqual((rc, out), (0, "module a\n"), err)
        rc, out, err = self.run_job(port, "--no-python", "./" + os.path.basename(self.program("echo program $1", "x.sh")), "a", cwd=self.dir)
        self.assertEqual((rc, out), (0, "program a\n"), err)
        rc, out, err = self.run_job(port, self.python("print('script')\n"), env={"PYTHON_EXEC": wrapper})
        self.assertEqual((rc, out), (0, "wrapper -u\nscript\n"), err)
        script = self.python("import os, time\nprint('no newline', end='')\nopen(os.environ['D'] + '/printed', 'w').close()\n"
                             "while not os.path.exists(os.environ['D'] + '/finish'): time.sleep(0.02)\n")
        process = self.start(port, "--redirects=1", f"--log-dir={self.dir / 'logs'}", script)
        self.wait_for("printed")
        (log,) = (self.dir / "logs").glob("*/attempt_0/0/stdout.log")
        wait_for_files(lambda: log.read_text() == "no newline", log.parent, "what was printed", writes=True)
        (self.dir / "finish").touch()
        self.assert_success(self.finish(process))

    def test_row_17_no_log_directory(self):
        """Nothing is made anywhere, and the error file's name is empty."""
        rc, out, err = self.run_job(f"--master-port={free_port()}", "--log-dir=/dev/null", "--no-python", self.program(
            'echo "file:$TORCHELASTIC_ERROR_FILE:"; echo ${TORCHELASTIC_ERROR_FILE-unset}'))
        self.assertEqual((rc, out), (0, "file::\n\n"), err)

    def test_row_20_every_rank_talks_to_the_store(self):
        """As on the wire: requests of PyTorch's client, from two nodes."""
        port, script = free_port(), self.python(STORE_CLIENT)
        jobs = [["--nnodes=2", f"--node-rank={node}", f"--master-port={port}", "--nproc-per-node=2", script] for node in (0, 1)]
        for result in self.run_jobs(*jobs):
            self.assert_success(result)
        self.assertEqual(len(list(self.dir.glob("talked.*"))), 4)


if __name__ == "__main__":
    main()
