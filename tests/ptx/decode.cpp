// From words of an opcode to what executes it.
#include "tests/ptx/execute.h"
#include "tests/ptx/parser.h"

namespace ptx {

namespace {

Space space_of(const Instruction& instruction) {
  for (const std::string& part : instruction.parts) {
    if (part.starts_with("shared")) return Space::kShared;
    if (part == "global" || part == "const") return Space::kGlobal;
    if (part == "local") return Space::kLocal;
    if (part.starts_with("param")) return Space::kParam;
  }
  return Space::kGeneric;
}

Flow flow_of(const Instruction& instruction) {
  const std::string& family = instruction.parts.front();
  if (family == "bra") return Flow::kBranch;
  if (family == "ret" || family == "exit") return Flow::kExit;
  if (family == "bar" || family == "barrier") return instruction.has("warp") ? Flow::kWarpOperation : Flow::kBarrier;
  if (family == "shfl" || family == "vote" || family == "redux" || family == "ldmatrix" || family == "mma") {
    return Flow::kWarpOperation;
  }
  return Flow::kNext;
}

}  // namespace

void decode(Instruction& instruction) {
  for (const std::string& part : instruction.parts) {
    if (const Type type = type_of(part); type != Type::kNone) instruction.type = type;
  }
  instruction.space = space_of(instruction);
  instruction.flow = flow_of(instruction);
  if (instruction.flow == Flow::kBranch || instruction.flow == Flow::kExit || instruction.flow == Flow::kBarrier)
    return;
  if (instruction.parts.front() == "call") return;  // replaced by what it calls
  for (const auto find : {&find_integer, &find_float, &find_move, &find_conversion, &find_memory, &find_warp}) {
    if (instruction.run = find(instruction); instruction.run != nullptr) return;
  }
  throw ParseError(instruction.line, "an instruction that this interpreter does not know: " + instruction.opcode());
}

}  // namespace ptx
