// What can be served at all, decided on the caller's thread before a request is queued.
#pragma once

#include <string>

#include "engine/capacity.h"
#include "engine/queue_forecast.h"
#include "engine/request.h"

namespace bam {

// Why such a request can never be served, with the numbers; empty: it can.
std::string never_fits(const Request& request, const KvPlan& plan, const ModelConfig& model);

// A request that arrives now, behind everybody else.
ForecastSequence forecast_arrival(const Request& request, const KvPlan& plan);

}  // namespace bam
