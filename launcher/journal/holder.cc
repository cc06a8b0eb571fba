#include "launcher/journal/holder.h"

#include <unistd.h>

#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace fsdprun {
namespace {

constexpr absl::string_view kHolderFirstLine = "fsdprun coordinator, version 1";

std::string ReadWhole(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return file ? text.str() : "";
}

/// Of this machine since its start, and of this process's view of other processes.
std::string OwnSpace() {
  std::vector<absl::string_view> words;
  const std::string boot = ReadWhole("/proc/sys/kernel/random/boot_id");
  char space[64] = {};
  if (boot.empty() || ::readlink("/proc/self/ns/pid", space, sizeof(space) - 1) <= 0) {
    return "";
  }
  return absl::StrCat(absl::string_view(boot).substr(0, boot.find('\n')), " ", space);
}

/// Field 22 of /proc/PID/stat, in ticks since the machine's start; empty if the process has ended.
std::string StartOf(pid_t pid) {
  const std::string stat = ReadWhole(absl::StrCat("/proc/", pid, "/stat"));
  const size_t name_end = stat.rfind(')');  // The name may have blanks.
  if (name_end == std::string::npos) {
    return "";
  }
  const std::vector<std::string> fields = absl::StrSplit(stat.substr(name_end + 2), ' ');
  constexpr size_t kState = 0;
  constexpr size_t kStart = 19;
  const bool is_there = fields.size() > kStart && fields[kState] != "Z" && fields[kState] != "X";
  return is_there ? fields[kStart] : "";
}

}  // namespace

std::string EncodeHolder(const Holder& holder) {
  return absl::StrCat(kHolderFirstLine, "\nid ", holder.id, "\npid ", holder.pid, "\nhost ",
                      holder.host, "\nmark ", holder.mark, "\n");
}

std::optional<Holder> DecodeHolder(absl::string_view text) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  if (lines.empty() || lines.front() != kHolderFirstLine) {
    return std::nullopt;
  }
  Holder holder;
  for (const absl::string_view line : lines) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(' ', 1));
    if (parts.first == "id") {
      holder.id = std::string(parts.second);
    } else if (parts.first == "host") {
      holder.host = std::string(parts.second);
    } else if (parts.first == "mark") {
      holder.mark = std::string(parts.second);
    } else if (parts.first == "pid" && !absl::SimpleAtoi(parts.second, &holder.pid)) {
      return std::nullopt;
    }
  }
  return holder.id.empty() ? std::nullopt : std::optional<Holder>(std::move(holder));
}

std::string OwnHost() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "?";
}

std::string Describe(const Holder& holder) {
  return absl::StrCat("process ", holder.pid, " on ", holder.host);
}

std::string ProcessMark(pid_t pid) {
  const std::string space = OwnSpace();
  const std::string start = StartOf(pid);
  return space.empty() || start.empty() ? "" : absl::StrCat(space, " ", pid, " ", start);
}

bool HasEnded(const Holder& holder) {
  const std::string space = OwnSpace();
  const bool is_of_here = !space.empty() && !holder.mark.empty() &&
                          absl::string_view(holder.mark).substr(0, space.size()) == space;
  return is_of_here && ProcessMark(holder.pid) != holder.mark;
}

bool HolderWatch::See(const std::string& id, int64_t seconds_left) {
  const bool is_first = id != id_;
  if (is_first) {
    id_ = id;
    renewals_ = 0;
  } else if (seconds_left > seconds_left_) {
    ++renewals_;
  }
  seconds_left_ = seconds_left;
  return is_first;
}

}  // namespace fsdprun
