#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/tokenize/byte_stream.h"

namespace fsdprun::worker {

/// What a document is in a file of input.
enum class InputFormat {
  /// By the file's name, before .gz or .zst: .jsonl and .ndjson are kJsonl, all else is kText, but
  /// for what looks like JSON, which nobody wants to learn by accident: it is refused.
  kByName,
  /// The whole file.
  kText,
  /// Each line that is not empty, without its end.
  kLines,
  /// Each line is a JSON object, of which one key is the text.
  kJsonl,
};

/// Which of the others kByName is for this file. Errors: ConfigError for a name that ends with
/// .json, as of one document or of lines. Pure.
InputFormat FormatOfName(const std::string& path);

/// Documents as they are in the input: some lines of a file, or a file.
struct RawDocuments {
  std::string source;
  InputFormat format = InputFormat::kText;
  /// Of the first line, from 1.
  int64_t first_line = 1;
  /// Lines, empty ones too; or the content of the file.
  std::vector<std::string> texts;
};

/// How files are opened and read.
struct ReadOptions {
  InputFormat format = InputFormat::kByName;
  std::function<std::unique_ptr<ByteStream>(const std::string&)> open = OpenByteStream;
  /// At least so many at once.
  size_t read_bytes = size_t{1} << 20;
};

/// Reads files in their order, some documents at a time. Thread: one.
class DocumentReader {
 public:
  /// With kByName it looks into each regular file. Errors: as FileBytes' and FormatOfName's;
  /// ConfigError for a file that kByName takes for text and that begins with an object of JSON.
  DocumentReader(std::vector<std::string> paths, ReadOptions options);

  /// About 1 MiB of documents, or one that is larger; false at the end. Errors: as ByteStream's;
  /// for a document of more than kMaxDocumentBytes.
  bool Next(RawDocuments& documents);

  /// Of the files as they are on disk: all, and those read.
  int64_t total_bytes() const { return total_bytes_; }
  int64_t bytes_read() const;

  static constexpr size_t kMaxDocumentBytes = size_t{1} << 30;

 private:
  InputFormat FormatOf(const std::string& path) const;
  void LookInto(const std::string& path, int64_t file_bytes) const;
  bool OpenNext();
  bool Fill();
  void TakeLines(RawDocuments& documents);
  void TakeRest(RawDocuments& documents);
  [[noreturn]] void RefuseLarge(const std::string& what) const;

  std::vector<std::string> paths_;
  ReadOptions options_;
  int64_t total_bytes_ = 0;

  size_t next_path_ = 0;
  int64_t bytes_of_done_files_ = 0;
  std::unique_ptr<ByteStream> stream_;  // null between files
  InputFormat stream_format_ = InputFormat::kText;
  bool is_at_end_ = false;  // of the stream
  int64_t next_line_ = 1;
  std::string buffer_;  // what was read and not handed out
};

}  // namespace fsdprun::worker
