# shellcheck shell=bash disable=SC2034
# Sourced by scripts/test and scripts/soak after common.bash: a run is a list of phases that are timed, and ends with a
# ledger of where its minutes went.

# begin_run FOLDER: phases and results of the run are written there.
begin_run() {
  run_folder=$1
  rm -rf "$run_folder"
  mkdir -p "$run_folder"
  : >"$run_folder/phases.tsv"
  : >"$run_folder/started"
}

# phase NAME COMMAND...: runs it and writes down how long it took. Its exit status is the command's.
phase() {
  local name=$1 status=0 start=${EPOCHREALTIME/./}
  shift
  note "$name"
  "$@" || status=$?
  printf '%s\t%d.%03d\t%d\n' "$name" $(((${EPOCHREALTIME/./} - start) / 1000000)) \
    $(((${EPOCHREALTIME/./} - start) / 1000 % 1000)) "$status" >>"$run_folder/phases.tsv"
  return $status
}

# within SECONDS COMMAND...: CUT_OFF if the time was not enough; then the command and all that it started is ended.
readonly CUT_OFF=124
within() {
  local seconds=$1 child clock ended='' status=0
  shift
  set -m  # the command gets a process group of its own
  "$@" &
  child=$!
  set +m
  sleep "$seconds" &
  clock=$!
  trap 'kill -TERM -- "-$child" "$clock"; exit 130' INT TERM
  wait -n -p ended "$child" "$clock" || status=$?
  trap - INT TERM
  if [[ $ended == "$clock" ]]; then
    kill -TERM -- "-$child"
    wait "$child" || true
    status=$CUT_OFF
  else
    kill "$clock"
  fi
  return $status
}

# end_tree PID: ends a process and all that it started.
end_tree() {
  local child
  for child in $(pgrep -P "$1"); do
    end_tree "$child"
  done
  kill -TERM "$1" 2>/dev/null || true
}

# The sanitizers of g++ 12 and clang 14 cannot map their shadow where the kernel randomises addresses over more than 28
# bits: ThreadSanitizer never, AddressSanitizer now and then.
fix_addresses=()
find_address_fix() {
  local bits
  bits=$(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 32)
  ((bits > 28)) || return 0
  fix_addresses=(setarch "$(uname -m)" -R)
  "${fix_addresses[@]}" true 2>/dev/null || die "The sanitizers need addresses that are not randomised (vm.mmap_rnd_bits is $bits, they can cope with 28),
and this container forbids 'setarch -R'. Run the container with --security-opt seccomp=unconfined, or on the host, as
root: sysctl vm.mmap_rnd_bits=28. What needs neither: scripts/test --preset release and scripts/test --quick"
}

# Tests make machines (network namespaces) and small disks (tmpfs), and are skipped where they cannot, which is an error: told
# before the run, not after it.
check_privileges() {
  local why
  [[ -z ${FSDPRUN_ALLOW_SKIPS:-} ]] || return 0
  why=$(unshare --net --mount mount -t tmpfs none /mnt 2>&1) ||
    die "Some tests make network namespaces and mount small file systems, which this user cannot do here (${why:-unshare says no more}).
Run as root, in a container with the capabilities SYS_ADMIN and NET_ADMIN (docker run --cap-add SYS_ADMIN --cap-add NET_ADMIN), or leave those tests
out: FSDPRUN_ALLOW_SKIPS=1"
}

# One ctest over several build folders, so that one summary covers them all.
write_combined_tests() {
  mkdir -p "$ROOT/build/all"
  local preset
  for preset in "$@"; do
    printf 'subdirs("%s")\n' "$ROOT/build/$preset"
  done >"$ROOT/build/all/CTestTestfile.cmake"
}

# run_ctest NAME ARGUMENTS...: NAME.junit.xml in the run's folder is what the ledger reads. A skipped test is an error.
run_ctest() {
  local name=$1 status=0
  shift
  # TCPStore asks for the name of whoever connects: a name server that does not answer is not to hold it up for long.
  RES_OPTIONS='timeout:1 attempts:1' "${fix_addresses[@]}" ctest --output-on-failure --no-tests=error -j "${JOBS:-$(test_jobs)}" \
    --output-junit "$run_folder/$name.junit.xml" "$@" || status=$?
  if [[ -z ${FSDPRUN_ALLOW_SKIPS:-} ]] && grep -Eq '<skipped|skipped="[1-9]' "$run_folder/$name.junit.xml"; then
    say "a test was skipped (which, and why: at the end of the ledger below): provide what it needs, or allow it with FSDPRUN_ALLOW_SKIPS=1"
    ((status != 0)) || status=1
  fi
  return $status
}

# finish_run STATUS BUILD...: prints the ledger and exits.
finish_run() {
  local status=$1
  shift
  say ""
  python3 "$ROOT/scripts/lib/ledger.py" "$run_folder" "$@" | tee "$run_folder/ledger.txt"
  exit "$status"
}
