#include "worker/data/windows.h"

#include <algorithm>
#include <utility>

#include "worker/data/find_documents.h"

namespace fsdprun::worker {
namespace {

/// `count` inputs from token `begin` and the tokens that follow each.
void CopyShifted(const TokenStream& stream, int64_t begin, int64_t count, int64_t* inputs,
                 int64_t* targets) {
  std::vector<int64_t> tokens(static_cast<size_t>(count) + 1);
  stream.CopyTokens(begin, count + 1, tokens.data());
  std::copy(tokens.begin(), tokens.end() - 1, inputs);
  std::copy(tokens.begin() + 1, tokens.end(), targets);
}

}  // namespace

Documents DocumentsOf(std::string_view word) {
  return word == "mask"       ? Documents::kMask
         : word == "separate" ? Documents::kSeparate
                              : Documents::kJoin;
}

Windows::Windows(std::shared_ptr<const TokenStream> stream, int64_t seq_len, Documents documents)
    : stream_(std::move(stream)), seq_len_(seq_len), documents_(documents) {
  const TokenFacts& facts = stream_->facts();
  if (documents_ != Documents::kJoin && facts.document_ends.empty() && !facts.document_end) {
    found_ends_ = stream_->FileEnds();
  }
  if (documents_ == Documents::kSeparate) {
    CutDocuments();
  } else {
    count_ = stream_->window_count(seq_len_);
  }
}

void Windows::CutDocuments() {
  if (ends().empty()) {
    AppendDocumentEnds(*stream_, 0, stream_->size(), stream_->facts().document_end, found_ends_);
  }
  first_windows_.reserve(ends().size() + 1);
  int64_t begin = 0;
  for (const int64_t end : ends()) {
    first_windows_.push_back(count_);
    count_ += (end - begin - 1 + seq_len_ - 1) / seq_len_;
    begin = end;
  }
  first_windows_.push_back(count_);
}

int64_t Windows::Read(int64_t window, int64_t* inputs, int64_t* targets) const {
  return documents_ == Documents::kSeparate ? ReadOfDocument(window, inputs, targets)
                                            : ReadJoined(window, inputs, targets);
}

int64_t Windows::ReadJoined(int64_t window, int64_t* inputs, int64_t* targets) const {
  const int64_t begin = window * seq_len_;
  CopyShifted(*stream_, begin, seq_len_, inputs, targets);
  return documents_ == Documents::kMask ? MaskEnds(begin, inputs, targets) : seq_len_;
}

int64_t Windows::MaskEnds(int64_t begin, const int64_t* inputs, int64_t* targets) const {
  int64_t counted = seq_len_;
  const auto ignore = [&](int64_t at) {
    targets[at] = kIgnoredTarget;
    --counted;
  };
  if (!ends().empty()) {
    // The target of token end - 1 is the first one of the next document.
    auto end = std::upper_bound(ends().begin(), ends().end(), begin);
    for (; end != ends().end() && *end <= begin + seq_len_; ++end) {
      ignore(*end - 1 - begin);
    }
    return counted;
  }
  const int64_t document_end = stream_->facts().document_end.value_or(-1);
  for (int64_t at = 0; at < seq_len_; ++at) {
    if (inputs[at] == document_end) {
      ignore(at);
    }
  }
  return counted;
}

int64_t Windows::ReadOfDocument(int64_t window, int64_t* inputs, int64_t* targets) const {
  // The last document whose windows begin at or before this one: those before have no windows.
  const auto after = std::upper_bound(first_windows_.begin(), first_windows_.end() - 1, window);
  const auto document = static_cast<size_t>(after - first_windows_.begin()) - 1;
  const int64_t document_begin = document == 0 ? 0 : ends()[document - 1];
  const int64_t begin = document_begin + (window - first_windows_[document]) * seq_len_;
  const int64_t count = std::min(seq_len_, ends()[document] - 1 - begin);
  CopyShifted(*stream_, begin, count, inputs, targets);
  std::fill(inputs + count, inputs + seq_len_, 0);
  std::fill(targets + count, targets + seq_len_, kIgnoredTarget);
  return count;
}

}  // namespace fsdprun::worker
