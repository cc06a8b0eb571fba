#include "worker/config/command_line.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <functional>
#include <map>
#include <system_error>
#include <utility>

#include "worker/config/config_schema.h"
#include "worker/config/estimate_options.h"
#include "worker/config/tokenize_options.h"

namespace fsdprun::worker {
namespace {

constexpr int64_t kMaxSampleBytes = 1'000'000;
constexpr size_t kHelpColumn = 28;

constexpr char kPurpose[] =
    "fsdp-train: trains a transformer, sharded over the ranks of the job (start it with fsdprun or "
    "torchrun).\nWithout a subcommand it trains.";

constexpr char kOfTraining[] =
    R"(Signals: on SIGTERM, SIGINT, SIGUSR1, SIGUSR2 or the agent's stop record it finishes the current step, saves a
checkpoint if checkpoint.dir is set, and exits 0. An evaluation is left unfinished; so is a step if it and the
checkpoint do not fit into the grace of the stop (30 s if the stop does not say). A checkpoint that is
being written is finished unless the grace ends. Before the first step it exits at once. If the step
does not end (a peer is gone), it exits 1.

Exit codes: 0 done or stopped on request; 1 failed, a restart may help; 78 the configuration or an
input file is invalid; 2 the command line is invalid (78 under a launcher, which would restart a 2).

Loss: the loss of a step is the mean over its micro batches and ranks; with train.grad_accumulation A
each micro batch contributes the gradient of its loss / A.

The configuration is JSON, in which comments may stand. Its key "preset" names a preset. Configuration keys
)";

/// A value that an option takes: how it is called in the help, and what is expected of it.
struct OptionValue {
  const char* name;
  const char* expectation;
};

template <class T>
T ParseNumber(const std::string& option, const std::string& text, const char* expectation, T low,
              T high) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= low) ||
      !(value <= high)) {
    throw UsageError(option + " " + text + ": expected " + expectation);
  }
  return value;
}

/// The commands of fsdp-train with their options, for one command line. A new command is a function
/// like AddSample(), and its line in the constructor.
class Commands {
 public:
  Commands();
  CommandLine Parse(const std::vector<std::string>& given);

 private:
  CLI::App& AddCommand(Command command, const std::string& name, const std::string& purpose);
  void AddConfigOptions(CLI::App& app);
  void AddSourceOptions(CLI::App& app);
  void AddTrainOptions(CLI::App& app);
  void AddConfig();
  void AddEstimate();
  void AddCheck();
  void AddSample();

  using Take = std::function<void(const std::string&)>;
  /// `option` takes one value; of several the last counts.
  void Add(CLI::App& app, const std::string& option, const OptionValue& value,
           const std::string& help, const Take& take);
  void AddText(CLI::App& app, const std::string& option, const OptionValue& value,
               const std::string& help, std::string& target);
  void AddFlag(CLI::App& app, const std::string& flag, const std::string& help, Command command);

  /// False if it is answered by a text.
  bool Read(const std::vector<std::string>& given);
  [[noreturn]] void Refuse(const std::string& complaint,
                           const std::vector<std::string>& given) const;
  void RefuseUnknown() const;
  void CheckTogether() const;
  const CLI::App* Chosen() const;
  std::string NameOf(const CLI::App& app) const;

  CLI::App root_{kPurpose, "fsdp-train"};
  /// What each does unless a flag says something else.
  std::map<const CLI::App*, Command> commands_;
  /// By option, for errors.
  std::map<std::string, std::string> expectations_;
  CommandLine line_;
};

Commands::Commands() {
  root_.allow_extras();
  root_.require_subcommand(0, 1);
  root_.get_formatter()->column_width(kHelpColumn);
  root_.get_formatter()->label("Usage", "usage");
  root_.set_help_flag("-h,--help", "print this and exit");
  root_.set_version_flag("--version", "", "print the version and exit");
  commands_[&root_] = Command::kTrain;
  AddTrainOptions(root_);
  AddTrainOptions(AddCommand(Command::kTrain, "train", "train; the same as without a subcommand"));
  AddCheck();
  AddEstimate();
  AddSample();
  AddTokenizeOptions(
      AddCommand(Command::kTokenize, "tokenize", "make files of ids from files of text"),
      line_.tokenize, expectations_);
  AddConfig();
}

