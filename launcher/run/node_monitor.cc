#include "launcher/run/node_monitor.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/unique_fd.h"
#include "launcher/metrics/node_metrics.h"
#include "launcher/metrics/process_metrics.h"

namespace fsdprun {
namespace {

/// Of a file in /proc; empty if it cannot be read.
std::string ReadProc(const std::string& path, size_t limit) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text(limit, '\0');
  size_t size = 0;
  while (file.valid() && size < limit) {
    const ssize_t got = ::read(file.get(), text.data() + size, limit - size);
    if (got <= 0) {
      break;
    }
    size += static_cast<size_t>(got);
  }
  text.resize(size);
  return text;
}

double BootTime() {
  constexpr size_t kManyProcessors = 1 << 20;
  const std::string text = ReadProc("/proc/stat", kManyProcessors);
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    double seconds = 0;
    if (absl::ConsumePrefix(&line, "btime ") && absl::SimpleAtod(line, &seconds)) {
      return seconds;
    }
  }
  return 0;
}

const ProcessUnits& Units() {
  static const ProcessUnits units = {.ticks_per_s = static_cast<double>(::sysconf(_SC_CLK_TCK)),
                                     .page_bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)),
                                     .boot_unix_s = BootTime()};
  return units;
}

/// Takes no lock that the process could hold for long.
std::optional<ProcessUsage> UsageOf(const std::string& process) {
  return ParseProcessUsage(ReadProc(absl::StrCat("/proc/", process, "/stat"), 4096), Units());
}

}  // namespace

void NodeMonitor::Collect(LocalAgent* agent, MetricPage* page) {
  NodeSnapshot node{.phase = std::string(node::PhaseName(node::Phase::kIdle))};
  if (agent != nullptr) {
    const NodeMachine& machine = agent->machine();
    node.phase = std::string(node::PhaseName(machine.phase()));
    node.generation = machine.generation().value();
    node.has_coordinator = agent->was_admitted() && !machine.coordinator_deadline().has_value();
    node.has_keeper = agent->has_keeper();
    node.fenced = machine.stale_dropped();
    node.dropped_output_bytes = agent->dropped_output_bytes();
    node.lost_logs = static_cast<int>(agent->lost_logs());
    node.vitals = agent->ReadVitals();
  }
  CollectNode(node, tally_, MonoNow(), page);
}

void CollectOwnProcess(MetricPage* page) {
  CollectProcess(UsageOf("self").value_or(ProcessUsage{}), page);
}

}  // namespace fsdprun
