#pragma once

#include <filesystem>
#include <ostream>
#include <vector>

#include "formats/json/strict_json.h"

namespace fsdprun::worker {

/// The range that ends on all ranks at the same time, because a barrier does: their clocks are set
/// by it.
inline constexpr char kClockMark[] = "clocks";

/// One timeline of the ranks' timelines, each of which is a file of libfsdp's start_trace() with
/// the range kClockMark: Chrome's trace events, in which a process is a rank. Times are those of
/// the first timeline's clock, and begin at 0. Memory: an event, however long the timelines are; so
/// each is read twice. Errors: ConfigError naming a file that cannot be read or is no timeline, or
/// the rank whose timeline has no such range; `out` has a part then.
void MergeTraces(const std::vector<std::filesystem::path>& timelines, std::ostream& out);

}  // namespace fsdprun::worker
