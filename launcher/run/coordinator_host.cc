#include "launcher/run/coordinator_host.h"

#include <unistd.h>

#include <chrono>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/descriptor_limit.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "launcher/control/worker_status.h"
#include "launcher/directory/job_token.h"
#include "launcher/directory/private_folder.h"
#include "launcher/metrics/job_metrics.h"
#include "launcher/run/notices.h"

namespace fsdprun {
namespace {

/// Shorter pauses are every day's business on a loaded machine.
constexpr Duration kStallWarning = std::chrono::seconds(2);
/// How many messages are sent before the loop may do something else: some milliseconds' worth.
constexpr int kMessagesAtOnce = 64;

/// Between two looks whether what is held may be sent.
constexpr Duration kHeldPause = std::chrono::milliseconds(100);

void LogIfAny(const std::optional<std::string>& line) {
  if (line.has_value()) {
    Log(LogLevel::kWarning, *line);
  }
}

JobMachine MakeMachine(const CoordinatorHost::Options& options) {
  return options.record.has_value() ? JobMachine(options.spec, *options.record, MonoNow())
                                    : JobMachine(options.spec);
}

JobFacts FactsOf(const CoordinatorHost::Options& options) {
  JobFacts facts;
  facts.run_id = options.run_id;
  facts.node = options.control.node;
  facts.pid = ::getpid();
  facts.endpoint = options.control.endpoint;
  facts.max_restarts = options.spec.max_restarts;
  facts.began = MonoNow();
  return facts;
}

CoordinatorHost::Options WithLaunchId(CoordinatorHost::Options options) {
  options.spec.launch_id = RandomHex(4);
  return options;
}

}  // namespace

CoordinatorHost::CoordinatorHost(EventLoop& loop, Options options, Hooks hooks)
    : loop_(loop),
      options_(WithLaunchId(std::move(options))),
      hooks_(std::move(hooks)),
      began_unix_s_(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch())),
      machine_(MakeMachine(options_)),
      local_link_(loop_, MakeLocalLink()),
      history_(machine_, options_.record.has_value(), MonoNow()),
      watch_(loop_, machine_, asides_, options_.watch, WatchHooks()),
      desk_(loop_, machine_, FactsOf(options_), DeskHooks(), asides_) {}

CoordinatorHost::~CoordinatorHost() {
  *is_live_ = false;
  loop_.Cancel(wake_timer_);
  loop_.Cancel(held_timer_);
}

absl::Status CoordinatorHost::Start() {
  if (!options_.token.empty()) {
    const auto nodes = static_cast<uint64_t>(options_.spec.max_nodes);
    if (const std::string shortage = DescriptorShortage(nodes, "nodes"); !shortage.empty()) {
      Log(LogLevel::kWarning, shortage);
    }
    CoordinatorService::Callbacks callbacks;
    callbacks.on_message = [this](const FromAgent& message) { Feed(message); };
    callbacks.on_stream_lost = [this](Incarnation agent) {
      asides_.StreamLost(agent);
      Feed(job::AgentStreamLost{agent});
    };
    callbacks.on_stream_replaced = [this](Incarnation agent) { asides_.StreamLost(agent); };
    callbacks.on_aside = [this](Incarnation agent, const v1::FromNodeAside& aside) {
      asides_.Hear(agent, aside);
    };
    callbacks.on_refused = [this](const std::string& what) {
      history_.Refuse();
      LogIfAny(refusals_.Add(what, MonoNow()));
    };
    callbacks.on_other_host = hooks_.on_other_host;
    service_ = std::make_unique<CoordinatorService>(
        loop_,
        CoordinatorService::Options{
            options_.run_id, options_.token, options_.stream_silence, options_.tls,
            [this](CallCheck check) { return desk_.MakeService(std::move(check)); }},
        std::move(callbacks));
    if (absl::Status status = service_->Start(); !status.ok()) {
      return status;
    }
  }
  if (const absl::Status status = OpenLocalDoor(); !status.ok()) {
    Log(LogLevel::kInfo,
        absl::StrCat("fsdpctl cannot ask about this job here: ", status.message()));
  }
  // The join timeout runs from here, whether or not an agent ever joins.
  Feed(job::TimerDue{});
  return absl::OkStatus();
}

