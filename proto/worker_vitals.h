#pragma once

// What a worker says of itself while it works, without a system call: a page that it shares with
// its agent. The agent makes the file, whose path is FSDPRUN_VITALS_FILE, with kBytes zero bytes;
// the worker maps it, shared, fills in `version` last of all, and writes words of it whenever they
// change. A worker in any language may; see docs/VITALS.md. The agent reads it about once a second,
// also while the worker is stopped, hangs or computes. A word that is 0 says nothing, so a worker
// writes those that it has. Each life of a worker has a file of its own. Standard library only.
// Source of all times: CLOCK_MONOTONIC of the machine, in nanoseconds.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace fsdprun::contract {

/// What a worker is doing.
enum class WorkerPhase : uint64_t {
  kOther = 0,
  kStarting = 1,
  kWaitingForData = 2,
  kForward = 3,
  kBackward = 4,
  kOptimizer = 5,
  kEvaluating = 6,
  kSaving = 7,
  kLoading = 8,
};

// Each word is written by one thread at a time, or only added to, and read whole, so none needs a
// lock. Words that belong together may be read apart: a reader takes differences between two
// readings, and the text of a collective by its sequence lock.
struct VitalsPage {
  static constexpr uint64_t kVersion = 1;
  static constexpr size_t kBytes = 4096;
  static constexpr size_t kTextBytes = 96;

  using Word = std::atomic<uint64_t>;
  using Text = std::array<Word, kTextBytes / 8>;

  /// kVersion once the worker writes here; 0 before.
  Word version;
  /// The process that writes. One that the worker has started inherits the variable, too, and
  /// leaves the page alone as long as that process lives.
  Word pid;

  // --- Steps
  /// Signed; of the step that is being computed. Nothing is said of steps before step_began_ns is.
  Word step;
  Word total;
  Word step_began_ns;
  /// The bits of a double each; 0: not known. A NaN is a loss that has become one.
  Word loss;
  Word tokens_per_second;
  Word tokens;
  /// A WorkerPhase.
  Word phase;

  // --- The latest whole step, ns: from its beginning to that of the next one
  Word step_ns;
  Word collective_wait_ns;
  Word data_wait_ns;
  Word save_ns;

  // --- Collectives, of all groups of the process
  /// Begun: this rank has entered it. Ended: its result is there, or it failed. What is begun and
  /// not ended may be waited for by nobody here yet.
  Word collectives_begun;
  Word collectives_ended;
  /// Of the oldest that has not ended; 0: there is none.
  Word collective_began_ns;
  Word collective_bytes;
  /// Odd while the texts change: a writer adds 1 before and 1 after. Who reads the texts between
  /// two equal and even values has read what was written together.
  Word text_lock;
  /// UTF-8, NUL-terminated unless full: the operation with the ranks of its group, and the unit
  /// that it is for.
  Text collective;
  Text unit;

  // --- The device
  Word device_bytes;
  Word device_peak_bytes;
};

static_assert(sizeof(VitalsPage) <= VitalsPage::kBytes);
static_assert(VitalsPage::Word::is_always_lock_free);

}  // namespace fsdprun::contract
