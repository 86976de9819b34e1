// AWS Signature Version 4 for one request without a body that is sent in pieces. (libcurl has one, too: that of Debian 12 signs
// PUTs as servers expect and GETs not.)
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace bam {

struct S3Credentials {
  std::string id, secret, session_token, region;
};

struct S3Request {
  std::string method, host;  // host with its port, as in the header
  std::string path, query;   // encoded
  std::string date;          // 20130524T000000Z
  std::span<const std::byte> body;
};

// The headers to send beside Host: "name: value".
std::vector<std::string> sign_request(const S3Credentials& credentials, const S3Request& request);

// Now, in the form that S3Request wants.
std::string request_date();

}  // namespace bam
