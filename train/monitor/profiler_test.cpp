// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/monitor/profiler.h"

#include "tessera/core/error.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/run.h"
#include "tessera/dist/world.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/nn/io/files.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/folder_test.h"
#include "tessera/tests/support/trace_faults.h"
#include "tessera/train/monitor/chrome_trace.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <set>
#include <thread>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using test::trace_faults;
using Faults = std::vector<std::string>;

class ProfilerTest : public test::FolderTest {
 protected:
  [[nodiscard]] Json parsed(const std::string& path) const {
    return Json::parse(io::read_file(path));
  }
  [[nodiscard]] std::string trace(int64_t step, int rank = 0) const {
    return concat(folder_, "/profiling/traces/iteration_", step, "/rank", rank, "_trace.json");
  }
};

// A step: forward in a module, backward, and a gradient that is reduced.
void step(Profiler& profiler, int64_t n, const Tensor& w, const Tensor& x) {
  profiler.begin_step(n);
  {
    const Profiler::Span span(&profiler, "forward");
    Tensor loss;
    {
      const ModuleScope layers("layers.0"), here("wq");
      loss = sum(matmul(x, w));
    }
    backward(loss);
    Tensor p = w;
    if (w.is_distributed()) p.set_grad(redistribute(p.grad(), layout_of(p)));
    p.set_grad({});
  }
  std::thread([&] { const Profiler::Span span(&profiler, "load \"data\""); }).join();
  (void)profiler.end_step(n);
}

TEST_F(ProfilerTest, OpsCollectivesPhasesAndThreadsOfEveryRank) {
  run_ranks(2, [&](World& world) {
    const Mesh mesh = Mesh::make({{"dp", 2}});
    Profiler profiler(
        {.enable_profiling = true, .profile_freq = 3, .profiler_active = 1, .profiler_warmup = 1},
        folder_, world);
    Tensor w = full({4, 3}, 1, DType::f32, Layout::replicated(mesh)).set_requires_grad();
    const Tensor x = full({6, 4}, 1, DType::f32, Layout::of(mesh, {Shard(0)}));
    for (int64_t i = 1; i <= 7; ++i) step(profiler, i, w, x);
    EXPECT_EQ(profiler.finish(), "");
    EXPECT_EQ(Context::current().interceptor, nullptr);
  });
  EXPECT_FALSE(fs::exists(trace(4)));
  for (const int64_t i : {3, 6}) {
    for (const int rank : {0, 1}) {
      EXPECT_EQ(trace_faults(io::read_file(trace(i, rank))), Faults());
      const Json json = parsed(trace(i, rank));
      std::set<std::string> names, modules, passes, threads;
      int64_t reduced = 0;
      for (const Json& e : json["traceEvents"]) {
        EXPECT_EQ(e["pid"], rank);
        names.insert(e["name"]);
        const Json args = e.value("args", Json::object());
        if (e["name"] == "matmul" || e["name"] == "contract_leading") {
          modules.insert(args.at("module"));
          passes.insert(args.at("pass"));
          EXPECT_GT(args.at("bytes").get<double>(), 0);
          EXPECT_NE(args.at("in").get<std::string>().find("f32["), std::string::npos);
        }
        if (e["name"] == "all_reduce" && e["ph"] == "b" && args.value("axes", "") == "dp") {
          ++reduced;
          EXPECT_EQ(args.at("bytes"), 4 * 3 * 4);
        }
        if (e["name"] == "thread_name") threads.insert(args["name"]);
      }
      EXPECT_TRUE(names.contains(concat("step ", i)));
      EXPECT_TRUE(names.contains("forward"));
      EXPECT_TRUE(names.contains("load \"data\""));
      // Backward's product runs under the module of its forward.
      EXPECT_EQ(modules, (std::set<std::string>{"layers.0.wq"}));
      EXPECT_EQ(passes, (std::set<std::string>{"forward", "grad"}));
      EXPECT_EQ(reduced, 1);
      EXPECT_EQ(threads, (std::set<std::string>{"rank thread", "thread 1"}));
    }
  }
  // All ranks in one file.
  const std::string joined = folder_ + "/joined.json";
  join_traces({trace(3, 0), trace(3, 1)}, joined);
  EXPECT_EQ(trace_faults(io::read_file(joined)), Faults());
  const Json all = parsed(joined);
  EXPECT_EQ(all["traceEvents"].size(),
            parsed(trace(3, 0))["traceEvents"].size() + parsed(trace(3, 1))["traceEvents"].size());
}

TEST_F(ProfilerTest, ARunThatEndsInTheMiddleOfACycleHasAWholeTrace) {
  run_ranks(1, [&](World& world) {
    Profiler profiler(
        {.enable_profiling = true, .profile_freq = 4, .profiler_active = 2, .profiler_warmup = 0},
        folder_, world);
    Tensor w = full({2, 2}, 1).set_requires_grad();
    const Tensor x = full({2, 2}, 1);
    for (int64_t i = 1; i <= 3; ++i) step(profiler, i, w, x);
    EXPECT_FALSE(fs::exists(trace(4)));
    EXPECT_EQ(profiler.finish(), trace(4));
  });
  EXPECT_EQ(trace_faults(io::read_file(trace(4))), Faults());
}

