#include "worker/contract/worker_environment.h"

#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>

#include "proto/worker_contract.h"

extern char** environ;

namespace fsdprun::worker {
namespace {

using Variables = std::map<std::string, std::string>;

const std::string* Find(const Variables& variables, const std::string& name) {
  const auto it = variables.find(name);
  return it == variables.end() ? nullptr : &it->second;
}

[[noreturn]] void Refuse(const std::string& name, const std::string& value,
                         const std::string& expectation) {
  throw EnvironmentError("environment variable " + name + "='" + value + "': expected " +
                         expectation);
}

template <class Integer>
Integer ParseInteger(const std::string& name, const std::string& text, Integer low, Integer high) {
  Integer value{};
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size() || value < low ||
      value > high) {
    Refuse(name, text, "an integer in " + std::to_string(low) + ".." + std::to_string(high));
  }
  return value;
}

int IntOr(const Variables& variables, const char* name, int fallback, int low, int high) {
  const std::string* text = Find(variables, name);
  return text == nullptr ? fallback : ParseInteger<int>(name, *text, low, high);
}

std::string TextOr(const Variables& variables, const char* name, const std::string& fallback) {
  const std::string* text = Find(variables, name);
  return text == nullptr ? fallback : *text;
}

/// Of a launch's name, which stands in what its checkpoints say of themselves.
std::string NameOr(const Variables& variables, const char* name, const std::string& fallback) {
  std::string text = TextOr(variables, name, fallback);
  try {
    nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    const std::string quoted =
        nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    Refuse(name, quoted.substr(1, quoted.size() - 2), "a name in UTF-8");
  }
  return text;
}

const std::string& Require(const Variables& variables, const char* name, const std::string& why) {
  const std::string* text = Find(variables, name);
  if (text == nullptr || text->empty()) {
    throw EnvironmentError("environment variable " + std::string(name) +
                           " is not set: expected it because " + why +
                           "; start the program with fsdprun or torchrun");
  }
  return *text;
}

void ParseRanks(const Variables& variables, WorkerEnvironment& env) {
  constexpr int kMax = std::numeric_limits<int>::max();
  const std::string& world = Require(variables, contract::kEnvWorldSize, "RANK is set");
  env.world_size = ParseInteger<int>(contract::kEnvWorldSize, world, 1, kMax);
  const std::string& rank = Require(variables, contract::kEnvRank, "WORLD_SIZE is set");
  env.rank = ParseInteger<int>(contract::kEnvRank, rank, 0, env.world_size - 1);
  env.local_world_size =
      IntOr(variables, contract::kEnvLocalWorldSize, env.world_size, 1, env.world_size);
  env.local_rank = IntOr(variables, contract::kEnvLocalRank, env.rank % env.local_world_size, 0,
                         env.local_world_size - 1);
  env.group_world_size = IntOr(variables, contract::kEnvGroupWorldSize, 1, 1, kMax);
  env.group_rank = IntOr(variables, contract::kEnvGroupRank, 0, 0, kMax);
  env.role_world_size = IntOr(variables, contract::kEnvRoleWorldSize, env.world_size, 1, kMax);
  env.role_rank = IntOr(variables, contract::kEnvRoleRank, env.rank, 0, env.role_world_size - 1);
  env.role_name = TextOr(variables, contract::kEnvRoleName, env.role_name);
}

void ParseMaster(const Variables& variables, WorkerEnvironment& env) {
  if (env.world_size > 1) {
    Require(variables, contract::kEnvMasterAddr, "WORLD_SIZE is above 1");
    Require(variables, contract::kEnvMasterPort, "WORLD_SIZE is above 1");
  }
  env.master_addr = TextOr(variables, contract::kEnvMasterAddr, "");
  env.master_port = IntOr(variables, contract::kEnvMasterPort, 0, 1, 65535);
}

/// The first that is set says it, as for setlocale().
bool IsUtf8(const Variables& variables) {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string locale = TextOr(variables, name, "");
    if (!locale.empty()) {
      return locale.ends_with("UTF-8") || locale.ends_with("utf8");
    }
  }
  return false;
}

}  // namespace

WorkerEnvironment ParseWorkerEnvironment(const std::map<std::string, std::string>& variables) {
  constexpr int kMax = std::numeric_limits<int>::max();
  WorkerEnvironment env;
  const bool has_ranks =
      Find(variables, contract::kEnvRank) || Find(variables, contract::kEnvWorldSize);
  // A launcher may leave the ranks out for a worker that is alone (proto/lone_worker.h).
  env.is_launched = has_ranks || Find(variables, contract::kEnvGeneration) != nullptr;
  if (has_ranks) {
    ParseRanks(variables, env);
    ParseMaster(variables, env);
  }
  env.restart_count = IntOr(variables, contract::kEnvRestartCount, 0, 0, kMax);
  env.max_restarts = IntOr(variables, contract::kEnvMaxRestarts, 0, 0, kMax);
  env.run_id = NameOr(variables, contract::kEnvRunId, "");
  env.uses_agent_store = TextOr(variables, contract::kEnvUseAgentStore, "") == "True";
  env.error_file = TextOr(variables, contract::kEnvErrorFile, "");
  env.job_id = NameOr(variables, contract::kEnvJobId, "");
  env.control_fd = IntOr(variables, contract::kEnvControlFd, -1, 0, kMax);
  env.launcher_draws_progress = TextOr(variables, contract::kEnvProgressView, "") == "terminal";
  env.is_utf8 = IsUtf8(variables);
  if (const std::string* text = Find(variables, contract::kEnvGeneration)) {
    env.generation = ParseInteger<uint64_t>(contract::kEnvGeneration, *text, 0,
                                            std::numeric_limits<uint64_t>::max());
  }
  return env;
}

std::map<std::string, std::string> ReadProcessEnvironment() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos && equals > 0) {
      variables.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return variables;
}

}  // namespace fsdprun::worker
