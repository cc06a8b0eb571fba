#pragma once

#include <string>

#include "fsdpctl/top/frame.h"
#include "fsdpctl/top/snapshot.h"
#include "fsdpctl/top/view.h"

namespace fsdprun::top {

/// Smaller screens are told that they are.
inline constexpr int kRowsMin = 6;
inline constexpr int kColumnsMin = 30;

/// The whole screen. Pure, but for the locale.
Frame MakeFrame(const Snapshot& snapshot, const View& view, const Size& size);

/// Its lines as they are, without blanks at their ends.
std::string PlainText(const Frame& frame);

/// Only the table of all workers, as PlainText(). Pure, but for the locale.
std::string WorkersText(const v1::JobStatus& status, int columns);

}  // namespace fsdprun::top
