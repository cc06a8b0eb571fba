#pragma once

// Whether this launcher is still the host of its job.
//
// Note [One host of a job]
// While this launcher could not be heard of, another may have become the host of the job, and may
// have begun a world; nothing but the host keeps the workers of both apart. So a world is formed,
// and its workers are started, only while it is certain that the place is this launcher's. That is
// so for a while after the place was taken, or was looked up (JobSpec::place_sure_for). It is
// looked up when a world begins to stop, while its workers end, and what was found before is of no
// use after that; before a world that runs is stopped in order to grow, which can wait; and
// whenever there are enough nodes, or all of them are prepared, and it is not certain any more. The
// first world is no exception. While the place cannot be looked up the job waits, as for nodes; at
// the join timeout it ends. Who knows that another has the place says so unasked. Workers that run
// then were started before the place was lost: they are left alone, but no others follow, and nodes
// without a part in their world are sent away, to join at the other host.

#include <string>

#include "base/mono_time.h"
#include "launcher/coordinator/job_spec.h"

namespace fsdprun {

/// What is known of the place, and whether it is being looked up. What is begun or given up for it
/// is for the caller to decide.
class HostPlace {
 public:
  /// What a look at the place has brought.
  enum class Found {
    kUnasked,
    kOutdated,  // it was asked for before what was found became of no use
    kSure,
  };

  /// `spec` must outlive it.
  explicit HostPlace(const JobSpec& spec)
      : spec_(spec), sure_until_(spec.place_sure_from + spec.place_sure_for) {}

  bool IsSure(MonoTime now) const {
    return spec_.place_sure_for <= Duration{} || now <= sure_until_;
  }
  /// A look at the place is to be answered.
  bool is_asked() const { return asked_at_ != MonoTime::max(); }
  /// True if the place is to be looked up: it can be lost, and no look is to be answered.
  bool Ask(MonoTime now);
  /// Nobody waits for an answer any more.
  void Withdraw() { asked_at_ = MonoTime::max(); }
  /// What was found before is of no use any more.
  void Doubt(MonoTime now);
  /// The place was still this launcher's at that time.
  Found Checked(MonoTime at);
  /// It cannot be found out. True if that is an answer.
  bool NotFound(const std::string& why);
  /// When a look that was asked for has had its time.
  MonoTime AnswerDue() const { return asked_at_ + spec_.place_sure_for; }
  /// What is being waited for, as a clause for an operator.
  std::string Question() const;

  /// Another has the place, for which `why` is a sentence: no world may be formed here any more.
  void Lose(std::string why);
  /// It is given up, because it could not be found out whether another has it.
  void GiveUp();
  bool is_lost() const { return !lost_why_.empty(); }
  bool was_given_up() const { return was_given_up_; }
  const std::string& lost_why() const { return lost_why_; }

 private:
  // Constant after construction.
  const JobSpec& spec_;

  /// When the look was asked for that is not answered; else MonoTime::max().
  MonoTime asked_at_ = MonoTime::max();
  MonoTime sure_until_;
  MonoTime doubted_at_{};
  /// Why the look cannot be answered yet.
  std::string unknown_why_;
  std::string lost_why_;
  bool was_given_up_ = false;
};

}  // namespace fsdprun