ControlDesk::Hooks CoordinatorHost::DeskHooks() {
  return {
      .stop = [this](int signal) { OperatorStop(signal); },
      .restart = [this] { Feed(job::RestartAsked{}); },
      .drain = [this](Incarnation node) { Feed(job::DrainAsked{node}); },
      .scale =
          [this](int min, int max) {
            Feed(job::ScaleAsked{min, max});
          },
      .complete =
          [this](v1::JobStatus* status) { history_.Describe(MonoNow(), status->mutable_ledger()); },
      .add_workers =
          [this](v1::JobStatus* status) {
            DescribeWorkers(machine_.world(), watch_.vitals(), MonoNow(), status);
          }};
}

void CoordinatorHost::Collect(MetricPage* page) {
  const MonoTime now = MonoNow();
  history_.Advance(now);
  CollectJob(desk_.Status(), history_,
             JobCounts{.fenced = machine_.stale_dropped(),
                       .outbox = outbox_.size(),
                       .node_lease = options_.spec.dead_after,
                       .began_unix_s = began_unix_s_},
             now, page);
}

JobWatch::Hooks CoordinatorHost::WatchHooks() {
  return {.tell =
              [this](const watch::Finding& finding) {
                desk_.Note(finding);
                if (hooks_.on_finding) {
                  hooks_.on_finding(finding);
                }
              },
          .stop_world = [this](const job::WorldHangs& hangs) { Feed(hangs); },
          .keep_report = hooks_.on_report};
}

absl::Status CoordinatorHost::OpenLocalDoor() {
  const Options::Control& control = options_.control;
  if (control.folder.empty()) {
    return absl::OkStatus();
  }
  const std::string jobs = JobsFolder(control.folder);
  RETURN_IF_ERROR(MakePrivateFolder(control.folder));
  RETURN_IF_ERROR(MakePrivateFolder(jobs));
  ASSIGN_OR_RETURN(local_door_,
                   LocalDoor::Open(loop_, jobs,
                                   JobEntry{.run_id = options_.run_id,
                                            .pid = ::getpid(),
                                            .node = control.node,
                                            .endpoint = control.endpoint,
                                            .socket = "",
                                            .began_ms = absl::ToUnixMillis(absl::Now())},
                                   desk_));
  return absl::OkStatus();
}

LocalLink::Coordinator CoordinatorHost::MakeLocalLink() {
  return {.on_message = [this](const FromAgent& message) { Feed(message); },
          .on_aside = [this](Incarnation agent,
                             const v1::FromNodeAside& aside) { asides_.Hear(agent, aside); }};
}

void CoordinatorHost::SendAside(Incarnation agent, const v1::ToNodeAside& aside) {
  if (!is_silent_ && !local_link_.DeliverAside(agent, aside) && service_ != nullptr) {
    service_->SendAside(agent, aside);
  }
}

CoordinatorLink& CoordinatorHost::local_link() { return local_link_; }

void CoordinatorHost::AddConnection(UniqueFd connection) {
  if (service_ != nullptr) {
    service_->AddConnection(std::move(connection));
  }
}

void CoordinatorHost::TakeOver() {
  if (service_ != nullptr) {
    service_->TakeOver();
  }
}

bool CoordinatorHost::is_alone() const {
  return machine_.phase() == job::Phase::kRendezvous && machine_.generation() == Generation() &&
         machine_.nodes().size() <= 1;
}

void CoordinatorHost::OperatorStop(int signal) { Feed(job::OperatorStop{signal}); }

void CoordinatorHost::Replaced(const std::string& why) { Feed(job::HostReplaced{why}); }

void CoordinatorHost::PlaceChecked(MonoTime at) { Feed(job::PlaceChecked{at}); }

