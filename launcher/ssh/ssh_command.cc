#include "launcher/ssh/ssh_command.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "launcher/cli/host_list.h"

namespace fsdprun {
namespace {

/// Nobody is asked for a password; a host that is gone is noticed at the start, and later even if
/// the launcher is gone, too; banners are not shown.
constexpr const char* kSshWords[] = {"-T",
                                     "-oBatchMode=yes",
                                     "-oConnectTimeout=20",
                                     "-oServerAliveInterval=15",
                                     "-oServerAliveCountMax=4",
                                     "-oLogLevel=ERROR"};

}  // namespace

std::string LoginShellWord(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", R"('\'')"}}), "'");
}

std::vector<std::string> SshCommand(const SshOptions& ssh, const HostPort& host,
                                    const std::string& program) {
  std::vector<std::string> words = ssh.command;
  words.insert(words.end(), std::begin(kSshWords), std::end(kSshWords));
  if (host.port != kDefaultSshPort) {
    words.push_back(absl::StrCat("-p", host.port));
  }
  words.push_back(host.host);
  words.push_back(absl::StrCat("exec ", LoginShellWord(program), " ", std::string(kSshNodeOption)));
  return words;
}

Environment SshEnvironment(Environment launcher) {
  launcher.erase("FSDPRUN_TOKEN");
  return launcher;
}

}  // namespace fsdprun
