#include "fsdpctl/doctor/pair/test_guest.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/rpc/call_proof.h"
#include "base/status_macros.h"
#include "fsdpctl/doctor/pair/test_orders.h"
#include "fsdpctl/doctor/pair/transfer.h"
#include "fsdpctl/doctor/report_json.h"
#include "launcher/directory/job_token.h"
#include "launcher/directory/listener.h"

namespace fsdprun::doctor {
namespace {

constexpr Duration kAttempt = std::chrono::seconds(5);
constexpr Duration kPause = std::chrono::milliseconds(300);
/// The host may be in the middle of another node's test.
constexpr Duration kProofPatience = std::chrono::seconds(60);
/// For the turn of this node, or until it is told to wait on, which is every half minute or with
/// each test of another node.
constexpr Duration kTurnPatience = std::chrono::minutes(5);
constexpr Duration kBackPatience = std::chrono::seconds(10);
constexpr size_t kNonceBytesOfGuest = 32;
constexpr int kMostStreams = 64;
constexpr Duration kLongestTransfer = std::chrono::seconds(5);

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string Seconds(Duration duration) { return absl::StrCat(ToSeconds(duration), " s"); }

}  // namespace

absl::StatusOr<PairFacts> TestGuest::Run(JoinFailure* failure) {
  *failure = JoinFailure::kBroken;
  ASSIGN_OR_RETURN(UniqueFd socket, Reach(failure));
  ASSIGN_OR_RETURN(Link link, Prove(std::move(socket), "", &nonces_, failure));
  link.Trust();
  absl::StatusOr<PairFacts> facts = Obey(std::move(link));
  if (absl::IsCancelled(facts.status())) {
    *failure = JoinFailure::kInterrupted;
  }
  return facts;
}

absl::StatusOr<UniqueFd> TestGuest::Reach(JoinFailure* failure) {
  const MonoTime end = MonoNow() + options_.patience;
  for (;;) {
    absl::Status why = absl::UnavailableError("it has no address");
    for (const NumericEndpoint& endpoint : options_.endpoints) {
      absl::StatusOr<UniqueFd> socket =
          ConnectTo(endpoint, SegmentSize::kSmall, MonoNow() + kAttempt, options_.stop_fd);
      if (socket.ok()) {
        host_ = endpoint;
        return socket;
      }
      why = socket.status();
    }
    const bool is_silent = absl::IsDeadlineExceeded(why);
    *failure = absl::IsCancelled(why) ? JoinFailure::kInterrupted
               : is_silent            ? JoinFailure::kSilent
                                      : JoinFailure::kRefused;
    // Nothing tells when somebody begins to listen there.
    if (absl::IsCancelled(why) || MonoNow() + kPause >= end ||
        absl::IsCancelled(WaitFor(-1, 0, MonoNow() + kPause, options_.stop_fd))) {
      return absl::UnavailableError(absl::StrCat("cannot connect to ", options_.endpoint_text,
                                                 " within ", Seconds(options_.patience), ": ",
                                                 why.message()));
    }
  }
}

absl::StatusOr<Link> TestGuest::Prove(UniqueFd socket, const std::string& test, PairNonces* nonces,
                                      JoinFailure* failure) const {
  const auto refusal = [&](JoinFailure kind, absl::string_view why) {
    *failure = kind;
    return absl::PermissionDeniedError(absl::StrCat(options_.endpoint_text, ": ", why));
  };
  Link link(std::move(socket), options_.stop_fd);
  const MonoTime deadline = MonoNow() + kProofPatience;
  nonces->comer = RandomHex(kNonceBytesOfGuest);
  RETURN_IF_ERROR(link.Send(Hello(nonces->comer, test), deadline));
  absl::StatusOr<Message> answer = link.Receive(deadline);
  if (!answer.ok() || (answer->kind != "challenge" && answer->kind != "refused")) {
    return refusal(
        absl::IsCancelled(answer.status()) ? JoinFailure::kInterrupted : JoinFailure::kOtherProgram,
        "who listens there is no fsdpctl doctor");
  }
  if (answer->kind == "refused") {
    return refusal(JoinFailure::kOtherVersion, "fsdpctl doctor there is of another release");
  }
  nonces->listener = answer->Text("nonce");
  const std::string purpose = test.empty() ? kForTest : ForStream(test);
  RETURN_IF_ERROR(
      link.Send({"proof", {{"mac", PairProof(options_.token, purpose, *nonces)}}}, deadline));
  answer = link.Receive(deadline);
  const bool is_proven =
      answer.ok() && answer->kind == "welcome" &&
      IsSameSecret(answer->Text("mac"), PairProof(options_.token, kForAnswer, *nonces));
  if (!is_proven) {
    return absl::IsCancelled(answer.status())
               ? refusal(JoinFailure::kInterrupted, "interrupted")
               : refusal(JoinFailure::kOtherToken, "the node there has another token");
  }
  return link;
}

absl::StatusOr<PairFacts> TestGuest::Obey(Link link) {
  for (Duration patience = kTurnPatience;;) {
    ASSIGN_OR_RETURN(const Message order, link.Receive(MonoNow() + patience));
    const int64_t heard = Now();
    if (order.kind == kWait) {
      continue;
    }
    patience = 3 * kOrderPatience;
    const MonoTime deadline = MonoNow() + kOrderPatience;
    if (order.kind == kPing) {
      RETURN_IF_ERROR(link.Send(
          {kPong, {{"heard", absl::StrCat(heard)}, {"answered", absl::StrCat(Now())}}}, deadline));
    } else if (order.kind == kTurn) {
      RETURN_IF_ERROR(Introduce(&link));
    } else if (order.kind == kConnect) {
      OpenStreams(static_cast<int>(std::clamp<int64_t>(order.Number("streams"), 0, kMostStreams)));
      RETURN_IF_ERROR(link.Send({kDone, {}}, deadline));
    } else if (order.kind == kTake || order.kind == kGive) {
      const Message done = Move(order);
      RETURN_IF_ERROR(link.Send(done, MonoNow() + kOrderPatience));
    } else if (order.kind == kEnd) {
      RETURN_IF_ERROR(
          link.Send({kReport, {{"report", NodeReportText(options_.report)}}}, deadline));
      const std::optional<PairFacts> facts = ParsePairFacts(order.Text("facts"));
      return facts.has_value()
                 ? absl::StatusOr<PairFacts>(Mirrored(*facts))
                 : absl::UnavailableError("the node that listens does not say what it has found");
    } else {
      return absl::UnavailableError("the node that listens asks for something unknown");
    }
  }
}

absl::Status TestGuest::Introduce(Link* link) {
  const absl::StatusOr<UniqueFd> listener = BindListener({"::", 0});
  const uint16_t port = listener.ok() ? PortOf(*listener).value_or(0) : uint16_t{0};
  PairFacts own = options_.own;
  own.own_mtu = options_.mtu_of(OwnAddressOf(link->socket()));
  RETURN_IF_ERROR(link->Send({kNode,
                              {{"facts", PairFactsText(own)},
                               {"port", absl::StrCat(port)},
                               {"name_address", options_.name_address}}},
                             MonoNow() + kOrderPatience));
  if (listener.ok()) {
    AwaitBack(link, *listener);
  }
  return absl::OkStatus();
}

// Until the host goes on, or for as long as it may try.
void TestGuest::AwaitBack(Link* link, const UniqueFd& listener) const {
  const MonoTime end = MonoNow() + kBackPatience;
  while (MonoNow() < end) {
    pollfd polled[3] = {{.fd = listener.get(), .events = POLLIN, .revents = 0},
                        {.fd = link->fd(), .events = POLLIN, .revents = 0},
                        {.fd = options_.stop_fd, .events = POLLIN, .revents = 0}};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - MonoNow()).count();
    ::poll(polled, 3, static_cast<int>(std::max<int64_t>(left, 0)));
    if (polled[0].revents != 0) {
      UniqueFd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (socket.valid()) {
        AnswerBack(std::move(socket));
      }
    } else if (polled[1].revents != 0 || polled[2].revents != 0) {
      return;
    }
  }
}

