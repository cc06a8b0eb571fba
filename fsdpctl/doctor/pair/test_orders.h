#pragma once

// What the node that listens tells the one that came, in a test; Framed() messages.

#include <chrono>

#include "base/mono_time.h"

namespace fsdprun::doctor {

/// It is another node's turn: not answered.
inline constexpr char kWait[] = "wait";
/// Say who you are, and listen for a connection back: answered by kNode.
inline constexpr char kTurn[] = "turn";
inline constexpr char kNode[] = "node";
/// Answered at once, with the times by the clock there.
inline constexpr char kPing[] = "ping";
inline constexpr char kPong[] = "pong";
/// Make so many more connections: answered when they are made.
inline constexpr char kConnect[] = "connect";
/// Take what comes over the first `streams` of them, or send; answered at the end.
inline constexpr char kTake[] = "take";
inline constexpr char kGive[] = "give";
inline constexpr char kDone[] = "done";
/// What was measured; answered by kReport, what the node has found on itself.
inline constexpr char kEnd[] = "end";
inline constexpr char kReport[] = "report";

/// For the answer to one order.
inline constexpr Duration kOrderPatience = std::chrono::seconds(20);
/// For one connection within a test.
inline constexpr Duration kConnectPatience = std::chrono::seconds(3);

}  // namespace fsdprun::doctor
