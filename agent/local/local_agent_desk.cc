// What workers say on their control sockets, and what an agent answers to those who watch the job.
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/local/local_agent.h"
#include "proto/worker_contract.h"

namespace fsdprun {
namespace {

constexpr size_t kMaxProgressText = 1024;

int64_t NumberIn(const nlohmann::json& record, const char* key) {
  const auto it = record.find(key);
  return it != record.end() && it->is_number_integer() ? it->get<int64_t>() : int64_t{-1};
}

std::string TextIn(const nlohmann::json& record, const char* key) {
  const auto it = record.find(key);
  return it != record.end() && it->is_string() ? it->get<std::string>() : "";
}

}  // namespace

void LocalAgent::OnControlRecord(const keeper::ControlRecordReport& report) {
  if (report.life != life()) {
    return;
  }
  const nlohmann::json record =
      nlohmann::json::parse(report.line, nullptr, /*allow_exceptions=*/false);
  if (!record.is_object()) {
    return;
  }
  const int rank = assignment_.rank_offset + report.local_rank;
  const std::string type = TextIn(record, "type");
  if (type == contract::kRecordCheckpoint) {
    desk_.CheckpointTold({.rank = rank,
                          .step = NumberIn(record, "step"),
                          .path = TextIn(record, "path"),
                          .error = TextIn(record, "error").substr(0, kMaxProgressText)});
  }
  if (type != contract::kRecordProgress) {
    return;
  }
  Progress progress{.step = NumberIn(record, "step"),
                    .total = NumberIn(record, "total"),
                    .text = TextIn(record, "text").substr(0, kMaxProgressText)};
  if (rank == 0 && hooks_.on_progress) {
    hooks_.on_progress(progress);
  }
  Feed(node::WorkerProgress{assignment_.generation, report.local_rank, std::move(progress)});
}

NodeDesk::Hooks LocalAgent::DeskHooks() {
  return {.generation = [this] { return assignment_.generation; },
          .workers = [this] { return DescribeWorkers(); },
          .ask_to_save = [this] { return AskToSave(); },
          .read_vitals = [this] { return ReadVitals(); },
          .send = [this](const v1::FromNodeAside& aside) { link_.SendAside(aside); },
          .unwritten = [this] { return link_.unwritten(); }};
}

std::vector<NodeDesk::Worker> LocalAgent::DescribeWorkers() {
  const auto kept = [this](int local_rank, keeper::Stream stream) {
    const StreamPlan plan = PlanStream(options_.output, local_rank, SetOf(stream));
    const bool is_kept = plan.file == StreamFile::kLog && !options_.dirs.logs.empty() &&
                         lost_logs_.count({local_rank, stream}) == 0;
    return is_kept ? StreamPath(options_.dirs, assignment_, local_rank, stream, plan.file) : "";
  };
  std::vector<NodeDesk::Worker> workers;
  for (int local_rank = 0; local_rank < assignment_.local_world_size; ++local_rank) {
    const auto pid = spawned_pids_.find(local_rank);
    const bool runs = pid != spawned_pids_.end() && ended_ranks_.count(local_rank) == 0;
    // Below a script, the program that the script has started is of interest.
    const pid_t speaker = runs ? vitals_.SpeakerOf(local_rank) : 0;
    workers.push_back({.rank = assignment_.rank_offset + local_rank,
                       .local_rank = local_rank,
                       .pid = speaker > 0 || !runs ? speaker : static_cast<pid_t>(pid->second),
                       .stdout_path = kept(local_rank, keeper::Stream::kStdout),
                       .stderr_path = kept(local_rank, keeper::Stream::kStderr)});
  }
  return workers;
}

int LocalAgent::AskToSave() {
  if (machine_.phase() != node::Phase::kRunning || keeper_ == nullptr || !keeper_->is_alive()) {
    return 0;
  }
  const std::string save = absl::StrCat("{\"v\":", contract::kControlVersion, ",\"type\":\"",
                                        std::string(contract::kRecordSave), "\"}");
  int told = 0;
  for (const auto& [local_rank, pid] : spawned_pids_) {
    if (ended_ranks_.count(local_rank) == 0) {
      keeper_->SendControl(local_rank, save, life());
      ++told;
    }
  }
  return told;
}

}  // namespace fsdprun
