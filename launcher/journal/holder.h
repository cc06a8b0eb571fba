#pragma once

// Who has the journal of a job in etcd, and whether that coordinator lives.

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace fsdprun {

/// A coordinator, as it names itself to others.
struct Holder {
  /// Random, of one process's hold of one journal.
  std::string id;
  pid_t pid = 0;
  std::string host;
  /// See ProcessMark(); may be empty.
  std::string mark;

  bool operator==(const Holder&) const = default;
};

/// Lines of text, for people too.
std::string EncodeHolder(const Holder& holder);
/// nullopt if it is not such a text.
std::optional<Holder> DecodeHolder(absl::string_view text);
/// "process 7 on head"
std::string Describe(const Holder& holder);

/// This machine's name; "?" if it has none.
std::string OwnHost();

/// Names a process of this machine for as long as it runs, and no other one ever: machine since its
/// start, process namespace, number and start of the process. Empty if it is not running, or
/// nothing can be found out.
std::string ProcessMark(pid_t pid);
/// Whether that process has surely ended: it was of this machine and this process namespace, and is
/// not there any more.
bool HasEnded(const Holder& holder);

/// Decides whether a holder lives by what is seen of its lease. A lease that is renewed is of a
/// living one; once may be an etcd that has begun all leases anew, as a new leader does. Pure.
class HolderWatch {
 public:
  /// `seconds_left` of the lease of the holder with that id. Whether it is the first sight of it.
  bool See(const std::string& id, int64_t seconds_left);
  /// It has been seen to renew its lease.
  bool lives() const { return renewals_ >= 2; }

 private:
  std::string id_;
  int64_t seconds_left_ = 0;
  int renewals_ = 0;
};

}  // namespace fsdprun