TEST_F(ProfilerTest, OffOrDroppedLeavesNothing) {
  run_ranks(1, [&](World& world) {
    Tensor w = full({2, 2}, 1).set_requires_grad();
    {
      Profiler off({}, folder_, world);
      for (int64_t i = 1; i <= 10; ++i) step(off, i, w, w);
      Profiler dropped({.enable_profiling = true, .profile_freq = 1, .profiler_warmup = 0}, folder_,
                       world);
      dropped.begin_step(1);
      EXPECT_TRUE(fs::exists(trace(1) + ".part"));
    }
    EXPECT_EQ(Context::current().interceptor, nullptr);
  });
  EXPECT_FALSE(fs::exists(trace(1)));
  EXPECT_FALSE(fs::exists(trace(1) + ".part"));
}

TEST_F(ProfilerTest, BadInputIsATypedError) {
  const ProfilerConfig bad{.enable_profiling = true, .profile_freq = 3};
  EXPECT_EQ(bad.conflicts().size(), 1u);
  run_ranks(1, [&](World& world) {
    EXPECT_THROW(Profiler(bad, folder_, world), ConfigError);
    Profiler nowhere({.enable_profiling = true, .profile_freq = 1, .profiler_warmup = 0},
                     "/proc/none", world);
    EXPECT_THROW(nowhere.begin_step(1), IoError);
  });
  TraceWriter replaces(folder_, 0, "a folder");
  EXPECT_EQ(test::error_of<IoError>([&] { replaces.close(); }),
            "[profiler] cannot write " + folder_ + ": Is a directory");
  const std::string path = folder_ + "/bad.json";
  for (const char* text :
       {"", "{}\n", "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{\"pid\":0},\n"}) {
    io::write_file_atomically(path, text);
    EXPECT_THROW(join_traces({path}, folder_ + "/out.json"), DataError) << text;
  }
  EXPECT_FALSE(fs::exists(folder_ + "/out.json"));
  EXPECT_THROW(join_traces({"/no/such"}, folder_ + "/out.json"), IoError);
}

// That the schema of these tests is one.
TEST_F(ProfilerTest, FaultsOfTracesAreFound) {
  const std::string row = R"("pid": 0, "tid": 1, )";
  const std::string names = "{" + row +
                            R"("ph": "M", "name": "process_name", "args": {"name": "p"}}, {)" +
                            row + R"("ph": "M", "name": "thread_name", "args": {"name": "t"}}, )";
  const auto faults = [&](const std::string& events) {
    return trace_faults("{\"traceEvents\": [" + names + events + "]}").size();
  };
  const std::string bar = "{" + row + R"("ph": "X", "name": "a", "ts": 0, "dur": 5})";
  EXPECT_EQ(faults(bar), 0u);
  EXPECT_EQ(faults(bar + ", {" + row + R"("ph": "X", "name": "b", "ts": 4.999, "dur": 0.001})"),
            0u);
  EXPECT_EQ(faults(bar + ", {" + row + R"("ph": "X", "name": "b", "ts": 4.999, "dur": 0.002})"),
            1u);
  for (const char* event :
       {R"("ph": "X", "name": "a", "ts": "0", "dur": 5)", R"("ph": "X", "name": "a", "ts": 0)",
        R"("ph": "X", "name": "a", "ts": 0, "dur": -1)", R"("ph": "X", "ts": 0, "dur": 1)",
        R"("ph": "X", "name": "a", "name": "b", "ts": 0, "dur": 1)", R"("name": "a", "ts": 0)",
        R"("ph": "b", "name": "a", "ts": 0, "cat": "c", "id": "1")",
        R"("ph": "e", "name": "a", "ts": 0, "cat": "c", "id": "1")",
        R"("ph": "C", "name": "a", "ts": 0, "args": {"value": "1"})",
        R"("ph": "M", "name": "thread_name", "args": {})", R"("ph": "Q", "name": "a", "ts": 0)"})
    EXPECT_EQ(faults("{" + row + event + "}"), 1u) << event;
  EXPECT_EQ(faults(R"({"pid": 0, "ph": "X", "name": "a", "ts": 0, "dur": 1})"), 1u);
  EXPECT_EQ(faults(R"({"pid": 5, "tid": 5, "ph": "X", "name": "a", "ts": 0, "dur": 1})"), 2u);
  EXPECT_EQ(trace_faults("[]").size(), 1u);
  EXPECT_EQ(trace_faults("{\"traceEvents\": [NaN]}").size(), 1u);
}

TEST_F(ProfilerTest, OddNamesStayJson) {
  const std::string path = folder_ + "/odd.json";
  TraceWriter writer(path, 3, "quote \" slash \\ \x01");
  writer.complete(0, "\xFF\n", "c", 5, 1234567,
                  TraceArgs().text("a\"", "\xE2\x82\xAC").number("n", 1.0 / 0.0));
  writer.counter("memory", 10, 1e12);
  EXPECT_FALSE(fs::exists(path));
  writer.close();
  writer.counter("late", 10, 1);  // after the end
  EXPECT_EQ(trace_faults(io::read_file(path)), Faults{"a thread without a name"});
  const Json json = parsed(path);
  EXPECT_EQ(json["traceEvents"][2]["ts"], 0.005);
  EXPECT_EQ(json["traceEvents"][2]["dur"], 1234.562);
  EXPECT_TRUE(json["traceEvents"][2]["args"]["n"].is_null());
}

}  // namespace
}  // namespace tessera::train
