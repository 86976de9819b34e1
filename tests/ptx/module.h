// PTX as it was parsed: functions of instructions on virtual registers. Calls are already inlined, so a function is one
// list of instructions, and branches name instructions by index.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ptx {

enum class Type : uint8_t {
  kNone,
  kPred,
  kB8,
  kB16,
  kB32,
  kB64,
  kU8,
  kU16,
  kU32,
  kU64,
  kS8,
  kS16,
  kS32,
  kS64,
  kF16,
  kBF16,
  kF16x2,
  kBF16x2,
  kE4M3x2,
  kF32,
  kF64,
};
// kNone: `name` is not a type.
Type type_of(std::string_view name);
int type_bytes(Type type);

enum class Space : uint8_t { kGeneric, kGlobal, kShared, kLocal, kParam };

// A named piece of memory. `offset` is an address in its space: for shared memory relative to the block's, for local to
// the thread's, for parameters to the launch's; for global memory it is the address itself.
struct Variable {
  std::string name;
  Space space = Space::kGlobal;
  uint64_t bytes = 0, alignment = 1;
  uint64_t offset = 0;
  bool dynamic = false;        // shared memory whose size the launch decides
  bool thread_local_ = false;  // a .param inside a function: lives in local memory
};

struct Operand {
  enum class Kind : uint8_t { kNone, kRegister, kImmediate, kVariable, kAddress, kSpecial, kVector, kSink };
  Kind kind = Kind::kNone;
  bool negated = false;           // !%p
  int reg = -1;                   // kRegister, kAddress (base)
  int second = -1;                // the predicate behind a |
  int variable = -1;              // kVariable, kAddress (base): index into Function::variables
  uint64_t bits = 0;              // kImmediate: the number; kAddress: an offset; kSpecial: SpecialRegister
  std::vector<Operand> elements;  // kVector
};

enum class SpecialRegister : uint8_t { kTid, kNtid, kCtaid, kNctaid, kLane, kWarp };

// What an instruction does to the flow of its warp.
enum class Flow : uint8_t { kNext, kBranch, kExit, kBarrier, kWarpOperation };

class Warp;
struct Instruction;
using Handler = void (*)(Warp& warp, const Instruction& instruction);

struct Instruction {
  std::vector<std::string> parts;  // of the opcode: ld, global, v2, u32
  std::vector<Operand> operands;
  int guard = -1;  // predicate register
  bool guard_negated = false;
  int line = 0;  // of the PTX
  int file = 0, source_line = 0;

  // Decoded.
  Flow flow = Flow::kNext;
  Handler run = nullptr;
  Type type = Type::kNone;  // the last one of the opcode
  Space space = Space::kGeneric;
  int width = 1;     // elements of a vector access, or of ldmatrix
  int target = -1;   // of a branch
  int join = -1;     // where the sides of a divergent branch meet again; -1: only at the end
  int selector = 0;  // of the family: comparison, rounding, kind of shuffle

  bool has(std::string_view part) const;
  std::string opcode() const;
};

// Wavefronts of shared memory and sectors of global memory that one instruction caused.
struct Traffic {
  uint64_t executions = 0;  // by a warp
  uint64_t wavefronts = 0, least_wavefronts = 0;
  uint64_t sectors = 0, least_sectors = 0;
};

struct Function {
  std::string name;
  bool entry = false;
  std::vector<Variable> variables;
  int num_params = 0;             // the first ones of `variables`
  int result = -1;                // variable of a result
  uint64_t param_bytes = 0;       // of an entry
  std::vector<bool> wide;         // by register: 64 bits
  std::vector<bool> predicate;    // by register
  std::vector<Instruction> code;  // ends with an exit
  uint64_t static_shared = 0;     // bytes, as a device counts them
  uint64_t shared_end = 0;        // first address behind the static variables as they lie here, with gaps
  uint64_t local_bytes = 0;
  int max_threads = 1024;
  mutable std::vector<Traffic> traffic;  // by instruction
};

// One file of PTX. Bodies are parsed when a function is asked for.
class Module {
 public:
  explicit Module(std::string text, std::string name = "ptx");
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  const std::string& name() const { return name_; }
  int target() const { return target_; }  // 80: sm_80
  const std::vector<std::string>& entries() const { return entries_; }
  // Throws ParseError.
  const Function& function(const std::string& name);
  std::string_view file(int index) const;
  // Whether that is memory of a variable of this module.
  bool contains(uint64_t address, uint64_t bytes) const;

 private:
  friend class ModuleParser;
  struct Body {
    size_t begin = 0, end = 0;  // of the text, from the name's parameters to the closing brace
    int line = 1;
    bool entry = false;
    size_t result_begin = 0, result_end = 0;  // (.param .b64 func_retval0)
  };
  std::string name_;
  std::string text_;
  int target_ = 0;
  std::vector<std::string> entries_;
  std::map<std::string, Body> bodies_;
  std::map<std::string, std::unique_ptr<Function>> functions_;
  std::map<int, std::string> files_;
  std::vector<Variable> globals_;                      // of the module, shared and constant ones included
  std::vector<std::unique_ptr<uint64_t[]>> contents_;  // of global variables
};

class ParseError;

}  // namespace ptx
