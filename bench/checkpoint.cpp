// SPDX-License-Identifier: Apache-2.0
// Saving and loading the state of a run: a Llama of 124M parameters and its AdamW states, sharded
// over the ranks, beside what the disk and the memory of this machine do with as many bytes. Also
// how long a save holds up training, and the memory that one in the background takes. All ranks do
// each thing at once, and the slowest counts. bench/peers/checkpoint.py measures the same in
// PyTorch.
#include "tessera/train/checkpoint/checkpoint.h"

#include "tessera/bench/support.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/run.h"
#include "tessera/nn/optim/adamw.h"
#include "tessera/train/ranks/ranks.h"
#include "tessera/train/step/build_model.h"

#include <fcntl.h>
#include <filesystem>
#include <random>
#include <thread>
#include <unistd.h>

namespace tessera::bench {
namespace {

namespace fs = std::filesystem;

// As bench_train_step --model 124M.
train::Config config_of_124m() {
  const std::vector<std::string> words{"--recipe",
                                       "llama3_debugmodel",
                                       "--model.dim",
                                       "768",
                                       "--model.n_layers",
                                       "12",
                                       "--model.n_heads",
                                       "12",
                                       "--model.n_kv_heads",
                                       "12",
                                       "--model.ffn_dim",
                                       "2048",
                                       "--model.vocab_size",
                                       "50257",
                                       "--model.enable_weight_tying"};
  return train::parse_config(words);
}

// So that the next reader takes the file from the disk.
void drop_from_cache(const std::string& path) {
  const int fd = io::open_file(path, "bench");
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}
void drop_folder_from_cache(const std::string& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) drop_from_cache(entry.path());
}

void read_into(const std::string& path, std::vector<char>& bytes) {
  const int fd = io::open_file(path, "bench");
  size_t used = 0;
  for (ssize_t n = 1; n > 0 && used < bytes.size(); used += static_cast<size_t>(n))
    n = std::max<ssize_t>(0, ::read(fd, bytes.data() + used, bytes.size() - used));
  ::close(fd);
  if (used != bytes.size()) fail<IoError>("bench", "cannot read ", path);
}

// Resident memory of the process in bytes: VmRSS now, VmHWM at most since reset_peak().
int64_t resident(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(field)) return std::stoll(line.substr(field.size() + 1)) * 1024;
  fail<IoError>("bench", "/proc/self/status has no ", field);
}
void reset_peak() { std::ofstream("/proc/self/clear_refs") << 5; }

class Subject {
 public:
  Subject(World& world, std::string folder, DeviceChoice device)
      : world_(world),
        folder_(std::move(folder)),
        device_(rank_device(device, world.local_rank(), world.local_ranks())),
        random_(static_cast<unsigned>(world.rank())) {
    const train::Config config = config_of_124m();
    const Mesh mesh = Mesh::make(config.parallelism.axes(world.size()));
    share_ = train::data_share(mesh);
    model_ = train::build_model(config, mesh, [&](nn::Module& m, const nn::LayoutOf& layouts) {
      nn::initialize(m, 7, layouts, device_);
    });
    metadata_ = model_->metadata(kLength);
    optimizer_ = std::make_unique<optim::AdamW>(nn::named_parameters(*model_),
                                                optim::AdamWOptions{.lr = 1e-3});
    step();  // states with values
    for (const auto& t : state()) {
      bytes_ += t.numel() * item_size(t.dtype());
      own_bytes_ += local(t).numel() * item_size(t.dtype());
    }
  }
  [[nodiscard]] int64_t bytes() const { return bytes_; }
  [[nodiscard]] Device device() const { return device_; }

