// Text -> a request of the watchdog, and the answer to an HTTP probe. Properties: a request names
// one process and a signal that the keeper takes; an answer is HTTP, says its length, and the text
// of the probe is no part of it.

#include <string>

#include "absl/strings/match.h"
#include "agent/local/timer_table.h"
#include "base/check.h"
#include "launcher/run/health_port.h"
#include "tests/fuzz/fuzz_support.h"

namespace fsdprun {
namespace {

void CheckTimer(std::string_view line) {
  const fuzz::MemoryBound bound((64 << 10) + 256 * line.size());
  if (const auto request = ParseTimerRequest(line)) {
    FSDPRUN_CHECK(request->pid > 0, "the number of a process group");
    FSDPRUN_CHECK(request->signal >= 0 && request->signal <= 64, "signal out of range");
    TimerTable table;
    table.Acquire(*request, ProcessInfo{.pid = request->pid}, 1e9, MonoTime(Duration(1)));
    FSDPRUN_CHECK(table.TakeExpired(MonoTime(std::chrono::hours(24 * 400)), {}).size() == 1,
                  "a timer never expires");
  }
}

void CheckProbe(std::string_view request) {
  HealthReport report{.phase = "running", .progress_age = std::chrono::seconds(3)};
  const std::string answer = AnswerProbe({request.data(), request.size()}, report);
  const size_t end = answer.find("\r\n\r\n");
  const size_t length = answer.find("Content-Length: ");
  FSDPRUN_CHECK(absl::StartsWith(answer, "HTTP/1.0 ") && end != std::string::npos && length < end &&
                    answer.size() < 1024,
                "no short HTTP answer");
  const size_t body = answer.size() - end - 4;
  const bool is_head = absl::StartsWith(absl::string_view(request.data(), request.size()), "HEAD ");
  FSDPRUN_CHECK(body == std::stoul(answer.substr(length + 16)) || (is_head && body == 0),
                "the length of the body is another");
}

void Fuzz(std::string_view input) {
  CheckTimer(input);
  CheckProbe(input);
}

}  // namespace
}  // namespace fsdprun

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fsdprun::Fuzz(fsdprun::fuzz::AsText(data, size));
  return 0;
}
