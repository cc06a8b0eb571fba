"""The rows of PyTorch's tests whose workers import PyTorch: process groups over the launcher's store, and RPC."""

import subprocess
import sys

from compat_case import CompatCase, c10d, free_port, main, soak

HEAD = """
import datetime, os, sys
import torch
import torch.distributed as dist
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
def check_sum():
    one_hot = torch.zeros(WORLD)
    one_hot[RANK] = 1
    dist.all_reduce(one_hot)
    assert one_hot.tolist() == [1.0] * WORLD, one_hot
def note(name):
    open(f"{os.environ['D']}/{name}.{RANK}", "w").close()
"""
ONE_NODE = HEAD + """
assert dist.is_torchelastic_launched()
if sys.argv[1] == "env":
    dist.init_process_group("gloo", init_method="env://")
else:
    dist.init_process_group("gloo", init_method=f"tcp://localhost:{os.environ['MASTER_PORT']}", rank=RANK, world_size=WORLD)
check_sum()
half = dist.new_group([0])
dist.barrier()
note(sys.argv[1])
sys.stdout.flush()
os._exit(0)
"""
SUM = HEAD + """
dist.init_process_group("gloo")
check_sum()
dist.barrier()
note("sum")
sys.stdout.flush()
os._exit(0)
"""
RPC = HEAD + """
import torch.distributed.rpc as rpc
name = f"{os.environ['ROLE_NAME']}{os.environ['ROLE_RANK']}"
rpc.init_rpc(name, rank=RANK, world_size=WORLD, rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
    init_method=f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}", _transports=["uv"]))
if os.environ["ROLE_NAME"] == "master":
    assert rpc.rpc_sync("worker0", torch.add, args=(torch.ones(2), 1)).tolist() == [2.0, 2.0]
rpc.shutdown()
note("rpc")
sys.stdout.flush()
os._exit(0)
"""
# Asks its own control plane, as somebody beside the job would: (how, path, status, words of the answer).
CONTROL_PLANE = HEAD + """
import http.client, socket, sys
os.environ["TORCH_WORKER_SERVER_SOCKET"] += f".{RANK}"
from torch.distributed.elastic.control_plane import worker_main
class Connection(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(os.environ["TORCH_WORKER_SERVER_SOCKET"])
with worker_main():
    for method, path, status, words in (
            ("GET", "/", 200, "WorkerServer"), ("GET", "/handler/", 200, '"ping"'), ("POST", "/handler/ping", 200, "pong"),
            ("POST", "/handler/nowhere", 404, "nowhere"), ("POST", "/handler/dump_nccl_trace_json", 200, "version"),
            ("POST", "/handler/dump_nccl_trace_json?includecollectives=maybe", 400, "includecollectives"),
            ("POST", "/handler/dump_nccl_trace_pickle?unknown=true", 400, "unexpected"),
            ("POST", "/handler/dump_traceback", 200, os.path.basename(sys.argv[0])), ("POST", "/handler/wait_counter_values", 200, "{")):
        connection = Connection("localhost")
        connection.request(method, path)
        answer = connection.getresponse()
        text = answer.read().decode()
        assert (answer.status, words in text) == (status, True), (path, answer.status, text)
note("asked")
"""


class WithPytorchTest(CompatCase):
    def setUp(self):
        super().setUp()
        self.env["OMP_NUM_THREADS"] = "1"

    def assert_notes(self, kind, size):
        self.assertEqual(sorted(int(path.suffix[1:]) for path in self.dir.glob(f"{kind}.*")), list(range(size)))

    def one_node(self, nproc, method):
        """test_run.py; also its test_is_torchelastic_launched."""
        self.assert_success(self.run_job("--nnodes=1", f"--nproc-per-node={nproc}", *c10d(free_port()), "--monitor-interval=1",
                                         self.python(ONE_NODE), method))
        self.assert_notes(method, nproc)

    @soak
    def test_init_method_env_with_torchelastic(self):
        self.one_node(2, "env")

    def test_init_method_tcp_with_torchelastic(self):
        self.one_node(2, "tcp")

    @soak
    def test_init_method_env_with_torchelastic_four_workers(self):
        self.one_node(4, "env")

    @soak
    def test_init_method_tcp_with_torchelastic_four_workers(self):
        self.one_node(4, "tcp")

    def test_is_not_torchelastic_launched(self):
        """test_run.py: without a launcher there is no TORCHELASTIC_RUN_ID."""
        done = subprocess.run([sys.executable, "-c", "import torch.distributed as d; print(d.is_torchelastic_launched())"],
                              env=self.env, capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout, "False\n")

    def nodes(self, sizes, script, backend):
        port = free_port()
        jobs = []
        for node, (size, role) in enumerate(sizes):
            meet = c10d(port) if backend == "c10d" else [f"--master-port={port}", f"--node-rank={node}"]
            jobs.append([f"--nnodes={len(sizes)}", f"--nproc-per-node={size}", f"--role={role}", *meet, self.python(script)])
        for result in self.run_jobs(*jobs):
            self.assert_success(result)

    def test_launch_dist_sum_with_static_rdzv(self):
        """api_test.py"""
        self.nodes([(2, "default")], SUM, "static")
        self.assert_notes("sum", 2)

    @soak
    def test_simple_dist_sum(self):
        """local_elastic_agent_test.py"""
        self.nodes([(4, "default")], SUM, "c10d")
        self.assert_notes("sum", 4)

    def test_run_distributed_sum_two_nodes(self):
        self.nodes([(1, "a"), (1, "b")], SUM, "c10d")
        self.assert_notes("sum", 2)

    @soak
    def test_run_distributed_sum_homogeneous(self):
        self.nodes([(4, "default"), (4, "default")], SUM, "c10d")
        self.assert_notes("sum", 8)

    @soak
    def test_run_distributed_sum_heterogeneous(self):
        self.nodes([(1, "default"), (2, "default"), (3, "default")], SUM, "c10d")
        self.assert_notes("sum", 6)

    @soak
    def test_torch_rpc(self):
        self.nodes([(1, "master"), (1, "worker")], RPC, "static")
        self.assert_notes("rpc", 2)

    @soak
    def test_control_plane_of_the_workers(self):
        """test_control_plane.py: the server is the worker's own; the launcher's part is the variable, and that it ends with the worker."""
        self.assert_success(self.run_job("--standalone", "--nproc-per-node=2", self.python(CONTROL_PLANE),
                                         env={"TORCH_WORKER_SERVER_SOCKET": str(self.dir / "control")}))
        self.assert_notes("asked", 2)


if __name__ == "__main__":
    main()
