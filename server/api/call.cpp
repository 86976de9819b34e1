#include "server/api/call.h"

#include "server/api/route.h"

namespace bam {

HttpReply Call::error_reply(const ApiError& error) {
  const ErrorBody spelled = route ? route->error_body : error_body_beside(path);
  HttpReply reply{.status = error.status, .body = spelled ? spelled(error) : error.to_json()};
  if (error.retry_after_s > 0) reply.headers.emplace_back("retry-after", std::to_string(error.retry_after_s));
  if (error.final) reply.headers.emplace_back("x-should-retry", "false");
  if (error.status == 401) {
    // The page asks with the browser's own dialog; programs get the scheme that they use.
    const bool page = header("accept").find("text/html") != std::string::npos;
    reply.headers.emplace_back("www-authenticate", page ? "Basic realm=\"bam\"" : "Bearer");
  }
  log.error = error.message;
  return reply;
}

}  // namespace bam
