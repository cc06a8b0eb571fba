"""--numa-binding gives workers the CPUs that the installed torchrun's own code computes, on made-up machines."""

import builtins
import importlib.util
import json
import os
import pathlib
import random
import shutil
import sys
import types
import unittest

from job_case import JobCase
from unittest_main import main

MODES = ("node", "socket", "exclusive", "core-complex")


class Machine:
    """Files of the kernel below a folder: sockets, nodes, cores with threads, caches, CPUs that are offline or not allowed,
    GPUs."""

    def __init__(self, root, rng):
        self.root, self.rng = root, rng
        shutil.rmtree(root, ignore_errors=True)
        sockets, nodes, cores, threads = rng.choice((1, 2)), rng.choice((1, 2)), rng.randint(2, 4), rng.choice((1, 2))
        total = sockets * nodes * cores
        is_adjacent = rng.random() < 0.3  # Numbering: the threads of a core are neighbours, or far apart.
        def cpus_of(core):
            return [core * threads + t if is_adjacent else core + t * total for t in range(threads)]
        online = {cpu for core in range(total) for cpu in cpus_of(core) if rng.random() < 0.95}
        online |= {cpus_of(node * cores)[0] for node in range(sockets * nodes)}
        self.allowed = {cpu for cpu in online if rng.random() < rng.choice((0.6, 1))} or online
        per_cache = rng.choice((1, 2, 3, cores))
        for node in range(sockets * nodes):
            ours = range(node * cores, (node + 1) * cores)
            self.write(f"sys/devices/system/node/node{node}/cpulist", {c for core in ours for c in cpus_of(core)} & online)
            for at, core in enumerate(ours):
                cache = {c for k, other in enumerate(ours) for c in cpus_of(other) if k // per_cache == at // per_cache} & online
                for cpu in set(cpus_of(core)) & online:
                    self.write_cpu(cpu, node // nodes, set(cpus_of(core)) & online, cache)
        self.write("sys/devices/system/node/possible", set(range(sockets * nodes)))
        self.write("proc/self/status", f"Name:\tx\nCpus_allowed_list:\t{self.list_of(self.allowed)}\n")
        self.gpu_addresses = sorted(f"{rng.choice((0, 1)):04x}:{bus:02x}:{rng.choice((0, 3)):02x}.0"
                                    for bus in rng.sample(range(256), rng.randint(1, 6)))
        for minor, address in enumerate(rng.sample(self.gpu_addresses, len(self.gpu_addresses))):
            node = rng.randrange(sockets * nodes) if sockets * nodes > 1 else -1
            self.write(f"sys/bus/pci/devices/{address}/numa_node", f"{node}\n")
            self.write(f"proc/driver/nvidia/gpus/{address}/information", f"GPU UUID: \t GPU-{minor}\nDevice Minor: \t {minor}\n")
            self.write(f"dev/nvidia{minor}", "")

    def list_of(self, numbers):
        return ",".join(map(str, self.rng.sample(sorted(numbers), len(numbers))))

    def write(self, path, content):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if isinstance(content, str) else self.list_of(content) + "\n")

    def write_cpu(self, cpu, socket, siblings, cache):
        folder = f"sys/devices/system/cpu/cpu{cpu}"
        self.write(f"{folder}/topology/physical_package_id", f"{socket}\n")
        self.write(f"{folder}/topology/thread_siblings_list", siblings)
        for index, (level, kind, shared) in enumerate(((1, "Data", siblings), (3, "Unified", cache),
                                                       (4, "Instruction", siblings))):
            self.write(f"{folder}/cache/index{index}/level", f"{level}\n")
            self.write(f"{folder}/cache/index{index}/type", f"{kind}\n")
            self.write(f"{folder}/cache/index{index}/shared_cpu_list", shared)


def torchs_binding():
    """torch/numa/binding.py as it is installed, without the rest of PyTorch."""
    torch = types.ModuleType("torch")
    torch._utils_internal = types.ModuleType("torch._utils_internal")
    torch._utils_internal.signpost_event = None
    (folder,) = importlib.util.find_spec("torch").submodule_search_locations
    spec = importlib.util.spec_from_file_location("torchs_binding", pathlib.Path(folder) / "numa" / "binding.py")
    module = importlib.util.module_from_spec(spec)
    real = {name: sys.modules.get(name) for name in ("torch", "torch._utils_internal")}
    sys.modules.update({"torch": torch, "torch._utils_internal": torch._utils_internal, "torchs_binding": module})
    try:
        spec.loader.exec_module(module)
    finally:
        for name, value in real.items():
            sys.modules.pop(name) if value is None else sys.modules.update({name: value})
    return module


class NumaTest(JobCase):
    @classmethod
    def setUpClass(cls):
        cls.binding = torchs_binding()

    def put_torch_on(self, machine):
        def properties(index):
            domain, bus, device = machine.gpu_addresses[index].split(".")[0].split(":")
            return types.SimpleNamespace(pci_domain_id=int(domain, 16), pci_bus_id=int(bus, 16), pci_device_id=int(device, 16))
        self.binding.torch.cuda = types.SimpleNamespace(device_count=lambda: len(machine.gpu_addresses),
                                                        get_device_properties=properties)
        self.binding.open = lambda path: builtins.open(f"{machine.root}{path}")
        self.binding.os = types.SimpleNamespace(path=os.path, listdir=lambda path: os.listdir(f"{machine.root}{path}"),
                                                sched_getaffinity=lambda _: set(machine.allowed))

    def torchs_cpus(self, mode, workers):
        """None if it cannot say, which is an error too."""
        options = self.binding.NumaOptions(affinity_mode=self.binding.AffinityMode(mode))
        try:
            cpus = [self.binding._get_logical_cpus_to_bind_to(gpu_index=rank, numa_options=options) for rank in range(workers)]
        except (RuntimeError, ValueError):
            return None
        return cpus if all(cpus) else None

    def our_cpus(self, mode, workers, root):
        rc, out, err = self.run_job("--dry-run", f"--numa-binding={mode}", f"--nproc-per-node={workers}", "s.py",
                                    env={"FSDPRUN_TEST_ROOT": str(root)})
        if rc != 0:
            self.assert_one_line_error((rc, out, err), 1, f"--numa-binding {mode}: ")
            return None
        (line,) = [line for line in out.splitlines() if line.startswith("worker_cpus: ")]
        return [self.binding._get_set_of_int_from_ranges_str(text) for text in line.split()[1:]]

    def test_the_cpus_are_those_of_torchrun(self):
        rng = random.Random(20260411)
        equal, both_fail, only_ours = 0, 0, 0
        for number in range(24):
            machine = Machine(self.dir / "machine", rng)
            self.put_torch_on(machine)
            workers = rng.randint(1, len(machine.gpu_addresses))
            for mode in MODES:
                with self.subTest(machine=number, mode=mode, workers=workers):
                    theirs, ours = self.torchs_cpus(mode, workers), self.our_cpus(mode, workers, machine.root)
                    if theirs is None and ours is not None:
                        # torchrun stumbles over any node without a usable CPU.
                        self.assertEqual(mode, "socket")
                        only_ours += 1
                        continue
                    self.assertEqual(ours, theirs)
                    both_fail += ours is None
                    equal += ours is not None
        self.assertGreater(equal, 50)
        self.assertGreater(both_fail, 1)
        self.assertLess(only_ours, 10)

    def test_the_devices_that_are_visible_count(self):
        machine = Machine(self.dir / "machine", random.Random(3))
        while len(machine.gpu_addresses) < 3:
            machine = Machine(self.dir / "machine", machine.rng)
        self.put_torch_on(machine)
        machine.gpu_addresses = [machine.gpu_addresses[i] for i in (2, 0)]
        self.env["CUDA_VISIBLE_DEVICES"] = "2,0"
        self.assertEqual(self.our_cpus("node", 2, machine.root), self.torchs_cpus("node", 2))
        self.assertIsNone(self.our_cpus("node", 3, machine.root))

    def two_nodes(self):
        """A machine of two nodes with one CPU each, both of which this process may use."""
        usable = sorted(os.sched_getaffinity(0))
        if len(usable) < 2:
            raise unittest.SkipTest("needs two CPUs")
        root = self.dir / "machine"
        for node, cpu in enumerate(usable[:2]):
            (root / f"sys/devices/system/node/node{node}").mkdir(parents=True)
            (root / f"sys/devices/system/node/node{node}/cpulist").write_text(f"{cpu}\n")
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/status").write_text(f"Cpus_allowed_list:\t{usable[0]},{usable[1]}\n")
        return root, usable[:2]

    def test_workers_run_on_their_cpus_without_gpus_and_numactl(self):
        root, cpus = self.two_nodes()
        script = self.script("note('cpus', json.dumps(sorted(os.sched_getaffinity(0))))")
        for options, expected in ((["--numa-binding=exclusive"], [[cpu] for cpu in cpus]), ([], [sorted(os.sched_getaffinity(0))] * 2)):
            rc, _, err = self.run_job("--standalone", "--nproc-per-node=2", *options, script,
                                      env={"FSDPRUN_TEST_ROOT": str(root)})
            self.assertEqual(rc, 0, err)
            self.assertEqual(self.notes("cpus"), {(1, r): json.dumps(expected[r]) for r in range(2)})

    def test_what_cannot_be_bound_is_told_before_anything_starts(self):
        root, _ = self.two_nodes()
        script = self.script("note('started')")
        result = self.run_job("--standalone", "--nproc-per-node=3", "--numa-binding=exclusive", script,
                              env={"FSDPRUN_TEST_ROOT": str(root)})
        self.assert_one_line_error(result, 1, "--numa-binding exclusive: NUMA node 0 has 1 usable cores for 2 workers")
        self.assertEqual((self.notes("started"), self.temporary_files()), ({}, []))

    def test_this_machine(self):
        rc, out, err = self.run_job("--dry-run", "--numa-binding=node", "s.py", env={"CUDA_VISIBLE_DEVICES": ""})
        self.assertEqual(rc, 0, err)
        (line,) = [line for line in out.splitlines() if line.startswith("worker_cpus: ")]
        cpus = self.binding._get_set_of_int_from_ranges_str(line.split()[1])
        self.assertTrue(cpus and cpus <= os.sched_getaffinity(0), line)


if __name__ == "__main__":
    main()