CLI::App& Commands::AddCommand(Command command, const std::string& name,
                               const std::string& purpose) {
  CLI::App& app = *root_.add_subcommand(name, purpose);
  commands_[&app] = command;
  app.set_help_flag("-h,--help", "print this and exit");
  app.set_version_flag("--version", "", "print the version and exit");
  return app;
}

void Commands::Add(CLI::App& app, const std::string& option, const OptionValue& value,
                   const std::string& help, const Take& take) {
  expectations_[option] = value.expectation;
  app.add_option_function<std::string>(option, take, help)
      ->type_name(value.name)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void Commands::AddText(CLI::App& app, const std::string& option, const OptionValue& value,
                       const std::string& help, std::string& target) {
  Add(app, option, value, help, [&target](const std::string& text) { target = text; });
}

void Commands::AddFlag(CLI::App& app, const std::string& flag, const std::string& help,
                       Command command) {
  app.add_flag_callback(
         flag, [this, command] { line_.command = command; }, help)
      ->disable_flag_override();
}

void Commands::AddConfigOptions(CLI::App& app) {
  AddText(app, "--config", {"FILE", "a JSON file"}, "JSON file with the configuration",
          line_.config);
  expectations_["--set"] = "section.key=value";
  app.add_option_function<std::vector<std::string>>(
         "--set",
         [this](const std::vector<std::string>& given) {
           line_.overrides.insert(line_.overrides.end(), given.begin(), given.end());
         },
         "overrides one key; the value is JSON, else a string (may be repeated)")
      ->type_name("a.b=value")
      ->allow_extra_args(false);
}

void Commands::AddSourceOptions(CLI::App& app) {
  AddConfigOptions(app);
  AddText(app, "--preset", {"NAME", "the name of a preset"},
          "settings for a purpose, which all others count before\n"
          "(fsdp-train config --list-presets)",
          line_.preset);
  AddText(app, "--accelerate-config", {"FILE", "a YAML file of accelerate"},
          "YAML file of accelerate; --config and --set count before it\n"
          "(docs/ACCELERATE.md)",
          line_.accelerate_config);
}

void Commands::AddTrainOptions(CLI::App& app) {
  AddSourceOptions(app);
  AddFlag(app, "--print-config", "print the configuration as resolved and exit",
          Command::kPrintConfig);
  AddFlag(app, "--dry-run", "as fsdp-train check: say what would happen, and exit",
          Command::kCheck);
  app.footer([] { return kOfTraining + DescribeConfigKeys(); });
}

void Commands::AddConfig() {
  CLI::App& app = AddCommand(Command::kPrintConfig, "config",
                             "print the configuration that a training would have");
  AddSourceOptions(app);
  AddFlag(app, "--default",
          "print all keys instead, with comments and their defaults, or the preset's settings",
          Command::kPrintDefaultConfig);
  AddFlag(app, "--list-presets", "print the presets and their settings", Command::kListPresets);
  app.footer([] { return "The keys are described by fsdp-train --help."; });
}

void Commands::AddEstimate() {
  CLI::App& app = AddCommand(Command::kEstimate, "estimate",
                             "say what a training takes: memory, traffic and time");
  AddSourceOptions(app);
  AddEstimateOptions(app, line_.estimate, expectations_);
}

void Commands::AddCheck() {
  CLI::App& app = AddCommand(Command::kCheck, "check",
                             "read all that a training would, and say what it would do");
  AddSourceOptions(app);
  AddWorldOption(app, line_.estimate, expectations_);
  app.footer(
      "Trains nothing and writes nothing. Ends with the exit code that a training would refuse the "
      "configuration\nwith, or with 0.");
}

void Commands::AddSample() {
  CLI::App& app = AddCommand(Command::kSample, "sample",
                             "print a continuation that a checkpoint's model generates");
  SampleRequest& request = line_.sample;
  AddText(app, "--checkpoint", {"DIR", "a checkpoint directory"},
          "one checkpoint, or checkpoint.dir (the newest in it)", request.checkpoint);
  AddConfigOptions(app);
  AddText(app, "--prompt", {"TEXT", "a text"}, "default: a newline (not printed)", request.prompt);
  AddText(app, "--tokenizer", {"FILE", kTokenizerExpectation},
          "default: the one that the model was trained with, if it is in the\n"
          "folder of the model's config.json; bytes for text",
          request.tokenizer);
  for (const std::string option : {"--tokens", "--bytes"}) {
    Add(app, option, {"N", "an integer from 0 to 1000000"},
        option == "--tokens" ? "default 200" : "the same, of a model of bytes",
        [&request, option](const std::string& text) {
          request.tokens = ParseNumber<int64_t>(option, text, "an integer from 0 to 1000000", 0,
                                                kMaxSampleBytes);
        });
  }
  Add(app, "--temperature", {"T", "a number from 0 to 100"},
      "default 1; 0: greedy (always the most likely token)", [&request](const std::string& text) {
        request.temperature =
            ParseNumber<double>("--temperature", text, "a number from 0 to 100", 0, 100);
      });
  Add(app, "--seed", {"S", "an integer >= 0"}, "default 0", [&request](const std::string& text) {
    request.seed = ParseNumber<uint64_t>("--seed", text, "an integer >= 0", 0, UINT64_MAX);
  });
  app.footer(
      "Prints the prompt and the continuation. Without --config, the checkpoint says which model "
      "it is of,\nwith its data.seq_len and precision.");
}

const CLI::App* Commands::Chosen() const {
  const std::vector<CLI::App*> chosen = root_.get_subcommands();
  return chosen.empty() ? &root_ : chosen.front();
}

std::string Commands::NameOf(const CLI::App& app) const {
  return &app == &root_ ? root_.get_name() : root_.get_name() + " " + app.get_name();
}

/// `complaint` is the library's, and names an option or a flag first.
void Commands::Refuse(const std::string& complaint, const std::vector<std::string>& given) const {
  for (const auto& [option, expectation] : expectations_) {
    if (complaint.starts_with(option + ":")) {
      throw UsageError(option + ": expected " + expectation);
    }
  }
  for (const std::string& argument : given) {
    const std::string flag = argument.substr(0, argument.find('='));
    if (flag.size() > 2 && complaint.starts_with(flag.substr(2) + " ")) {
      throw UsageError(argument + ": expected no value");
    }
  }
  throw UsageError(complaint + " (see " + NameOf(*Chosen()) + " --help)");
}

void Commands::RefuseUnknown() const {
  const std::vector<std::string> unknown = root_.remaining(/*recurse=*/true);
  if (!unknown.empty()) {
    const std::string& first = unknown.front();
    throw UsageError(first.substr(0, first.starts_with("--") ? first.find('=') : first.size()) +
                     ": expected a known argument (see " + NameOf(*Chosen()) + " --help)");
  }
}

void Commands::CheckTogether() const {
  const CLI::App* chosen = Chosen();
  if (commands_.at(chosen) != Command::kTrain) {
    for (const CLI::Option* option : root_.get_options()) {
      if (option->count() > 0) {
        throw UsageError(option->get_name() + ": expected after " + chosen->get_name());
      }
    }
  }
  if (line_.command == Command::kSample && line_.sample.checkpoint.empty()) {
    throw UsageError("sample: --checkpoint is missing: expected a checkpoint directory");
  }
}

bool Commands::Read(const std::vector<std::string>& given) {
  // The library takes its arguments from the back. Without a space, it takes an empty value for
  // none.
  std::vector<std::string> reversed;
  for (auto argument = given.rbegin(); argument != given.rend(); ++argument) {
    const size_t equals = argument->find('=');
    const bool is_empty_value = equals != std::string::npos && equals + 1 == argument->size();
    if (is_empty_value && expectations_.count(argument->substr(0, equals)) > 0) {
      reversed.emplace_back();
      reversed.push_back(argument->substr(0, equals));
    } else {
      reversed.push_back(*argument);
    }
  }
  try {
    root_.parse(std::move(reversed));
    return true;
  } catch (const CLI::CallForHelp&) {
    line_.command = Command::kHelp;
    line_.help = root_.help();
  } catch (const CLI::CallForVersion&) {
    line_.command = Command::kVersion;
  } catch (const CLI::ParseError& error) {
    Refuse(error.what(), given);
  }
  return false;
}

CommandLine Commands::Parse(const std::vector<std::string>& given) {
  if (Read(given)) {
    RefuseUnknown();
    if (line_.command == Command::kTrain) {
      line_.command = commands_.at(Chosen());
    }
    CheckTogether();
  }
  return std::move(line_);
}

}  // namespace

CommandLine ParseCommandLine(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    throw UsageError(
        "nothing to do: give --config FILE to train, e.g. fsdprun --standalone --nproc-per-node 2 "
        "--no-python fsdp-train --config train.json (see fsdp-train --help)");
  }
  return Commands().Parse(arguments);
}

}  // namespace fsdprun::worker