void TestGuest::AnswerBack(UniqueFd socket) const {
  Link back(std::move(socket), options_.stop_fd);
  const MonoTime deadline = MonoNow() + kConnectPatience;
  const absl::StatusOr<Message> message = back.Receive(deadline);
  if (message.ok() && ProvesBack(options_.token, kForBack, nonces_, *message)) {
    back.Send(BackProof(options_.token, kForHere, nonces_), deadline).IgnoreError();
  }
}

void TestGuest::OpenStreams(int count) {
  streams_.clear();
  for (int i = 0; i < count; ++i) {
    absl::StatusOr<UniqueFd> socket =
        ConnectTo(host_, SegmentSize::kUsual, MonoNow() + kConnectPatience, options_.stop_fd);
    if (!socket.ok()) {
      return;
    }
    PairNonces nonces;
    JoinFailure failure = JoinFailure::kBroken;
    absl::StatusOr<Link> link = Prove(*std::move(socket), nonces_.listener, &nonces, &failure);
    if (!link.ok()) {
      return;
    }
    streams_.push_back(link->Release());
  }
}

Message TestGuest::Move(const Message& order) {
  const auto most = static_cast<int64_t>(kLargeBytes);
  const TransferSize size{
      .bytes = static_cast<uint64_t>(std::clamp<int64_t>(order.Number("bytes"), 0, most)),
      .time = std::min<Duration>(
          std::chrono::milliseconds(std::clamp<int64_t>(order.Number("ms"), 0, 60'000)),
          kLongestTransfer)};
  std::vector<int> sockets;
  for (const UniqueFd& socket : streams_) {
    if (static_cast<int64_t>(sockets.size()) < order.Number("streams")) {
      sockets.push_back(socket.get());
    }
  }
  Transferred moved;
  if (order.kind == kTake) {
    moved = ReceiveOver(sockets, size, options_.stop_fd);
  } else {
    SendOver(sockets, size, options_.stop_fd);
  }
  const SegmentCounts counts = CountSegments(sockets);
  return {kDone,
          {{"bytes", absl::StrCat(moved.bytes)},
           {"ns", absl::StrCat(moved.time.count())},
           {"stalled", moved.stalled ? "1" : "0"},
           {"segments", absl::StrCat(counts.sent)},
           {"again", absl::StrCat(counts.retransmitted)}}};
}

}  // namespace fsdprun::doctor
