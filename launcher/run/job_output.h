#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "agent/local/local_agent.h"
#include "base/event_loop.h"
#include "launcher/cli/command_line.h"
#include "launcher/report/console.h"
#include "launcher/run/run_dir.h"
#include "proto/cluster/types.h"

namespace fsdprun {

/// The exit code of a launcher whose job went well, but whose output could not be written (sysexits
/// has it for that); also that of a session, by which its launcher knows.
inline constexpr int kOutputLostCode = 74;

/// Where the output of one run goes: the console, with the progress line and what the launcher
/// itself says, and the log directories of this node's workers. Thread: the main thread. `plan`
/// and `environment` must outlive it.
class JobOutput {
 public:
  /// Sends base/log lines to the console.
  JobOutput(EventLoop& loop, CliProgram program, const LaunchPlan& plan,
            const Environment& environment);
  ~JobOutput();
  JobOutput(const JobOutput&) = delete;
  JobOutput& operator=(const JobOutput&) = delete;

  Console& console() { return console_; }
  /// Console::Close(). Returns `code`, or kOutputLostCode in the place of 0 if output was lost.
  int Close(MonoTime deadline, int code);
  ConsoleChannel::Progress WrittenOf(keeper::Stream stream);
  bool draws_progress() const { return console_.draws_progress(); }

  /// A line that begins with the program's name.
  void Print(absl::string_view text);
  /// Nothing happens without a progress line, or before there is progress.
  void ShowProgress(const Progress& progress);

  /// For an agent's workers.
  OutputPump::Sink MakeSink();
  /// The agent that is told when the console has room again; nullptr: none.
  void Attach(LocalAgent* agent) { agent_ = agent; }

  /// The same for who shows other nodes' output.
  void OnRoom(std::function<void()> on_room) { on_room_ = std::move(on_room); }

  /// Makes the directories of the first agent. Errors: see fsdprun::MakeRunDirs().
  absl::Status MakeRunDirs(const std::string& run_id);
  /// They are there: an agent that was killed has made them.
  void TakeRunDirs(const std::string& run_id, const RunDirs& dirs);
  const RunDirs& dirs() const { return dirs_; }
  /// Makes those of the next agent in their place, with a bounded wait for the file system; `then`
  /// runs on the loop.
  void ChangeRunDirs(std::function<void(const absl::Status&)> then);
  /// Removes the temporary directories; for when the loop has ended.
  void RemoveRunDirs();
  /// At the end of the run: logs in temporary directories are kept for failures only, spools for
  /// what could not be shown, and the console says where.
  void EndRunDirs(bool has_succeeded, bool all_shown);

 private:
  void OnRunDirs(const RunDirChange::Result& result);
  void RemoveLogs();
  bool RemoveEmptyLogs();
  void RemoveSpools();
  void RemoveVitals();
  std::vector<const RunDirs*> AllDirs() const;
  void ResumeOutput();

  EventLoop& loop_;
  const CliProgram program_;
  const LaunchPlan& plan_;
  const Environment& environment_;
  Console console_;
  LocalAgent* agent_ = nullptr;
  std::function<void()> on_room_;
  std::string run_id_;
  RunDirs dirs_;
  /// Of fsdp-agent's earlier incarnations.
  std::vector<RunDirs> earlier_;
  std::unique_ptr<RunDirChange> change_;
  std::function<void(const absl::Status&)> then_;
};

}  // namespace fsdprun
