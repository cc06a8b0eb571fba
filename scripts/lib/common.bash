# shellcheck shell=bash disable=SC2034
# Sourced by the scripts of this folder: strict mode, the repository's root, and one way to say things.
set -euo pipefail
shopt -s inherit_errexit

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
readonly ROOT

say() { printf '%s\n' "$*"; }
note() { printf '==> %s\n' "$*"; }
die() {
  printf '%s: %s\n' "$(basename "$0")" "$1" >&2
  exit "${2:-1}"
}

# A compiler that reads LibTorch's headers needs about 1.5 GB: as many jobs as cores, but no more than memory allows.
build_jobs() {
  local cores memory_gib by_memory
  cores=$(nproc)
  memory_gib=$(awk '/^MemAvailable:/ {print int($2 / 1048576)}' /proc/meminfo)
  by_memory=$((memory_gib / 2 > 0 ? memory_gib / 2 : 1))
  echo $((cores < by_memory ? cores : by_memory))
}