void CoordinatorHost::PlaceUnknown(const std::string& why) { Feed(job::PlaceUnknown{why}); }

void CoordinatorHost::AgentDied(Incarnation agent) { Feed(job::AgentDied{agent}); }

void CoordinatorHost::NoSuccessor(const std::string& node_name) {
  Feed(job::NoSuccessor{node_name});
}

void CoordinatorHost::ForwardSignal(int signal) { Feed(job::SignalForWorkers{signal}); }

void CoordinatorHost::Silence() {
  is_silent_ = true;
  watch_.Close();
  desk_.Close("this coordinator has been replaced; ask the one that has taken the job over");
  outbox_.clear();
  driver_.Stop();
}

void CoordinatorHost::Shutdown() {
  local_door_.reset();
  if (service_ != nullptr) {
    bool keeps_back = false;  // What comes later would be sent without what came before.
    for (const ToAgent& message : std::exchange(outbox_, {})) {
      keeps_back = keeps_back || !IsSure();
      if (!keeps_back || IsSafe(message)) {
        service_->Send(message);
      }
    }
    service_->Shutdown();
    LogIfAny(refusals_.Rest());
    if (machine_.stale_dropped() > 0) {
      Log(LogLevel::kInfo, absl::StrCat("refused ", machine_.stale_dropped(),
                                        " messages of agents or worlds that were replaced"));
    }
  }
}

void CoordinatorHost::Persist(const job::Record& record) {
  if (hooks_.persist) {
    hooks_.persist(record);
  }
}

void CoordinatorHost::WakeAt(MonoTime at) {
  loop_.Cancel(wake_timer_);
  if (at != MonoTime::max()) {
    wake_timer_ = loop_.At(at, [this] { Feed(job::TimerDue{}); });
  }
}

bool CoordinatorHost::IsSure() const {
  return !options_.sure_until || MonoNow() <= options_.sure_until();
}

/// Orders nothing that could be wrong by now. That a beat was heard: without it, agents would give
/// up a coordinator whose etcd is away. That all workers of a world have ended well: no other world
/// came after it.
bool CoordinatorHost::IsSafe(const ToAgent& message) const {
  return std::holds_alternative<HeartbeatHeard>(message.message) ||
         (std::holds_alternative<ReleaseAgent>(message.message) && machine_.outcome().has_value() &&
          machine_.outcome()->kind == OutcomeKind::kSucceeded);
}

/// The local agent may answer at once. A message to thousands of agents leaves the loop free for
/// their beats in between.
void CoordinatorHost::Send(ToAgent& message) {
  if (is_silent_) {
    return;
  }
  const bool is_safe = IsSafe(message);
  if (!is_safe && !IsSure()) {
    Hold();
  }
  const bool waits = is_holding_ && !is_safe;
  if (!waits && (local_link_.Deliver(message) || service_ == nullptr)) {
    return;
  }
  if (!waits && (is_holding_ || outbox_.empty()) && sent_in_step_ < kMessagesAtOnce) {
    ++sent_in_step_;
    service_->Send(message);
    return;
  }
  outbox_.push_back(std::move(message));
  SendSoon();
}

void CoordinatorHost::Hold() {
  if (!std::exchange(is_holding_, true)) {
    Log(LogLevel::kWarning,
        "the journal has not confirmed for so long that another coordinator may have taken the "
        "job over; nothing is ordered before it does");
  }
}

void CoordinatorHost::SendSoon() {
  if (std::exchange(will_send_, true)) {
    return;
  }
  if (is_holding_ && !IsSure()) {
    held_timer_ = loop_.At(MonoNow() + kHeldPause, [this] { SendSome(); });
    return;
  }
  loop_.Post([this, live = is_live_] {
    if (*live) {
      SendSome();
    }
  });
}

