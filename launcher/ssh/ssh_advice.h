#pragma once

#include <string>

#include "launcher/cli/launch_plan.h"

namespace fsdprun {

/// An ssh that has ended before the node's part was there.
struct SshEnd {
  HostPort host;
  /// Of ssh; 128 + n for signal n.
  int code = 0;
  /// What was said last, by ssh, the login shell or the program, in lines.
  std::string last_words;
  /// What was to be started.
  std::string program;
};

/// What happened and what to do, as a clause. Pure.
std::string DescribeSshEnd(const SshEnd& end);

/// Whether sshd has not even looked at who comes, as if it has too many logins at a time: it may do
/// so later. Pure.
bool IsTurnedAway(const SshEnd& end);

/// The last lines of a text, as one, for people's terminals. Pure.
std::string LastLines(const std::string& text);

}  // namespace fsdprun
