"""A Debian that has a compiler, CMake and Ninja, and nothing of this project: scripts/setup --tests makes it."""

import os
import re
import subprocess
import tempfile
from pathlib import Path

from installed import ROOT

CLEAN_ROOT = ROOT / ".cache/clean-root"
UNSHARE = ("unshare", "--mount", "--propagation", "private", "--pid")
# Arguments: the root, where it is mounted, the folder that is its /tmp, pairs of a folder and its name below /tmp, "--", and
# the script that runs inside. Only /tmp and /dev, which has none of this machine's devices, can be written. Mounts and processes
# end with the script, or with who runs it.
ENTER = r"""
set -eu
root=$1 place=$2 tmp=$3
shift 3
mount --bind "$root" "$place"
mount -o remount,bind,ro "$place"
mount -t proc proc "$place/proc"
mount --bind /sys "$place/sys"
mount -o remount,bind,ro "$place/sys"
mount -t tmpfs tmpfs "$place/dev"
mkdir -m 1777 "$place/dev/shm"
ln -s /proc/self/fd "$place/dev/fd"
for node in null zero full random urandom; do
  : >"$place/dev/$node"
  mount --bind "/dev/$node" "$place/dev/$node"
done
mount --bind "$tmp" "$place/tmp"
while [ "$1" != -- ]; do
  mkdir -p "$place/tmp/$2"
  mount --bind "$1" "$place/tmp/$2"
  mount -o remount,bind,ro "$place/tmp/$2"
  shift 2
done
exec chroot "$place" env -i PATH=/usr/bin:/bin HOME=/tmp LANG=C.UTF-8 OMP_NUM_THREADS=1 bash -euc "cd /tmp; $2"
"""


def release_of(root: Path) -> dict[str, str]:
    """Of the system in this folder: ID, VERSION_ID, PRETTY_NAME and so on; empty if it does not say."""
    try:
        text = (root / "etc/os-release").read_text()
    except OSError:
        return {}
    return {name: value.strip("\"'") for name, value in re.findall(r"^(\w+)=(.*)$", text, re.M)}


def reason_to_skip(root: Path = CLEAN_ROOT, host: Path = Path("/")) -> str:
    """Empty where it can be entered, and runs what this machine has compiled."""
    if not all(os.access(root / "usr/bin" / name, os.X_OK) for name in ("g++", "cmake", "ninja")):
        return f"there is no clean Debian in {root}; have root run scripts/setup --tests"
    inside, outside = release_of(root), release_of(host)
    if any(inside.get(name) != outside.get(name) for name in ("ID", "VERSION_ID")):
        return (f"libfsdp was compiled on {outside.get('PRETTY_NAME', 'an unknown system')}, whose libc and libstdc++ are not those of "
                f"{inside.get('PRETTY_NAME', 'the system')} in {root}; test on a machine with that")
    with tempfile.TemporaryDirectory() as tmp:
        tried = run(Path(tmp), {}, "true", 60, root)
    if tried.returncode != 0:
        return f"only root may mount file systems and make namespaces ({tried.stdout.strip()})"
    return ""


def run(tmp: Path, folders: dict[Path, str], script: str, timeout: float, root: Path = CLEAN_ROOT) -> subprocess.CompletedProcess:
    """Runs a bash script inside, with these folders at their names below /tmp, read-only. /tmp itself is `tmp`."""
    with tempfile.TemporaryDirectory() as place:
        pairs = [str(word) for pair in folders.items() for word in pair]
        return subprocess.run([*UNSHARE, "--fork", "--kill-child", "bash", "-c", ENTER, "enter", root.resolve(), place, tmp,
                               *pairs, "--", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout)
