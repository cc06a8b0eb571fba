#pragma once

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "base/mono_time.h"
#include "fsdprun/v1/control.pb.h"

namespace fsdprun::top {

/// How things stand between who watches a job and the job, by what it has answered. Pure.
class Link {
 public:
  /// An answer comes every second, of a large job less often; after so long without, people are
  /// told.
  static constexpr Duration kQuiet = std::chrono::seconds(5);
  /// And after that the job is asked anew.
  static constexpr Duration kLost = std::chrono::seconds(20);

  /// A call begins.
  void Asked(MonoTime now);
  void Answered(const v1::JobStatus& status, MonoTime now);
  /// Somebody has who is not the job: what is wrong with that, as a sentence.
  void Refused(std::string why);
  /// The call has ended.
  void Ended(const absl::Status& status);

  /// Some answer has come, ever.
  bool has_answered() const { return !last_.job().empty(); }
  /// The job has told how it ends, and is gone: nothing is asked any more.
  bool is_over() const { return last_.phase() == kFinished; }
  /// The call that is under way is no good.
  bool IsStuck(MonoTime now) const;
  /// What is wrong, as a sentence; empty: nothing.
  std::string Trouble(MonoTime now) const;
  /// For who leaves: what was known of the job last.
  std::string LastWords(MonoTime now) const;
  /// How long ago that was.
  Duration Since(MonoTime now) const { return now - answered_at_; }
  /// What the job has told last, without its workers.
  const v1::JobStatus& last() const { return last_; }

 private:
  static constexpr char kFinished[] = "finished";
  /// After the first one the job is asked by the pid that has answered last, and then by its id.
  static constexpr int kBreaksMax = 2;

  Duration Quiet() const;
  bool IsQuiet(MonoTime now) const { return Since(now) > Quiet(); }

  v1::JobStatus last_;
  /// When it was asked, or has answered.
  MonoTime active_at_{};
  MonoTime answered_at_{};
  /// Why there is no answer; empty: the last call goes on, or nothing has been asked.
  std::string why_ended_;
  /// That is because of who has answered.
  bool is_refused_ = false;
  /// How many calls broke off since the last answer, after it was decided how the job ends.
  int breaks_ = 0;
};

}  // namespace fsdprun::top
