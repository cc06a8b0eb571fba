#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "agent/local/file_thread.h"
#include "base/event_loop.h"
#include "base/mono_time.h"
#include "launcher/coordinator/job_record.h"

namespace fsdprun {

/// Keeps the newest record of a job in its journal. A disk that is full, a file system that hangs,
/// or an etcd that does not answer does not end the job: that is said once, it is tried again, and
/// what was missed is made good with the next record that can be written. Thread: the loop's.
class JournalKeeper {
 public:
  struct Options {
    /// Writes a record; on a thread of its own, one at a time. It may outlive this object.
    std::function<absl::Status(const job::Record&)> write;
    /// For the operator.
    std::function<void(const std::string&)> tell;
    /// The journal is another coordinator's (ABORTED): nothing more is written, and nothing that
    /// follows from the record may be done. May be called from within Keep().
    std::function<void(const absl::Status&)> on_taken;
    /// What may hang, in words: "its file system", "etcd".
    std::string medium = "its file system";
    /// How long a write may hold up the coordinator; shorter than a node's lease.
    Duration patience = std::chrono::seconds(1);
    Duration retry_pause = std::chrono::seconds(5);
  };

  JournalKeeper(EventLoop& loop, Options options);
  ~JournalKeeper();
  JournalKeeper(const JournalKeeper&) = delete;
  JournalKeeper& operator=(const JournalKeeper&) = delete;

  /// On return it is kept, or problem() says why not.
  void Keep(const job::Record& record);
  /// OK if the newest record is kept.
  const absl::Status& problem() const { return problem_; }

 private:
  void Write();
  void OnWritten(const absl::Status& status);
  void OnProblem(const absl::Status& why);

  // Constant after construction.
  EventLoop& loop_;
  const Options options_;

  /// The newest; null if it is kept or being written.
  std::shared_ptr<const job::Record> waiting_;
  /// The one that is being written, or was last.
  std::shared_ptr<const job::Record> current_;
  bool is_writing_ = false;
  absl::Status problem_;
  EventLoop::TimerId retry_timer_ = 0;
  FileThread thread_;
};

}  // namespace fsdprun