/// This process may have been stopped since the messages were given out, or may be stopped between
/// two of them; and the job may be surely its own again between two, too. What is held stays in
/// order and in front, and what comes after it is held with it.
void CoordinatorHost::SendSome() {
  will_send_ = false;
  std::deque<ToAgent> held;
  for (int sent = 0; sent < kMessagesAtOnce && !outbox_.empty();) {
    ToAgent message = std::move(outbox_.front());
    outbox_.pop_front();
    if (!IsSafe(message) && (!held.empty() || !IsSure())) {
      Hold();
      held.push_back(std::move(message));
      continue;
    }
    ++sent;
    if (!local_link_.Deliver(message) && service_ != nullptr) {
      service_->Send(message);
    }
  }
  if (is_silent_) {  // By what an agent has answered at once.
    return;
  }
  outbox_.insert(outbox_.begin(), std::make_move_iterator(held.begin()),
                 std::make_move_iterator(held.end()));
  if (outbox_.empty()) {
    is_holding_ = false;
  } else {
    SendSoon();
  }
}

void CoordinatorHost::Execute(job::PlaceAsked& /*asked*/) {
  if (!is_silent_) {
    hooks_.on_check_place();
  }
}

void CoordinatorHost::Hear(const job::News& news) {
  if (is_silent_) {
    return;
  }
  desk_.Note(news);
  history_.Note(news, MonoNow());
  if (hooks_.on_news) {
    hooks_.on_news(news);
  }
  std::visit([this](const auto& what) { Tell(what); }, news);
}

void CoordinatorHost::OnStepped(const job::Event& event, const job::Effects& /*effects*/) {
  sent_in_step_ = 0;
  history_.Stepped(machine_, MonoNow());
  watch_.Stepped(event);
  desk_.Stepped();
  if (hooks_.on_step) {
    hooks_.on_step();
  }
}

void CoordinatorHost::Tell(const job::Stalled& stalled) {
  if (stalled.lateness >= kStallWarning) {
    Log(LogLevel::kWarning,
        absl::StrCat("this launcher did not run for ", ToSeconds(stalled.lateness),
                     " s or longer (stopped by a signal, or its machine was suspended); every "
                     "node gets a new lease, and the job goes on"));
  }
  if (hooks_.on_stall) {
    hooks_.on_stall(stalled.lateness);
  }
}

void CoordinatorHost::Tell(const job::Warned& warned) { Log(LogLevel::kWarning, warned.text); }

void CoordinatorHost::Tell(const job::NodeQuarantined& quarantined) {
  Log(LogLevel::kWarning, DescribeQuarantine(quarantined, machine_.min_nodes()));
}

void CoordinatorHost::Tell(const job::QuarantineLifted& lifted) {
  Log(LogLevel::kWarning, absl::StrCat("node ", job::Described(lifted.node.node),
                                       " is left out no longer: ", lifted.why));
}

void CoordinatorHost::Tell(const job::QuarantineWaived& waived) {
  Log(LogLevel::kWarning,
      absl::StrCat("node ", job::Described(waived.node.node),
                   " is used all the same, although it keeps failing: ", waived.why));
}

void CoordinatorHost::Tell(const job::NodeDraining& draining) {
  Log(LogLevel::kWarning, absl::StrCat("an operator drains node ", draining.node.name, " (",
                                       draining.node.address, "): it leaves the job"));
}

void CoordinatorHost::Tell(const job::JobScaled& scaled) {
  Log(LogLevel::kWarning, absl::StrCat("an operator has set --nnodes to ", scaled.limits.min_nodes,
                                       ":", scaled.limits.max_nodes, ", before ",
                                       scaled.before.min_nodes, ":", scaled.before.max_nodes));
}

void CoordinatorHost::Tell(const job::JobFinished& finished) { hooks_.on_finish(finished.outcome); }

void RecordFindings(EventLog& log, CoordinatorHost::Hooks* hooks) {
  hooks->on_finding = [&log](const watch::Finding& finding) { log.Record(finding); };
  hooks->on_report = [&log](const std::string& name, const std::string& text) {
    return log.LeaveBeside(name, text);
  };
}

}  // namespace fsdprun
