#include "launcher/ssh/ssh_advice.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace fsdprun {
namespace {

constexpr size_t kLinesShown = 3;
constexpr size_t kLongestShown = 600;
/// Of a shell.
constexpr int kNotFound = 127;
constexpr int kNotExecutable = 126;
/// Of ssh itself.
constexpr int kSshFailed = 255;
/// Of this program, for options that it does not know.
constexpr int kUnknownOption = 2;

struct Trouble {
  /// In what ssh says.
  const char* words;
  const char* advice;
};

/// Of ssh, before 8.1 "ssh_", since then "kex_".
constexpr const char kTurnedAway[] = "_exchange_identification";

constexpr Trouble kTroubles[] = {
    {"Host key verification failed",
     "this machine does not know that host's key, or knows another one: log in once by hand, or "
     "add "
     "it to ~/.ssh/known_hosts"},
    {"Permission denied",
     "nobody is asked for a password here: give ssh a key that this host takes (ssh-copy-id, "
     "ssh-agent, or --ssh-command 'ssh -i KEY')"},
    {"Too many authentication failures",
     "name the key: --ssh-command 'ssh -o IdentitiesOnly=yes -i KEY'"},
    {"Could not resolve", "see whether the host is spelled right"},
    {"Connection refused", "no sshd listens there: start it, or give its port as HOST:PORT"},
    {"timed out", "see whether the host is up, and whether a firewall lets ssh through"},
    {"No route to host", "see whether the host is up, and whether a firewall lets ssh through"},
    // Last: behind a jump host it follows the real cause.
    {kTurnedAway,
     "that sshd, or one on the way, turns logins away (see MaxStartups in its sshd_config), or no "
     "sshd listens there"},
};

const Trouble* KnownTrouble(const SshEnd& end) {
  const auto* const known = std::find_if(
      std::begin(kTroubles), std::end(kTroubles),
      [&end](const Trouble& trouble) { return absl::StrContains(end.last_words, trouble.words); });
  return end.code == kSshFailed && known != std::end(kTroubles) ? known : nullptr;
}

std::string Advice(const SshEnd& end) {
  if (end.code == kNotFound && absl::StrContains(end.last_words, "shared librar")) {
    return absl::StrCat(end.program,
                        " does not find its libraries in a login without your shell's settings; "
                        "name a script that sets LD_LIBRARY_PATH and starts it with --ssh-program");
  }
  if (end.code == kNotFound) {
    return absl::StrCat(
        "there is no ", end.program,
        " there: install fsdprun on that host, or give its path with --ssh-program");
  }
  if (end.code == kNotExecutable) {
    return absl::StrCat(end.program,
                        " cannot be run there: give the path of an fsdprun for that host with "
                        "--ssh-program");
  }
  if (end.code == kUnknownOption) {
    return absl::StrCat(end.program,
                        " there is no fsdprun of this release; install the same release on all "
                        "nodes, or give its path with --ssh-program");
  }
  if (const Trouble* const known = KnownTrouble(end)) {
    return known->advice;
  }
  return absl::StrCat("see whether 'ssh ", end.host.host, " true' works without a question");
}

}  // namespace

bool IsTurnedAway(const SshEnd& end) {
  const Trouble* const known = KnownTrouble(end);
  return known != nullptr && known->words == kTurnedAway;
}

std::string LastLines(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(text, absl::ByAnyChar("\r\n"), absl::SkipEmpty());
  if (lines.size() > kLinesShown) {
    lines.erase(lines.begin(), lines.end() - kLinesShown);
  }
  std::string shown = absl::StrJoin(lines, " / ");
  shown.resize(std::min(shown.size(), kLongestShown));
  std::replace_if(
      shown.begin(), shown.end(), [](unsigned char c) { return absl::ascii_iscntrl(c); }, '?');
  return shown;
}

std::string DescribeSshEnd(const SshEnd& end) {
  const std::string last = LastLines(end.last_words);
  return absl::StrCat("ssh to ", ToString(end.host), " ended with code ", end.code,
                      last.empty() ? ", without a word" : absl::StrCat(": ", last), "; ",
                      Advice(end));
}

}  // namespace fsdprun
