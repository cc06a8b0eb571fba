"""Accounting for a cluster of these tests: a slurmdbd, with a MariaDB of its own behind it, of Debian's packages, which
scripts/setup --soak unpacks without installing them. The database is in the cluster's folder and listens on a socket there
alone: it meets no other one, and whoever reaches the socket may do everything.

    with Cluster(accounting=True) as slurm:
        job = slurm.sbatch("#!/bin/sh\nexit 7\n")
        slurm.accounting.wait_for_runs(job, parts=("", "batch"))
"""

import socket

# In the cluster's folder of programs, and where the packages have them.
PROGRAMS = {"sacct": "usr/bin/sacct", "mariadbd": "usr/sbin/mariadbd", "slurmdbd": "usr/sbin/slurmdbd"}
TABLES = "usr/share/mysql/mysql_system_tables.sql"
FIELDS = ("JobID", "State", "ExitCode", "DerivedExitCode", "End")

# No options of this machine's MariaDB, no users, little memory, no asynchronous input and output, which containers forbid;
# what is not on the disk yet may be lost with the machine.
DATABASE_OPTIONS = """\
--no-defaults --skip-networking --skip-grant-tables --user={user}
--datadir={folder}/database --tmpdir={folder}/database --socket={folder}/mariadbd.sock --pid-file={folder}/mariadbd.pid
--log-error={folder}/mariadbd.log --lc-messages-dir={share} --character-sets-dir={share}/charsets
--innodb-buffer-pool-size=32M --innodb-log-file-size=4M --innodb-use-native-aio=0 --innodb-flush-log-at-trx-commit=0
"""

CONFIGURATION = """\
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
AuthType=auth/none
SlurmUser={user}
PluginDir={plugins}
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser={user}
StorageLoc=accounting
"""


class Accounting:
    """`settings`: the lines of slurm.conf that it needs."""

    def __init__(self, cluster, packages, plugins, port):
        self.cluster, self.packages, self.port = cluster, packages, port
        self.socket = cluster.folder / "mariadbd.sock"
        self.settings = ["AccountingStorageType=accounting_storage/slurmdbd", "AccountingStorageHost=127.0.0.1",
                         f"AccountingStoragePort={port}"]
        configuration = cluster.folder / "slurmdbd.conf"
        configuration.write_text(CONFIGURATION.format(port=port, user=cluster.user, plugins=plugins, folder=cluster.folder))
        configuration.chmod(0o600)  # slurmdbd insists.

    def start(self):
        """Goes before the controller, which needs an answer at its own start."""
        options = [word.format(folder=self.cluster.folder, user=self.cluster.user, share=(self.packages / TABLES).parent)
                   for word in DATABASE_OPTIONS.split()]
        self._make_database(options)
        self._start("mariadbd", *options, address=str(self.socket))
        self._start("slurmdbd", "-D", address=("127.0.0.1", self.port), environment={"MYSQL_UNIX_PORT": str(self.socket)})

    def _make_database(self, options):
        """The one about databases: slurmdbd makes its own, but MariaDB keeps its stored procedures there."""
        (self.cluster.folder / "database").mkdir()
        tables = (self.packages / TABLES).read_text()
        self.cluster.run("mariadbd", *options, "--bootstrap", input=f"create database mysql;\nuse mysql;\n{tables}")

    def _start(self, name, *arguments, address, environment=None):
        daemon = self.cluster.start(name, *arguments, environment=environment)

        def listens():
            if daemon.poll() is not None:
                raise AssertionError(f"{name} has ended with {daemon.returncode}{self.cluster.describe()}")
            with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as probe:
                return probe.connect_ex(address) == 0
        self.cluster.wait_until(listens, f"{name} to listen at {address}")

    def records(self, job, *options):
        """What sacct says: a dictionary of FIELDS for each line."""
        lines = self.cluster.run("sacct", "--noheader", "--parsable2", f"--jobs={job}", f"--format={','.join(FIELDS)}",
                                 *options).stdout.splitlines()
        return [dict(zip(FIELDS, line.split("|"), strict=True)) for line in lines]

    def runs(self, job):
        """A dictionary for each run of a job, the last one last: '' is the job, 'batch' its batch file, '0' its first step."""
        runs = []
        for record in self.records(job, "--duplicates"):
            part = record["JobID"].partition(".")[2]
            if not part:
                runs.append({})
            runs[-1][part] = record
        return runs

    def wait_for_runs(self, job, parts=("", "batch", "0"), number=1):
        """These runs, once all of them have these parts and are over: the controller tells of a job when it has time."""
        def are_over():
            runs = self.runs(job)
            over = all(part in run and run[part]["End"] != "Unknown" for run in runs for part in parts)
            return runs if over and len(runs) == number else None
        return self.cluster.wait_until(are_over, f"the ends of {number} run(s) of job {job} in sacct", job)
