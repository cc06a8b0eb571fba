#include "fsdpctl/doctor/pair/test_driver.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "fsdpctl/doctor/pair/round_trips.h"
#include "fsdpctl/doctor/pair/test_orders.h"
#include "fsdpctl/doctor/pair/transfer.h"
#include "fsdpctl/doctor/report_json.h"

namespace fsdprun::doctor {
namespace {

constexpr int kTrips = 200;
constexpr Duration kTripTime = std::chrono::seconds(1);
constexpr std::chrono::milliseconds kRateTime(500);

int64_t WallNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// Of the first `count` connections.
std::vector<int> Numbers(const std::vector<UniqueFd>& sockets, size_t count) {
  std::vector<int> numbers;
  for (const UniqueFd& socket : sockets) {
    if (numbers.size() < count) {
      numbers.push_back(socket.get());
    }
  }
  return numbers;
}

double RateOf(const Message& done) {
  return Transferred{.bytes = static_cast<uint64_t>(std::max<int64_t>(0, done.Number("bytes"))),
                     .time = Duration(done.Number("ns"))}
      .bits_per_second();
}

/// Why a connection could not be made, in words for it.
std::string WhyOf(const absl::Status& status) {
  return absl::IsDeadlineExceeded(status)
             ? "no answer within 3 s (a firewall drops the packets, or there is no way)"
             : std::string(status.message());
}

}  // namespace

TestDriver::TestDriver(Link link, Setup setup)
    : link_(std::move(link)), setup_(std::move(setup)), facts_(setup_.facts) {
  link_.Trust();
}

void TestDriver::Run(PairFacts* facts, NodeReport* other) {
  if (const absl::Status tested = Test(); !tested.ok()) {
    facts_.broken = std::string(tested.message());
  }
  *facts = facts_;
  Message answer;
  if (!Ask({kEnd, {{"facts", PairFactsText(facts_)}}}, &answer).ok()) {
    return;
  }
  if (std::optional<NodeReport> report = ParseNodeReport(answer.Text("report"))) {
    *other = *std::move(report);
    other->node = facts_.node;
  }
}

absl::Status TestDriver::Ask(const Message& order, Message* answer) {
  const MonoTime deadline = MonoNow() + kOrderPatience;
  RETURN_IF_ERROR(link_.Send(order, deadline));
  ASSIGN_OR_RETURN(*answer, link_.Receive(deadline));
  return absl::OkStatus();
}

absl::Status TestDriver::Test() {
  RETURN_IF_ERROR(Introduce());
  RETURN_IF_ERROR(MeasureTrips());
  RETURN_IF_ERROR(OpenStreams());
  if (streams_.empty()) {
    return absl::UnavailableError("no further connection could be made");
  }
  RETURN_IF_ERROR(TryLargeMessages());
  const bool can_go_on =
      facts_.large_to.arrived == kLargeBytes && facts_.large_from.arrived == kLargeBytes;
  return can_go_on ? MeasureRates() : absl::OkStatus();
}

absl::Status TestDriver::Introduce() {
  Message node;
  RETURN_IF_ERROR(Ask({kTurn, {}}, &node));
  // The same rules for what another node says as for its report.
  const std::optional<PairFacts> said = ParsePairFacts(node.Text("facts"));
  if (node.kind != kNode || !said.has_value()) {
    return absl::UnavailableError("it does not say who it is");
  }
  facts_.node = said->own_node;
  facts_.release = said->own_release;
  facts_.protocol = said->own_protocol;
  facts_.mtu = said->own_mtu;
  facts_.back_is_to_other = true;
  return TryWaysBack(node);
}

void TestDriver::TryBack(const std::string& address, uint16_t port, Attempt* attempt) {
  const NumericEndpoint endpoint{address, port};
  attempt->address = ToString(endpoint);
  const MonoTime deadline = MonoNow() + kConnectPatience;
  absl::StatusOr<UniqueFd> socket =
      ConnectTo(endpoint, SegmentSize::kSmall, deadline, setup_.stop_fd);
  absl::Status status = socket.status();
  if (status.ok()) {
    Link back(*std::move(socket), setup_.stop_fd);
    status = back.Send(BackProof(setup_.token, kForBack, setup_.nonces), deadline);
    const absl::StatusOr<Message> here = back.Receive(deadline);
    if (!here.ok() || !ProvesBack(setup_.token, kForHere, setup_.nonces, *here)) {
      status = absl::UnavailableError("somebody else answers there");
    }
  }
  attempt->error = status.ok() ? "" : WhyOf(status);
}

absl::Status TestDriver::TryWaysBack(const Message& node) {
  const int64_t port = node.Number("port");
  if (port <= 0 || port > 65535) {
    return absl::OkStatus();
  }
  TryBack(facts_.address, static_cast<uint16_t>(port), &facts_.back);
  const std::string by_name = node.Text("name_address");
  if (IsNumericAddress(by_name) && by_name != facts_.address) {
    TryBack(by_name, static_cast<uint16_t>(port), &facts_.back_by_name);
  }
  return absl::OkStatus();
}

absl::Status TestDriver::MeasureTrips() {
  std::vector<TripSample> samples;
  const MonoTime end = MonoNow() + kTripTime;
  while (samples.size() < kTrips && MonoNow() < end) {
    TripSample sample{.asked = WallNow()};
    Message pong;
    RETURN_IF_ERROR(Ask({kPing, {}}, &pong));
    sample.answered = WallNow();
    sample.other_heard = pong.Number("heard");
    sample.other_answered = pong.Number("answered");
    samples.push_back(sample);
  }
  facts_.round_trips = Summarised(samples);
  return absl::OkStatus();
}

absl::Status TestDriver::OpenStreams() {
  RETURN_IF_ERROR(link_.Send({kConnect, {{"streams", absl::StrCat(kManyStreams)}}},
                             MonoNow() + kOrderPatience));
  streams_ = setup_.take_streams(kManyStreams, MonoNow() + 2 * kConnectPatience);
  facts_.streams = static_cast<int>(streams_.size());
  return link_.Receive(MonoNow() + kOrderPatience).status();
}

absl::Status TestDriver::TryLargeMessages() {
  const std::vector<int> one = Numbers(streams_, 1);
  Message done;
  const TransferSize size{.bytes = kLargeBytes};
  const std::string bytes = absl::StrCat(kLargeBytes);
  RETURN_IF_ERROR(
      link_.Send({kTake, {{"streams", "1"}, {"bytes", bytes}}}, MonoNow() + kOrderPatience));
  SendOver(one, size, setup_.stop_fd);
  ASSIGN_OR_RETURN(done, link_.Receive(MonoNow() + kOrderPatience));
  facts_.large_to = {.was_sent = true,
                     .stalled = done.Number("stalled") != 0,
                     .arrived = static_cast<uint64_t>(std::max<int64_t>(0, done.Number("bytes")))};
  facts_.to.one_stream = facts_.large_to.stalled ? 0 : RateOf(done);
  RETURN_IF_ERROR(
      link_.Send({kGive, {{"streams", "1"}, {"bytes", bytes}}}, MonoNow() + kOrderPatience));
  const Transferred from = ReceiveOver(one, size, setup_.stop_fd);
  facts_.large_from = {.was_sent = true, .stalled = from.stalled, .arrived = from.bytes};
  facts_.from.one_stream = from.stalled ? 0 : from.bits_per_second();
  return link_.Receive(MonoNow() + kOrderPatience).status();
}

absl::Status TestDriver::MeasureRates() {
  const TransferSize size{.time = kRateTime};
  const std::string ms = absl::StrCat(kRateTime.count());
  for (const int count : {1, facts_.streams}) {
    const std::vector<int> sockets = Numbers(streams_, static_cast<size_t>(count));
    const std::string streams = absl::StrCat(count);
    Message done;
    RETURN_IF_ERROR(
        link_.Send({kTake, {{"streams", streams}, {"ms", ms}}}, MonoNow() + kOrderPatience));
    SendOver(sockets, size, setup_.stop_fd);
    ASSIGN_OR_RETURN(done, link_.Receive(MonoNow() + kOrderPatience));
    (count == 1 ? facts_.to.one_stream : facts_.to.many_streams) = RateOf(done);
    RETURN_IF_ERROR(
        link_.Send({kGive, {{"streams", streams}, {"ms", ms}}}, MonoNow() + kOrderPatience));
    const Transferred from = ReceiveOver(sockets, size, setup_.stop_fd);
    (count == 1 ? facts_.from.one_stream : facts_.from.many_streams) = from.bits_per_second();
    ASSIGN_OR_RETURN(done, link_.Receive(MonoNow() + kOrderPatience));
    facts_.from.segments = static_cast<uint64_t>(std::max<int64_t>(0, done.Number("segments")));
    facts_.from.retransmitted = static_cast<uint64_t>(std::max<int64_t>(0, done.Number("again")));
  }
  const SegmentCounts counts = CountSegments(Numbers(streams_, streams_.size()));
  facts_.to.segments = counts.sent;
  facts_.to.retransmitted = counts.retransmitted;
  return absl::OkStatus();
}

}  // namespace fsdprun::doctor
