#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/tokenize/byte_stream.h"

namespace fsdprun::worker {

/// What a document is in a file of input.
enum class InputFormat {
  /// By the file's name, before .gz or .zst: .jsonl and .ndjson are kJsonl, all else is kText.
  kByName,
  /// The whole file.
  kText,
  /// Each line that is not empty, without its end.
  kLines,
  /// Each line is a JSON object, of which one key is the text.
  kJsonl,
};

/// Which of the others kByName is for this file. Pure.
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

/// Reads files in their order, some documents at a time. Thread: one.
class DocumentReader {
 public:
  /// Errors: as FileBytes'.
  DocumentReader(std::vector<std::string> paths, InputFormat format);

  /// About 1 MiB of documents, or one that is larger; false at the end. Errors: as ByteStream's;
  /// for a document of more than kMaxDocumentBytes.
  bool Next(RawDocuments& documents);

  /// Of the files as they are on disk: all, and those read.
  int64_t total_bytes() const { return total_bytes_; }
  int64_t bytes_read() const;

  static constexpr size_t kMaxDocumentBytes = size_t{1} << 30;

 private:
  bool OpenNext();
  bool Fill();
  void TakeLines(RawDocuments& documents);
  void TakeRest(RawDocuments& documents);
  [[noreturn]] void RefuseLarge(const std::string& what) const;

  std::vector<std::string> paths_;
  InputFormat format_;
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
