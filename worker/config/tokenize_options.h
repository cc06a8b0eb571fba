#pragma once

#include <map>
#include <string>

#include "worker/config/tokenize_request.h"

namespace CLI {
class App;
}  // namespace CLI

namespace fsdprun::worker {

/// What --tokenizer expects.
inline constexpr char kTokenizerExpectation[] =
    "\"bytes\", a tokenizer.json or a SentencePiece .model";

/// Adds the options of `fsdp-train tokenize` to its command, which fill `request`, and what each
/// expects to `expectations`. Both outlive the command. Errors while it is parsed: UsageError
/// naming option, value and what is expected.
void AddTokenizeOptions(CLI::App& command, TokenizeRequest& request,
                        std::map<std::string, std::string>& expectations);

}  // namespace fsdprun::worker
