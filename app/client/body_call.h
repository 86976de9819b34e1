#pragma once

#include <functional>
#include <string>
#include <utility>

#include "app/client/http_loop.h"

namespace bam::client {

// Collects a whole answer.
class BodyCall : public HttpHandler {
 public:
  using OnDone = std::function<void(const HttpOutcome&, std::string&& body)>;
  explicit BodyCall(OnDone on_done) : on_done_(std::move(on_done)) {}
  void on_headers(int, std::string_view) override {}
  void on_data(std::string_view bytes, TimePoint) override { body_.append(bytes); }
  void on_done(const HttpOutcome& outcome) override { on_done_(outcome, std::move(body_)); }

 private:
  OnDone on_done_;
  std::string body_;
};

}  // namespace bam::client
