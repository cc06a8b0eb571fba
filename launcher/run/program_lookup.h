#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "agent/local/file_thread.h"
#include "base/event_loop.h"
#include "launcher/cli/option_table.h"

namespace fsdprun {

/// The file that `name` is run from, by the PATH of `environment`. Takes as long as the slowest
/// folder there. Errors: NOT_FOUND; UNAVAILABLE if a folder there could not be asked. Thread: any.
absl::StatusOr<std::string> LocateProgram(const std::string& name, const Environment& environment);

/// Whether `error`, of stat or access, says that there is no such program; others may pass.
bool IsAbsence(int error);

/// Finds a program, on a thread of its own: folders of PATH may be in a home directory that hangs,
/// and to start a program by its name alone stops the loop until all that stand before it were
/// tried. It is looked for when it is needed first, and then until it was found, and again if it is
/// not there any more. Thread: the loop's.
class ProgramLookup {
 public:
  using Found = absl::StatusOr<std::string>;

  /// `find` owns what it uses: it may outlive this.
  ProgramLookup(EventLoop& loop, std::function<Found()> find);
  ProgramLookup(const ProgramLookup&) = delete;
  ProgramLookup& operator=(const ProgramLookup&) = delete;

  /// Calls `use` as soon as the program was looked for; now, if it is known. Takes the place of an
  /// earlier one that still waits. What a search that has begun before does not find is looked for
  /// once more. Errors: as `find`'s, but a program that is not there (NOT_FOUND) is on its way back
  /// (UNAVAILABLE) if it was found before: programs are replaced while jobs run.
  void Use(std::function<void(const Found&)> use);
  /// It is no longer where it was found.
  void Forget() { program_.clear(); }
  /// Nobody waits any more.
  void Drop() { use_ = nullptr; }

 private:
  void Search();
  void OnFound(Found found);

  const std::function<Found()> find_;
  /// Empty until it is known.
  std::string program_;
  /// Where it was last.
  std::string found_before_;
  bool is_searching_ = false;
  /// Since the search has begun.
  bool is_asked_anew_ = false;
  std::function<void(const Found&)> use_;
  /// Ends before what its tasks tell.
  FileThread files_;
};

}  // namespace fsdprun
