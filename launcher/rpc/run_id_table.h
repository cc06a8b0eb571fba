#pragma once

// Who hosts the coordinators of the run ids that were given one endpoint. Pure.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace fsdprun {

class RunIdTable {
 public:
  static constexpr size_t kMaxHosts = 256;
  static constexpr size_t kMaxClosed = 1024;

  enum class Kind {
    kHere,
    kThere,
    /// The caller hosts it from now on.
    kYours,
    kClosed,
    /// Nobody hosts it, and the caller cannot, or there are too many.
    kUnknown,
  };
  struct Answer {
    Kind kind = Kind::kUnknown;
    /// Of kThere.
    std::vector<std::string> endpoints;
  };

  /// `own`: the run id whose coordinator is here.
  explicit RunIdTable(std::string own) : own_(std::move(own)) {}

  /// `caller` is of this question alone; `endpoints` is empty if the caller cannot host.
  Answer Ask(const std::string& run_id, const std::vector<std::string>& endpoints, uint64_t caller);
  /// The caller hosts nothing any more; `closes`: its job is over, and nobody shall join it.
  void Leave(uint64_t caller, bool closes);

 private:
  struct Host {
    uint64_t caller = 0;
    std::vector<std::string> endpoints;
  };

  const std::string own_;
  std::map<std::string, Host> hosts_;
  /// The oldest first.
  std::deque<std::string> closed_;
};

}  // namespace fsdprun
