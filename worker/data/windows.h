#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "worker/data/token_stream.h"

namespace fsdprun::worker {

/// How windows treat the ends of documents.
enum class Documents {
  /// Not at all: a window is any seq_len tokens of the stream.
  kJoin,
  /// The windows are the same, but nothing is learned from predicting a document's first token
  /// from the one before.
  kMask,
  /// Every document has windows of its own; the last one is filled up, and the filling is not
  /// learned.
  kSeparate,
};

/// "join", "mask" or "separate"; precondition: one of them.
Documents DocumentsOf(std::string_view word);

/// A target that does not count: ignore_index of PyTorch's cross entropy.
inline constexpr int64_t kIgnoredTarget = -100;

/// A stream cut into windows of seq_len inputs, whose targets are the tokens that follow. Neither
/// attention nor positions know of documents: what documents keep apart is only which targets count
/// and, with kSeparate, which tokens are in one window. Where neither an index nor a token behind
/// each document says where documents end, each file is one.
/// Memory: 16 bytes a document with kSeparate, 8 with kMask if the files have an index of them.
/// Thread: const methods are safe from many.
class Windows {
 public:
  /// With kSeparate, a stream without an index is read as a whole for the tokens that end
  /// documents. Precondition: seq_len >= 1. Errors: as TokenStream's.
  Windows(std::shared_ptr<const TokenStream> stream, int64_t seq_len,
          Documents documents = Documents::kJoin);

  int64_t count() const { return count_; }
  int64_t seq_len() const { return seq_len_; }
  const TokenStream& stream() const { return *stream_; }
  /// Whether some targets may not count.
  bool may_ignore_targets() const { return documents_ != Documents::kJoin; }

  /// Writes seq_len inputs and seq_len targets of window `window` < count(). Returns how many
  /// targets count. Errors: as TokenStream's.
  int64_t Read(int64_t window, int64_t* inputs, int64_t* targets) const;

 private:
  void CutDocuments();
  const std::vector<int64_t>& ends() const {
    return found_ends_.empty() ? stream_->facts().document_ends : found_ends_;
  }
  int64_t ReadJoined(int64_t window, int64_t* inputs, int64_t* targets) const;
  int64_t ReadOfDocument(int64_t window, int64_t* inputs, int64_t* targets) const;
  int64_t MaskEnds(int64_t begin, const int64_t* inputs, int64_t* targets) const;

  std::shared_ptr<const TokenStream> stream_;
  int64_t seq_len_;
  Documents documents_;
  int64_t count_ = 0;
  /// Where documents end, unless an index says it.
  std::vector<int64_t> found_ends_;
  /// Of each document and, at the end, of all: the windows before it. Only with kSeparate.
  std::vector<int64_t> first_windows_;
};

}  // namespace fsdprun::worker
