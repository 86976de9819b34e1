#include "server/api/field_table.h"

namespace bam {

std::optional<double> NumberRange::read(FieldReader& in, const std::string& key) const {
  const auto value = in.number(key, min, max);
  if (!value) return value;
  // As the engine will see it: 1e-300 is 0 there.
  const auto narrow = static_cast<float>(*value);
  if ((!open_min || narrow > min) && (!open_max || narrow < max)) return value;
  in.fail(key, fmt::format("'{}' must be {} {} and {} {}.", in.name_of(key), open_min ? "greater than" : "at least",
                           min, open_max ? "less than" : "at most", max));
  return std::nullopt;
}

}  // namespace bam
