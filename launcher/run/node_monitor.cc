#include "launcher/run/node_monitor.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/unique_fd.h"

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

void ProportionalSizes::Refresh(std::vector<pid_t> processes, MonoTime now) {
  if (is_asking_) {
    bytes_.clear();  // It hangs.
    return;
  }
  if (processes.empty() || now - asked_at_ < kPause) {
    return;
  }
  is_asking_ = true;
  asked_at_ = now;
  const auto found = std::make_shared<std::map<pid_t, uint64_t>>();
  files_.Run(
      [found, processes = std::move(processes)] {
        for (const pid_t pid : processes) {
          const std::string text = ReadProc(absl::StrCat("/proc/", pid, "/smaps_rollup"), 8192);
          if (const std::optional<uint64_t> bytes = ParseProportionalBytes(text)) {
            (*found)[pid] = *bytes;
          }
        }
      },
      [this, found] {
        is_asking_ = false;
        bytes_ = std::move(*found);
      });
}

std::optional<uint64_t> ProportionalSizes::Of(pid_t process) const {
  const auto it = bytes_.find(process);
  return it == bytes_.end() ? std::nullopt : std::optional(it->second);
}

void NodeMonitor::Collect(const LocalAgent* agent, MetricPage* page) {
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
  }
  std::vector<pid_t> running;
  for (const auto& [local_rank, worker] : tally_.workers()) {
    if (!worker.end.has_value()) {
      const auto pid = static_cast<pid_t>(worker.pid);
      running.push_back(pid);
      node.vitals[local_rank] = {UsageOf(absl::StrCat(pid)), sizes_.Of(pid)};
    }
  }
  const MonoTime now = MonoNow();
  sizes_.Refresh(std::move(running), now);
  CollectNode(node, tally_, now, page);
}

void CollectOwnProcess(MetricPage* page) {
  CollectProcess(UsageOf("self").value_or(ProcessUsage{}), page);
}

}  // namespace fsdprun
