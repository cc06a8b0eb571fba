#include "launcher/run/head_coordinator.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "launcher/directory/free_port.h"
#include "launcher/directory/host_lookup.h"
#include "launcher/directory/job_token.h"
#include "launcher/directory/private_folder.h"
#include "launcher/run/coordinator_port.h"
#include "launcher/run/job_spec.h"
#include "launcher/run/notices.h"
#include "launcher/run/tls_setup.h"

namespace fsdprun {
namespace {

constexpr size_t kTokenBytes = 32;

}  // namespace

HeadCoordinator::HeadCoordinator(EventLoop& loop, const LaunchPlan& plan,
                                 const Environment& environment, const Clocks& clocks, Hooks hooks)
    : loop_(loop),
      plan_(plan),
      environment_(environment),
      clocks_(clocks),
      hooks_(std::move(hooks)),
      events_(loop, {plan.rdzv_id, HostName()}) {}

HeadCoordinator::~HeadCoordinator() { events_.Finish(MonoNow() + EventLog::kPatience); }

absl::Status HeadCoordinator::Start(const std::string& token) {
  ASSIGN_OR_RETURN(tls_, MakeTls(plan_));
  RETURN_IF_ERROR(CheckCanServe(tls_.get()));
  ASSIGN_OR_RETURN(place_, HostOnFreePort({plan_, environment_}));
  place_.token.value = token;
  if (token.empty()) {
    ASSIGN_OR_RETURN(place_.token.value, TokenOf(plan_, environment_));
  }
  if (place_.token.value.empty()) {
    place_.token.value = RandomHex(kTokenBytes);
  }
  CoordinatorHost::Hooks hooks;
  hooks.on_finish = hooks_.on_finish;
  hooks.on_step = hooks_.on_step;
  events_.OpenForCoordinator(plan_);
  hooks.on_news = [this](const job::News& news) {
    if (const auto* node = std::get_if<job::NodeJoined>(&news)) {
      joined_.insert(node->node.name);
      drained_.erase(node->node.name);
    } else if (const auto* draining = std::get_if<job::NodeDraining>(&news)) {
      drained_.insert(draining->node.name);
    }
    events_.Record(news, host_->history().ledger());
  };
  RecordFindings(events_, &hooks);
  host_ = std::make_unique<CoordinatorHost>(
      loop_,
      CoordinatorHost::Options{.spec = MakeJobSpec(plan_, clocks_),
                               .run_id = plan_.rdzv_id,
                               .token = place_.token.value,
                               .stream_silence = clocks_.stream_silence,
                               .tls = tls_,
                               .watch = MakeWatchOptions(plan_),
                               .control = {.folder = RuntimeFolder(environment_),
                                           .node = HostName(),
                                           .endpoint = place_.where()}},
      std::move(hooks));
  StoreServer::Limits limits;
  limits.only_hands_over = true;  // The nodes have the store among them.
  door_ = std::make_unique<StoreServer>(
      loop_, limits, [this](UniqueFd connection) { host_->AddConnection(std::move(connection)); });
  for (UniqueFd& listener : place_.listeners) {
    RETURN_IF_ERROR(door_->ListenOn(std::move(listener)).status());
  }
  place_.listeners.clear();
  // Who speaks here for nodes that cannot takes no answers.
  host_->local_link().SetCallbacks({[] {}, [](const ToAgent&) {}, [](const LinkLoss&) {}});
  host_->local_link().Open(/*patience=*/1);
  health_port_ = OpenCoordinatorPort(loop_, environment_, plan_.rdzv_id, *host_);
  return host_->Start();
}

const std::set<std::string>& HeadCoordinator::connected() const {
  return connected_.Get(machine().revision(), [this] {
    std::set<std::string> names;
    for (const job::Node& node : machine().nodes()) {
      if (node.connected) {
        names.insert(node.info.name);
      }
    }
    return names;
  });
}

void HeadCoordinator::CannotRun(const std::string& node, const std::string& why) {
  AgentJoined joined;
  joined.node.incarnation = Incarnation(1);
  joined.node.name = node;
  joined.cannot_run = why;
  host_->local_link().Send({joined.node.incarnation, Generation(), joined});
}

std::string HeadCoordinator::WaitText() const {
  const JobMachine& job = machine();
  if (job.is_pausing()) {
    return std::string(job.reason());
  }
  if (job.phase() != job::Phase::kRendezvous) {
    return "";
  }
  return absl::StrCat(std::string(job.reason()), " (",
                      DescribeWait(job.join_deadline(), plan_.join_timeout, MonoNow()), ")");
}

}  // namespace fsdprun