  // Seconds of one round, by what was measured.
  std::vector<std::pair<std::string, double>> round() {
    std::vector<std::pair<std::string, double>> all;
    std::vector<char> buffer(static_cast<size_t>(own_bytes_));
    all.emplace_back("copy to the host", timed([&] {
                       char* to = buffer.data();
                       for (const Tensor& t : state()) {
                         const Tensor own = local(t);
                         if (own.numel() > 0)
                           copy_bytes(from_blob(to, own.shape(), own.dtype()), own);
                         to += own.numel() * item_size(own.dtype());
                       }
                     }));
    const std::string plain = concat(folder_, "/plain", world_.rank());
    all.emplace_back("disk write", timed([&] {
                       io::write_file_atomically(plain, {buffer.data(), buffer.size()});
                     }));
    drop_from_cache(plain);
    all.emplace_back("disk read", timed([&] { read_into(plain, buffer); }));
    fs::remove(plain);
    buffer = {};

    const train::CheckpointFolder steps(folder_);
    all.emplace_back("save", timed([&] { train::save(steps, checkpoint(1)); }));
    if (world_.rank() == 0) drop_folder_from_cache(steps.folder_of(1));
    const auto load = [&] { (void)train::load(*model_, *optimizer_, folder_); };
    all.emplace_back("load from disk", timed(load));
    all.emplace_back("load from cache", timed(load));

    std::vector<double> alone, beside;
    for (int i = 0; i < 3; ++i) alone.push_back(timed([&] { step(); }));
    std::unique_ptr<train::BackgroundSave> save;
    const auto begin = [&] {
      save = std::make_unique<train::BackgroundSave>(steps, checkpoint(2));
    };
    const auto finish = [&] { save->finish(); };
    all.emplace_back("async: snapshot", timed(begin));
    while (slowest(save->written() ? 0 : 1) > 0) beside.push_back(timed([&] { step(); }));
    all.emplace_back("async: commit", timed(finish));
    all.emplace_back("step", median(alone));
    if (!beside.empty()) all.emplace_back("step during a save", median(beside));
    return all;
  }
  // The most bytes that this process takes beside what it has, in a save in the background.
  int64_t extra_memory() {
    const int64_t before = resident("VmRSS");
    reset_peak();
    train::BackgroundSave save(train::CheckpointFolder(folder_), checkpoint(3));
    while (!save.written()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    world_.group().barrier()->wait();
    const int64_t most = resident("VmHWM");
    save.finish();
    return most - before;
  }

 private:
  static constexpr int64_t kLength = 128;
  [[nodiscard]] train::Checkpoint checkpoint(int64_t step) const {
    return {.progress = {.step = step},
            .model = train::model_tensors(*model_),
            .optimizer = optimizer_->state().tensors};
  }
  [[nodiscard]] std::vector<Tensor> state() const {
    std::vector<Tensor> all;
    const train::Checkpoint c = checkpoint(0);
    for (const auto* part : {&c.model, &c.optimizer})
      for (const auto& t : *part) all.push_back(t.tensor);
    return all;
  }
  Tensor random_ids() {  // (1, T) of this rank
    std::vector<double> ids;
    for (int64_t i = 0; i < kLength; ++i) ids.push_back(static_cast<double>(random_() % 256));
    return wrap_local(to_device(from_values(ids, {1, kLength}, DType::i64), device_),
                      share_.by_rows, {share_.parts, kLength});
  }
  void step() {
    optimizer_->zero_grad();
    const Tensor tokens = random_ids(), targets = random_ids();
    backward(model_->loss(tokens, targets, metadata_).sum * (1.0 / kLength));
    const NoGrad guard;
    optimizer_->step();
    wait_for(device_);
  }
  double slowest(double seconds) {
    const Tensor t = from_values({seconds}, {1}, DType::f64);
    world_.group().all_reduce(t, ReduceOp::max)->wait();
    return t.item<double>();
  }
  template <class F> double timed(F&& f) {
    world_.group().barrier()->wait();
    const auto start = Clock::now();
    f();
    return slowest(seconds_since(start));
  }

  World& world_;
  std::string folder_;
  Device device_;
  std::mt19937 random_;
  train::DataShare share_;
  std::unique_ptr<models::LanguageModel> model_;
  models::Metadata metadata_;
  std::unique_ptr<optim::AdamW> optimizer_;
  int64_t bytes_ = 0, own_bytes_ = 0;  // of the state, and of what this rank holds
};

// Called on each rank; rank 0 prints.
void measure(World& world, const std::string& folder, DeviceChoice device, int rounds,
             bool one_process, Lines& lines) {
  const train::Patience patience;
  Subject subject(world, folder, device);
  const auto gigabytes = static_cast<double>(subject.bytes()) / 1e9;
  // Ranks of one process share its memory, so their copies add up to one of the whole state.
  const double held = one_process ? gigabytes : gigabytes / world.size();
  const double extra = static_cast<double>(subject.extra_memory()) / 1e9;
  std::vector<std::pair<std::string, std::vector<double>>> figures;
  for (int i = 0; i < rounds; ++i) {
    for (const auto& [name, seconds] : subject.round()) {
      auto at = std::ranges::find(figures, name, [](const auto& f) { return f.first; });
      if (at == figures.end()) at = figures.insert(at, {name, {}});
      at->second.push_back(seconds);
    }
  }
  if (world.rank() != 0) return;
  fmt::print("{:.2f} GB on {} ranks by {}, {}, medians of {} rounds\n", gigabytes, world.size(),
             world.group().backend(), concat(subject.device()), rounds);
  for (const auto& [name, seconds] : figures) {
    fmt::print("{:20} {:8.3f} s {:8.2f} GB/s\n", name, median(seconds),
               gigabytes / median(seconds));
    lines.write({{"name", name},
                 {"backend", world.group().backend()},
                 {"device", concat(subject.device())},
                 {"seconds", seconds}});
  }
  fmt::print("memory of an async save: {:.3f} GB beside {:.3f} GB held, {:.3f} copies\n", extra,
             held, extra / held);
  lines.write({{"name", "async: memory"},
               {"backend", world.group().backend()},
               {"gigabytes", gigabytes},
               {"copies", extra / held}});
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera;
  return bench::run([&] {
    bench::Arguments arguments(argc, argv);
    const int ranks = arguments.number("--ranks", 2), rounds = arguments.number("--rounds", 2);
    const int threads = arguments.number("--threads", 1);
    const DeviceChoice device = arguments.device_choice();
    const std::string folder = arguments.text("--folder", "build/bench_checkpoint");
    const std::string path = arguments.text("--json");
    arguments.finish();
    Launch launch = detect_launch();
    const bool one_process = launch.launcher == Launcher::single;
    bench::Lines lines(launch.rank == 0 ? path : "");
    if (one_process) launch = detect_launch(ranks);
    (void)rank_device(device, launch);  // before any rank waits for another
    std::filesystem::create_directories(folder);
    run_launched(
        launch,
        [&](World& world) { bench::measure(world, folder, device, rounds, one_process, lines); },
        {.threads = threads});
    if (launch.rank == 0) std::filesystem::remove_all(folder);
  });
}
