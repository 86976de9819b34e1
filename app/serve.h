#pragma once

#include "app/model_setup.h"
#include "app/serve_config.h"
#include "server/api/server_context.h"

namespace bam {

// Serves until a signal or an error. The exit code: 0 after a clean drain, 1 otherwise.
int serve(const ServeConfig& config);

// What the HTTP side needs to know about a loaded model.
std::unique_ptr<ServingModel> make_serving_model(const LoadedModel& loaded);

}  // namespace bam
