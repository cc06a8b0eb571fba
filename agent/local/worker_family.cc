#include "agent/local/worker_family.h"

#include <algorithm>
#include <utility>

#include "agent/process/process_scan.h"

namespace fsdprun {
namespace {

/// Those of the session too, whose parents have ended.
std::vector<pid_t> OthersOf(pid_t worker, const std::vector<ProcessInfo>& processes) {
  std::vector<char> is_member(processes.size(), 0);
  for (size_t i = 0; i < processes.size(); ++i) {
    is_member[i] = processes[i].pid == worker || processes[i].session == worker ? 1 : 0;
  }
  MarkDescendants(processes, is_member);
  std::vector<pid_t> others;
  for (size_t i = 0; i < processes.size(); ++i) {
    if (is_member[i] != 0 && processes[i].pid != worker && !processes[i].IsDead()) {
      others.push_back(processes[i].pid);
    }
  }
  return others;
}

}  // namespace

void FindFamilies(std::vector<FamilyMembers>& families) {
  std::vector<ProcessInfo> processes;
  ScanProcesses(processes);
  for (FamilyMembers& family : families) {
    family.others = OthersOf(family.worker, processes);
  }
}

void WorkerFamily::SetOthers(const std::vector<pid_t>& others) {
  std::map<pid_t, Other> found;
  for (const pid_t pid : others) {
    const auto known = others_.find(pid);
    // A process of this number may be another one by now.
    if (known != others_.end() && known->second.gauge.Read().has_value()) {
      found.insert(others_.extract(known));
    } else {
      found.emplace(pid, Other{ProcessGauge(pid)});
    }
  }
  others_ = std::move(found);
  if (!speaker_.has_value()) {
    writer_ = 0;  // It may be one of them: it is looked for again.
  }
}

pid_t WorkerFamily::Speaker(pid_t writer) {
  if (speaker_.has_value() && !speaker_->Read().has_value()) {
    speaker_.reset();
    writer_ = 0;
  }
  if (writer != writer_) {
    writer_ = writer;
    speaker_.reset();
    ProcessInfo process;
    if (writer > 0 && writer != worker() && ReadProcess(writer, process) && !process.IsDead() &&
        (process.session == worker() || others_.count(writer) > 0)) {
      speaker_.emplace(writer);
    }
  }
  return speaker_.has_value() ? writer_ : worker();
}

std::optional<ProcessUse> WorkerFamily::ReadSpeaker() const {
  return speaker_.has_value() ? speaker_->Read() : worker_.Read();
}

std::optional<ProcessUse> WorkerFamily::Read() {
  std::optional<ProcessUse> use = worker_.Read();
  if (!use.has_value()) {
    return std::nullopt;
  }
  cpu_ns_ += use->cpu_ns - std::exchange(worker_cpu_ns_, use->cpu_ns);
  char state = 0;
  bool is_one_state = true;
  for (auto it = others_.begin(); it != others_.end();) {
    const std::optional<ProcessUse> other = it->second.gauge.Read();
    if (!other.has_value()) {
      it = others_.erase(it);
      continue;
    }
    cpu_ns_ += other->cpu_ns - std::exchange(it->second.cpu_ns, other->cpu_ns);
    is_one_state = is_one_state && (state == 0 || state == other->state);
    state = other->state;
    ++it;
  }
  if (use->state == 'S' && is_one_state && (state == 'T' || state == 't' || state == 'D')) {
    use->state = state;
  }
  use->cpu_ns = cpu_ns_;
  return use;
}

}  // namespace fsdprun
