"""A private sshd at every loopback address, with keys of its own, for tests of launchers that start nodes with ssh."""

import getpass
import os
import pathlib
import shutil
import subprocess

from job_case import free_port, wait_until_listening

# Debian's is in no user's PATH.
SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
REASON_TO_SKIP = "" if SSHD and shutil.which("ssh") else "scripts/setup brings openssh-client and openssh-server"


def make_key(path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)


class SshServer:
    """`variables`: what each login has."""

    def __init__(self, folder, variables):
        self.folder, self.port = folder, free_port()
        folder.mkdir()
        for name in ("host_key", "user_key", "other_key"):
            make_key(folder / name)
        shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
        (folder / "sshd_config").write_text(f"""
Port {self.port}
ListenAddress 0.0.0.0
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PidFile none
MaxStartups 100
PrintMotd no
SetEnv {" ".join(f'{name}="{value}"' for name, value in variables.items())}
""")
        self.write_client_config()
        if os.getuid() == 0:
            pathlib.Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # Debian's service makes it.
        with open(folder / "sshd.log", "w") as log:
            self.process = subprocess.Popen([SSHD, "-D", "-e", "-f", folder / "sshd_config"], stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, env={"PATH": os.environ["PATH"]})
        wait_until_listening(self.port)

    def write_client_config(self, *lines, key="user_key"):
        """`lines` come first, and so they count."""
        (self.folder / "ssh_config").write_text("\n".join([
            *lines, f"Port {self.port}", f"User {getpass.getuser()}", f"IdentityFile {self.folder}/{key}", "IdentitiesOnly yes",
            "IdentityAgent none", "StrictHostKeyChecking no", f"UserKnownHostsFile {self.folder}/known_hosts",
            "GlobalKnownHostsFile /dev/null"]) + "\n")

    @property
    def command(self):
        return f"ssh -F {self.folder}/ssh_config"

    def stop(self):
        self.process.kill()
        self.process.wait()
