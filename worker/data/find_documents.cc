#include "worker/data/find_documents.h"

#include <algorithm>

namespace fsdprun::worker {
namespace {

constexpr int64_t kScanTokens = 64 * 1024;

}  // namespace

void AppendDocumentEnds(const TokenStream& stream, int64_t begin, int64_t end,
                        std::optional<int64_t> document_end, std::vector<int64_t>& ends) {
  std::vector<int64_t> tokens(static_cast<size_t>(std::min(kScanTokens, end - begin)));
  int64_t last = begin;
  for (int64_t at = begin; document_end && at < end; at += kScanTokens) {
    const int64_t count = std::min(kScanTokens, end - at);
    stream.CopyTokens(at, count, tokens.data());
    for (int64_t i = 0; i < count; ++i) {
      if (tokens[static_cast<size_t>(i)] == *document_end) {
        last = at + i + 1;
        ends.push_back(last);
      }
    }
  }
  if (last < end) {
    ends.push_back(end);
  }
}

}  // namespace fsdprun::worker
