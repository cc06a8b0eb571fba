#include "worker/tokenize/document_reader.h"

#include <algorithm>
#include <utility>

#include "formats/json/strict_json.h"

namespace fsdprun::worker {
namespace {

constexpr size_t kReadBytes = size_t{1} << 20;

}  // namespace

InputFormat FormatOfName(const std::string& path) {
  std::string_view name = path;
  for (const std::string_view suffix : {".gz", ".zst"}) {
    if (name.ends_with(suffix)) {
      name.remove_suffix(suffix.size());
    }
  }
  return name.ends_with(".jsonl") || name.ends_with(".ndjson") ? InputFormat::kJsonl
                                                               : InputFormat::kText;
}

DocumentReader::DocumentReader(std::vector<std::string> paths, InputFormat format)
    : paths_(std::move(paths)), format_(format) {
  for (const std::string& path : paths_) {
    total_bytes_ += FileBytes(path);
  }
}

int64_t DocumentReader::bytes_read() const {
  return bytes_of_done_files_ + (stream_ != nullptr ? stream_->file_bytes_read() : 0);
}

bool DocumentReader::OpenNext() {
  if (next_path_ == paths_.size()) {
    return false;
  }
  const std::string& path = paths_[next_path_++];
  stream_ = OpenByteStream(path);
  stream_format_ = format_ == InputFormat::kByName ? FormatOfName(path) : format_;
  is_at_end_ = false;
  next_line_ = 1;
  return true;
}

void DocumentReader::RefuseLarge(const std::string& what) const {
  throw ConfigError("cannot read " + paths_[next_path_ - 1] + ": " + what + " has more than " +
                    std::to_string(kMaxDocumentBytes) +
                    " bytes, the most of a document; divide it, or take each line as one with "
                    "--input-format lines");
}

/// Reads some more; false at the end of the stream.
bool DocumentReader::Fill() {
  const size_t before = buffer_.size();
  buffer_.resize(before + kReadBytes);
  const size_t count = stream_->Read(buffer_.data() + before, kReadBytes);
  buffer_.resize(before + count);
  is_at_end_ = count == 0;
  return !is_at_end_;
}

void DocumentReader::TakeRest(RawDocuments& documents) {
  while (Fill()) {
    if (buffer_.size() > kMaxDocumentBytes) {
      RefuseLarge("the text");
    }
  }
  documents.texts.push_back(std::move(buffer_));
  buffer_.clear();
}

/// All lines of the buffer, of which there is at least one if the stream is not at its end.
void DocumentReader::TakeLines(RawDocuments& documents) {
  size_t searched = 0;
  while (buffer_.find('\n', searched) == std::string::npos) {
    searched = buffer_.size();
    if (!Fill()) {
      break;
    }
    if (buffer_.size() > kMaxDocumentBytes) {
      RefuseLarge("line " + std::to_string(next_line_));
    }
  }
  documents.first_line = next_line_;
  size_t begin = 0;
  while (begin < buffer_.size()) {
    const size_t end = buffer_.find('\n', begin);
    if (end == std::string::npos && !is_at_end_) {
      break;
    }
    std::string line = buffer_.substr(begin, end == std::string::npos ? end : end - begin);
    if (line.ends_with('\r')) {
      line.pop_back();
    }
    documents.texts.push_back(std::move(line));
    ++next_line_;
    begin = end == std::string::npos ? buffer_.size() : end + 1;
  }
  buffer_.erase(0, begin);
}

bool DocumentReader::Next(RawDocuments& documents) {
  documents = RawDocuments();
  while (documents.texts.empty()) {
    if (stream_ == nullptr && !OpenNext()) {
      return false;
    }
    documents.source = paths_[next_path_ - 1];
    documents.format = stream_format_;
    if (stream_format_ == InputFormat::kText) {
      TakeRest(documents);
    } else {
      TakeLines(documents);
    }
    if (is_at_end_ && buffer_.empty()) {
      bytes_of_done_files_ += stream_->file_bytes_read();
      stream_.reset();
    }
  }
  return true;
}

}  // namespace fsdprun::worker
