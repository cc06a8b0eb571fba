#pragma once

#include <string>
#include <string_view>

namespace fsdprun::worker {

/// Proves of a model of SentencePiece what its library (0.1.97) takes on trust: that the tables by
/// which it normalizes text point into themselves. Errors: ConfigError naming `source`. Time: that
/// of reading it once. Pure.
void CheckSentencePieceModel(std::string_view model, const std::string& source);

}  // namespace fsdprun::worker
