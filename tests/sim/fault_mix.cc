#include "tests/sim/fault_mix.h"

#include <fstream>
#include <nlohmann/json.hpp>

namespace fsdprun::sim {

namespace {

const std::map<std::string, FaultKind>& KindNames() {
  static const std::map<std::string, FaultKind> names = {
      {"kill_worker", FaultKind::kKillWorker},
      {"hang_on_term", FaultKind::kHangOnTerm},
      {"kill_agent", FaultKind::kKillAgent},
      {"power_off", FaultKind::kPowerOff},
      {"kill_keeper", FaultKind::kKillKeeper},
      {"partition", FaultKind::kPartition},
      {"one_way_partition", FaultKind::kOneWayPartition},
      {"clog", FaultKind::kClog},
      {"reset_stream", FaultKind::kResetStream},
      {"pause_agent", FaultKind::kPauseAgent},
      {"pause_coordinator", FaultKind::kPauseCoordinator},
      {"mass_leave", FaultKind::kMassLeave},
      {"duplicate_agent", FaultKind::kDuplicateAgent},
      {"fail_prepare", FaultKind::kFailPrepare},
      {"operator_stop", FaultKind::kOperatorStop},
      {"config_exit", FaultKind::kConfigExit},
      {"hang_prepare", FaultKind::kHangPrepare},
      {"fail_spawn", FaultKind::kFailSpawn},
      {"unkillable_worker", FaultKind::kUnkillableWorker},
      {"no_keeper", FaultKind::kNoKeeper},
      {"scrap_node", FaultKind::kScrapNode},
      {"take_place", FaultKind::kTakePlace},
      {"kill_coordinator", FaultKind::kKillCoordinator},
      {"restart_coordinator", FaultKind::kRestartCoordinator},
      {"replace_agent", FaultKind::kReplaceAgent},
      {"hang_worker", FaultKind::kHangWorker},
      {"signal_nodes", FaultKind::kSignalNodes},
      {"ask_for_restart", FaultKind::kAskForRestart},
      {"drain_node", FaultKind::kDrainNode},
      {"scale_job", FaultKind::kScaleJob},
  };
  return names;
}

bool ReadNumber(const std::string& key, const nlohmann::json& value, FaultMix* mix) {
  const std::map<std::string, double*> reals = {
      {"mean_gap_s", &mix->mean_gap_s},
      {"faults_for_s", &mix->faults_for_s},
      {"settle_s", &mix->settle_s},
      {"work_s", &mix->work_s},
      {"duplicate", &mix->duplicate},
      {"reset_per_message", &mix->reset_per_message},
      {"max_delay_ms", &mix->max_delay_ms},
      {"min_fraction", &mix->min_fraction},
      {"lemon", &mix->lemon},
      {"hosted", &mix->hosted},
      {"quarantine_window_s", &mix->quarantine_window_s},
      {"allocated", &mix->allocated},
      {"static_ranks", &mix->static_ranks},
      {"preferred_ranks", &mix->preferred_ranks},
      {"lacks_program", &mix->lacks_program},
      {"restart_backoff_s", &mix->restart_backoff_s},
      {"max_restart_backoff_s", &mix->max_restart_backoff_s},
      {"loaded_for_s", &mix->loaded_for_s},
      {"late_s", &mix->late_s},
      {"start_within_s", &mix->start_within_s},
      {"place_sure_s", &mix->place_sure_s},
      {"node_lease_s", &mix->node_lease_s},
      {"stop_grace_s", &mix->stop_grace_s},
      {"prepare_timeout_s", &mix->prepare_timeout_s},
      {"join_timeout_s", &mix->join_timeout_s},
      {"coordinator_grace_s", &mix->coordinator_grace_s},
  };
  const std::map<std::string, int*> integers = {{"spares", &mix->spares},
                                                {"max_restarts", &mix->max_restarts},
                                                {"quarantine_after", &mix->quarantine_after}};
  if (const auto it = reals.find(key); it != reals.end() && value.is_number()) {
    *it->second = value.get<double>();
    return true;
  }
  if (const auto it = integers.find(key); it != integers.end() && value.is_number_integer()) {
    *it->second = value.get<int>();
    return true;
  }
  return false;
}

}  // namespace

FaultMix LoadFaultMix(const std::string& path, std::string* error) {
  std::ifstream file(path);
  const nlohmann::json root = nlohmann::json::parse(file, nullptr, false);
  if (!root.is_object() || !root.contains("name") || !root["name"].is_string()) {
    *error = path + ": expected a JSON object with a name";
    return {};
  }
  FaultMix mix;
  for (const auto& [key, value] : root.items()) {
    if (key == "name" || ReadNumber(key, value, &mix)) {
      continue;
    }
    const bool is_weights = key == "weights" && value.is_object();
    if (!is_weights) {
      *error = path + ": unknown key or wrong type: " + key;
      return {};
    }
    for (const auto& [kind, weight] : value.items()) {
      if (KindNames().count(kind) == 0 || !weight.is_number()) {
        *error = path + ": unknown fault " + kind;
        return {};
      }
      mix.weights[KindNames().at(kind)] = weight.get<double>();
    }
  }
  mix.name = root["name"].get<std::string>();
  return mix;
}

}  // namespace fsdprun::sim
