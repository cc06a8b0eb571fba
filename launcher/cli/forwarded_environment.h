#pragma once

// Note [Which variables travel]
// A node's workers have the environment of its daemon (or of the login shell, with ssh), and over
// that what travels from the launcher. By default that is all but what is about the launcher's
// machine, its user's session there, its own place in a job, and secrets: IsOfOnePlace(). With
// --forward-env it is what that names. FSDPRUN_TOKEN never travels, and what belongs to the command
// line (PET_*, TORCH_ELASTIC_*) always does, and so do the variables that
// --accelerate-config stands for: AlsoForward(). Of its own variables a daemon leaves out those
// about itself: IsOfDaemon().

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/cli/option_table.h"
#include "launcher/cli/raw_options.h"

namespace fsdprun {

/// `all`, `none`, or `NAME,PREFIX*,...`. Pure. Errors: OUT_OF_RANGE for what can be no variable,
/// and for the token.
absl::StatusOr<ForwardedVariables> ParseForwardEnv(const RawValue& value);

/// A variable that says nothing on another machine, or the wrong thing. Pure.
bool IsOfOnePlace(absl::string_view name);
/// What a daemon was given for itself. Pure.
bool IsOfDaemon(absl::string_view name);

/// Lets these variables travel whatever --forward-env says, but for those of one place. Pure.
void AlsoForward(const Environment& variables, ForwardedVariables* which);

/// Those of the launcher that travel. Pure.
Environment TravelingEnvironment(const Environment& launcher, const ForwardedVariables& which);
/// What the node's part of the job is given: see the note. Pure.
Environment EnvironmentAtNode(Environment node, const Environment& traveled);

}  // namespace fsdprun
