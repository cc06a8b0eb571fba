#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/config/tokenize_request.h"
#include "worker/tokenize/tokenize_progress.h"

namespace fsdprun::worker {

/// What a tokenization has made.
struct TokenizeResult {
  std::vector<std::string> files;
  int64_t documents = 0;
  int64_t empty_documents = 0;
  int64_t replaced_documents = 0;
  int64_t skipped_lines = 0;
  /// Why the first of them was skipped.
  std::string first_skipped;
  TokenizeState state;
};

/// What is said at the end, in one line. Pure.
std::string TokenizeSummary(const TokenizeResult& result);

/// Tokenizes the inputs in their order. What is written does not depend on the number of threads,
/// and is there as a whole or not at all. Errors: ConfigError naming the argument, or the input,
/// its line and byte; fsdp::archive::Error naming the output. Memory: 64 MiB of text that waits at
/// most, or one document that is larger, and 4 bytes for each of its ids; 4 MiB a thread. If an
/// Interruption has come, it ends the program and does not return.
TokenizeResult Tokenize(const TokenizeRequest& request, TokenizeProgress& progress);

/// `fsdp-train tokenize`: the same with progress on stderr and a line at the end. An interrupt
/// removes what was written and ends the program by its signal.
void RunTokenize(const TokenizeRequest& request);

}  // namespace fsdprun::worker
