#pragma once

#include "server/api/server_context.h"

namespace bam {

// POST /v1/selftest/passkey: hides a number in prompts of one length at several depths and asks for it, with the prompts
// and the judge of `bam passkey`. It ends when it is cancelled or its client leaves. Worker.
void run_passkey_selftest(ServerContext& context, CallPtr call);

}  // namespace bam
