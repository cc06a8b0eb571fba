#include "fsdpctl/doctor/machine/cgroups.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "fsdpctl/doctor/machine/system_files.h"

namespace fsdprun::doctor {
namespace {

/// Version 1 writes no limit as the greatest multiple of a page.
constexpr int64_t kNoLimitV1 = int64_t{1} << 60;

/// Where a hierarchy is mounted, and which of its groups is at that place.
struct Mount {
  std::string root;
  std::string point;
};

/// Of version 2, or the one of version 1 that has `controller`.
std::optional<Mount> FindMount(const std::string& mounts, const std::string& controller) {
  for (const absl::string_view line : absl::StrSplit(mounts, '\n', absl::SkipEmpty())) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, ' ');
    const auto dash = std::find(fields.begin(), fields.end(), "-");
    if (fields.size() < 5 || fields.end() - dash < 4) {
      continue;
    }
    const std::vector<absl::string_view> options = absl::StrSplit(dash[3], ',');
    const bool is_meant = controller.empty()
                              ? dash[1] == "cgroup2"
                              : dash[1] == "cgroup" && std::find(options.begin(), options.end(),
                                                                 controller) != options.end();
    if (is_meant) {
      return Mount{std::string(fields[3]), std::string(fields[4])};
    }
  }
  return std::nullopt;
}

/// The group of this process; version 2's has no controllers.
std::string OwnGroup(const std::string& groups, const std::string& controller) {
  for (const absl::string_view line : absl::StrSplit(groups, '\n', absl::SkipEmpty())) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() < 3) {
      continue;
    }
    const std::vector<absl::string_view> controllers = absl::StrSplit(fields[1], ',');
    if (std::find(controllers.begin(), controllers.end(), controller) != controllers.end()) {
      return std::string(fields[2]);
    }
  }
  return "";
}

/// The folders of this process's group and of those above it, innermost first.
std::vector<std::string> FoldersOf(const std::string& root, const std::string& controller) {
  const std::optional<Mount> mount = FindMount(TextOf(root + "/proc/self/mountinfo"), controller);
  if (!mount.has_value()) {
    return {};
  }
  const std::string group = OwnGroup(TextOf(root + "/proc/self/cgroup"), controller);
  absl::string_view rest = group;
  if (mount->root != "/") {
    absl::ConsumePrefix(&rest, mount->root);
  }
  const std::string top = root + mount->point;
  std::string folder = absl::StrCat(top, absl::StripSuffix(rest, "/"));
  std::error_code error;
  // In a container the group's path may be the host's, and not be there.
  if (!std::filesystem::is_directory(folder, error)) {
    folder = top;
  }
  std::vector<std::string> folders{folder};
  while (folder.size() > top.size()) {
    folder = folder.substr(0, folder.rfind('/'));
    folders.push_back(folder);
  }
  return folders;
}

/// Of a group's memory.stat: what can be given back.
uint64_t Cached(const std::string& folder, const std::string& key) {
  return NumberOf(TextOf(folder + "/memory.stat"), key);
}

void TakeMemory(const std::vector<std::string>& folders, bool is_v2, CgroupLimits* limits) {
  for (const std::string& folder : folders) {
    const std::optional<int64_t> limit =
        NumberIn(folder + (is_v2 ? "/memory.max" : "/memory.limit_in_bytes"));
    if (!limit.has_value() || *limit >= kNoLimitV1 ||
        (limits->memory.has_value() && static_cast<uint64_t>(*limit) >= *limits->memory)) {
      continue;
    }
    limits->memory = static_cast<uint64_t>(*limit);
    const auto used = static_cast<uint64_t>(
        NumberIn(folder + (is_v2 ? "/memory.current" : "/memory.usage_in_bytes")).value_or(0));
    const uint64_t cached = Cached(folder, is_v2 ? "inactive_file" : "total_inactive_file");
    limits->memory_used = used - std::min(used, cached);
  }
}

/// CPUs' worth of time that one group allows.
std::optional<double> QuotaOf(const std::string& folder, bool is_v2) {
  double quota = 0;
  double period = 0;
  if (is_v2) {
    const std::vector<std::string> words = absl::StrSplit(TextOf(folder + "/cpu.max"), ' ');
    if (words.size() != 2 || !absl::SimpleAtod(words[0], &quota) ||
        !absl::SimpleAtod(words[1], &period)) {
      return std::nullopt;
    }
  } else {
    quota = static_cast<double>(NumberIn(folder + "/cpu.cfs_quota_us").value_or(-1));
    period = static_cast<double>(NumberIn(folder + "/cpu.cfs_period_us").value_or(0));
  }
  return quota > 0 && period > 0 ? std::optional(quota / period) : std::nullopt;
}

void TakeCpus(const std::vector<std::string>& folders, bool is_v2, CgroupLimits* limits) {
  for (const std::string& folder : folders) {
    const std::optional<double> quota = QuotaOf(folder, is_v2);
    if (quota.has_value() && (!limits->cpus.has_value() || *quota < *limits->cpus)) {
      limits->cpus = quota;
    }
  }
}

void TakePids(const std::vector<std::string>& folders, CgroupLimits* limits) {
  for (const std::string& folder : folders) {
    const std::optional<int64_t> most = NumberIn(folder + "/pids.max");
    if (!most.has_value()) {
      continue;
    }
    const auto limit = static_cast<uint64_t>(*most);
    const auto used = static_cast<uint64_t>(NumberIn(folder + "/pids.current").value_or(0));
    // The group with the fewest left, not the one with the lowest limit.
    if (!limits->pids.has_value() ||
        limit - std::min(limit, used) <
            *limits->pids - std::min(*limits->pids, limits->pids_used)) {
      limits->pids = limit;
      limits->pids_used = used;
    }
  }
}

}  // namespace

CgroupLimits ReadCgroups(const std::string& root) {
  CgroupLimits limits;
  const std::vector<std::string> unified = FoldersOf(root, "");
  TakeMemory(unified, /*is_v2=*/true, &limits);
  TakeCpus(unified, /*is_v2=*/true, &limits);
  TakePids(unified, &limits);
  TakeMemory(FoldersOf(root, "memory"), /*is_v2=*/false, &limits);
  TakeCpus(FoldersOf(root, "cpu"), /*is_v2=*/false, &limits);
  TakePids(FoldersOf(root, "pids"), &limits);
  return limits;
}

}  // namespace fsdprun::doctor
