#include "server/store/sigv4.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace bam {
namespace {

// An example of the documentation of S3 ("GET Bucket Lifecycle"), with its published signature.
TEST(SigV4, SignsAsTheDocumentationDoes) {
  const S3Credentials credentials{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "", "us-east-1"};
  S3Request request{"GET", "examplebucket.s3.amazonaws.com", "/", "lifecycle=", "20130524T000000Z", {}};
  const auto headers = sign_request(credentials, request);
  const std::string expected =
      "Authorization: AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
      "SignedHeaders=host;x-amz-content-sha256;x-amz-date, "
      "Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543";
  EXPECT_EQ(headers.back(), expected);
  request.method = "PUT";
  EXPECT_NE(sign_request(credentials, request).back(), expected);
}

TEST(SigV4, ASessionTokenIsSignedToo) {
  const S3Credentials credentials{"id", "secret", "token", "eu-west-1"};
  const auto headers = sign_request(credentials, {"GET", "host", "/b/k", "", request_date(), {}});
  EXPECT_NE(std::ranges::find(headers, "x-amz-security-token: token"), headers.end());
  EXPECT_NE(headers.back().find("x-amz-date;x-amz-security-token,"), std::string::npos);
}

}  // namespace
}  // namespace bam
