#include "worker/config/command_line.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <system_error>

#include "worker/config/config_schema.h"

namespace fsdprun::worker {
namespace {

constexpr int64_t kMaxSampleBytes = 1'000'000;

/// Iterates over the arguments; a flag's value follows `=` or is the next argument.
class Arguments {
 public:
  explicit Arguments(const std::vector<std::string>& arguments) : arguments_(arguments) {}

  bool Next() {
    if (at_ == arguments_.size()) {
      return false;
    }
    const std::string& argument = arguments_[at_++];
    const size_t equals = argument.starts_with("--") ? argument.find('=') : std::string::npos;
    has_value_ = equals != std::string::npos;
    name_ = argument.substr(0, equals);
    value_ = has_value_ ? argument.substr(equals + 1) : "";
    return true;
  }

  const std::string& name() const { return name_; }

  std::string Value(const std::string& expectation) {
    if (!has_value_) {
      if (at_ == arguments_.size()) {
        throw UsageError(name_ + ": expected " + expectation);
      }
      value_ = arguments_[at_++];
    }
    has_value_ = false;
    return value_;
  }

  /// Throws if the argument has a value that no flag consumed.
  void RefuseLeftOver() const {
    if (has_value_) {
      throw UsageError(name_ + "=" + value_ + ": expected no value");
    }
  }

  template <class T>
  T Number(const std::string& expectation, T low, T high) {
    const std::string text = Value(expectation);
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !(value >= low) ||
        !(value <= high)) {
      throw UsageError(name_ + " " + text + ": expected " + expectation);
    }
    return value;
  }

 private:
  const std::vector<std::string>& arguments_;
  size_t at_ = 0;
  std::string name_;
  std::string value_;
  bool has_value_ = false;
};

bool ParseSampleFlag(Arguments& arguments, SampleRequest& sample) {
  const std::string& name = arguments.name();
  if (name == "--checkpoint") {
    sample.checkpoint = arguments.Value("a checkpoint directory");
  } else if (name == "--prompt") {
    sample.prompt = arguments.Value("a text");
  } else if (name == "--bytes") {
    sample.bytes = arguments.Number<int64_t>("an integer from 0 to 1000000", 0, kMaxSampleBytes);
  } else if (name == "--temperature") {
    sample.temperature = arguments.Number<double>("a number from 0 to 100", 0, 100);
  } else if (name == "--seed") {
    sample.seed = arguments.Number<uint64_t>("an integer >= 0", 0, UINT64_MAX);
  } else {
    return false;
  }
  return true;
}

void ParseFlag(Arguments& arguments, CommandLine& line) {
  const std::string& name = arguments.name();
  const bool is_sample = line.command == Command::kSample;
  if (name == "--config") {
    line.config = arguments.Value("a JSON file");
  } else if (name == "--accelerate-config" && !is_sample) {
    line.accelerate_config = arguments.Value("a YAML file of accelerate");
  } else if (name == "--set") {
    line.overrides.push_back(arguments.Value("section.key=value"));
  } else if (name == "--print-config" && !is_sample) {
    line.command = Command::kPrintConfig;
  } else if (!is_sample || !ParseSampleFlag(arguments, line.sample)) {
    throw UsageError(name + ": expected a known argument (see fsdp-train --help)");
  }
}

}  // namespace

CommandLine ParseCommandLine(const std::vector<std::string>& given) {
  if (given.empty()) {
    throw UsageError(
        "nothing to do: give --config FILE to train, e.g. fsdprun --standalone --nproc-per-node 2 "
        "--no-python fsdp-train --config train.json (see fsdp-train --help)");
  }
  CommandLine line;
  std::vector<std::string> rest = given;
  const bool is_sample = rest.front() == "sample";
  if (is_sample) {
    line.command = Command::kSample;
    rest.erase(rest.begin());
  }
  Arguments arguments(rest);
  while (arguments.Next()) {
    const std::string& name = arguments.name();
    if (name == "--help" || name == "-h" || name == "--version") {
      line.command = name == "--version" ? Command::kVersion : Command::kHelp;
      return line;
    }
    ParseFlag(arguments, line);
    arguments.RefuseLeftOver();
  }
  if (is_sample && line.sample.checkpoint.empty()) {
    throw UsageError("sample: --checkpoint is missing: expected a checkpoint directory");
  }
  return line;
}

std::string HelpText() {
  return R"(fsdp-train: trains a transformer, sharded over the ranks of the job (start it with fsdprun or torchrun).

usage: fsdp-train --config FILE [--accelerate-config FILE] [--set section.key=value]... [--print-config]
       fsdp-train sample --checkpoint DIR [--config FILE] [--prompt TEXT] [--bytes N] [--temperature T] [--seed S]

  --config FILE      JSON file with the keys below
  --accelerate-config FILE
                     YAML file of accelerate; --config and --set count before it (docs/ACCELERATE.md)
  --set a.b=value    overrides one key; the value is JSON, else a string (may be repeated)
  --print-config     prints the configuration as resolved and exits
  --help, --version

sample prints the prompt and a continuation generated by the checkpoint's model. Without --config, the checkpoint says which
model it is of, with its data.seq_len and precision:
  --checkpoint DIR   one checkpoint, or checkpoint.dir (the newest in it)
  --prompt TEXT      default: a newline (not printed)
  --bytes N          default 200
  --temperature T    default 1; 0: greedy (always the most likely byte)
  --seed S           default 0

Signals: on SIGTERM, SIGINT, SIGUSR1, SIGUSR2 or the agent's stop record it finishes the current step, saves a
checkpoint if checkpoint.dir is set, and exits 0. An evaluation is left unfinished; so is a step if it and the
checkpoint do not fit into the grace of the stop (30 s if the stop does not say). A checkpoint that is
being written is finished unless the grace ends. Before the first step it exits at once. If the step
does not end (a peer is gone), it exits 1.

Exit codes: 0 done or stopped on request; 1 failed, a restart may help; 78 the configuration or an
input file is invalid; 2 the command line is invalid (78 under a launcher, which would restart a 2).

Loss: the loss of a step is the mean over its micro batches and ranks; with train.grad_accumulation A
each micro batch contributes the gradient of its loss / A.

Configuration keys
)" + DescribeConfigKeys();
}

}  // namespace fsdprun::worker
