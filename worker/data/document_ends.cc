#include "worker/data/document_ends.h"

#include <algorithm>
#include <optional>

#include "fsdp_runtime/plan/fnv1a.h"
#include "worker/data/stream_digest.h"

namespace fsdprun::worker {
namespace {

void MixAll(const std::vector<int64_t>& ends, fsdp::Fnv1a& hash) {
  hash.mix(ends.size());
  for (const int64_t end : ends) {
    hash.mix(static_cast<uint64_t>(end));
  }
}

/// Of a stream whose files say where documents end, or end with them.
void MixPlaces(const TokenStream& stream, fsdp::Fnv1a& hash) {
  if (stream.facts().document_ends.empty()) {
    MixAll(stream.FileEnds(), hash);
  } else {
    MixAll(stream.facts().document_ends, hash);
  }
}

/// Whether only the tokens themselves say it.
bool IsSaidById(const Windows& source) {
  const TokenFacts& facts = source.stream().facts();
  return facts.document_ends.empty() && facts.document_end.has_value();
}

}  // namespace

DocumentEnds EndsOf(const std::vector<Windows>& sources) {
  DocumentEnds ends;
  if (!sources.front().may_ignore_targets()) {
    return ends;
  }
  if (std::none_of(sources.begin(), sources.end(), IsSaidById)) {
    fsdp::Fnv1a hash;
    for (const Windows& source : sources) {
      MixPlaces(source.stream(), hash);
    }
    ends.digest = FormatDigest(hash.digest());
    return ends;
  }
  const std::optional<int64_t> first = sources.front().stream().facts().document_end;
  const bool is_one_id = std::all_of(sources.begin(), sources.end(), [&](const Windows& source) {
    return IsSaidById(source) && source.stream().facts().document_end == first;
  });
  ends.id = is_one_id ? *first : -1;
  return ends;
}

bool DifferInEnds(const DocumentEnds& one, const DocumentEnds& other) {
  if (!one.digest.empty() && !other.digest.empty()) {
    return one.digest != other.digest;
  }
  return one.id >= 0 && other.id >= 0 && one.id != other.id;
}

}  // namespace fsdprun::worker
