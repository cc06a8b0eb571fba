#pragma once

#include "fsdpctl/top/frame.h"

namespace fsdprun::top {

/// What the keys do and the columns mean, from `view.help_row` on if there is no room for all.
/// Pure.
Frame HelpFrame(const View& view, const Size& size);

}  // namespace fsdprun::top
