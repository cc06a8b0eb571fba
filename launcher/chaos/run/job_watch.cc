#include "launcher/chaos/run/job_watch.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/process/worker_environment.h"
#include "fsdpctl/jobs/job_client.h"

namespace fsdprun::chaos {
namespace {

using json = nlohmann::json;

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

JobAddress AddressOf(const JobEntry& job) {
  return {.target = absl::StrCat("unix:", job.socket), .run_id = job.run_id};
}

}  // namespace

/// What the threads use.
struct JobWatch::Shared {
  Find find;
  Hooks hooks;
  LoopGate::Post post;
  /// Of the thread of events: which coordinator has told how many.
  int64_t teller = 0;
  uint64_t told = 0;

  void AskState();
  void AskEvents();
  void Tell(const std::string& line) const;
};

void JobWatch::Shared::AskState() {
  JobView view{.asked_at = MonoNow()};
  if (const std::optional<JobEntry> job = find()) {
    view.is_there = true;
    view.run_id = job->run_id;
    v1::ControlQuestion question;
    question.mutable_status();
    const absl::Status status = AskJob(
        AddressOf(*job), question,
        [&view](const v1::ControlAnswer& answer) { view = ViewOf(answer.status(), view.asked_at); },
        kStateLimit);
    view.answers = view.answers && status.ok();
  }
  post([this_hooks = hooks, view] { this_hooks.on_view(view); });
}

void JobWatch::Shared::AskEvents() {
  const std::optional<JobEntry> job = find();
  if (!job.has_value()) {
    return;
  }
  if (std::exchange(teller, job->pid) != job->pid) {
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
  const json event = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!event.is_object()) {
    return;
  }
  const std::string name = event.value("event", "");
  if (name == "failure") {
    post([this_hooks = hooks, what = event.value("what", "")] { this_hooks.on_failure(what); });
  } else if (name == "job_finished") {
    post(
        [this_hooks = hooks, code = event.value("exit_code", 1)] { this_hooks.on_finished(code); });
  }
}

JobWatch::JobWatch(EventLoop& loop, Find find, Hooks hooks)
    : gate_(loop),
      shared_(std::make_shared<Shared>(
          Shared{.find = std::move(find), .hooks = std::move(hooks), .post = gate_.poster()})),
      states_(kStateInterval, [shared = shared_] { shared->AskState(); }),
      events_(kEventsInterval, [shared = shared_] { shared->AskEvents(); }) {}

JobWatch::~JobWatch() = default;

std::optional<JobEntry> JobFollower::Find(const std::vector<JobEntry>& jobs) {
  const MutexLock lock(mu_);
  std::vector<JobEntry> later;
  for (const JobEntry& job : jobs) {
    if (job.pid == job_.pid && job.began_ms == job_.began_ms) {
      return job_;
    }
    if (job.run_id == job_.run_id && job.began_ms > job_.began_ms) {
      later.push_back(job);
    }
  }
  if (later.size() != 1) {
    return std::nullopt;
  }
  job_ = later.front();
  return job_;
}

}  // namespace fsdprun::chaos
