#include "server/http/site_policy.h"

#include <gtest/gtest.h>

namespace bam {
namespace {

TEST(SitePolicy, NamesThatNobodyElseCanOwnAreOurs) {
  for (const char* host : {"127.0.0.1", "127.0.0.1:8000", "10.0.0.7:80", "[::1]:8000", "[fe80::1]", "localhost:8000",
                           "LOCALHOST", "bam", "bam:8000", "bam.localhost", "printer.local", "bam.default.svc:80",
                           "bam.default.svc.cluster.local", "gpu.internal", "nas.home.arpa", "localhost.:8000"}) {
    EXPECT_TRUE(is_own_host(host, {})) << host;
  }
  for (const char* host : {"evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example",
                           "1.2.3", "127.0.0.1.nip.io:8000", "evil.example.", "local.evil"}) {
    EXPECT_FALSE(is_own_host(host, {})) << host;
    EXPECT_TRUE(is_own_host(host, {"*"})) << host;
  }
  EXPECT_TRUE(is_own_host("LLM.example.org:443", {"llm.example.org"}));
  EXPECT_FALSE(is_own_host("other.example.org", {"llm.example.org"}));
}

TEST(SitePolicy, PagesOfOtherSitesAreForeign) {
  EXPECT_FALSE(is_foreign_origin("", "127.0.0.1:8000", {}));
  EXPECT_FALSE(is_foreign_origin("http://127.0.0.1:8000", "127.0.0.1:8000", {}));
  EXPECT_FALSE(is_foreign_origin("https://LLM.example", "llm.example", {}));
  EXPECT_TRUE(is_foreign_origin("http://127.0.0.1:9000", "127.0.0.1:8000", {}));
  EXPECT_TRUE(is_foreign_origin("https://evil.example", "127.0.0.1:8000", {}));
  EXPECT_TRUE(is_foreign_origin("null", "127.0.0.1:8000", {}));
  EXPECT_FALSE(is_foreign_origin("https://app.example", "127.0.0.1:8000", {"https://app.example"}));
  EXPECT_FALSE(is_foreign_origin("https://any.example", "127.0.0.1:8000", {"*"}));
}

TEST(SitePolicy, HeadersThatWereAskedForAreAllowed) {
  EXPECT_EQ(allowed_headers("authorization,x-stainless-os, X-Other"), "authorization,x-stainless-os, X-Other");
  EXPECT_EQ(allowed_headers("a\r\nset-cookie: b"), "");
  EXPECT_EQ(allowed_headers(""), "");
}

}  // namespace
}  // namespace bam
