#pragma once

// Note [Who may give orders]
// An order to a daemon starts a process, so it must not be enough to have heard an earlier one.
// Both ends choose a random number for each call. The launcher's call carries the proof of every
// call (Note [The token stays at home]), so that strangers are refused before anything is read of
// them; the daemon answers with HMAC(token, both numbers), by which the launcher knows that it does
// not hand its environment to somebody else's listener; and the order is encrypted and sealed
// (AES-256-GCM) under a key that is HMAC(token, both numbers): of this call, and used once. Who can
// listen, or stands in between, learns how long it is. What follows the order is not protected: who
// listens reads the workers' output, and who can also change packets can speak later in the call,
// unless there is TLS.
//
// Note [A token for one job]
// The coordinator of a job that daemons run, and its agents, take HMAC(token, run id) for their
// token. Each end makes it of the token that it has, so it never travels; and a worker that finds
// it, in its agent's memory, cannot give orders to daemons.

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace fsdprun {

/// What calls to daemons prove the token for.
inline constexpr char kDaemonRunId[] = "(daemon)";
/// Has the launcher's number.
inline constexpr char kNonceKey[] = "fsdprun-nonce-bin";
inline constexpr size_t kNonceBytes = 32;

struct CallNonces {
  std::string launcher;
  std::string daemon;
};

/// Pure.
std::string DaemonAnswer(const std::string& token, const CallNonces& nonces);

/// An order as it travels.
struct EncryptedOrder {
  std::string text;
  std::string seal;
};
/// At most once for each pair of numbers. Pure.
EncryptedOrder SealOrder(const std::string& token, const CallNonces& nonces,
                         absl::string_view order);
/// The order, if it was sealed for these numbers with this token, and not changed. Pure.
std::optional<std::string> OpenOrder(const std::string& token, const CallNonces& nonces,
                                     absl::string_view text, absl::string_view seal);
/// Pure. kNoToken stays that.
std::string TokenOfJob(const std::string& token, absl::string_view run_id);

}  // namespace fsdprun
