#include "launcher/chaos/plan/job_news.h"

#include <nlohmann/json.hpp>

#include "absl/time/time.h"

namespace fsdprun::chaos {
namespace {

using plain_json = nlohmann::json;

std::string TextIn(const plain_json& event, const char* name) {
  const auto found = event.find(name);
  return found != event.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// An event whose time cannot be read is taken for a new one.
bool IsFromBefore(const plain_json& event, int64_t since_ms) {
  absl::Time time;
  return absl::ParseTime(absl::RFC3339_full, TextIn(event, "time"), &time, nullptr) &&
         absl::ToUnixMillis(time) < since_ms;
}

}  // namespace

JobNews NewsIn(const std::string& line, int64_t since_ms) {
  const plain_json event = plain_json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!event.is_object()) {
    return {};
  }
  const std::string name = TextIn(event, "event");
  if (name == "failure" && !IsFromBefore(event, since_ms)) {
    return {.failure = TextIn(event, "what")};
  }
  if (name == "job_finished") {
    const auto code = event.find("exit_code");
    return {.exit_code = code != event.end() && code->is_number_integer() ? code->get<int>() : 1};
  }
  return {};
}

}  // namespace fsdprun::chaos
