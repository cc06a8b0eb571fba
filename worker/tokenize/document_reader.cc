#include "worker/tokenize/document_reader.h"

#include <algorithm>
#include <utility>

#include "formats/json/strict_json.h"

namespace fsdprun::worker {
namespace {

constexpr size_t kHeadBytes = 4096;

[[noreturn]] void RefuseJson(const std::string& path, const std::string& why) {
  throw ConfigError("cannot tell what " + path + " is: " + why +
                    "; give --input-format jsonl if each line is an object with a text, or "
                    "--input-format text to learn all of it");
}

/// `head`: what a file that is taken for text begins with.
void CheckIsNoJson(const std::string& path, std::string_view head) {
  const size_t first = head.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && head[first] == '{') {
    RefuseJson(path, "it begins with {, as JSON does");
  }
}

}  // namespace

InputFormat FormatOfName(const std::string& path) {
  std::string_view name = path;
  for (const std::string_view suffix : {".gz", ".zst"}) {
    if (name.ends_with(suffix)) {
      name.remove_suffix(suffix.size());
    }
  }
  if (name.ends_with(".json")) {
    RefuseJson(path, "a .json can be one document or lines of JSON");
  }
  return name.ends_with(".jsonl") || name.ends_with(".ndjson") ? InputFormat::kJsonl
                                                               : InputFormat::kText;
}

DocumentReader::DocumentReader(std::vector<std::string> paths, ReadOptions options)
    : paths_(std::move(paths)), options_(std::move(options)) {
  for (const std::string& path : paths_) {
    const int64_t file_bytes = FileBytes(path);
    total_bytes_ += file_bytes;
    LookInto(path, file_bytes);
  }
}

InputFormat DocumentReader::FormatOf(const std::string& path) const {
  return options_.format == InputFormat::kByName ? FormatOfName(path) : options_.format;
}

/// Before hours of work: what is refused when its turn comes is refused now. A pipe can be read
/// only once.
void DocumentReader::LookInto(const std::string& path, int64_t file_bytes) const {
  if (FormatOf(path) != InputFormat::kText || options_.format != InputFormat::kByName ||
      file_bytes == 0) {
    return;
  }
  std::string head(kHeadBytes, '\0');
  head.resize(options_.open(path)->Read(head.data(), head.size()));
  CheckIsNoJson(path, head);
}

int64_t DocumentReader::bytes_read() const {
  return bytes_of_done_files_ + (stream_ != nullptr ? stream_->file_bytes_read() : 0);
}

bool DocumentReader::OpenNext() {
  if (next_path_ == paths_.size()) {
    return false;
  }
  const std::string& path = paths_[next_path_++];
  stream_ = options_.open(path);
  stream_format_ = FormatOf(path);
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
  buffer_.resize(before + options_.read_bytes);
  const size_t count = stream_->Read(buffer_.data() + before, options_.read_bytes);
  buffer_.resize(before + count);
  is_at_end_ = count == 0;
  return !is_at_end_;
}

void DocumentReader::TakeRest(RawDocuments& documents) {
  bool is_head = options_.format == InputFormat::kByName;
  while (Fill()) {
    if (is_head) {
      CheckIsNoJson(documents.source, buffer_);
      is_head = false;
    }
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
