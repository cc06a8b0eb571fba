"""A build, installed for a test, and what the build knows of LibTorch."""

import os
import re
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PUBLIC_HEADERS = ROOT / "fsdp_runtime/include"


@dataclass(frozen=True)
class Build:
    """A build folder of this project."""

    folder: Path

    @cached_property
    def cache(self) -> dict[str, str]:
        return dict(re.findall(r"^([\w-]+):\w+=(.*)$", (self.folder / "CMakeCache.txt").read_text(), re.M))

    @property
    def libtorch(self) -> Path:
        """The folder with include/ and lib/."""
        return Path(self.cache["LibTorch_INCLUDE_DIR"]).resolve().parent

    @cached_property
    def version(self) -> str:
        return self.cache["CMAKE_PROJECT_VERSION"]

    @property
    def lib(self) -> str:
        """The folder of libraries, from where it is installed: lib, or lib64, or lib/x86_64-linux-gnu."""
        return self.cache["CMAKE_INSTALL_LIBDIR"]

    @property
    def configuration(self) -> str:
        """As the names of CMake's package files have it."""
        return self.cache["CMAKE_BUILD_TYPE"].lower() or "noconfig"

    def install(self, prefix: Path, component: str = "", stage: Path | None = None) -> None:
        """With `stage` all of it goes to the prefix below that folder, as packages are made."""
        command = [self.cache["CMAKE_COMMAND"], "--install", self.folder, "--prefix", prefix]
        env = {**os.environ, "DESTDIR": str(stage or "")}
        done = subprocess.run([*command, *(["--component", component] if component else [])], capture_output=True, text=True, env=env)
        if done.returncode != 0:
            raise AssertionError(f"cmake --install {component}: {done.stdout[-1000:]}{done.stderr}")


def files_of(folder: Path) -> set[str]:
    """Paths of all files and links in it."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()}


def public_headers() -> list[str]:
    """As they are included: fsdp/unit.h."""
    return sorted(str(path.relative_to(PUBLIC_HEADERS)) for path in PUBLIC_HEADERS.rglob("*.h"))


def dynamic_entries(file: Path, *kinds: str) -> list[str]:
    """Of the dynamic section of a program or library: NEEDED, SONAME, RUNPATH and so on."""
    text = subprocess.run(["readelf", "-d", file], check=True, capture_output=True, text=True).stdout
    return re.findall(rf"\((?:{'|'.join(kinds)})\).*\[(.*)\]", text)
