#pragma once

#include <string>

namespace bam {

// The OpenAPI 3.2 description of every route, made from the route table and the schemas in openapi_*.cpp; what a
// stream sends stands in itemSchema.
std::string openapi_document(const std::string& version);

// Component schemas as JSON text, by name.
const char* openapi_schemas();
const char* openapi_dialect_schemas();

}  // namespace bam
