#include "worker/tokenize/token_output.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <utility>

#include "formats/tokens/llmc_header.h"
#include "formats/tokens/llmc_writer.h"
#include "formats/tokens/megatron_writer.h"
#include "fsdp_runtime/archive/error.h"

namespace fsdprun::worker {
namespace {

using fsdp::archive::Error;

// Megatron-LM's own limit, below 2^16.
constexpr int64_t kMegatronUint16Ids = 65500;

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
  return file;
}

/// Gives all their names, or none.
void PublishAll(const std::vector<OutputFile*>& files) {
  size_t published = 0;
  try {
    for (; published < files.size(); ++published) {
      files[published]->Publish();
    }
  } catch (...) {
    for (size_t i = 0; i < published; ++i) {
      unlink(files[i]->path().c_str());
    }
    throw;
  }
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

TokenOutput::TokenOutput(Options options) : options_(std::move(options)) { BeginFile(); }

void TokenOutput::BeginFile() {
  files_.push_back(std::make_unique<TokenBinWriter>(
      TokenFileName(options_.prefix, options_.shard_tokens > 0, files_.size()), options_.info.dtype,
      HeaderBytes(options_.format), options_.existing));
}

void TokenOutput::EndFile() {
  TokenBinWriter& file = *files_.back();
  file.Flush();
  if (options_.format == TokenFormat::kLlmc) {
    file.file().Write(0, FormatLlmcHeader(options_.info.dtype, file.tokens()));
  }
}

void TokenOutput::Append(const uint32_t* ids, size_t count) {
  TokenBinWriter& file = *files_.back();
  const auto added = static_cast<int64_t>(count);
  if (options_.format == TokenFormat::kLlmc && added > kLlmcMostTokens - file.tokens()) {
    throw Error("cannot write more than " + std::to_string(kLlmcMostTokens) + " tokens to " +
                file.file().path() +
                ": llm.c counts them in 32 bits; divide them with --shard-tokens, or use --format "
                "megatron");
  }
  file.Append(ids, count);
  tokens_ += added;
}

void TokenOutput::AddDocument(const uint32_t* ids, size_t count) {
  if (options_.format == TokenFormat::kMegatron) {
    if (static_cast<int64_t>(count) > kMegatronMostDocumentTokens) {
      throw Error("cannot write a document of " + std::to_string(count) + " tokens to " +
                  files_.back()->file().path() + ": Megatron-LM takes at most " +
                  std::to_string(kMegatronMostDocumentTokens) + "; divide it");
    }
    document_lengths_.push_back(static_cast<int32_t>(count));
  }
  while (options_.shard_tokens > 0) {
    const auto room = static_cast<size_t>(options_.shard_tokens - files_.back()->tokens());
    if (count <= room) {
      break;
    }
    Append(ids, room);
    ids += room;
    count -= room;
    EndFile();
    BeginFile();
  }
  Append(ids, count);
}

std::vector<std::string> TokenOutput::Publish() {
  EndFile();
  // What a reader looks for comes last.
  std::vector<std::unique_ptr<OutputFile>> beside;
  if (options_.format == TokenFormat::kMegatron) {
    const auto documents = static_cast<int64_t>(document_lengths_.size());
    beside.push_back(std::make_unique<OutputFile>(
        options_.prefix + ".idx", MegatronIndexBytes(documents), options_.existing));
    WriteMegatronIndex(document_lengths_, options_.info.dtype, *beside.back());
  }
  std::vector<std::string> names;
  std::vector<OutputFile*> all;
  for (const auto& file : files_) {
    names.push_back(file->file().path());
    beside.push_back(DescriptionOf(options_, names.back(), file->tokens()));
  }
  std::transform(beside.begin(), beside.end(), std::back_inserter(all),
                 [](const auto& file) { return file.get(); });
  std::transform(files_.begin(), files_.end(), std::back_inserter(all),
                 [](const auto& file) { return &file->file(); });
  PublishAll(all);
  return names;
}

}  // namespace fsdprun::worker
