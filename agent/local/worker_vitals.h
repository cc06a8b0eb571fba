#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/local/file_thread.h"
#include "agent/local/log_paths.h"
#include "agent/local/process_use.h"
#include "agent/local/vitals_page.h"
#include "agent/local/worker_family.h"
#include "base/event_loop.h"
#include "base/mono_time.h"
#include "fsdprun/v1/aside.pb.h"
#include "proto/cluster/types.h"

namespace fsdprun {

/// The pages of a generation's workers, by local rank; fewer if not all could be had.
struct WorkerPages {
  Generation generation;
  std::vector<VitalsView> views;
  /// Why some are missing; empty: none is.
  std::string problem;
};

/// Makes pages for the workers of a generation, and removes those of others. May hang with the file
/// system.
WorkerPages MakeWorkerPages(const RunDirs& dirs, Generation generation, int workers);
/// Those that another agent has made.
WorkerPages OpenWorkerPages(const RunDirs& dirs, Generation generation, int workers);

/// How the workers of a node are. Thread: the loop's.
class WorkerVitals {
 public:
  /// A process's share of memory is expensive to tell; it is asked for so often.
  static constexpr Duration kPssPeriod = std::chrono::seconds(10);
  /// So is which processes a worker has started.
  static constexpr Duration kFamilyPeriod = std::chrono::seconds(5);

  explicit WorkerVitals(EventLoop& loop) : pss_thread_(loop) {}

  void TakePages(WorkerPages pages) { pages_ = std::move(pages); }
  /// Whether a worker that starts now can say something of itself.
  bool HasPage(Generation generation, int local_rank) const;
  /// The workers of a generation start, or are taken over. Those before are forgotten.
  void Begin(Generation generation, int rank_offset);
  void NoteStarted(int local_rank, pid_t pid);
  /// It has been collected: its number may be somebody else's from now on.
  void NoteEnded(int local_rank) { workers_.erase(local_rank); }
  /// Whom to look at to see what the worker does: itself, or one that it has started and that
  /// writes its page. 0: it does not run.
  pid_t SpeakerOf(int local_rank);

  /// Of the present generation, in the order of ranks. Does not block: what takes long is read on a
  /// thread, and told by a later call. A few microseconds per worker.
  v1::NodeVitals Read(MonoTime now);

 private:
  struct Worker {
    WorkerFamily family;
    /// Of its speaker.
    int64_t pss_bytes = 0;
  };

  pid_t Speaker(int local_rank, Worker& worker);
  void AskForPss(MonoTime now);
  void AskForFamilies(MonoTime now);

  Generation generation_;
  int rank_offset_ = 0;
  WorkerPages pages_;
  std::map<int, Worker> workers_;
  const CarefulCopy copy_;
  FileThread pss_thread_;
  bool pss_is_asked_ = false;
  MonoTime pss_due_ = MonoTime::min();
  bool families_are_asked_ = false;
  MonoTime families_due_ = MonoTime::min();
};

/// Tells how the workers are again and again, as long as somebody wants to know. Thread: the
/// loop's.
class VitalsBeat {
 public:
  /// No more often than that, whoever asks.
  static constexpr Duration kLeastPeriod = std::chrono::milliseconds(100);

  /// `first_share`: what part of a period the first one is. All agents of a job begin together:
  /// with a share of its own each, they do not go on so.
  VitalsBeat(EventLoop& loop, double first_share, std::function<void()> tell)
      : loop_(loop), first_share_(first_share), tell_(std::move(tell)) {}
  ~VitalsBeat() { loop_.Cancel(timer_); }
  VitalsBeat(const VitalsBeat&) = delete;
  VitalsBeat& operator=(const VitalsBeat&) = delete;

  /// Calls `tell` now, after the share of a period, and then every `period`, in place of what was
  /// wanted before; zero or less: nobody wants to know any more.
  void Want(Duration period);

 private:
  void Beat(Duration next);

  EventLoop& loop_;
  const double first_share_;
  const std::function<void()> tell_;
  Duration period_{};
  EventLoop::TimerId timer_ = 0;
};

}  // namespace fsdprun
