#pragma once

// What a launcher and a node's part say to each other through ssh: the node's part a line with its
// build, on standard output and on standard error, as neither may have what a login prints; then
// the launcher the length of an order, in digits and with a newline, and its bytes.
// What follows is what the node's workers print, and on the other side nothing: its end is the end
// of the connection, or of the launcher.

#include <cstddef>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/cluster/build_info.h"

namespace fsdprun {

/// Of what a node's part believes of a launcher.
inline constexpr size_t kLargestSshOrder = 64u << 20;

/// The line of a node's part, with a newline. Pure.
std::string NodeHello(const BuildInfo& build);
/// Unset for any other line: a login shell may print something before. `line`: without a newline.
/// Pure.
std::optional<BuildInfo> ReadNodeHello(absl::string_view line);

/// The order as it is sent. Pure.
std::string FramedOrder(absl::string_view order);
/// What a frame's first line says; unset for what no launcher sends. `line`: without a newline.
/// Pure.
std::optional<size_t> ReadOrderSize(absl::string_view line);

}  // namespace fsdprun
