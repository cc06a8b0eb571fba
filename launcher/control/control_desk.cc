#include "launcher/control/control_desk.h"

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "launcher/events/event_line.h"

namespace fsdprun {

ControlDesk::ControlDesk(EventLoop& loop, const JobMachine& machine, JobFacts facts, Hooks hooks,
                         NodeAsides& asides)
    : loop_(loop),
      machine_(machine),
      hooks_(std::move(hooks)),
      facts_(std::move(facts)),
      node_answers_(machine, asides) {}

ControlDesk::~ControlDesk() { loop_.Cancel(timer_); }

std::unique_ptr<ControlService> ControlDesk::MakeService(CallCheck check) {
  // The service is not there yet when its callbacks are made.
  const auto self = std::make_shared<ControlService*>(nullptr);
  ControlService::Callbacks callbacks;
  callbacks.on_question = [this, self](ControlService::CallId id,
                                       const v1::ControlQuestion& question) {
    Answer({*self, id}, question);
  };
  callbacks.on_written = [this, self](ControlService::CallId id) { Written({*self, id}); };
  callbacks.on_lost = [this, self](ControlService::CallId id) {
    followers_.erase({*self, id});
    node_answers_.Lose({*self, id});
  };
  auto service = std::make_unique<ControlService>(loop_, std::move(check), std::move(callbacks));
  *self = service.get();
  return service;
}

// --- What has happened

void ControlDesk::Note(const job::News& news) {
  const auto* reported = std::get_if<job::FailureReported>(&news);
  const bool is_our_doing = reported != nullptr && reported->failure.worker.has_value() &&
                            reported->failure.worker->killed_by_us;
  if (reported != nullptr && !is_our_doing) {
    facts_.last_failure = reported->failure.what;
    facts_.last_failure_at = MonoNow();
  }
  Keep({news, absl::ToUnixMillis(absl::Now())});
}

void ControlDesk::Note(const watch::Finding& finding) {
  NoteFinding(finding, MonoNow(), &facts_);
  ++findings_told_;
  Keep({finding, absl::ToUnixMillis(absl::Now())});
  if (!followers_.empty()) {
    TellAll();
  }
}

void ControlDesk::Keep(Event event) {
  events_.push_back(std::move(event));
  ++events_end_;
  if (events_.size() > kEventsKept) {
    events_.pop_front();
  }
}

void ControlDesk::Stepped() {
  const int64_t step = machine_.world().has_progress() ? machine_.progress().step : -1;
  if (machine_.generation() != progress_generation_) {
    progress_generation_ = machine_.generation();
    progress_step_ = -1;
    facts_.progress_at.reset();
  }
  if (step >= 0 && step != progress_step_) {
    progress_step_ = step;
    ++progress_reports_;
    facts_.progress_at = MonoNow();
  }
  if (!followers_.empty()) {
    TellAll();
  }
  node_answers_.Stepped();
}

void ControlDesk::Close(const std::string& why) {
  why_closed_ = why;
  for (const auto& [caller, follower] : std::exchange(followers_, {})) {
    caller.first->Refuse(caller.second, absl::UnavailableError(why));
  }
  node_answers_.Close(absl::UnavailableError(why));
}

// --- Questions

void ControlDesk::Answer(const Caller& caller, const v1::ControlQuestion& question) {
  if (!why_closed_.empty()) {
    caller.first->Refuse(caller.second, absl::UnavailableError(why_closed_));
    return;
  }
  switch (question.question_case()) {
    case v1::ControlQuestion::kStatus:
      return Follow(caller, Follower{.wants_workers = question.status().with_workers()},
                    question.status().follow());
    case v1::ControlQuestion::kEvents:
      return Follow(caller, Follower{.wants_events = true}, question.events().follow());
    case v1::ControlQuestion::kStop:
      return AnswerStop(caller, question.stop());
    case v1::ControlQuestion::kRestart:
      return AnswerRestart(caller);
    case v1::ControlQuestion::kNodes:
      return node_answers_.Ask(caller, question.nodes());
    case v1::ControlQuestion::kDrain:
      return SayOrRefuse(caller, Drain(question.drain()));
    case v1::ControlQuestion::kScale:
      return SayOrRefuse(caller, Scale(question.scale()));
    case v1::ControlQuestion::QUESTION_NOT_SET:
      break;
  }
  caller.first->Refuse(
      caller.second,
      absl::InvalidArgumentError(
          "this job's launcher does not know the question; use the fsdpctl of its release"));
}

void ControlDesk::AnswerStop(const Caller& caller, const v1::StopQuestion& question) {
  const int signal = question.signal();
  if (signal != SIGTERM && signal != SIGINT) {
    caller.first->Refuse(caller.second, absl::InvalidArgumentError(
                                            absl::StrCat("a job is stopped by signal ", SIGTERM,
                                                         " or ", SIGINT, ", not ", signal)));
    return;
  }
  if (machine_.outcome().has_value()) {
    Say(caller, "the job is over already: " + machine_.outcome()->reason);
    return;
  }
  if (!machine_.operator_signal().has_value()) {
    hooks_.stop(signal);
  }
  if (question.now() && !machine_.outcome().has_value()) {
    hooks_.stop(signal);
  }
  Say(caller, question.now() ? "the workers are being killed" : "the workers are being stopped");
}

void ControlDesk::AnswerRestart(const Caller& caller) {
  const job::Phase phase = machine_.phase();
  if (phase != job::Phase::kRunning && phase != job::Phase::kPreparing) {
    caller.first->Refuse(caller.second,
                         absl::FailedPreconditionError(absl::StrCat(
                             "no workers run that could be restarted: ", machine_.reason())));
    return;
  }
  hooks_.restart();
  Say(caller, absl::StrCat("all workers are being restarted; generation ",
                           machine_.generation().value(), " ends"));
}

void ControlDesk::Say(const Caller& caller, const std::string& what) {
  v1::ControlAnswer answer;
  answer.mutable_done()->set_what(what);
  caller.first->Send(caller.second, std::move(answer));
  caller.first->Finish(caller.second);
}

// --- Those who follow

void ControlDesk::Follow(const Caller& caller, Follower follower, bool follows) {
  follower.next = follower.wants_events ? 0 : UINT64_MAX;
  const auto it = followers_.insert({caller, follower}).first;
  TellNext(caller, it->second);
  if (!follows && (!it->second.wants_events || it->second.next == events_end_)) {
    followers_.erase(it);
    caller.first->Finish(caller.second);
  } else {
    it->second.ends_when_told = !follows;
  }
}

void ControlDesk::TellNext(const Caller& caller, Follower& follower) {
  v1::ControlAnswer answer;
  if (follower.wants_events) {
    if (follower.next == events_end_ && follower.has_been_told) {
      return;
    }
    *answer.mutable_events() = LinesFrom(&follower.next);
  } else {
    if (follower.next == version() && !follower.wants_workers) {
      return;
    }
    TellState(follower, answer.mutable_status());
  }
  follower.has_been_told = true;
  follower.is_writing = true;
  caller.first->Send(caller.second, std::move(answer));
}

void ControlDesk::TellState(Follower& follower, v1::JobStatus* status) {
  follower.next = version();
  follower.not_before = MonoNow() + PauseOf(follower);
  *status = Status();
  if (hooks_.complete) {
    hooks_.complete(status);
  }
  if (follower.wants_workers && hooks_.add_workers) {
    hooks_.add_workers(status);
  }
}

Duration ControlDesk::PauseOf(const Follower& follower) const {
  if (!follower.wants_workers) {
    return kStatusPause;
  }
  const int64_t followers =
      std::count_if(followers_.begin(), followers_.end(),
                    [](const auto& entry) { return entry.second.wants_workers; });
  const int64_t told = followers * machine_.world().world_size();
  return std::max<Duration>(kWorkersPause,
                            std::chrono::milliseconds(1000 * told / kWorkersPerSecond));
}

v1::EventLines ControlDesk::LinesFrom(uint64_t* next) const {
  v1::EventLines lines;
  if (*next < events_begin()) {
    lines.set_forgotten(events_begin() - *next);
    *next = events_begin();
  }
  const EventSource source{facts_.run_id, facts_.node};
  for (size_t told = 0; told < kLinesAtOnce && *next < events_end_; ++told, ++*next) {
    const Event& event = events_[*next - events_begin()];
    lines.add_lines(std::visit(
        [&](const auto& what) { return FormatEvent(what, source, event.unix_ms); }, event.what));
  }
  return lines;
}

void ControlDesk::TellAll() {
  const MonoTime now = MonoNow();
  MonoTime next = MonoTime::max();
  for (auto& [caller, follower] : followers_) {
    if (follower.is_writing) {
      continue;
    }
    if (now < follower.not_before && !is_over()) {
      next = std::min(next, follower.not_before);
    } else {
      TellNext(caller, follower);
    }
  }
  TellLater(next);
}

void ControlDesk::TellLater(MonoTime when) {
  if (timer_ == 0 && when != MonoTime::max()) {
    timer_ = loop_.At(when, [this] {
      timer_ = 0;
      TellAll();
    });
  }
}

void ControlDesk::Written(const Caller& caller) {
  const auto it = followers_.find(caller);
  if (it == followers_.end()) {
    node_answers_.Written(caller);
    return;
  }
  Follower& follower = it->second;
  follower.is_writing = false;
  const bool is_told =
      follower.wants_events ? follower.next == events_end_ : follower.next == version();
  if (is_told && (follower.ends_when_told || is_over())) {
    followers_.erase(it);
    caller.first->Finish(caller.second);
    return;
  }
  TellAll();
}

}  // namespace fsdprun
