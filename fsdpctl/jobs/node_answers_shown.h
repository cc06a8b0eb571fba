#pragma once

// What nodes answer, for people and for programs. Pure.

#include <map>
#include <string>
#include <utility>

#include "fsdprun/v1/control.pb.h"

namespace fsdprun {

/// Lines of logs, each behind its rank; of standard error behind `!` too. Says where something is
/// missing, and when another world's begin.
class LogText {
 public:
  std::string Add(const v1::NodesAnswer& answer);

 private:
  /// Of which world the latest lines of a stream were.
  std::map<std::pair<int, bool>, uint64_t> generations_;
};

/// One object in a line for each line; "" for an answer without.
std::string LogJson(const v1::NodesAnswer& answer);

std::string StacksText(const v1::NodesAnswer& answer);
std::string StacksJson(const v1::NodesAnswer& answer);

/// Of a checkpoint that was told of; empty `path`: none was.
std::string SavedText(const v1::Saved& saved);
std::string SavedJson(const v1::Saved& saved);

}  // namespace fsdprun
