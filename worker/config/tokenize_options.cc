#include "worker/config/tokenize_options.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <functional>
#include <system_error>

#include "worker/config/command_line.h"

namespace fsdprun::worker {
namespace {

constexpr char kCount[] = "an integer >= 0";

int64_t ParseCount(const std::string& option, const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    throw UsageError(option + " " + text + ": expected " + kCount);
  }
  return value;
}

/// One option after the other.
class TokenizeOptions {
 public:
  TokenizeOptions(CLI::App& command, std::map<std::string, std::string>& expectations)
      : command_(command), expectations_(expectations) {}

  void Text(const std::string& option, const char* name, const char* expectation, const char* help,
            std::string& target) {
    Add(option, name, expectation, help, [&target](const std::string& text) { target = text; });
  }
  void Count(const std::string& option, const char* help, int64_t& target) {
    Add(option, "N", kCount, help,
        [option, &target](const std::string& text) { target = ParseCount(option, text); });
  }
  void Flag(const std::string& flag, const char* help, const std::function<void()>& take) {
    command_.add_flag_callback(flag, take, help)->disable_flag_override();
  }

 private:
  void Add(const std::string& option, const char* name, const char* expectation, const char* help,
           const std::function<void(const std::string&)>& take) {
    expectations_[option] = expectation;
    command_.add_option_function<std::string>(option, take, help)
        ->type_name(name)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }

  CLI::App& command_;
  std::map<std::string, std::string>& expectations_;
};

}  // namespace

void AddTokenizeOptions(CLI::App& command, TokenizeRequest& request,
                        std::map<std::string, std::string>& expectations) {
  TokenizeOptions add(command, expectations);
  add.Text("--tokenizer", "FILE", kTokenizerExpectation,
           "bytes, a tokenizer.json or a SentencePiece .model", request.tokenizer);
  add.Text("--output", "PREFIX", "the beginning of a file's name",
           "writes PREFIX.bin and PREFIX.bin.json", request.output);
  add.Text("--format", "F", "llmc, megatron or raw", "llmc (default), megatron or raw",
           request.format);
  add.Text("--input-format", "F", "auto, text, lines or jsonl",
           "what a document is: text, a file; lines, each line; jsonl,\n"
           "each line, which is JSON; auto (default): by the file's name",
           request.input_format);
  add.Text("--text-key", "KEY", "a key", "the key of the text in JSON lines (default text)",
           request.text_key);
  add.Count("--threads", "default 0: as many as there are processors", request.threads);
  add.Flag("--append-document-end",
           "an id ends each document (default: where the tokenizer has one)",
           [&request] { request.appends_document_end = true; });
  add.Flag("--no-append-document-end", "none does",
           [&request] { request.appends_document_end = false; });
  add.Text("--document-end", "TOKEN", "a token", "the id of this token does", request.document_end);
  add.Flag("--add-special-tokens", "documents also get what the tokenizer puts around a text",
           [&request] { request.adds_special_tokens = true; });
  add.Count("--shard-tokens", "files of N tokens, PREFIX_000001.bin and so on",
            request.shard_tokens);
  add.Flag("--replace-invalid-utf8", "U+FFFD in place of what is not UTF-8; else it is an error",
           [&request] { request.replaces_invalid_utf8 = true; });
  add.Flag("--skip-bad-lines", "leave out lines of which no document can be made; else an error",
           [&request] { request.skips_bad_lines = true; });
  add.Flag("--force", "replace files that are there", [&request] { request.is_forced = true; });
  command.add_option("INPUT", request.inputs, "files of text, also .gz and .zst")->type_name("");
  command.footer(
      "Writes ids of text for data.train and data.valid, whole or not at all (docs/DATA.md). It "
      "needs no launcher.");
}

}  // namespace fsdprun::worker
