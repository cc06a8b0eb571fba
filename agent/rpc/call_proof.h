#pragma once

// Note [The token stays at home]
// A call to a coordinator carries, in its metadata, a run id and HMAC-SHA256(token, "fsdprun job
// token" | run id): whoever has the token can make and check such a proof for any run id, and
// nobody learns the token from it. So the token, which may be the user's secret and then opens
// every job of the user, never travels. Limits: nothing is encrypted, and a proof is the same in
// every call, so who can listen, or holds the endpoint before the coordinator does, can repeat it
// for that run id, but for no other.

#include <grpcpp/client_context.h>
#include <grpcpp/support/string_ref.h>

#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace fsdprun {

/// Instead of a token: every call proves itself. No token is this text.
inline constexpr char kNoToken[] = "(no token)";

/// HMAC-SHA256 of `message` with `key`, in hexadecimal.
std::string HmacHex(const std::string& key, const std::string& message);
/// Whether two texts are the same; the time says nothing about where they differ.
bool IsSameSecret(absl::string_view left, absl::string_view right);

/// The metadata of a call that prove that the caller has `token`, for `run_id`. Pure.
std::map<std::string, std::string> ProofOf(const std::string& token, const std::string& run_id);
/// Adds them to a call.
void AddProof(const std::string& token, const std::string& run_id, grpc::ClientContext* call);

using CallMetadata = std::multimap<grpc::string_ref, grpc::string_ref>;
/// The run id for which a call proves that the caller has `token`; unset: it proves nothing. Pure.
std::optional<std::string> ProvenRunId(const std::string& token, const CallMetadata& metadata);

}  // namespace fsdprun
