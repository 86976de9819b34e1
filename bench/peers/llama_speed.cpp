// The speed of llama.cpp or its fork ik_llama through the C API, for compare.py. Not part of the build: it needs the headers
// and libraries of the one that you built for your machine, and a GGUF file of the shape (models.py).
//   g++ -O2 -std=c++20 -I LLAMA/include -I LLAMA/ggml/include llama_speed.cpp -L BUILD/bin -lllama -lggml -lggml-base -o llama_speed
//   g++ -O2 -std=c++20 -DIK_LLAMA -I IK/include -I IK/ggml/include llama_speed.cpp -L BUILD/src -lllama -L BUILD/ggml/src -lggml ...
//   llama_speed MODEL.gguf [no-flash] [repack] [ubatch=N] [kv=q8_0]
// Reads lines "prompt TOKENS" and "streams N", answers each with a line of JSON, tokens per second. Two threads; keys and
// values are f16 unless told otherwise. repack is ik_llama's -rtr (llama.cpp does so by itself).
#include <ggml-backend.h>
#include <llama.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int kThreads = 2, kBatch = 2048, kShortPrompt = 1024, kShortRepeats = 3;
constexpr int kSteps = 32, kWarmSteps = 8;  // as bench_model

struct Flags {
  bool flash = true, repack = false, int8_cache = false;
  int micro_batch = 512;
};

Flags parse(int argc, char** argv) {
  Flags flags;
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "no-flash")
      flags.flash = false;
    else if (word == "repack")
      flags.repack = true;
    else if (word == "kv=q8_0")
      flags.int8_cache = true;
    else if (word.rfind("ubatch=", 0) == 0)
      flags.micro_batch = std::atoi(word.c_str() + 7);
    else
      throw std::runtime_error("unknown flag " + word);
  }
  return flags;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Context {
 public:
  Context(llama_model* model, const Flags& flags, int tokens, int sequences) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = static_cast<uint32_t>(tokens);
    params.n_batch = kBatch;
    params.n_ubatch = static_cast<uint32_t>(flags.micro_batch);
    params.n_seq_max = static_cast<uint32_t>(sequences);
    params.n_threads = params.n_threads_batch = kThreads;
    if (flags.int8_cache) params.type_k = params.type_v = GGML_TYPE_Q8_0;
#ifdef IK_LLAMA
    params.flash_attn = flags.flash;
    params.graph_reuse = true;
    vocab_ = llama_n_vocab(model);
#else
    params.flash_attn_type = flags.flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    vocab_ = llama_vocab_n_tokens(llama_model_get_vocab(model));
#endif
    context_ = llama_init_from_model(model, params);
    if (context_ == nullptr) throw std::runtime_error("cannot make a context");
    batch_ = llama_batch_init(kBatch, 0, 1);
  }
  ~Context() {
    llama_batch_free(batch_);
    llama_free(context_);
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Seconds of a prompt of random tokens from an empty cache on.
  double prompt(int count) {
#ifdef IK_LLAMA
    llama_kv_cache_clear(context_);
#else
    llama_memory_clear(llama_get_memory(context_), true);
#endif
    const auto start = std::chrono::steady_clock::now();
    for (int done = 0; done < count; done += batch_.n_tokens) {
      batch_.n_tokens = 0;
      for (int i = done; i < std::min(count, done + kBatch); ++i) add(i, 0, i == count - 1);
      run();
    }
    return seconds_since(start);
  }
  // Seconds of one step that decodes one token of each sequence, from `position` on.
  double step(int sequences, int position) {
    double seconds = 0;
    for (int i = 0; i < kWarmSteps + kSteps; ++i) {
      const auto start = std::chrono::steady_clock::now();
      batch_.n_tokens = 0;
      for (int s = 0; s < sequences; ++s) add(position + i, s, true);
      run();
      if (i >= kWarmSteps) seconds += seconds_since(start);
    }
    return seconds / kSteps;
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

  llama_context* context_ = nullptr;
  llama_batch batch_{};
  int vocab_ = 0;
};

void answer(llama_model* model, const Flags& flags, const std::string& what, int n) {
  if (what == "streams") {
    Context context(model, flags, n * (kWarmSteps + kSteps), n);
    std::printf("{\"decode\": %.2f}\n", n / context.step(n, 0));
  } else if (what == "prompt") {
    Context context(model, flags, n + kWarmSteps + kSteps, 1);
    std::vector<double> seconds;
    for (int i = 0; i < (n <= kShortPrompt ? kShortRepeats : 1); ++i) seconds.push_back(context.prompt(n));
    std::printf("{\"prefill\": %.2f, \"decode\": %.2f}\n", n / median(seconds), 1 / context.step(1, n));
  } else {
    throw std::runtime_error("prompt TOKENS or streams N, not " + what);
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 2) throw std::runtime_error("llama_speed MODEL.gguf [no-flash] [repack] [ubatch=N] [kv=q8_0]");
    const Flags flags = parse(argc, argv);
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    llama_backend_init();
    llama_model_params params = llama_model_default_params();
#ifdef IK_LLAMA
    params.repack_tensors = flags.repack;
    if (flags.repack) params.use_mmap = false;
#else
    ggml_backend_load_all();
#endif
    llama_model* model = llama_model_load_from_file(argv[1], params);
    if (model == nullptr) throw std::runtime_error(std::string("cannot load ") + argv[1]);
    std::string what;
    for (int n = 0; std::cin >> what >> n;) answer(model, flags, what, n);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "llama_speed: %s\n", error.what());
    return 1;
  }
}
