#pragma once

#include <optional>
#include <vector>

#include "base/mono_time.h"
#include "launcher/chaos/plan/campaign.h"

namespace fsdprun::chaos {

/// Decides what comes after the faults: waiting for the job's end, ending it, --verify, the report;
/// and what a signal means meanwhile. Pure.
class Course {
 public:
  struct Options {
    /// The job was started here: it is ended if it fails, or if somebody has had enough.
    bool starts_job = false;
    /// Of a job that was not started here.
    bool until_end = false;
    bool has_verify = false;
    /// A job of Slurm, which sends SIGTERM several times, and SIGUSR1 or SIGUSR2 before that.
    bool is_in_slurm = false;
  };

  struct Action {
    enum class Kind {
      kStopCampaign,  ///< What is still there is lifted.
      kEndJob,        ///< In order, by the signal; OnJobEnd() follows.
      kKillJob,
      kPassSignal,  ///< To the job's launchers, and nothing else.
      kVerify,
      kEndVerify,  ///< By the signal.
      kKillVerify,
      kFinish,
    };
    Kind kind = Kind::kFinish;
    int signal = 0;

    bool operator==(const Action&) const = default;
  };

  explicit Course(Options options) : options_(options) {}

  /// No more faults come.
  std::vector<Action> OnCampaignEnd(Campaign::End end);
  /// SIGINT and its like, which end all of it, and a second one at once; SIGUSR1 and SIGUSR2, which
  /// are the job's, but in a job of Slurm. Senders double a signal, and some come by themselves: a
  /// second one is SIGINT, SIGQUIT or SIGTERM, and comes a while after the first.
  std::vector<Action> OnSignal(int signal, MonoTime now);
  /// This program cannot go on.
  std::vector<Action> OnCannot();
  /// The job's last process has ended; `code`: unset if nobody knows it. `is_good`: by all that is
  /// known, but for --verify.
  std::vector<Action> OnJobEnd(std::optional<int> code, bool is_good);
  /// --verify has ended, or could not be started.
  std::vector<Action> OnVerifyEnd();

  bool is_interrupted() const { return signalled_at_.has_value(); }
  /// Nobody has ended the job, or waited for its end.
  bool job_runs_on() const { return job_runs_on_; }

 private:
  enum class Phase { kFaults, kWaiting, kEnding, kVerifying, kFinished };

  std::vector<Action> EndJob(int signal);
  bool IsSecond(int signal, MonoTime now) const;
  std::vector<Action> OnNotice(int signal) const;
  std::vector<Action> Finish();

  const Options options_;
  Phase phase_ = Phase::kFaults;
  /// When the latest one came that meant something.
  std::optional<MonoTime> signalled_at_;
  bool job_runs_on_ = false;
};

}  // namespace fsdprun::chaos
