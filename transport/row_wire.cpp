#include "transport/row_wire.h"

#include <utility>

#include "base/error.h"
#include "base/plugin.h"
#include "transport/transport.h"

namespace bam {

namespace {

class SourceWithRowWires final : public GroupSource {
 public:
  SourceWithRowWires(std::unique_ptr<GroupSource> source, std::unique_ptr<RowWireMaker> wires)
      : source_(std::move(source)), wires_(std::move(wires)) {}
  int rank() const override { return source_->rank(); }
  int size() const override { return source_->size(); }
  std::unique_ptr<Transport> form(std::chrono::milliseconds timeout, uint64_t& epoch) override {
    return source_->form(timeout, epoch);
  }
  const RowWireMaker* row_wires() const override { return wires_.get(); }

 private:
  std::unique_ptr<GroupSource> source_;
  std::unique_ptr<RowWireMaker> wires_;
};

}  // namespace

std::unique_ptr<GroupSource> with_row_wires(std::unique_ptr<GroupSource> source, std::unique_ptr<RowWireMaker> wires) {
  return std::make_unique<SourceWithRowWires>(std::move(source), std::move(wires));
}

std::unique_ptr<RowWireMaker> load_row_wires(const std::string& name) {
  const Plugin plugin("libbam_" + name + ".so", name + " plugin", "`make cuda` builds it where NCCL is",
                      BAM_TRANSPORT_ABI);
  char reason[512] = "";
  std::unique_ptr<RowWireMaker> maker(plugin.symbol<MakeRowWiresFunction>(kMakeRowWiresSymbol)(reason, sizeof reason));
  if (!maker) throw Error("{}", reason);
  return maker;
}

}  // namespace bam
