#include "fsdpctl/doctor/pair/meeting.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/rpc/call_proof.h"
#include "base/status_macros.h"
#include "fsdpctl/doctor/checks/pair_checks.h"
#include "fsdpctl/doctor/pair/test_guest.h"
#include "fsdpctl/doctor/pair/test_host.h"
#include "launcher/directory/host_facts.h"
#include "launcher/directory/job_token.h"
#include "launcher/directory/listener.h"
#include "launcher/directory/user_secret.h"
#include "proto/cluster/build_info.h"

namespace fsdprun::doctor {
namespace {

constexpr Duration kFewSeconds = std::chrono::seconds(10);

/// Carries one meeting out.
class Meeting {
 public:
  Meeting(const MeetingSetup& setup, DoctorReport* report)
      : setup_(setup), options_(*setup.options), report_(report) {}

  bool Run();

 private:
  absl::Status TakeToken();
  absl::StatusOr<HostView> LookAtEndpoint() const;
  bool Host(std::vector<UniqueFd> listeners);
  bool Go(const std::vector<std::string>& addresses);
  void Fail(JoinFailure failure, absl::string_view text);
  PairFacts Own() const;
  int MtuOfAddress(const std::string& address) const;
  bool IsStopped() const;

  const MeetingSetup& setup_;
  const DoctorOptions& options_;
  DoctorReport* const report_;
  std::string token_;
};

bool Meeting::Run() {
  if (const absl::Status token = TakeToken(); !token.ok()) {
    Fail(JoinFailure::kOtherToken, token.message());
    return false;
  }
  HostView view{.is_own = true, .addresses = {}, .listen_on = {"::"}};
  if (options_.role != PairRole::kListen) {
    absl::StatusOr<HostView> found = LookAtEndpoint();
    if (!found.ok()) {
      Fail(
          absl::IsCancelled(found.status()) ? JoinFailure::kInterrupted : JoinFailure::kUnknownHost,
          found.status().message());
      return false;
    }
    view = *std::move(found);
  }
  const bool may_host =
      options_.role == PairRole::kListen || (options_.role == PairRole::kMeet && view.is_own);
  if (!may_host) {
    return Go(view.addresses);
  }
  absl::StatusOr<std::vector<UniqueFd>> listeners = BindListeners(view.listen_on, options_.port);
  if (listeners.ok()) {
    return Host(*std::move(listeners));
  }
  // Another node of the same machine may have been first.
  if (options_.role == PairRole::kMeet && absl::IsAlreadyExists(listeners.status())) {
    return Go(view.addresses);
  }
  const std::string holder = PortHolder(options_.port);
  Fail(JoinFailure::kOtherProgram,
       absl::StrCat(listeners.status().message(),
                    holder.empty() ? "" : absl::StrCat(" (held by ", holder, ")")));
  return false;
}

absl::Status Meeting::TakeToken() {
  LaunchPlan plan = options_.place;
  plan.token_file = options_.token_file;
  plan.takes_anybody = options_.takes_anybody;
  ASSIGN_OR_RETURN(token_, TokenOf(plan, setup_.environment));
  if (token_.empty()) {
    ASSIGN_OR_RETURN(UserSecret secret, LoadUserSecret(setup_.environment));
    token_ = std::move(secret.value);
    if (secret.is_new) {
      setup_.notify(absl::StrCat("made a secret for this user, as a job would: ", secret.path));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<HostView> Meeting::LookAtEndpoint() const {
  return LookAtHost(options_.place.endpoint.host,
                    {.plan = options_.place,
                     .environment = setup_.environment,
                     .is_cancelled = [this] { return IsStopped(); },
                     .notify = setup_.notify},
                    options_.patience.value_or(kFewSeconds));
}

bool Meeting::Host(std::vector<UniqueFd> listeners) {
  setup_.notify(absl::StrCat(
      "waiting for ",
      options_.nodes == 0 ? "other nodes" : absl::StrCat(options_.nodes - 1, " more"), " at port ",
      options_.port,
      options_.role == PairRole::kListen && options_.place.endpoint.host.empty()
          ? absl::StrCat(": there, fsdpctl doctor --with ", report_->own.node, ":", options_.port)
          : ""));
  TestHost host({.token = token_,
                 .listeners = std::move(listeners),
                 .nodes = options_.nodes,
                 .patience = options_.patience,
                 .own = Own(),
                 .mtu_of = [this](const std::string& address) { return MtuOfAddress(address); },
                 .stop_fd = setup_.stop_fd,
                 .notify = setup_.notify});
  for (TestHost::Tested& tested : host.Run()) {
    std::vector<Finding> findings = CheckPair(tested.facts);
    report_->pairs.push_back(
        {std::move(tested.facts), std::move(findings), std::move(tested.other)});
  }
  report_->meeting = CheckMeeting(host.meeting());
  return false;
}

bool Meeting::Go(const std::vector<std::string>& addresses) {
  std::vector<NumericEndpoint> endpoints;
  endpoints.reserve(addresses.size());
  for (const std::string& address : addresses) {
    endpoints.push_back({address, options_.port});
  }
  TestGuest guest({.token = token_,
                   .endpoints = std::move(endpoints),
                   .endpoint_text = ToString(options_.place.endpoint),
                   .patience = options_.patience.value_or(kFewSeconds),
                   .own = Own(),
                   .mtu_of = [this](const std::string& address) { return MtuOfAddress(address); },
                   .name_address = setup_.name_address,
                   .report = report_->own,
                   .stop_fd = setup_.stop_fd});
  JoinFailure failure = JoinFailure::kBroken;
  absl::StatusOr<PairFacts> facts = guest.Run(&failure);
  if (!facts.ok()) {
    Fail(failure, facts.status().message());
    return false;
  }
  facts->address = options_.place.endpoint.host;
  std::vector<Finding> findings = CheckPair(*facts);
  report_->pairs.push_back({*std::move(facts), std::move(findings), {}});
  return options_.leaves_printing;
}

void Meeting::Fail(JoinFailure failure, absl::string_view text) {
  report_->meeting =
      CheckJoining({.failure = failure,
                    .endpoint = ToString(HostPort{options_.place.endpoint.host, options_.port}),
                    .text = std::string(text)});
}

PairFacts Meeting::Own() const {
  return {.own_node = report_->own.node, .own_release = kRelease, .own_protocol = kProtocol};
}

int Meeting::MtuOfAddress(const std::string& address) const {
  for (const InterfaceFacts& each : setup_.interfaces) {
    if (std::find(each.addresses.begin(), each.addresses.end(), address) != each.addresses.end()) {
      return each.mtu;
    }
  }
  return 0;
}

bool Meeting::IsStopped() const {
  pollfd polled{.fd = setup_.stop_fd, .events = POLLIN, .revents = 0};
  return ::poll(&polled, 1, 0) > 0;
}

}  // namespace

bool MeetNodes(const MeetingSetup& setup, DoctorReport* report) {
  return Meeting(setup, report).Run();
}

}  // namespace fsdprun::doctor
