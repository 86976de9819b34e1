#include "server/api/api_error.h"

#include <algorithm>
#include <cmath>

#include "base/json_fields.h"

namespace bam {

namespace {

ApiError make(int status, const char* type, std::string message, std::string code = {}) {
  ApiError error;
  error.status = status;
  error.type = type;
  error.message = std::move(message);
  error.code = std::move(code);
  error.final = status < 500 && status != 408 && status != 429;
  return error;
}

}  // namespace

std::string ApiError::to_json() const {
  Json error;
  error["message"] = message;
  error["type"] = type;
  error["param"] = param.empty() ? Json() : Json(param);
  error["code"] = code.empty() ? Json() : Json(code);
  // Messages may quote what the client sent, which need not be valid UTF-8.
  return dump_json({{"error", std::move(error)}});
}

ApiError ApiError::invalid(std::string message, std::string param, std::string code) {
  ApiError error = make(400, "invalid_request_error", std::move(message), std::move(code));
  error.param = std::move(param);
  return error;
}

ApiError ApiError::invalid(const FieldError& error) { return invalid(error.message, error.field, error.code); }

ApiError ApiError::unauthorized(std::string message) {
  return make(401, "authentication_error", std::move(message), "invalid_api_key");
}

ApiError ApiError::forbidden(std::string message) {
  return make(403, "permission_error", std::move(message), "admin_key_required");
}

ApiError ApiError::not_found(std::string message, std::string code) {
  return make(404, "not_found_error", std::move(message), std::move(code));
}

ApiError ApiError::too_large(std::string message) {
  return make(413, "invalid_request_error", std::move(message), "body_too_large");
}

ApiError ApiError::queue_full(std::string message, double retry_after_s) {
  ApiError error = make(429, "rate_limit_error", std::move(message), "queue_full");
  // NaN and infinities end up as the lower and the upper bound.
  const double bounded = retry_after_s > 1 ? std::min(retry_after_s, 86400.0) : 1.0;
  error.retry_after_s = static_cast<int>(std::ceil(bounded));
  return error;
}

ApiError ApiError::timeout(std::string message, bool own) {
  ApiError error = make(408, "timeout_error", std::move(message), "timeout");
  error.final = own;
  return error;
}

ApiError ApiError::internal(std::string message) {
  return make(500, "server_error", std::move(message), "internal_error");
}

ApiError ApiError::not_built(std::string message) {
  ApiError error = make(501, "server_error", std::move(message), "not_built");
  error.final = true;
  return error;
}

ApiError ApiError::unavailable(std::string message, std::string code, int retry_after_s) {
  ApiError error = make(503, "service_unavailable", std::move(message), std::move(code));
  error.retry_after_s = retry_after_s;
  return error;
}

}  // namespace bam
