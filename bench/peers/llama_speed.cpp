// The speed of llama.cpp through its C API, for the table in docs/performance.md. Not part of the build: it needs
// libllama (Debian sid: libllama-dev, libggml-dev) and a GGUF file of the same shape.
//   g++ -O2 -std=c++20 llama_speed.cpp -lllama -lggml -lggml-base -o llama_speed
//   llama_speed MODEL.gguf prefill TOKENS        a prompt from an empty cache
//   llama_speed MODEL.gguf deep-prefill TOKENS   512 more of a prompt at that depth, a multiple of 2048
//   llama_speed MODEL.gguf deep-decode TOKENS    8 decoded tokens at that depth
//   llama_speed MODEL.gguf streams N             N sequences, 32 steps
// A last argument "no-flash" turns flash attention off. Two threads; the cache is f16.
#include <ggml-backend.h>
#include <llama.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int kThreads = 2, kBatch = 2048, kMicroBatch = 512, kBlock = 2048;
constexpr const char* kUsage = "usage: llama_speed MODEL.gguf prefill|deep-prefill|deep-decode|streams N [no-flash]";
constexpr int kDecoded = 8, kStreamSteps = 32, kStreamWarmup = 8;

class Peer {
 public:
  Peer(const char* path, int context, int sequences, bool flash, bool shared_cache = false) {
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    llama_backend_init();
    ggml_backend_load_all();
    model_ = llama_model_load_from_file(path, llama_model_default_params());
    if (model_ == nullptr) throw std::runtime_error(std::string("cannot load ") + path);
    llama_context_params params = llama_context_default_params();
    params.n_ctx = static_cast<uint32_t>(context);
    params.n_batch = kBatch;
    params.n_ubatch = kMicroBatch;
    params.n_seq_max = static_cast<uint32_t>(sequences);
    params.n_threads = params.n_threads_batch = kThreads;
    params.kv_unified = shared_cache;  // one cache for all sequences; fill() needs it
    params.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    context_ = llama_init_from_model(model_, params);
    if (context_ == nullptr) throw std::runtime_error("cannot make a context");
    vocab_ = llama_vocab_n_tokens(llama_model_get_vocab(model_));
    batch_ = llama_batch_init(kBatch, 0, 1);
  }

  // Random tokens; returns seconds.
  double prompt(int count, int position, int sequence) {
    const auto start = std::chrono::steady_clock::now();
    for (int done = 0; done < count; done += batch_.n_tokens) {
      batch_.n_tokens = 0;
      for (int i = done; i < std::min(count, done + kBatch); ++i) add(position + i, sequence, i == count - 1);
      run();
    }
    return seconds_since(start);
  }
  // One token for each of `sequences`.
  double step(int sequences, int position) {
    const auto start = std::chrono::steady_clock::now();
    batch_.n_tokens = 0;
    for (int s = 0; s < sequences; ++s) add(position, s, true);
    run();
    return seconds_since(start);
  }
  void forget() { llama_memory_clear(llama_get_memory(context_), true); }
  // Fills the cache of sequence 0 with copies of one computed block: no speed depends on what is in it.
  void fill(int depth) {
    if (depth == 0) return;
    prompt(kBlock, 0, 1);
    std::vector<uint8_t> state(llama_state_seq_get_size(context_, 1));
    llama_state_seq_get_data(context_, state.data(), state.size(), 1);
    for (int s = 1; s <= depth / kBlock; ++s) {
      if (s > 1 && llama_state_seq_set_data(context_, state.data(), state.size(), s) == 0) {
        throw std::runtime_error("the cache does not take a copied block");
      }
      llama_memory_seq_cp(llama_get_memory(context_), s, 0, -1, -1);
    }
  }

 private:
  static double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  void add(int position, int sequence, bool logits) {
    const int i = batch_.n_tokens++;
    batch_.token[i] = std::rand() % vocab_;
    batch_.pos[i] = position;
    batch_.n_seq_id[i] = 1;
    batch_.seq_id[i][0] = sequence;
    batch_.logits[i] = logits;
  }
  void run() {
    if (llama_decode(context_, batch_) != 0) throw std::runtime_error("llama_decode failed");
    llama_synchronize(context_);
  }

  llama_model* model_ = nullptr;
  llama_context* context_ = nullptr;
  llama_batch batch_{};
  int vocab_ = 0;
};

void measure(const char* model, const std::string& mode, int n, bool flash) {
  if (mode == "streams") {
    Peer peer(model, n * (kStreamWarmup + kStreamSteps), n, flash);
    double seconds = 0;
    for (int i = 0; i < kStreamWarmup; ++i) peer.step(n, i);
    for (int i = 0; i < kStreamSteps; ++i) seconds += peer.step(n, kStreamWarmup + i);
    std::printf("%d streams: %.1f tok/s\n", n, n * kStreamSteps / seconds);
  } else if (mode == "prefill") {
    Peer peer(model, std::max(n, kMicroBatch), 1, flash);
    peer.prompt(kMicroBatch, 0, 0);  // warm up
    peer.forget();
    const double seconds = peer.prompt(n, 0, 0);
    std::printf("prefill %d: %.1f tok/s (%.1f s)\n", n, n / seconds, seconds);
  } else if ((mode == "deep-prefill" || mode == "deep-decode") && n % kBlock == 0) {
    Peer peer(model, n + kMicroBatch, n / kBlock + 1, flash, /*shared_cache=*/true);
    peer.fill(n);
    const int position = n > 0 ? kBlock : 0;
    if (mode == "deep-prefill") {
      std::printf("prefill at %d: %.2f tok/s\n", n, kMicroBatch / peer.prompt(kMicroBatch, position, 0));
      return;
    }
    peer.step(1, position);  // warm up
    double seconds = 0;
    for (int i = 1; i <= kDecoded; ++i) seconds += peer.step(1, position + i);
    std::printf("decode at %d: %.2f tok/s\n", n, kDecoded / seconds);
  } else {
    throw std::runtime_error(kUsage);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 4) throw std::runtime_error(kUsage);
    measure(argv[1], argv[2], std::atoi(argv[3]), argc < 5);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "llama_speed: %s\n", error.what());
    return 1;
  }
}
