#include "launcher/chaos/run/job_watch.h"

#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "agent/process/process_scan.h"
#include "agent/process/worker_environment.h"
#include "base/mutex.h"
#include "fsdpctl/jobs/job_client.h"
#include "launcher/chaos/plan/job_news.h"
#include "launcher/chaos/run/job_follower.h"

namespace fsdprun::chaos {
namespace {

constexpr Duration kStateInterval = std::chrono::milliseconds(50);
constexpr Duration kEventsInterval = std::chrono::milliseconds(100);
constexpr std::chrono::milliseconds kStateLimit{500};
constexpr std::chrono::milliseconds kEventsLimit{1000};

JobView ViewOf(const v1::JobStatus& status, MonoTime asked_at) {
  JobView view{.asked_at = asked_at,
               .answers = true,
               .is_there = true,
               .run_id = status.job(),
               .job_id = WorkerJobId(status.job(), status.launch_id()),
               .coordinator_pid = status.coordinator().pid(),
               .phase = status.phase(),
               .reason = status.reason(),
               .generation = status.generation(),
               .world_size = status.world_size(),
               .is_whole = true,
               .restarts_used = status.restarts_used(),
               .max_restarts = status.max_restarts(),
               .membership_changes = status.membership_changes(),
               .last_failure = status.last_failure()};
  for (const v1::NodeStatus& node : status.nodes()) {
    const bool has_part = node.group_rank() >= 0;
    view.is_whole = view.is_whole && (!has_part || (node.connected() && !node.suspect()));
  }
  if (status.has_progress_age_ns()) {
    view.step = status.progress().step();
  }
  if (status.has_exit_code()) {
    view.exit_code = status.exit_code();
  }
  return view;
}

/// 0 if it is not there.
uint64_t StartTicksOf(int64_t pid) {
  ProcessInfo info;
  return ReadProcess(static_cast<pid_t>(pid), info) ? info.start_time_ticks : 0;
}

JobAddress AddressOf(const JobEntry& job) {
  return {.target = absl::StrCat("unix:", job.socket), .run_id = job.run_id};
}

}  // namespace

/// What the threads use.
struct JobWatch::Shared {
  Shared(Which w, Hooks h, LoopGate::Post p)
      : which(std::move(w)), hooks(std::move(h)), post(std::move(p)), follower(which.job) {}

  void AskState();
  void AskEvents();

  const Which which;
  const Hooks hooks;
  const LoopGate::Post post;

  // Of the thread of states.
  JobFollower follower;
  bool Ask(const JobEntry& job, JobView* view);

  // Of the thread of events.
  /// Which coordinator has told how many.
  std::pair<int64_t, int64_t> teller{};
  uint64_t told = 0;
  void Tell(const std::string& line) const;

  Mutex mu;
  /// Who has answered for the job last.
  std::optional<JobEntry> answerer ABSL_GUARDED_BY(mu);
};

void JobWatch::Shared::AskState() {
  JobView view{.asked_at = MonoNow()};
  const std::vector<JobEntry> jobs = which.list();
  view.is_there = follower.IsThere(jobs);
  for (const JobEntry& job : follower.WhomToAsk(jobs)) {
    if (Ask(job, &view)) {
      break;
    }
  }
  view.is_replaced = !view.is_there && follower.IsReplaced(jobs);
  post([this_hooks = hooks, view] { this_hooks.on_view(view); });
}

/// Whether the job itself has answered.
bool JobWatch::Shared::Ask(const JobEntry& job, JobView* view) {
  // Of the process that answers then, since it lives until it has: nobody else has its pid sooner.
  const uint64_t start_ticks = StartTicksOf(job.pid);
  v1::ControlQuestion question;
  question.mutable_status();
  std::optional<v1::JobStatus> answer;
  const absl::Status status = AskJob(
      AddressOf(job), question,
      [&answer](const v1::ControlAnswer& told) { answer = told.status(); }, kStateLimit);
  if (!answer.has_value() || !follower.Takes(job, *answer)) {
    return false;
  }
  *view = ViewOf(*answer, view->asked_at);
  view->answers = status.ok();
  view->coordinator_start_ticks = view->coordinator_pid == job.pid ? start_ticks : 0;
  const MutexLock lock(mu);
  answerer = job;
  return true;
}

void JobWatch::Shared::AskEvents() {
  std::optional<JobEntry> job;
  {
    const MutexLock lock(mu);
    job = answerer;
  }
  if (!job.has_value()) {
    return;
  }
  const std::pair key(job->pid, job->began_ms);
  if (std::exchange(teller, key) != key) {
    told = 0;
  }
  v1::ControlQuestion question;
  question.mutable_events()->set_follow(true);
  uint64_t seen = 0;
  bool is_first = true;
  // What was told before is told again, from the first event that is still known.
  AskJob(
      AddressOf(*job), question,
      [&](const v1::ControlAnswer& answer) {
        const v1::EventLines& lines = answer.events();
        seen += std::exchange(is_first, false) ? lines.forgotten() : 0;
        for (const std::string& line : lines.lines()) {
          if (++seen > told) {
            Tell(line);
          }
        }
      },
      kEventsLimit)
      .IgnoreError();
  told = std::max(told, seen);
}

void JobWatch::Shared::Tell(const std::string& line) const {
  const JobNews news = NewsIn(line, which.since_ms);
  if (news.failure.has_value()) {
    post([this_hooks = hooks, what = *news.failure] { this_hooks.on_failure(what); });
  }
  if (news.exit_code.has_value()) {
    post([this_hooks = hooks, code = *news.exit_code] { this_hooks.on_finished(code); });
  }
}

JobWatch::JobWatch(EventLoop& loop, Which which, Hooks hooks)
    : gate_(loop),
      shared_(std::make_shared<Shared>(std::move(which), std::move(hooks), gate_.poster())),
      states_(kStateInterval, [shared = shared_] { shared->AskState(); }),
      events_(kEventsInterval, [shared = shared_] { shared->AskEvents(); }) {}

JobWatch::~JobWatch() = default;

}  // namespace fsdprun::chaos
