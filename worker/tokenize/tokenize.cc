#include "worker/tokenize/tokenize.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "formats/files/interruption.h"
#include "formats/files/output_stop.h"
#include "formats/json/strict_json.h"
#include "worker/config/command_line.h"
#include "worker/tokenize/document_reader.h"
#include "worker/tokenize/encode_documents.h"
#include "worker/tokenize/ordered_workers.h"
#include "worker/tokenize/token_output.h"
#include "worker/tokenizers/tokenizer.h"

namespace fsdprun::worker {
namespace {

constexpr int64_t kMostThreads = 256;
constexpr size_t kMostPendingBytes = size_t{64} << 20;
constexpr auto kPatience = std::chrono::milliseconds(200);

template <class Value, size_t kCount>
Value ValueOfName(const std::string& flag, const std::string& name,
                  const std::array<std::pair<std::string_view, Value>, kCount>& values) {
  std::string expected;
  for (const auto& [known, value] : values) {
    if (known == name) {
      return value;
    }
    expected += (expected.empty() ? "" : ", ") + std::string(known);
  }
  throw UsageError(flag + " " + name + ": expected one of " + expected);
}

TokenFormat ParseTokenFormat(const std::string& name) {
  return ValueOfName(
      "--format", name,
      std::array<std::pair<std::string_view, TokenFormat>, 3>{{{"llmc", TokenFormat::kLlmc},
                                                               {"megatron", TokenFormat::kMegatron},
                                                               {"raw", TokenFormat::kRaw}}});
}

InputFormat ParseInputFormat(const std::string& name) {
  return ValueOfName(
      "--input-format", name,
      std::array<std::pair<std::string_view, InputFormat>, 4>{{{"auto", InputFormat::kByName},
                                                               {"text", InputFormat::kText},
                                                               {"lines", InputFormat::kLines},
                                                               {"jsonl", InputFormat::kJsonl}}});
}

void CheckRequest(const TokenizeRequest& request) {
  if (request.inputs.empty()) {
    throw UsageError("tokenize: no input: give files of text or JSON lines");
  }
  if (request.output.empty() || request.output.ends_with('/')) {
    throw UsageError("--output " + request.output +
                     ": expected the beginning of a file's name, such as data/train");
  }
  if (request.tokenizer.empty()) {
    throw UsageError(
        "--tokenizer is missing: expected \"bytes\", a tokenizer.json or a SentencePiece .model");
  }
  if (request.threads < 0 || request.threads > kMostThreads) {
    throw UsageError("--threads " + std::to_string(request.threads) +
                     ": expected an integer from 0 to " + std::to_string(kMostThreads));
  }
  if (request.shard_tokens < 0) {
    throw UsageError("--shard-tokens " + std::to_string(request.shard_tokens) +
                     ": expected an integer >= 0");
  }
  if (request.shard_tokens > kLlmcMostTokens && request.format == "llmc") {
    throw UsageError("--shard-tokens " + std::to_string(request.shard_tokens) +
                     ": expected at most " + std::to_string(kLlmcMostTokens) +
                     " with --format llmc, which counts them in 32 bits");
  }
  if (request.shard_tokens > 0 && request.format == "megatron") {
    throw UsageError("--shard-tokens: not with --format megatron, whose files have no limit");
  }
}

/// The id behind each document.
std::optional<uint32_t> DocumentEnd(const TokenizeRequest& request, const Tokenizer& tokenizer) {
  const bool is_wanted = request.appends_document_end.value_or(true);
  if (!request.document_end.empty()) {
    const std::optional<uint32_t> id = tokenizer.FindToken(request.document_end);
    if (!is_wanted || !id) {
      throw UsageError("--document-end " + request.document_end + ": expected " +
                       (is_wanted ? "a token of " + request.tokenizer
                                  : std::string("nothing with --no-append-document-end")));
    }
    return id;
  }
  if (request.appends_document_end.value_or(false) && !tokenizer.document_end()) {
    throw UsageError("--append-document-end: " + request.tokenizer +
                     " has no token that is known to end a document; name one with "
                     "--document-end TOKEN");
  }
  return is_wanted ? tokenizer.document_end() : std::nullopt;
}

TokenOutput::Options OutputOptions(const TokenizeRequest& request, const Tokenizer& tokenizer,
                                   std::optional<uint32_t> document_end) {
  TokenOutput::Options options;
  options.prefix = request.output;
  options.format = ParseTokenFormat(request.format);
  options.shard_tokens = request.shard_tokens;
  options.existing = request.is_forced ? Existing::kReplace : Existing::kRefuse;
  options.info.dtype = DtypeOf(options.format, tokenizer.vocab_size());
  options.info.vocab_size = tokenizer.vocab_size();
  options.info.document_end = document_end;
  options.info.tokenizer = tokenizer.identity();
  options.info.sources = request.inputs;
  return options;
}

int ThreadCount(int64_t wanted) {
  const auto processors = static_cast<int64_t>(std::thread::hardware_concurrency());
  return static_cast<int>(wanted > 0 ? wanted : std::clamp<int64_t>(processors, 1, kMostThreads));
}

/// Documents in, ids out, with their size for what may wait at once.
struct Work {
  RawDocuments documents;
  size_t byte_count = 0;
};
struct WorkDone {
  EncodedDocuments encoded;
  size_t byte_count = 0;
};

void AddAll(const EncodedDocuments& encoded, TokenOutput& output, TokenizeResult& result) {
  size_t begin = 0;
  for (const size_t end : encoded.ends) {
    output.AddDocument(encoded.ids.data() + begin, end - begin);
    begin = end;
  }
  result.documents += static_cast<int64_t>(encoded.ends.size());
  result.empty_documents += encoded.empty_documents;
  result.replaced_documents += encoded.replaced_documents;
  if (result.skipped_lines == 0) {
    result.first_skipped = encoded.first_skipped;
  }
  result.skipped_lines += encoded.skipped_lines;
}

/// Reads on while there is less than the threads can hold, and takes what is ready.
void Pump(DocumentReader& reader, OrderedWorkers<Work, WorkDone>& workers, size_t most_pending,
          TokenOutput& output, TokenizeProgress& progress, TokenizeResult& result) {
  size_t pending_bytes = 0;
  bool has_more = true;
  while (has_more || workers.pending() > 0) {
    if (has_more && workers.pending() < most_pending && pending_bytes < kMostPendingBytes) {
      Work work;
      has_more = reader.Next(work.documents);
      if (has_more) {
        for (const std::string& text : work.documents.texts) {
          work.byte_count += text.size();
        }
        pending_bytes += work.byte_count;
        workers.Submit(std::move(work));
      }
      continue;
    }
    while (!workers.Await(kPatience)) {
      CheckOutputsGoOn("write", output.prefix());
    }
    const WorkDone done = workers.Take();
    pending_bytes -= done.byte_count;
    AddAll(done.encoded, output, result);
    result.state.bytes_read = reader.bytes_read();
    result.state.tokens = output.tokens();
    progress.Update(result.state);
  }
}

EncodeOptions EncodeOptionsOf(const TokenizeRequest& request, const Tokenizer& tokenizer) {
  EncodeOptions options;
  options.text_key = request.text_key;
  options.document_end = DocumentEnd(request, tokenizer);
  options.special = request.adds_special_tokens ? Tokenizer::SpecialTokens::kAdded
                                                : Tokenizer::SpecialTokens::kOmitted;
  options.replaces_invalid_utf8 = request.replaces_invalid_utf8;
  options.skips_bad_lines = request.skips_bad_lines;
  return options;
}

[[noreturn]] void RefuseNoText(const TokenizeRequest& request, const TokenizeResult& result) {
  std::string text = "cannot tokenize " + request.inputs.front() +
                     (request.inputs.size() > 1 ? " and the other files" : "") +
                     ": there is no text in it; nothing was written";
  if (result.skipped_lines > 0) {
    text += "; " + WithCommas(result.skipped_lines) +
            " lines were skipped, the first: " + result.first_skipped;
  }
  throw ConfigError(text);
}

/// Once what was written is removed: a thread may be at work on a large document for minutes, and
/// nobody waits for it any more.
void EndProgramIfInterrupted(const std::exception& error) {
  if (Interruption::HasCome()) {
    std::fprintf(stderr, "fsdp-train: %s\n", error.what());
    Interruption::EndIfInterrupted();
  }
}

}  // namespace

std::string TokenizeSummary(const TokenizeResult& result) {
  const size_t count = result.files.size();
  std::string text = "wrote " + WithCommas(result.state.tokens) + " tokens of " +
                     WithCommas(result.documents) + " documents to " + result.files.front();
  if (count > 1) {
    text += " and " + std::to_string(count - 1) + " more";
  }
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f", result.state.seconds);
  text += " in " + std::string(seconds) + " s";
  if (result.empty_documents > 0) {
    text += "; " + WithCommas(result.empty_documents) + " documents without text were left out";
  }
  if (result.replaced_documents > 0) {
    text += "; " + WithCommas(result.replaced_documents) +
            " documents have U+FFFD in place of what is no text";
  }
  if (result.skipped_lines > 0) {
    text += "; " + WithCommas(result.skipped_lines) +
            " lines were skipped, the first: " + result.first_skipped;
  }
  return text;
}

TokenizeResult Tokenize(const TokenizeRequest& request, TokenizeProgress& progress) {
  CheckRequest(request);
  const std::unique_ptr<const Tokenizer> tokenizer = OpenTokenizer(request.tokenizer);
  const EncodeOptions options = EncodeOptionsOf(request, *tokenizer);
  ReadOptions reading;
  reading.format = ParseInputFormat(request.input_format);
  DocumentReader reader(request.inputs, reading);
  TokenizeResult result;
  result.state.total_bytes = reader.total_bytes();
  const int threads = ThreadCount(request.threads);
  OrderedWorkers<Work, WorkDone> workers(threads, [&](Work& work) {
    WorkDone done{EncodeDocuments(work.documents, *tokenizer, options), work.byte_count};
    work.documents = RawDocuments();
    return done;
  });
  std::optional<TokenOutput> output(OutputOptions(request, *tokenizer, options.document_end));
  try {
    Pump(reader, workers, 2 * static_cast<size_t>(threads) + 2, *output, progress, result);
    if (result.documents == 0) {
      RefuseNoText(request, result);
    }
    result.files = output->Publish();
  } catch (const std::exception& error) {
    output.reset();
    EndProgramIfInterrupted(error);
    throw;
  }
  progress.Update(result.state);
  return result;
}

void RunTokenize(const TokenizeRequest& request) {
  const Interruption interruption;
  TokenizeResult result;
  {
    TokenizeProgress progress(stderr);
    result = Tokenize(request, progress);
  }
  std::printf("%s\n", TokenizeSummary(result).c_str());
}

}  // namespace fsdprun::worker
