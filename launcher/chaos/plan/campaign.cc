#include "launcher/chaos/plan/campaign.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/chaos/plan/length.h"

namespace fsdprun::chaos {
namespace {

using State = FaultRecord::State;
using Kind = Campaign::Action::Kind;

/// After a fault is over, what was sent before has to arrive until the job can be believed.
constexpr Duration kArrival = std::chrono::milliseconds(300);
/// How long it is tried to begin a fault.
constexpr Duration kTrying = std::chrono::seconds(3);
/// All processes of the machine are looked at for it.
constexpr Duration kTryingPause = std::chrono::milliseconds(200);
constexpr size_t kFailuresKept = 3;
constexpr size_t kUnexplainedKept = 20;

void JudgeByEnd(FaultRecord* record, MonoTime now, std::optional<int> exit_code) {
  record->state = exit_code == 0 ? State::kAnswered : State::kUnanswered;
  record->answered_at = now;
  record->generation_after = record->generation_before;
  record->world_after = record->world_before;
  record->restarts_after = record->restarts_before;
}

std::string WhyItHangs(FaultKind kind, Duration patience) {
  const std::string limit = absl::StrCat("within ", LengthText(patience), " (--patience): ");
  return kind == FaultKind::kFill
             ? absl::StrCat("no end of it ", limit,
                            "its file system is slow, or hangs; what was taken is given back")
             : absl::StrCat("it could not be done ", limit, "its file system may hang");
}

}  // namespace

Campaign::Campaign(Options options) : options_(std::move(options)) {
  for (const PlannedFault& fault : options_.plan.faults) {
    records_.push_back({.planned = fault});
  }
}

std::vector<Campaign::Action> Campaign::Step(MonoTime now, const JobView& view) {
  std::vector<Action> actions;
  if (end_ != End::kNotYet) {
    return actions;
  }
  view_ = view;
  has_steps_ |= view.Runs() && view.step >= 0;
  asked_first_ = asked_first_.value_or(now);
  if (!began_at_.has_value()) {
    if (!view.Runs()) {
      return now - *asked_first_ > options_.patience ? Finish(End::kNeverRan) : actions;
    }
    began_at_ = now;
    free_since_ = now;
    full_world_ = view.world_size;
  }
  NoteWhatIsHeardLate(view);
  LeaveOutWhatHangs(now, &actions);
  Judge(now, view);
  const bool is_lost = std::any_of(records_.begin(), records_.end(), [](const FaultRecord& r) {
    return r.state == State::kUnanswered;
  });
  if (is_lost) {
    return Finish(End::kNotSurvived, std::move(actions));
  }
  LiftDue(now, &actions);
  BeginDue(now, view, &actions);
  if (!HasMore(now) && !HasOpen()) {
    return Finish(End::kDone, std::move(actions));
  }
  return actions;
}

bool Campaign::RunsAgain(const JobView& view) const {
  return view.Runs() && (!options_.needs_full_world || view.world_size >= full_world_);
}

bool Campaign::MayBeAnswered(const FaultRecord& record, const JobView& view) const {
  return RunsAgain(view) && view.asked_at >= record.over_at + kArrival &&
         (!record.expects.new_world || view.generation > record.generation_before) &&
         (!record.expects.new_coordinator || view.coordinator_pid != record.coordinator_before);
}

/// Since it has run again.
bool Campaign::GetsOn(const FaultRecord& record, const JobView& view) const {
  if (!has_steps_) {
    return view.asked_at - *record.runs_since >= options_.settle;
  }
  const bool is_new_world = view.generation > record.generation_when_over;
  return view.step > (is_new_world ? -1 : record.step_then);
}

bool Campaign::IsBeyondDoubt(const FaultRecord& record, const JobView& view) {
  return view.world_size >= record.world_before &&
         (!record.expects.new_world || view.generation > record.generation_in_doubt);
}

bool Campaign::IsAnswered(FaultRecord* record, const JobView& view) const {
  if (!MayBeAnswered(*record, view)) {
    record->runs_since.reset();
    return false;
  }
  if (!record->runs_since.has_value() || record->runs_in != view.generation) {
    record->runs_since = view.asked_at;
    record->runs_in = view.generation;
    record->step_then = view.step;
  }
  return GetsOn(*record, view);
}

// What the job is asked before something is done may be heard after that. It may have been said
// before or after, too.
void Campaign::NoteWhatIsHeardLate(const JobView& view) {
  for (FaultRecord& record : records_) {
    if (record.IsOpen() && view.asked_at <= record.begun_at) {
      record.generation_in_doubt = view.generation;
    }
    if (record.state == State::kOver && view.asked_at <= record.over_at) {
      record.generation_when_over = view.generation;
    }
  }
}

void Campaign::Judge(MonoTime now, const JobView& view) {
  for (FaultRecord& record : records_) {
    if (record.state != State::kOver) {
      continue;
    }
    const bool is_impatient = now - record.over_at > options_.patience;
    if (IsAnswered(&record, view) && (is_impatient || IsBeyondDoubt(record, view))) {
      record.state = State::kAnswered;
      record.answered_at = has_steps_ ? view.asked_at : *record.runs_since;
      record.generation_after = view.generation;
      record.world_after = view.world_size;
      record.restarts_after = view.restarts_used;
      free_since_ = now;
    } else if (is_impatient) {
      record.state = State::kUnanswered;
    }
  }
}

void Campaign::LiftDue(MonoTime now, std::vector<Action>* actions) const {
  for (size_t i = 0; i < records_.size(); ++i) {
    const FaultRecord& record = records_[i];
    if (record.state == State::kUnderWay && now >= record.begun_at + record.planned.length) {
      actions->push_back({Kind::kLift, i});
    }
  }
}

// A file system may not answer while a fault is to be done to it.
void Campaign::LeaveOutWhatHangs(MonoTime now, std::vector<Action>* actions) {
  for (size_t i = 0; i < records_.size(); ++i) {
    FaultRecord& record = records_[i];
    if (record.is_beginning && now - record.asked_at > options_.patience) {
      record.is_beginning = false;
      record.state = State::kSkipped;
      record.what = WhyItHangs(record.planned.kind, options_.patience);
      free_since_ = now;
      actions->push_back({Kind::kLift, i});
    }
  }
}

bool Campaign::HasOpen() const {
  return std::any_of(records_.begin(), records_.end(),
                     [](const FaultRecord& record) { return record.IsOpen(); });
}

MonoTime Campaign::DueAt(const FaultRecord& record) const {
  return (options_.plan.has_fixed_times ? *began_at_ : free_since_) + record.planned.at;
}

bool Campaign::HasMore(MonoTime now) const {
  const bool is_too_late = options_.duration.has_value() && now > *began_at_ + *options_.duration;
  return std::any_of(records_.begin(), records_.end(), [&](const FaultRecord& record) {
    return record.state == State::kPlanned && (record.is_beginning || !is_too_late);
  });
}

bool Campaign::MayBegin(const FaultRecord& record, MonoTime now, const JobView& view) const {
  const bool pauses = record.tried_since.has_value() && now - record.asked_at < kTryingPause;
  if (record.is_beginning || pauses || now < DueAt(record) || !HasMore(now)) {
    return false;
  }
  return options_.overlaps || options_.plan.has_fixed_times || (!HasOpen() && RunsAgain(view));
}

void Campaign::BeginDue(MonoTime now, const JobView& view, std::vector<Action>* actions) {
  for (size_t i = 0; i < records_.size(); ++i) {
    FaultRecord& record = records_[i];
    if (record.state != State::kPlanned) {
      continue;
    }
    if (MayBegin(record, now, view)) {
      record.is_beginning = true;
      record.asked_at = now;
      actions->push_back({Kind::kBegin, i});
    }
    if (!options_.plan.has_fixed_times) {
      return;  // One after the other.
    }
  }
}

void Campaign::OnBegun(size_t index, MonoTime now, std::string what, Expectation expects) {
  FaultRecord& record = records_[index];
  record.is_beginning = false;
  record.state = Lasts(record.planned.kind) ? State::kUnderWay : State::kOver;
  record.what = std::move(what);
  record.expects = expects;
  record.begun_at = now;
  record.over_at = now;
  record.generation_before = view_.generation;
  record.generation_in_doubt = view_.generation;
  record.generation_when_over = view_.generation;
  record.world_before = view_.world_size;
  record.coordinator_before = view_.coordinator_pid;
  record.restarts_before = view_.restarts_used;
  free_since_ = now;
}

void Campaign::OnSkipped(size_t index, MonoTime now, std::string why) {
  FaultRecord& record = records_[index];
  record.is_beginning = false;
  record.tried_since = record.tried_since.value_or(now);
  if (record.planned.kind == FaultKind::kFill || now - *record.tried_since >= kTrying) {
    record.state = State::kSkipped;
    record.what = std::move(why);
    free_since_ = now;
  }
}

void Campaign::OnLifted(size_t index, MonoTime now) {
  FaultRecord& record = records_[index];
  if (record.state == State::kUnderWay) {
    record.state = State::kOver;
  }
  record.over_at = now;
  record.generation_when_over = view_.generation;
}

// With a duration it may have been dropped.
void Campaign::OnDoneTooLate(size_t index, const std::string& what) {
  if (index < records_.size()) {
    std::string& told = records_[index].what;
    absl::StrAppend(&told, told.empty() ? "" : "; ", what);
  }
}

void Campaign::OnFailure(const std::string& what) {
  // From then on it is being ended.
  if (end_ == End::kNotSurvived || end_ == End::kNeverRan || end_ == End::kStopped) {
    return;
  }
  for (auto record = records_.rbegin(); record != records_.rend(); ++record) {
    // What takes long to be done may be felt sooner.
    if (record->IsOpen() || record->is_beginning) {
      if (record->failures.size() < kFailuresKept) {
        record->failures.push_back(what);
      }
      return;
    }
  }
  if (unexplained_.size() < kUnexplainedKept) {
    unexplained_.push_back(what);
  }
}

std::vector<Campaign::Action> Campaign::LiftAll() const {
  std::vector<Action> actions;
  for (size_t i = 0; i < records_.size(); ++i) {
    if (records_[i].state == State::kUnderWay) {
      actions.push_back({Kind::kLift, i});
    }
  }
  return actions;
}

std::vector<Campaign::Action> Campaign::OnJobOver(MonoTime now, std::optional<int> exit_code) {
  std::vector<Action> actions = LiftAll();
  // Whoever has ended it on purpose was not answered, and does not ask.
  if (end_ == End::kNotYet || gone_at_.has_value()) {
    for (FaultRecord& record : records_) {
      if (record.IsOpen()) {
        JudgeByEnd(&record, gone_at_.value_or(now), exit_code);
      }
    }
    job_exit_code_ = exit_code;
    gone_at_.reset();
  }
  if (end_ == End::kNotYet) {
    end_ = End::kJobOver;
    view_at_end_ = view_;
    DropWhatDidNotCome();
  }
  return actions;
}

std::vector<Campaign::Action> Campaign::OnJobGone(MonoTime now) {
  if (end_ != End::kNotYet) {
    return {};
  }
  gone_at_ = now;
  end_ = End::kJobOver;
  view_at_end_ = view_;
  DropWhatDidNotCome();
  return LiftAll();
}

std::vector<Campaign::Action> Campaign::Stop() {
  gone_at_.reset();  // How it ends now tells nothing.
  if (end_ != End::kNotYet) {
    return {};
  }
  return Finish(End::kStopped);
}

// With a duration the plan has more faults than can come.
void Campaign::DropWhatDidNotCome() {
  if (options_.duration.has_value()) {
    while (!records_.empty() && records_.back().state == State::kPlanned) {
      records_.pop_back();
    }
  }
}

std::vector<Campaign::Action> Campaign::Finish(End end, std::vector<Action> actions) {
  end_ = end;
  view_at_end_ = view_;
  DropWhatDidNotCome();
  for (const Action& lift : LiftAll()) {
    actions.push_back(lift);
  }
  actions.push_back({.kind = Kind::kEnd});
  return actions;
}

}  // namespace fsdprun::chaos
