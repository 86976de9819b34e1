// Routing, keys, metrics text, send accounting and the description of the API: the parts of the HTTP side that need no
// connection.
#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "server/api/metrics.h"
#include "server/api/openapi.h"
#include "server/api/web_assets.h"
#include "server/http/auth.h"
#include "server/http/http_server.h"
#include "server/http/router.h"
#include "server/http/sse_stream.h"

namespace bam {
namespace {

TEST(Router, PathsMethodsAndPrefixes) {
  const auto& routes = all_routes();
  EXPECT_TRUE(match_route(routes, "POST", "/v1/completions").route);
  EXPECT_TRUE(match_route(routes, "POST", "/completions").route);
  EXPECT_TRUE(match_route(routes, "GET", "/v1/models/").route);
  EXPECT_TRUE(match_route(routes, "HEAD", "/health").route);
  EXPECT_EQ(match_route(routes, "GET", "/v1/models/a%2Fb").parameter, "a%2Fb");
  EXPECT_EQ(match_route(routes, "POST", "/requests/abc/cancel").parameter, "abc");
  EXPECT_FALSE(match_route(routes, "POST", "/v1/requests//cancel").route);
  EXPECT_FALSE(match_route(routes, "POST", "/v1/requests/a/b/cancel").route);
  const RouteMatch wrong = match_route(routes, "GET", "/v1/completions");
  EXPECT_FALSE(wrong.route);
  EXPECT_EQ(wrong.allowed, "POST");
  EXPECT_EQ(match_route(routes, "DELETE", "/health").allowed, "GET, HEAD");
  EXPECT_EQ(match_route(routes, "GET", "/nowhere").allowed, "");
  EXPECT_FALSE(match_route(routes, "GET", "/v1/v1/models").route);
}

// The page's own files hold no secret, and the page asks for the key itself.
TEST(Router, OnlyLivenessReadinessAndThePageArePublic) {
  std::set<std::string> open;
  for (const Route& route : all_routes()) {
    if (route.access == Access::kPublic) open.insert(route.path);
  }
  for (const WebAsset& asset : web_assets()) EXPECT_EQ(open.erase(std::string(asset.path)), 1u) << asset.path;
  EXPECT_EQ(open, (std::set<std::string>{"/livez", "/readyz"}));
}

TEST(KeyRing, AcceptsTheKnownFormsOnly) {
  const KeyRing ring({"alpha", "beta"}, "root-key");
  EXPECT_TRUE(ring.required());
  const std::string alpha = ring.identify("Bearer alpha", "")->tenant, beta = ring.identify("", "beta")->tenant;
  EXPECT_NE(alpha, beta);
  EXPECT_EQ(ring.identify("bearer  beta ", "")->tenant, beta);
  EXPECT_EQ(KeyRing({"beta", "gamma"}, "").identify("", "beta")->tenant, beta) << "whatever other keys there are";
  EXPECT_FALSE(ring.identify("Basic Ond3dw==", "").has_value()) << ":www";
  EXPECT_EQ(ring.identify("Basic dTphbHBoYQ==", "")->tenant, alpha) << "u:alpha";
  EXPECT_TRUE(ring.identify("Bearer root-key", "")->admin);
  EXPECT_FALSE(ring.identify("Bearer alpha", "")->admin);
  using namespace std::string_view_literals;
  for (const std::string_view header : {""sv, "Bearer"sv, "Bearer "sv, "alpha"sv, "Bearer alph"sv, "Bearer alphaa"sv,
                                        "Basic !!!!"sv, "Bearer alpha\0"sv}) {
    EXPECT_FALSE(ring.identify(header, "").has_value()) << header;
  }
  EXPECT_FALSE(ring.identify("Bearer wrong", "alpha").has_value()) << "a presented bearer key decides alone";
}

TEST(KeyRing, WithoutKeysEverybodyIsWelcomeButNobodyIsAdmin) {
  const KeyRing ring({}, "");
  EXPECT_FALSE(ring.required());
  EXPECT_FALSE(ring.identify("Bearer anything", "")->admin);
  EXPECT_FALSE(ring.identify("", "")->admin) << "an empty admin key is no key";
}

TEST(SendMeter, FollowsTheConnection) {
  SendMeter meter(1000);
  meter.queued(100, 1100);  // all taken at once
  EXPECT_EQ(meter.unsent(), 0u);
  meter.queued(100, 1140);
  EXPECT_EQ(meter.unsent(), 60u);
  meter.queued(50, 1140);  // nothing moves
  EXPECT_EQ(meter.unsent(), 110u);
  EXPECT_FALSE(meter.advance(1140));
  EXPECT_TRUE(meter.advance(1200));
  EXPECT_EQ(meter.unsent(), 50u);
  EXPECT_TRUE(meter.advance(2000));
  EXPECT_EQ(meter.unsent(), 0u) << "more bytes than expected (TLS) never underflow";
  meter.queued(10, 2040);
  EXPECT_EQ(meter.unsent(), 0u);
}

TEST(Metrics, TextFormat) {
  HttpMetrics http;
  http.count_response("/v1/completions", 200);
  http.count_response("/v1/completions", 200);
  http.count_response("other", 404);
  http.open_connections = 3;
  const std::string text = format_metrics({.http = http, .model_name = "a\"b\\c\nd"});
  EXPECT_NE(
      text.find(
          "bam_http_responses_total{model_name=\"a\\\"b\\\\c\\nd\",route=\"/v1/completions\",status=\"200\"} 2\n"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find("bam_http_connections{model_name=\"a\\\"b\\\\c\\nd\"} 3\n"), std::string::npos);
  EXPECT_NE(text.find("process_resident_memory_bytes "), std::string::npos);
  // Every sample belongs to a family that was declared, once.
  std::set<std::string> families;
  std::stringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# TYPE ")) {
      EXPECT_TRUE(families.insert(line.substr(7, line.find(' ', 7) - 7)).second) << line;
    } else if (!line.starts_with("#")) {
      const std::string name = line.substr(0, line.find_first_of("{ "));
      EXPECT_TRUE(families.contains(name)) << line;
      EXPECT_NO_THROW(std::stod(line.substr(line.rfind(' ') + 1))) << line;
    }
  }
}

TEST(ApiErrorText, RetryAfterIsAWholeNumberOfSecondsAndAtLeastOne) {
  EXPECT_EQ(ApiError::queue_full("", 0.01).retry_after_s, 1);
  EXPECT_EQ(ApiError::queue_full("", 2.1).retry_after_s, 3);
  EXPECT_EQ(ApiError::queue_full("", NAN).retry_after_s, 1);
  EXPECT_EQ(ApiError::queue_full("", INFINITY).retry_after_s, 86400);
}

TEST(OpenApi, DescribesEveryRouteAndResolvesEveryReference) {
  const std::string text = openapi_document("1.2.3");
  const Json document = Json::parse(text);
  EXPECT_EQ(document["info"]["version"], "1.2.3");
  std::set<std::string> pages;
  for (const WebAsset& asset : web_assets()) pages.insert(std::string(asset.path));
  for (const Route& route : all_routes()) {
    if (pages.contains(route.path)) continue;
    ASSERT_TRUE(document["paths"].contains(route.path)) << route.path;
    std::string method = route.method;
    std::transform(method.begin(), method.end(), method.begin(), [](char c) { return static_cast<char>(c | 0x20); });
    ASSERT_TRUE(document["paths"][route.path].contains(method)) << route.path;
    EXPECT_FALSE(document["paths"][route.path][method]["summary"].get<std::string>().empty());
  }
  for (size_t at = text.find("\"$ref\":\""); at != std::string::npos; at = text.find("\"$ref\":\"", at + 1)) {
    const std::string target = text.substr(at + 8, text.find('"', at + 8) - at - 8);
    ASSERT_TRUE(target.starts_with("#/components/schemas/")) << target;
    EXPECT_TRUE(document.contains(Json::json_pointer(target.substr(1)))) << target;
  }
}

TEST(WebAssets, ThePageIsThere) {
  bool found = false;
  for (const WebAsset& asset : web_assets()) {
    found |= asset.path == "/" && asset.content_type.starts_with("text/html");
    EXPECT_FALSE(asset.data.empty()) << asset.path;
    EXPECT_TRUE(asset.etag.starts_with('"') && asset.etag.ends_with('"'));
  }
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace bam
