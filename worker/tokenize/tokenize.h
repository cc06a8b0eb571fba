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
  TokenizeState state;
};

/// Tokenizes the inputs in their order. What is written does not depend on the number of threads,
/// and is there as a whole or not at all. Errors: ConfigError naming the argument, or the input,
/// its line and byte; fsdp::archive::Error naming the output. Memory: about 100 MiB, more for
/// documents that are larger.
TokenizeResult Tokenize(const TokenizeRequest& request, TokenizeProgress& progress);

/// `fsdp-train tokenize`: the same with progress on a terminal and a line at the end. An interrupt
/// removes what was written and ends the program by its signal.
void RunTokenize(const TokenizeRequest& request);

}  // namespace fsdprun::worker
