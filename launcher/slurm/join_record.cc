#include "launcher/slurm/join_record.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "launcher/slurm/slurm_plan.h"

namespace fsdprun {
namespace {

// Fields `name=value`, each with a NUL behind it: no value can have one, and none needs quotes.
constexpr char kMagic[] = "fsdprun-slurm-join=1";
constexpr char kEnd = '\0';
constexpr char kVariable[] = "variable.";
constexpr char kResource[] = "resource.";
/// The token, which has a field of its own, and what this launcher itself was told by another one.
constexpr char kOfLaunchers[] = "FSDPRUN_";

/// About one machine or one job's share of it.
constexpr const char* kOfThePlace[] = {
    "TMPDIR",           "HOSTNAME",           "XDG_RUNTIME_DIR",      "CUDA_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
};

/// A field of the record itself; nullptr for others.
std::string* TextOf(absl::string_view name, SlurmJoinRecord* record) {
  const std::pair<absl::string_view, std::string*> fields[] = {
      {"job", &record->job},
      {"cluster", &record->cluster},
      {"run_id", &record->run_id},
      {"restarts", &record->restarts},
      {"token", &record->token},
      {"folder", &record->folder},
      {"coordinators", &record->coordinators}};
  for (const auto& [known, text] : fields) {
    if (name == known) {
      return text;
    }
  }
  return nullptr;
}

void AddField(absl::string_view name, absl::string_view value, SlurmJoinRecord* record) {
  const std::string text(value);
  if (std::string* field = TextOf(name, record); field != nullptr) {
    *field = text;
  } else if (name == "word") {
    record->command.push_back(text);
  } else if (absl::StartsWith(name, kVariable)) {
    record->environment[std::string(name.substr(sizeof(kVariable) - 1))] = text;
  } else if (absl::StartsWith(name, kResource)) {
    record->resources[std::string(name.substr(sizeof(kResource) - 1))] = text;
  }
}

/// The variable's value; empty also for what Slurm writes in place of none.
std::string Said(const Environment& environment, const std::string& variable) {
  const auto found = environment.find(variable);
  return found == environment.end() || found->second == "(null)" ? "" : found->second;
}

}  // namespace

std::string EncodeJoinRecord(const SlurmJoinRecord& record) {
  std::string text = absl::StrCat(kMagic, std::string(1, kEnd));
  const auto add = [&text](absl::string_view prefix, absl::string_view name,
                           absl::string_view value) {
    absl::StrAppend(&text, prefix, name, "=", value, std::string(1, kEnd));
  };
  SlurmJoinRecord copy = record;
  for (const char* name :
       {"job", "cluster", "run_id", "restarts", "token", "folder", "coordinators"}) {
    add("", name, *TextOf(name, &copy));
  }
  for (const std::string& word : record.command) {
    add("", "word", word);
  }
  for (const auto& [name, value] : record.environment) {
    add(kVariable, name, value);
  }
  for (const auto& [name, value] : record.resources) {
    add(kResource, name, value);
  }
  return text;
}

absl::StatusOr<SlurmJoinRecord> DecodeJoinRecord(absl::string_view text) {
  const std::vector<absl::string_view> fields = absl::StrSplit(text, kEnd);
  if (fields.front() != kMagic) {
    return absl::InvalidArgumentError("it is not what this version of fsdprun writes there");
  }
  SlurmJoinRecord record;
  for (size_t i = 1; i + 1 < fields.size(); ++i) {
    const size_t end = fields[i].find('=');
    if (end == absl::string_view::npos) {
      return absl::InvalidArgumentError("it has a field without a value");
    }
    AddField(fields[i].substr(0, end), fields[i].substr(end + 1), &record);
  }
  if (!fields.back().empty() || record.job.empty() || record.coordinators.empty() ||
      record.token.empty() || record.command.empty()) {
    return absl::InvalidArgumentError("it is not complete");
  }
  return record;
}

std::map<std::string, std::string> GrantedResources(const Environment& environment) {
  const std::pair<const char*, const char*> known[] = {{"partition", "SLURM_JOB_PARTITION"},
                                                       {"account", "SLURM_JOB_ACCOUNT"},
                                                       {"qos", "SLURM_JOB_QOS"},
                                                       {"reservation", "SLURM_JOB_RESERVATION"},
                                                       {"gpus-per-node", "SLURM_GPUS_PER_NODE"},
                                                       {"cpus-per-task", "SLURM_CPUS_PER_TASK"},
                                                       {"mem", "SLURM_MEM_PER_NODE"}};
  std::map<std::string, std::string> resources;
  for (const auto& [option, variable] : known) {
    if (std::string value = Said(environment, variable); !value.empty()) {
      resources[option] = std::move(value);
    }
  }
  return resources;
}

Environment RecordedEnvironment(Environment environment) {
  environment = WithoutSlurm(std::move(environment));
  std::erase_if(environment, [](const auto& variable) {
    return absl::StartsWith(variable.first, kOfLaunchers);
  });
  return environment;
}

Environment JoinEnvironment(const SlurmJoinRecord& record, const Environment& own) {
  Environment joined = WithoutSlurm(record.environment);
  const Environment not_slurms = WithoutSlurm(own);
  for (const auto& [name, value] : own) {
    if (!not_slurms.contains(name)) {
      joined[name] = value;
    }
  }
  for (const char* name : kOfThePlace) {
    joined.erase(name);
    if (const auto found = own.find(name); found != own.end()) {
      joined[name] = found->second;
    }
  }
  // All workers of a job count its restarts alike.
  joined.erase("SLURM_RESTART_COUNT");
  if (!record.restarts.empty()) {
    joined["SLURM_RESTART_COUNT"] = record.restarts;
  }
  return joined;
}

}  // namespace fsdprun
