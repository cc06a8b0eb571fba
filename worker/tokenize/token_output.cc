#include "worker/tokenize/token_output.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "formats/tokens/llmc_header.h"
#include "formats/tokens/megatron_writer.h"
#include "fsdp_runtime/archive/error.h"

namespace fsdprun::worker {
namespace {

using fsdp::archive::Error;

// Megatron-LM's own limit, below 2^16.
constexpr int64_t kMegatronUint16Ids = 65500;
// Of the number in the name of one of several files.
constexpr size_t kNumberDigits = 6;

int64_t HeaderBytes(TokenFormat format) {
  return format == TokenFormat::kLlmc ? kLlmcHeaderBytes : 0;
}

/// What lies beside a .bin.
std::unique_ptr<OutputFile> DescriptionOf(const TokenOutput::Options& options,
                                          const std::string& path, int64_t tokens) {
  TokenFileInfo info = options.info;
  info.tokens = tokens;
  const std::string text = FormatTokenFileInfo(info);
  auto file = std::make_unique<OutputFile>(TokenFileInfoPath(path),
                                           static_cast<int64_t>(text.size()), options.existing);
  file->Write(0, text);
  file->Finish();
  return file;
}

/// Of what follows PREFIX in a name: whether it is of a numbered file; none if of no data set.
std::optional<bool> IsNumbered(std::string_view rest) {
  const bool is_numbered = rest.starts_with('_');
  if (is_numbered) {
    const size_t digits = std::min(rest.find_first_not_of("0123456789", 1), rest.size()) - 1;
    if (digits < kNumberDigits) {
      return std::nullopt;
    }
    rest.remove_prefix(1 + digits);
  }
  const bool is_of_set = rest == ".bin" || rest == ".bin.json" || rest == ".idx";
  return is_of_set ? std::optional(is_numbered) : std::nullopt;
}

}  // namespace

TokenDtype DtypeOf(TokenFormat format, int64_t vocab_size) {
  if (format == TokenFormat::kMegatron) {
    return vocab_size < kMegatronUint16Ids ? TokenDtype::kUint16 : TokenDtype::kInt32;
  }
  return vocab_size - 1 <= LargestTokenId(TokenDtype::kUint16) ? TokenDtype::kUint16
                                                               : TokenDtype::kUint32;
}

std::string TokenFileName(const std::string& prefix, bool is_one_of_several, size_t index) {
  char number[32] = "";
  if (is_one_of_several) {
    std::snprintf(number, sizeof number, "_%06zu", index + 1);
  }
  return prefix + number + ".bin";
}

std::vector<std::string> FilesOfDataSet(const std::string& prefix) {
  const std::filesystem::path start(prefix);
  const std::string base = start.filename().string();
  std::vector<std::string> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(FolderOf(prefix), error), end;
       !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with(base) && IsNumbered(std::string_view(name).substr(base.size()))) {
      found.push_back((start.parent_path() / name).string());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

TokenOutput::File::File(const std::string& path, const Options& options)
    : data(path, options.info.dtype, HeaderBytes(options.format), options.existing) {}

TokenOutput::TokenOutput(Options options)
    : options_(std::move(options)), is_numbered_(options_.shard_tokens > 0) {
  if (options_.existing == Existing::kRefuse) {
    const std::vector<std::string> there = FilesOfDataSet(options_.prefix);
    if (!there.empty()) {
      RefuseExisting(there.front());
    }
  }
  BeginFile();
}

int64_t TokenOutput::MostTokensOfFile() const {
  if (options_.shard_tokens > 0) {
    return options_.shard_tokens;
  }
  return options_.format == TokenFormat::kLlmc ? options_.most_llmc_tokens : INT64_MAX;
}

size_t TokenOutput::Room() const {
  return static_cast<size_t>(MostTokensOfFile() - files_.back()->data.tokens());
}

void TokenOutput::BeginFile() {
  if (!files_.empty() && !is_numbered_) {
    // The first one was to be the only one.
    is_numbered_ = true;
    File& first = *files_.front();
    first.data.file().SetPath(TokenFileName(options_.prefix, is_numbered_, 0));
    first.description->SetPath(TokenFileInfoPath(first.data.file().path()));
  }
  files_.push_back(std::make_unique<File>(
      TokenFileName(options_.prefix, is_numbered_, files_.size()), options_));
}

void TokenOutput::EndFile() {
  File& file = *files_.back();
  if (options_.format == TokenFormat::kLlmc) {
    file.data.file().Write(0, FormatLlmcHeader(options_.info.dtype, file.data.tokens()));
  }
  file.data.Finish();
  file.description = DescriptionOf(options_, file.data.file().path(), file.data.tokens());
}

void TokenOutput::Append(const uint32_t* ids, size_t count) {
  files_.back()->data.Append(ids, count);
  tokens_ += static_cast<int64_t>(count);
}

void TokenOutput::AddDocument(const uint32_t* ids, size_t count) {
  if (options_.format == TokenFormat::kMegatron) {
    if (static_cast<int64_t>(count) > kMegatronMostDocumentTokens) {
      throw Error("cannot write a document of " + std::to_string(count) + " tokens to " +
                  files_.back()->data.file().path() + ": Megatron-LM takes at most " +
                  std::to_string(kMegatronMostDocumentTokens) + "; divide it");
    }
    document_lengths_.push_back(static_cast<int32_t>(count));
  }
  for (size_t room = Room(); count > room; room = Room()) {
    Append(ids, room);
    ids += room;
    count -= room;
    EndFile();
    BeginFile();
  }
  Append(ids, count);
}

/// Of an earlier run with more files, or with an index, which no .bin of the new ones has.
std::vector<std::string> TokenOutput::StaleFiles(const std::vector<OutputFile*>& written) const {
  const size_t base = std::filesystem::path(options_.prefix).filename().string().size();
  std::vector<std::string> stale;
  for (const std::string& path : FilesOfDataSet(options_.prefix)) {
    const std::string name = std::filesystem::path(path).filename().string();
    const bool is_written =
        std::any_of(written.begin(), written.end(), [&](const OutputFile* file) {
          return std::filesystem::path(file->path()).filename() == name;
        });
    if (!is_written && IsNumbered(std::string_view(name).substr(base)) == is_numbered_) {
      stale.push_back(path);
    }
  }
  return stale;
}

std::vector<std::string> TokenOutput::Publish() {
  EndFile();
  std::vector<OutputFile*> all;
  std::unique_ptr<OutputFile> index;
  if (options_.format == TokenFormat::kMegatron) {
    const auto documents = static_cast<int64_t>(document_lengths_.size());
    index = std::make_unique<OutputFile>(options_.prefix + ".idx", MegatronIndexBytes(documents),
                                         options_.existing);
    WriteMegatronIndex(document_lengths_, options_.info.dtype, *index);
    all.push_back(index.get());
  }
  for (const auto& file : files_) {
    all.push_back(file->description.get());
  }
  // What a reader looks for comes last.
  std::vector<std::string> names;
  for (const auto& file : files_) {
    all.push_back(&file->data.file());
    names.push_back(file->data.file().path());
  }
  PublishTogether(
      all, options_.existing == Existing::kReplace ? StaleFiles(all) : std::vector<std::string>());
  return names;
}

}  // namespace fsdprun::worker
