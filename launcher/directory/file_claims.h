#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/repeater.h"
#include "launcher/directory/claim_store.h"
#include "launcher/directory/unchanged_for.h"

namespace fsdprun {

/// A claim in a file on a file system that all nodes share.
//
// Note [Claims in files]
// A claim is written under a temporary name and appears complete: by link(), which does not
// replace, where there was none; by rename() in the place of one whose holder has ended. Who
// replaces has the lock, a second link, and looks under it whether what it replaces is still there.
// Nobody holds the lock for longer than that takes: one that stays for seconds was left by a
// launcher that died. If that one was only stopped, it sees that the lock is not its own any more;
// should it be stopped just then, and replace the next one's claim, the next one finds out when it
// looks at its claim again, as a host does until its first world. The holder renews a claim by the
// file's time of change, of which others see only that it is another one: no clocks are compared.
// A holder that must be sure renews it with the lock: whoever has looked before that cannot replace
// it any more, and who looks later sees that it is alive. Only to have the lock is proof: that
// there is none may be what an NFS client still has in its cache. The answers of link() and
// rename() may be lost on the way from an NFS server, so what counts is what is there afterwards.
// An older claim that a client still has in its cache is found out by that, or by its holder, which
// is gone.
class FileClaims : public ClaimStore {
 public:
  /// `path` is the claim's file. Without `trusts_others`, a file of another user is refused: its
  /// token would be theirs. `on_taken`: see DirectoryContext.
  FileClaims(std::string path, bool trusts_others, std::function<void()> on_taken = nullptr);

  absl::StatusOr<std::optional<Claim>> Read() override;
  absl::StatusOr<bool> Replace(const std::optional<Claim>& found, const Claim& mine) override;
  absl::StatusOr<bool> Confirm(const Claim& mine) override;
  absl::Status Release(const Claim& mine, const std::optional<Claim>& last) override;
  std::optional<std::string> RenewalSign() const override { return sign_; }
  std::string Where() const override { return path_; }

 private:
  enum class Lasting { kYes, kNo };
  struct Sight {
    std::optional<Claim> claim;
    std::string sign;
  };

  absl::StatusOr<Sight> Look() const;
  absl::StatusOr<std::string> WriteTemporary(const Claim& claim, Lasting lasting) const;
  absl::StatusOr<bool> Create(const std::string& temporary, const Claim& mine);
  absl::StatusOr<bool> Put(const std::optional<Claim>& found, const Claim& mine);
  absl::StatusOr<bool> ReplaceUnderLock(const std::string& temporary, const Claim& found,
                                        const Claim& mine);
  absl::StatusOr<bool> RenewUnderLock(const Claim& mine);
  void BreakOldLock(const std::string& lock);
  absl::StatusOr<std::optional<Claim>> Touch(const Claim& mine) const;
  void Renew(const Claim& mine);

  const std::string path_;
  const bool trusts_others_;
  const std::function<void()> on_taken_;
  /// Of the claim that was read last; empty if there was none.
  std::string sign_;
  UnchangedFor lock_age_;
  /// The renewal's, while it runs: it has told that the claim is another's.
  bool is_replaced_ = false;
  std::unique_ptr<Repeater> renewal_;
};

}  // namespace fsdprun
