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

changes_in_tree() { git status --porcelain --untracked-files=normal; }

# The commit whose sources a run with --record is about: what is in none has no name.
commit_to_record() {
  local changes
  changes=$(changes_in_tree)
  [[ -z $changes ]] || die "--record names a commit, and there are changes that are in none: commit them first
$changes"
  git rev-parse HEAD
}

# write_record FILE COMMIT, at the end of that run; nothing, and exit status 1, if the sources are others by now.
write_record() {
  local changes head
  changes=$(changes_in_tree) head=$(git rev-parse HEAD)
  if [[ $head != "$2" || -n $changes ]]; then
    say "nothing is recorded: this run began at $2, and now HEAD is $head${changes:+ with changes, which a test may have made:
$changes}" >&2
    return 1
  fi
  echo "$2" >"$1"
  say "$1 names $2 now: commit it"
}

# Bytes of memory that this process may still use: what the machine has left, or less where a control group says so.
available_memory() {
  local available limit used
  available=$(awk '/^MemAvailable:/ {printf "%.0f", $2 * 1024}' /proc/meminfo)
  limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
  used=$(cat /sys/fs/cgroup/memory.current 2>/dev/null || echo 0)
  used=$((used - $(awk '$1 == "inactive_file" {n = $2} END {print n + 0}' /sys/fs/cgroup/memory.stat 2>/dev/null || echo 0)))
  if [[ $limit =~ ^[0-9]+$ ]] && ((limit - used < available)); then
    available=$((limit > used ? limit - used : 0))
  fi
  echo "$available"
}

# Cores that this process may use: nproc knows of affinity, but not of a control group's quota.
usable_cores() {
  local cores quota period
  cores=$(nproc)
  read -r quota period < <(cat /sys/fs/cgroup/cpu.max 2>/dev/null || echo max 100000)
  if [[ $quota =~ ^[0-9]+$ ]] && ((quota < cores * period)); then
    cores=$(((quota + period - 1) / period))
  fi
  echo "$cores"
}

# A compiler that reads LibTorch's headers needs about 1.5 GB: as many jobs as cores, but no more than memory allows.
build_jobs() {
  local cores by_memory
  cores=$(usable_cores)
  by_memory=$(($(available_memory) / (2 << 30)))
  ((by_memory > 0)) || by_memory=1
  echo $((cores < by_memory ? cores : by_memory))
}

# Tests of processes wait more than they compute.
test_jobs() {
  echo $(($(build_jobs) + 1))
}
