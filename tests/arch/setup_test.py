#!/usr/bin/env python3
"""What tests would be skipped for is told at once: skips are an error only at the end of a long run. scripts/setup --tests
looks for an etcd, a promtool, a Slurm and a clean Debian, --soak for Slurm's accounting too, scripts/test (and scripts/soak) for what a user may do. Tried on a copy of scripts/, which has neither
.venv nor .cache."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("bash", "cat", "dirname", "env", "grep", "mkdir", "touch", "flock", "sed", "rm", "tr", "true", "mktemp", "dpkg-query", "mv",
          "tail")


class SetupTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        shutil.copytree(ROOT / "scripts", self.root / "scripts")
        self.path = self.root / "bin"
        self.path.mkdir()
        for name in NEEDED:
            if found := shutil.which(name):
                (self.path / name).symlink_to(found)

    def run_setup(self, *words, **env):
        """(exit code, all that it said) with programs that have no etcd among them, and no package tools."""
        done = subprocess.run([shutil.which("bash"), self.root / "scripts/setup", *words], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, env={"PATH": str(self.path), "HOME": os.environ.get("HOME", "/"), **env}, check=False)
        return done.returncode, done.stdout

    def test_no_etcd_and_no_apt_to_fetch_it(self):
        code, said = self.run_setup("--tests", "--no-apt")
        self.assertEqual(code, 1, said)
        for word in ("there is no etcd", "--no-apt", "TORCHELASTIC_ETCD_BINARY_PATH", "FSDPRUN_ALLOW_SKIPS=1"):
            self.assertIn(word, said)
        self.assertNotIn(".venv", said)  # Before gigabytes of wheels are fetched.

    def test_check_names_it(self):
        code, said = self.run_setup("--tests", "--no-apt", "--check")
        self.assertEqual(code, 1, said)
        self.assertIn("missing for launcher_etcd", said)
        self.assertIn("run scripts/setup --tests", said)
        self.assertNotIn("etcd", self.run_setup("--no-apt", "--check")[1])

    def test_any_etcd_will_do(self):
        (self.path / "etcd").symlink_to(shutil.which("true"))
        self.assertNotIn("etcd", self.run_setup("--tests", "--no-apt", "--check")[1])
        (self.path / "etcd").unlink()
        self.assertNotIn("etcd", self.run_setup("--tests", "--no-apt", "--check", TORCHELASTIC_ETCD_BINARY_PATH=shutil.which("true"))[1])

    def test_skips_may_be_allowed(self):
        for allowed in ("1", "yes"):
            self.assertNotIn("etcd", self.run_setup("--tests", "--no-apt", "--check", FSDPRUN_ALLOW_SKIPS=allowed)[1])
            self.assertIn("unset FSDPRUN_ALLOW_SKIPS", self.run_script("test", "--record", can_unshare=True, FSDPRUN_ALLOW_SKIPS=allowed)[1])

    def be_debian(self, **programs):
        """Whatever this machine is: on another than Debian 12 nothing is fetched. All packages are installed, and there is room on
        the disk, of which other tests find out nothing: they end before wheels are fetched. These programs are there, as scripts."""
        release, setup = self.root / "os-release", self.root / "scripts/setup"
        release.write_text("ID=debian\nVERSION_ID=12\n")
        setup.write_text(setup.read_text().replace("/etc/os-release", str(release)))
        for name, text in {"dpkg-query": "echo installed", "df": "echo Avail Mounted; echo 99999999 /", **programs}.items():
            (self.path / name).unlink(missing_ok=True)
            (self.path / name).write_text(f"#!{shutil.which('bash')}\n{text}\n")
            (self.path / name).chmod(0o755)

    def test_a_download_that_fails(self):
        """apt-get says why; nothing is left of the attempt."""
        self.be_debian(**{"apt-get": 'echo "E: no route to the mirror" >&2; exit 100'})
        code, said = self.run_setup("--tests")
        self.assertEqual(code, 1, said)
        for word in ("apt-get download etcd-server", "/etc/apt", "E: no route to the mirror", "FSDPRUN_ALLOW_SKIPS=1"):
            self.assertIn(word, said)

    def test_no_promtool(self):
        etcd = {"TORCHELASTIC_ETCD_BINARY_PATH": shutil.which("true")}
        self.assertIn("missing for launcher_metrics", self.run_setup("--tests", "--no-apt", "--check", **etcd)[1])
        code, said = self.run_setup("--tests", "--no-apt", **etcd)
        self.assertEqual(code, 1, said)
        for word in ("there is no promtool", "Put a promtool on PATH", "FSDPRUN_ALLOW_SKIPS=1"):
            self.assertIn(word, said)
        (self.path / "promtool").symlink_to(shutil.which("true"))
        self.assertNotIn("promtool", self.run_setup("--tests", "--no-apt", "--check", **etcd)[1])

    def test_no_slurm(self):
        etcd = {"TORCHELASTIC_ETCD_BINARY_PATH": shutil.which("true")}
        (self.path / "promtool").symlink_to(shutil.which("true"))
        self.assertIn("missing for the tests slurm_*", self.run_setup("--tests", "--no-apt", "--check", **etcd)[1])
        code, said = self.run_setup("--tests", "--no-apt", **etcd)
        self.assertEqual(code, 1, said)
        for word in ("there is no Slurm", "slurm_*", "FSDPRUN_SLURM", "FSDPRUN_ALLOW_SKIPS=1"):
            self.assertIn(word, said)
        code, said = self.run_setup("--tests", "--no-apt", "--check", FSDPRUN_ALLOW_SKIPS="1", **etcd)
        self.assertNotIn("slurm", said)

    def unpack(self, slurm, *files):
        """A folder that looks like an unpacked Slurm, for `ldd` of the test's own: each file says what it lacks."""
        (self.path / "ldd").write_text(f"#!{shutil.which('bash')}\nexec {shutil.which('cat')} \"$1\"\n")
        (self.path / "ldd").chmod(0o755)
        for name in files:
            (slurm / name).parent.mkdir(parents=True, exist_ok=True)
            (slurm / name).write_text("libc.so.6 => /lib/libc.so.6")

    def make_clean_root(self):
        programs = self.root / ".cache/clean-root/usr/bin"
        programs.mkdir(parents=True)
        for name in ("g++", "cmake", "ninja"):
            (programs / name).symlink_to(shutil.which("true"))

    def all_but_a_clean_root(self):
        """The environment in which nothing else is missing."""
        (self.path / "promtool").symlink_to(shutil.which("true"))
        slurm = self.root / "slurm"
        self.unpack(slurm, *(f"usr/{name}" for name in ("sbin/slurmctld-wlm", "sbin/slurmd-wlm", "sbin/slurmstepd-wlm", "bin/srun", "bin/scontrol")))
        return {"TORCHELASTIC_ETCD_BINARY_PATH": shutil.which("true"), "FSDPRUN_SLURM": str(slurm)}

    def test_no_clean_root(self):
        env = self.all_but_a_clean_root()
        self.assertIn("missing for install_consumer", self.run_setup("--tests", "--no-apt", "--check", **env)[1])
        code, said = self.run_setup("--tests", "--no-apt", **env)
        self.assertEqual(code, 1, said)
        for word in ("there is no clean Debian", "install_example_*", "--no-apt", "FSDPRUN_ALLOW_SKIPS=1"):
            self.assertIn(word, said)
        self.make_clean_root()
        self.assertNotIn("clean Debian", self.run_setup("--tests", "--no-apt", "--check", **env)[1])

    def test_without_a_clean_root(self):
        """For tests of other labels it is neither made nor missed."""
        env = self.all_but_a_clean_root()
        self.be_debian(**{"apt-get": "", "mmdebstrap": "exit 1"})
        self.assertEqual(self.run_setup("--tests", "--without-clean-root", "--packages", **env)[0], 0)
        self.assertNotIn("clean Debian", self.run_setup("--tests", "--without-clean-root", "--no-apt", "--check", **env)[1])

    def clean_root_maker(self):
        """A mmdebstrap that makes what looks like one, and writes down what it was told."""
        return (f'folder=${{@: -2:1}}; mkdir -p "$folder/usr/bin"; echo "${{@: -1}}" >"$folder/mirror"\n'
                f'echo "$http_proxy|$https_proxy|$no_proxy" >"$folder/proxies"\n'
                f'for name in g++ cmake ninja; do >"$folder/usr/bin/$name"; {shutil.which("chmod")} +x "$folder/usr/bin/$name"; done')

    def be_user(self, sudo):
        """Whoever runs this. `sudo` is the text of a script."""
        setup = self.root / "scripts/setup"
        setup.write_text(setup.read_text().replace("EUID != 0", "1 != 0"))
        (self.path / "sudo").write_text(f"#!{shutil.which('bash')}\n{sudo}\n")
        (self.path / "sudo").chmod(0o755)

    def test_a_user_makes_a_clean_root_with_sudo(self):
        """Which hands on no variable of its own accord."""
        env = self.all_but_a_clean_root()
        self.be_debian(**{"apt-get": "", "mmdebstrap": self.clean_root_maker()})
        log = self.root / "sudo.log"
        self.be_user(f'[[ $1 != -n ]] || shift; echo "$1" >>"{log}"; exec env -i PATH="$PATH" "$@"')
        code, said = self.run_setup("--tests", "--packages", http_proxy="http://proxy.example:3128", no_proxy="10.0.0.1", **env)
        self.assertEqual(code, 0, said)
        self.assertEqual((self.root / ".cache/clean-root/proxies").read_text(), "http://proxy.example:3128||10.0.0.1\n")
        self.assertEqual(log.read_text().split(), ["true", "rm", "env", "rm", "mv"])

    def test_a_user_whom_sudo_refuses(self):
        env = self.all_but_a_clean_root()
        self.be_debian(**{"apt-get": "", "mmdebstrap": self.clean_root_maker()})
        self.be_user("exit 1")
        code, said = self.run_setup("--tests", "--packages", **env)
        self.assertEqual(code, 1, said)
        for word in ("only root can make the clean Debian", "(sudo refused)", "FSDPRUN_ALLOW_SKIPS=1"):
            self.assertIn(word, said)
        code, said = self.run_setup("--tests", "--packages", "--without-clean-root", **env)
        self.assertEqual(code, 0, said)

    @unittest.skipUnless(os.geteuid() == 0, "only root may make one")
    def test_proxies_and_passwords(self):
        """Of apt's settings those of the proxy are handed on. What is printed has no password."""
        env = self.all_but_a_clean_root()
        config = 'case $3 in *::http::*) echo "found=\'http://me:secret@proxy.example:3128\'" ;; *) echo "found=\'DIRECT\'" ;; esac'
        tools = {"apt-get": "echo 'https://me:secret@mirror.example/debian'", "apt-config": config}
        self.be_debian(**tools, mmdebstrap=self.clean_root_maker())
        code, said = self.run_setup("--tests", "--packages", https_proxy="http://other.example", **env)
        self.assertEqual(code, 0, said)
        clean = self.root / ".cache/clean-root"
        self.assertEqual((clean / "proxies").read_text(), "http://me:secret@proxy.example:3128||\n")
        self.assertEqual((clean / "mirror").read_text(), "https://me:secret@mirror.example/debian\n")
        self.assertIn("from https://***@mirror.example/debian in", said)
        shutil.rmtree(clean)
        self.be_debian(**tools, mmdebstrap='echo "E: cannot fetch https://me:secret@mirror.example/debian/x"; exit 1')
        code, failed = self.run_setup("--tests", "--packages", **env)
        self.assertEqual(code, 1, failed)
        self.assertIn("E: cannot fetch https://***@mirror.example/debian/x", failed)
        self.assertNotIn("secret", said + failed)

    @unittest.skipUnless(os.geteuid() == 0, "only root may make one")
    def test_room_is_asked_for_first(self):
        """For the clean Debian alone, and with what .venv takes."""
        env = self.all_but_a_clean_root()
        self.be_debian(**{"apt-get": "", "mmdebstrap": self.clean_root_maker(), "df": "echo Avail Mounted; echo 1000000 /full"})
        for words, what in ((["--packages"], "the clean Debian needs 1 GiB"), ([], ".venv,the clean Debian needs 13 GiB")):
            code, said = self.run_setup("--tests", *words, **env)
            self.assertEqual(code, 1, said)
            self.assertIn(f"/full has 0 GiB free; {what}", said)
        self.assertEqual([path.name for path in (self.root / ".cache").iterdir()], ["setup.lock"])

    @unittest.skipUnless(os.geteuid() == 0, "only root may make one")
    def test_a_clean_root_is_made_from_the_mirror_of_apt(self):
        env = self.all_but_a_clean_root()
        clean = self.root / ".cache/clean-root"
        # As apt names it, and what is asked: an address that only apt understands is not handed on.
        for found, mirror in (("https://mirror.example/debian", "https://mirror.example/debian"),
                              ("mirror+file:/etc/apt/mirrors/debian.list", "http://deb.debian.org/debian"), ("", "http://deb.debian.org/debian")):
            self.be_debian(**{"apt-get": f"echo '{found}'", "mmdebstrap": self.clean_root_maker()})
            code, said = self.run_setup("--tests", "--packages", **env)
            self.assertEqual(code, 0, said)
            self.assertEqual((clean / "mirror").read_text(), f"{mirror}\n")
            shutil.rmtree(clean)

    @unittest.skipUnless(os.geteuid() == 0, "only root may make one")
    def test_a_clean_root_that_cannot_be_made(self):
        """mmdebstrap's last lines say why; nothing is left of the attempt."""
        env = self.all_but_a_clean_root()
        lines = 'for i in {1..90}; do echo "I: step $i"; done; mkdir -p "${@: -2:1}/usr"; echo "E: no route to the mirror" >&2; exit 1'
        self.be_debian(**{"apt-get": "", "mmdebstrap": lines})
        code, said = self.run_setup("--tests", "--packages", **env)
        self.assertEqual(code, 1, said)
        for word in ("from http://deb.debian.org/debian, said", "I: step 90", "E: no route", "install_example_*", "FSDPRUN_ALLOW_SKIPS=1"):
            self.assertIn(word, said)
        self.assertNotIn("I: step 10\n", said)
        self.assertEqual([path.name for path in (self.root / ".cache").iterdir()], ["setup.lock"])
        code, said = self.run_setup("--tests", "--packages", FSDPRUN_ALLOW_SKIPS="1", **env)
        self.assertEqual(code, 0, said)
        self.assertIn("install_example_* will be skipped", said)

    def test_accounting(self):
        """Only soak needs it: --tests does not look for it."""
        self.make_clean_root()
        (self.path / "promtool").symlink_to(shutil.which("true"))
        slurm = self.root / "slurm"
        programs = ("sbin/slurmctld-wlm", "sbin/slurmd-wlm", "sbin/slurmstepd-wlm", "bin/srun", "bin/scontrol", "bin/sacct")
        self.unpack(slurm, *(f"usr/{name}" for name in programs))
        env = {"TORCHELASTIC_ETCD_BINARY_PATH": shutil.which("true"), "FSDPRUN_SLURM": str(slurm)}
        self.assertNotIn("slurm", self.run_setup("--tests", "--no-apt", "--check", **env)[1])
        self.assertNotIn("slurm", self.run_setup("--soak", "--no-apt", "--check", FSDPRUN_ALLOW_SKIPS="1", **env)[1])
        said = self.run_setup("--soak", "--no-apt", "--check", **env)[1]
        for word in ("missing for slurm_accounting_long: slurmdbd", "mariadb-server-core", "run scripts/setup --soak"):
            self.assertIn(word, said)
        code, said = self.run_setup("--soak", "--no-apt", **env)
        self.assertEqual(code, 1, said)
        for word in ("there is no accounting of Slurm", "slurm_accounting_long", "--no-apt", "FSDPRUN_ALLOW_SKIPS=1"):
            self.assertIn(word, said)
        plugin = "usr/lib/x86_64-linux-gnu/slurm-wlm/accounting_storage_mysql.so"
        self.unpack(slurm, "usr/sbin/mariadbd", "usr/sbin/slurmdbd", "usr/share/mysql/mysql_system_tables.sql", plugin)
        self.assertNotIn("accounting", self.run_setup("--soak", "--no-apt", "--check", **env)[1])
        (slurm / plugin).write_text("libmariadb.so.3 => not found")
        self.assertIn("accounting", self.run_setup("--soak", "--no-apt", "--check", **env)[1])

    def run_script(self, name, *words, can_unshare, **env):
        """(exit code, all that it said) of a script that ends early: nothing that it needs further on is there."""
        unshare = self.path / "unshare"
        unshare.write_text(f"#!{shutil.which('bash')}\n" + ("" if can_unshare else 'echo "unshare failed: Operation not permitted" >&2; exit 1\n'))
        unshare.chmod(0o755)
        done = subprocess.run([shutil.which("bash"), self.root / "scripts" / name, *words], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, env={"PATH": str(self.path), **env}, check=False)
        return done.returncode, done.stdout

    def test_a_user_who_cannot_make_namespaces(self):
        for command in (["test"], ["test", "--quick"], ["test", "--label", "integration"], ["test", "--preset", "release"]):
            code, said = self.run_script(*command, can_unshare=False)
            self.assertEqual(code, 1, said)
            for word in ("namespaces", "Operation not permitted", "as root", "SYS_ADMIN", "FSDPRUN_ALLOW_SKIPS=1"):
                self.assertIn(word, said)

    def test_who_can_or_need_not_is_not_refused(self):
        for command, can, env in ((["test"], True, {}), (["test", "--label", "sim"], False, {}), (["test"], False, {"FSDPRUN_ALLOW_SKIPS": "1"})):
            code, said = self.run_script(*command, can_unshare=can, **env)
            self.assertNotEqual(code, 0)
            self.assertNotIn("as root", said)

    def test_only_what_runs_in_a_clean_root_has_it_made(self):
        setup = self.root / "scripts/setup"
        setup.write_text(f"#!{shutil.which('bash')}\necho setup \"$@\"\nexit 1\n")
        for words, options in ((["--label", "sim"], "--soak --without-clean-root"), (["--quick"], "--tests --without-clean-root"),
                               (["--label", "install"], "--soak"), (["--label", "slow"], "--soak"), (["--preset", "release"], "--soak")):
            self.assertIn(f"setup {options}\n", self.run_script("test", *words, can_unshare=True)[1], words)


if __name__ == "__main__":
    unittest.main(verbosity=2)
