#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace bam {

struct FieldError;

// An HTTP error in OpenAI's shape: {"error": {"message", "type", "param", "code"}}.
struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;      // empty: null
  std::string code;       // empty: null
  int retry_after_s = 0;  // > 0: Retry-After header
  // The same request would fail again: clients that retry by the status alone are told not to.
  bool final = false;

  std::string to_json() const;

  static ApiError invalid(std::string message, std::string param = {}, std::string code = {});
  static ApiError invalid(const FieldError& error);
  static ApiError unauthorized(std::string message);
  static ApiError forbidden(std::string message);
  static ApiError not_found(std::string message, std::string code = {});
  static ApiError too_large(std::string message);
  static ApiError queue_full(std::string message, double retry_after_s);
  // `own`: the client set the time itself.
  static ApiError timeout(std::string message, bool own);
  static ApiError internal(std::string message);
  static ApiError not_built(std::string message);
  static ApiError unavailable(std::string message, std::string code, int retry_after_s);
};

// A value or the error to answer with.
template <typename T>
class ApiResult {
 public:
  ApiResult(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  ApiResult(ApiError error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& operator*() { return std::get<0>(state_); }
  const T& operator*() const { return std::get<0>(state_); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }
  const ApiError& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, ApiError> state_;
};

}  // namespace bam
