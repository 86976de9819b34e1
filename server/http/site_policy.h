// What a browser may be made to do here by a page of somebody else. Without API keys, a server on the local network
// trusts whoever reaches it, and a page that the user merely looks at reaches it too: by a form that it submits to this
// address, or by a name of its own that it lets point here (DNS rebinding).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace bam {

// "name:port", "[::1]:port" or "name" without its port, in lower case.
std::string host_name(std::string_view host);

// True unless the name could be one that a stranger owns: addresses, names without a dot, localhost and the suffixes that no
// public zone has are our own, `allowed` holds the others ("*": all).
bool is_own_host(std::string_view host, const std::vector<std::string>& allowed);

// True when `origin` is a page of another site than `host` that `cors_origins` does not name. An empty one is no page.
bool is_foreign_origin(std::string_view origin, std::string_view host, const std::vector<std::string>& cors_origins);

// The value for Access-Control-Allow-Headers: what was asked for, as far as it is a list of header names.
std::string allowed_headers(std::string_view requested);

}  // namespace bam
