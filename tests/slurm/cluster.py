"""A real Slurm of several nodes on this machine: a controller and a slurmd for each node, of Debian's packages, which
scripts/setup --tests unpacks without installing them. It has a configuration, ports and folders of its own, so it runs
beside another one, or beside a Slurm that this machine belongs to. Needs neither munge nor a service.

    with Cluster() as slurm:
        job = slurm.sbatch("#!/bin/sh\nsrun hostname\n", "--nodes=4")
        slurm.wait_for_state(job, "COMPLETED")

What cannot be had this way: GPUs (Gres), cgroups. All nodes are this machine, with its name; their own names (node1 ...)
do not resolve, as on clusters whose compute nodes are in no name service. Accounting (sacct) is for who asks for it:
accounting.py.
"""

import os
import pathlib
import platform
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from guard import processes_with

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE.parent / "integration/launcher")]
from accounting import PROGRAMS, TABLES, Accounting  # noqa: E402
from events import give_up, patience  # noqa: E402
from free_port import free_port  # noqa: E402

PACKAGES = pathlib.Path(os.environ.get("FSDPRUN_SLURM", HERE.parents[1] / ".cache/slurm"))
LIBRARIES = f"{platform.machine()}-linux-gnu"
PLUGINS = PACKAGES / "usr/lib" / LIBRARIES / "slurm-wlm"
CLIENTS = ("salloc", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
MARKER = "FSDPRUN_TEST_CLUSTER"
POLL_S = 0.02  # Slurm tells nobody of a job's state: it is asked again and again.

# cred_expire: a job that is requeued waits so long for its next start; 5 s is the least.
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
PluginDir={plugins}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=0
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
KillWait=5
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def reason_to_skip(accounting=False):
    """Empty if a cluster can be started here."""
    for option, names in (("--tests", ("usr/sbin/slurmctld-wlm", "usr/sbin/slurmd-wlm", "usr/bin/srun")),
                          ("--soak", (*PROGRAMS.values(), TABLES) if accounting else ())):
        for name in names:
            if not (PACKAGES / name).exists():
                return f"{PACKAGES} has no {name}; scripts/setup {option} brings it"
    return ""


def give_network_an_address():
    """Slurm finds not even 127.0.0.1 where loopback addresses are all there is, as in a fresh network namespace."""
    try:
        socket.getaddrinfo("127.0.0.1", 1, socket.AF_INET, flags=socket.AI_ADDRCONFIG | socket.AI_NUMERICSERV)
    except socket.gaierror:
        subprocess.run(["ip", "address", "replace", "192.0.2.1/32", "dev", "lo"], check=True)  # for documentation (RFC 5737)


def command_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # It has ended.
        return b""


class Cluster:
    """`nodes` nodes of `cpus` CPUs each, node1, node2 ..., whatever this machine has. `settings`: further lines of
    slurm.conf, before the nodes; `partitions`: after them. `name` is what the nodes' names begin with. `accounting`: with
    slurmdbd."""

    def __init__(self, nodes=4, cpus=4, settings=(), name="node", partitions=(), accounting=False):
        self.user = pwd.getpwuid(os.geteuid()).pw_name
        self.nodes = [f"{name}{n + 1}" for n in range(nodes)]
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="fsdprun_slurm_"))
        self.daemons = []
        self.guard = None
        self.controller = None
        self.own_processes = set()
        self.accounting = None
        try:
            if accounting:
                self.accounting = Accounting(self, PACKAGES, PLUGINS, free_port())
                settings = [*self.accounting.settings, *settings]
            self._write_configuration(cpus, settings, partitions)
            self._write_programs()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "SALLOC", "SRUN", "PMI"))}
        self.environment = {**inherited, "SLURM_CONF": str(self.folder / "slurm.conf"), MARKER: str(self.folder),
                            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}

    def _write_configuration(self, cpus, settings, partitions):
        for name in ("state", "spool", "bin", "jobs"):
            (self.folder / name).mkdir()
        host = socket.gethostname().split(".")[0]
        lines = [f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs={cpus} RealMemory=4000"
                 for node in self.nodes]
        text = CONFIGURATION.format(host=host, port=free_port(), folder=self.folder, plugins=PLUGINS, user=self.user)
        # The last line counts where a name has two, but a partition needs the nodes before it.
        head, partition = text.rsplit("PartitionName", 1)
        (self.folder / "slurm.conf").write_text(
            head + "\n".join([*settings, *lines]) + "\nPartitionName" + partition + "\n".join([*partitions, ""]))

    def _write_programs(self):
        """Programs that find their own libraries: LD_LIBRARY_PATH would reach the jobs."""
        loader = next(path for folder in ("/lib64", "/lib") for path in pathlib.Path(folder).glob("ld-linux*"))
        libraries = ":".join(str(path) for path in (PLUGINS, PLUGINS.parent, PACKAGES / "lib" / LIBRARIES))
        paths = {name: f"usr/bin/{name}" for name in CLIENTS}
        paths.update({name: f"usr/sbin/{name}-wlm" for name in ("slurmctld", "slurmd", "slurmstepd")})
        if self.accounting:
            paths.update(PROGRAMS)
        for name, path in paths.items():
            program = self.folder / "bin" / name
            program.write_text(f"#!/bin/sh\nexec {loader} --library-path {libraries}"
                               f" --argv0 {name} {PACKAGES / path} \"$@\"\n")
            program.chmod(0o755)

    def __enter__(self):
        give_network_an_address()
        self.guard = subprocess.Popen([sys.executable, HERE / "guard.py", self.folder], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE)
        self.guard.wait()  # What guards is its child.
        try:
            if self.accounting:
                self.accounting.start()
            self.start_controller()
            for node in self.nodes:
                self.start("slurmd", "-D", "-N", node, "-d", self.folder / "bin/slurmstepd")
            self.wait_until(lambda: self.node_states() == dict.fromkeys(self.nodes, "idle"), "all nodes to be idle")
            self.own_processes = set(processes_with(str(self.folder)))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Ends everything, jobs too, and waits for it."""
        for daemon in self.daemons:
            daemon.terminate()  # A daemon that was killed would leave its socket's name.
        if self.guard is not None:
            self.guard.stdin.close()
            self.guard.stdout.read()
            self.guard.stdout.close()
        for daemon in self.daemons:
            daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, name, *arguments, environment=None):
        """A daemon, which ends with the cluster."""
        with open(self.folder / f"{name}.out", "ab") as out:
            self.daemons.append(subprocess.Popen([self.folder / "bin" / name, *arguments], stdin=subprocess.DEVNULL, stdout=out,
                                                 stderr=out, env={**self.environment, **(environment or {})}))
        return self.daemons[-1]

    def start_controller(self):
        self.controller = self.start("slurmctld", "-D")

    def stop_controller(self):
        """Jobs go on without it."""
        self.daemons.remove(self.controller)
        self.controller.terminate()
        self.controller.wait()

    def restart_controller(self):
        """Once it was stopped; it knows the jobs that it had."""
        self.start_controller()
        self.wait_until(lambda: self.run("scontrol", "ping", check=False).returncode == 0, "the controller to be back")
        self.own_processes |= {pid for pid in processes_with(str(self.folder)) if b"slurmctld" in command_of(pid)}

    def run(self, *command, check=True, **options):
        """A client command, or any other with the cluster's environment, to its end."""
        options = {"env": self.environment, "cwd": self.folder / "jobs", "text": True, "capture_output": True,
                   "timeout": patience(), **options}
        if "input" not in options:
            options.setdefault("stdin", subprocess.DEVNULL)
        done = subprocess.run([str(word) for word in command], check=False, **options)
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stdout}{done.stderr}"
                                 f"{self.describe()}")
        return done

    def srun(self, *words, **options):
        return self.run("srun", *words, **options)

    def scancel(self, *words):
        self.run("scancel", *words)

    def scontrol(self, *words):
        return self.run("scontrol", *words).stdout

    def sbatch(self, script, *options, environment=None):
        """The id of a new job. `script`: the text of a batch file, or its path."""
        text = script.read_text() if isinstance(script, pathlib.Path) else script
        done = self.run("sbatch", "--parsable", f"--output={self.folder}/jobs/%j.out", *options, input=text,
                        env={**self.environment, **(environment or {})})
        return done.stdout.strip().split(";")[0]

    def output(self, job):
        """What the job has written so far."""
        path = self.folder / "jobs" / f"{job}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def job(self, job):
        """What `scontrol show job` says, of the first part of a heterogeneous job."""
        return self.jobs(job)[0]

    def jobs(self, job):
        """One dictionary for each member of an array or part of a heterogeneous job."""
        lines = self.scontrol("--oneliner", "show", "job", job).splitlines()
        return [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines if line]

    def queue(self):
        """The ids of the jobs that are not over."""
        return self.run("squeue", "--noheader", "--format=%A").stdout.split()

    def node_states(self):
        done = self.run("sinfo", "--noheader", "--Node", "--format=%N %T", check=False)
        return dict(line.split() for line in done.stdout.splitlines()) if done.returncode == 0 else {}

    def wait_until(self, condition, what, job=None):
        """The first true value of condition()."""
        limit_s = patience()
        end = time.monotonic() + limit_s
        while not (value := condition()):
            if time.monotonic() > end:
                give_up(f"waited {limit_s:.0f} s for {what}{self.describe(job)}")
            time.sleep(POLL_S)
        return value

    def wait_for_state(self, job, *states):
        """What scontrol says of the job once it is in one of the states, with nothing of it left on any node."""
        def is_there():
            facts = self.job(job)
            return facts if facts["JobState"] in states else None
        return self.wait_until(is_there, f"job {job} to be {' or '.join(states)}", job)

    def wait_for_output(self, job, text):
        self.wait_until(lambda: text in self.output(job), f"'{text}' in the output of job {job}", job)

    def node_down(self, node):
        """For the controller the node is lost, with whatever runs there."""
        self.scontrol("update", f"nodename={node}", "state=down", "reason=test")

    def node_up(self, node):
        self.scontrol("update", f"nodename={node}", "state=resume")
        self.wait_until(lambda: self.node_states().get(node) == "idle", f"{node} to be idle")

    def start_now(self, job):
        """A job that was requeued need not wait for its time; but what was granted to it in the second of its requeueing
        counts as revoked with the grant before."""
        self.scontrol("update", f"jobid={job}", "starttime=now+2")
        if "HetJobId" in self.job(job):
            self.wait_until(lambda: self._look_at_pending(job), f"heterogeneous job {job} to begin", job)

    def _look_at_pending(self, job):
        """Whether it has begun. Backfill scheduling alone starts heterogeneous jobs, and does nothing until some job changes,
        which may be after their time."""
        is_pending = self.job(job)["JobState"] == "PENDING"
        if is_pending:
            self.scontrol("update", f"jobid={job}", "nice=0")
        return not is_pending

    def processes(self):
        """Pids of what runs for jobs on any node, slurmstepd included."""
        return [pid for pid in processes_with(str(self.folder)) if pid not in self.own_processes]

    def describe(self, job=None):
        """For the message of a failure."""
        parts = [("output of the job", self.output(job))] if job else []
        if job:
            parts.append(("the job", str(self.run("scontrol", "show", "job", job, check=False).stdout)))
        parts += [(path.name, path.read_text(errors="replace")) for path in sorted(self.folder.glob("*.log"))]
        return "".join(f"\n--- {name}\n" + "\n".join(text.splitlines()[-25:]) for name, text in parts if text)
