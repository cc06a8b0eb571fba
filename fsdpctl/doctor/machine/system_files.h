#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fsdprun::doctor {

/// What a file of /proc or /sys says, without blanks at its ends; empty if it cannot be read.
std::string TextOf(const std::string& path);
/// Unset if it cannot be read, or is no number (`max`).
std::optional<int64_t> NumberIn(const std::string& path);
/// Names in a folder, ascending; none if it cannot be read.
std::vector<std::string> NamesIn(const std::string& folder);
/// How many of /dev/nvidia0 and so on are below `root`.
int NvidiaNodes(const std::string& root);
/// One of /dev/infiniband/uverbs0 and so on, through which programs use RDMA cards, is below
/// `root`.
bool HasRdmaNodes(const std::string& root);
/// Of a file with lines `key: value` or `key value`: the value of the first such line; empty if
/// there is none.
std::string FieldOf(const std::string& text, const std::string& key);
/// As FieldOf(), its first word as a number; 0 if there is none.
uint64_t NumberOf(const std::string& text, const std::string& key);

}  // namespace fsdprun::doctor
