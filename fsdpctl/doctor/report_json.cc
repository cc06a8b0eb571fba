#include "fsdpctl/doctor/report_json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

namespace fsdprun::doctor {
namespace {

using json = nlohmann::ordered_json;

constexpr int kReportVersion = 1;
/// Of what another node says.
constexpr size_t kMostText = 2000;
constexpr size_t kMostFindings = 300;

std::string Dumped(const json& object) {
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

json FindingJson(const Finding& finding) {
  return {{"group", GroupName(finding.group)},
          {"check", finding.check},
          {"severity", SeverityName(finding.severity)},
          {"found", finding.found},
          {"why", finding.why},
          {"what_to_do", finding.what_to_do}};
}

json FindingsJson(const std::vector<Finding>& findings) {
  json list = json::array();
  for (const Finding& finding : findings) {
    list.push_back(FindingJson(finding));
  }
  return list;
}

json NodeJson(const NodeReport& report) {
  return {{"node", report.node},
          {"release", report.release},
          {"findings", FindingsJson(report.findings)}};
}

/// Nothing for what was not measured.
json Measured(double value) { return value > 0 ? json(value) : json(nullptr); }

json AttemptJson(const Attempt& attempt) {
  if (attempt.address.empty()) {
    return nullptr;
  }
  return {{"address", attempt.address}, {"error", attempt.error}};
}

json LargeJson(const LargeMessage& large) {
  return large.was_sent ? json(large.arrived) : json(nullptr);
}

json PairJson(const PairReport& pair) {
  const PairFacts& facts = pair.facts;
  const RoundTrips& trips = facts.round_trips;
  const bool is_timed = trips.count > 0;
  return {{"node", facts.node},
          {"address", facts.address},
          {"release", facts.release.empty() ? json(nullptr) : json(facts.release)},
          {"protocol", facts.protocol > 0 ? json(facts.protocol) : json(nullptr)},
          {"mtu", facts.mtu > 0 ? json(facts.mtu) : json(nullptr)},
          {"round_trip_median_us", is_timed ? json(trips.median_us) : json(nullptr)},
          {"round_trip_p99_us", is_timed ? json(trips.p99_us) : json(nullptr)},
          {"clock_offset_us", is_timed ? json(trips.clock_offset_us) : json(nullptr)},
          {"clock_error_us", is_timed ? json(trips.clock_error_us) : json(nullptr)},
          {"back", AttemptJson(facts.back)},
          {"back_by_name", AttemptJson(facts.back_by_name)},
          {"large_to_bytes", LargeJson(facts.large_to)},
          {"large_from_bytes", LargeJson(facts.large_from)},
          {"streams", is_timed ? json(facts.streams) : json(nullptr)},
          {"to_bits_per_s", Measured(facts.to.one_stream)},
          {"from_bits_per_s", Measured(facts.from.one_stream)},
          {"to_bits_per_s_streams", Measured(facts.to.many_streams)},
          {"from_bits_per_s_streams", Measured(facts.from.many_streams)},
          {"findings", FindingsJson(pair.findings)}};
}

// What another node says: nothing that is missing or of another kind is an error, but a default.

std::string TextIn(const json& object, const char* key) {
  const auto found = object.find(key);
  std::string text = found != object.end() && found->is_string() ? found->get<std::string>() : "";
  text.resize(std::min(text.size(), kMostText));
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return text;
}

double NumberIn(const json& object, const char* key) {
  const auto found = object.find(key);
  const double number = found != object.end() && found->is_number() ? found->get<double>() : 0;
  return std::isfinite(number) && std::abs(number) < 1e18 ? number : 0;
}

uint64_t CountIn(const json& object, const char* key) {
  return static_cast<uint64_t>(std::max(0.0, NumberIn(object, key)));
}

uint32_t SmallIn(const json& object, const char* key) {
  constexpr uint64_t kMost = 1'000'000;
  return static_cast<uint32_t>(std::min(CountIn(object, key), kMost));
}

bool FlagIn(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_boolean() && found->get<bool>();
}

json Parsed(absl::string_view text) {
  return json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

json ObjectIn(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_object() ? *found : json::object();
}

Finding FindingIn(const json& object) {
  Finding finding{.check = TextIn(object, "check"),
                  .found = TextIn(object, "found"),
                  .why = TextIn(object, "why"),
                  .what_to_do = TextIn(object, "what_to_do")};
  for (const CheckGroup group : kAllGroups) {
    finding.group = TextIn(object, "group") == GroupName(group) ? group : finding.group;
  }
  for (const Severity severity : {Severity::kNote, Severity::kWarning, Severity::kProblem}) {
    const bool is_so = TextIn(object, "severity") == SeverityName(severity);
    finding.severity = is_so ? severity : finding.severity;
  }
  return finding;
}

json RatesJson(const Rates& rates) {
  return {{"one", rates.one_stream},
          {"many", rates.many_streams},
          {"segments", rates.segments},
          {"again", rates.retransmitted}};
}

Rates RatesIn(const json& object) {
  return {NumberIn(object, "one"), NumberIn(object, "many"), CountIn(object, "segments"),
          CountIn(object, "again")};
}

json TripsJson(const RoundTrips& trips) {
  return {{"count", trips.count},
          {"median", trips.median_us},
          {"p99", trips.p99_us},
          {"offset", trips.clock_offset_us},
          {"error", trips.clock_error_us}};
}

RoundTrips TripsIn(const json& object) {
  return {static_cast<int>(SmallIn(object, "count")), NumberIn(object, "median"),
          NumberIn(object, "p99"), NumberIn(object, "offset"), NumberIn(object, "error")};
}

json LargeFactsJson(const LargeMessage& large) {
  return {{"sent", large.was_sent}, {"stalled", large.stalled}, {"arrived", large.arrived}};
}

LargeMessage LargeIn(const json& object) {
  return {FlagIn(object, "sent"), FlagIn(object, "stalled"), CountIn(object, "arrived")};
}

Attempt AttemptIn(const json& object) {
  return {TextIn(object, "address"), TextIn(object, "error")};
}

}  // namespace

std::string ReportJson(const DoctorReport& report) {
  json pairs = json::array();
  json nodes = json::array();
  for (const PairReport& pair : report.pairs) {
    pairs.push_back(PairJson(pair));
    if (!pair.other.node.empty()) {
      nodes.push_back(NodeJson(pair.other));
    }
  }
  return Dumped({{"v", kReportVersion},
                 {"node", report.own.node},
                 {"release", report.own.release},
                 {"worst", SeverityName(WorstOf(report))},
                 {"findings", FindingsJson(report.own.findings)},
                 {"meeting", FindingsJson(report.meeting)},
                 {"pairs", std::move(pairs)},
                 {"nodes", std::move(nodes)}});
}

std::string NodeReportText(const NodeReport& report) { return Dumped(NodeJson(report)); }

std::optional<NodeReport> ParseNodeReport(absl::string_view text) {
  const json object = Parsed(text);
  if (!object.is_object()) {
    return std::nullopt;
  }
  NodeReport report{.node = TextIn(object, "node"), .release = TextIn(object, "release")};
  const auto findings = object.find("findings");
  if (report.node.empty() || findings == object.end() || !findings->is_array()) {
    return std::nullopt;
  }
  for (const json& finding : *findings) {
    if (finding.is_object() && report.findings.size() < kMostFindings) {
      report.findings.push_back(FindingIn(finding));
    }
  }
  return report;
}

std::string PairFactsText(const PairFacts& facts) {
  return Dumped({{"own_node", facts.own_node},
                 {"own_release", facts.own_release},
                 {"own_protocol", facts.own_protocol},
                 {"own_mtu", facts.own_mtu},
                 {"node", facts.node},
                 {"release", facts.release},
                 {"protocol", facts.protocol},
                 {"mtu", facts.mtu},
                 {"address", facts.address},
                 {"trips", TripsJson(facts.round_trips)},
                 {"back_is_to_other", facts.back_is_to_other},
                 {"back", {{"address", facts.back.address}, {"error", facts.back.error}}},
                 {"back_by_name",
                  {{"address", facts.back_by_name.address}, {"error", facts.back_by_name.error}}},
                 {"large_to", LargeFactsJson(facts.large_to)},
                 {"large_from", LargeFactsJson(facts.large_from)},
                 {"streams", facts.streams},
                 {"to", RatesJson(facts.to)},
                 {"from", RatesJson(facts.from)},
                 {"broken", facts.broken}});
}

std::optional<PairFacts> ParsePairFacts(absl::string_view text) {
  const json object = Parsed(text);
  if (!object.is_object() || TextIn(object, "own_node").empty()) {
    return std::nullopt;
  }
  return PairFacts{.own_node = TextIn(object, "own_node"),
                   .own_release = TextIn(object, "own_release"),
                   .own_protocol = SmallIn(object, "own_protocol"),
                   .own_mtu = static_cast<int>(SmallIn(object, "own_mtu")),
                   .node = TextIn(object, "node"),
                   .release = TextIn(object, "release"),
                   .protocol = SmallIn(object, "protocol"),
                   .mtu = static_cast<int>(SmallIn(object, "mtu")),
                   .address = TextIn(object, "address"),
                   .round_trips = TripsIn(ObjectIn(object, "trips")),
                   .back_is_to_other = FlagIn(object, "back_is_to_other"),
                   .back = AttemptIn(ObjectIn(object, "back")),
                   .back_by_name = AttemptIn(ObjectIn(object, "back_by_name")),
                   .large_to = LargeIn(ObjectIn(object, "large_to")),
                   .large_from = LargeIn(ObjectIn(object, "large_from")),
                   .streams = static_cast<int>(SmallIn(object, "streams")),
                   .to = RatesIn(ObjectIn(object, "to")),
                   .from = RatesIn(ObjectIn(object, "from")),
                   .broken = TextIn(object, "broken")};
}

}  // namespace fsdprun::doctor
