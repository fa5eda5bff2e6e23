// SPDX-License-Identifier: Apache-2.0
// What Chrome's trace format asks for where Perfetto reads it: a strict schema, since its importer
// passes over events that do not fit instead of saying so.
#pragma once

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::test {

/// Every fault of a trace; none: it is one. Bars of a row must nest to the nanosecond.
inline std::vector<std::string> trace_faults(std::string_view text) {
  using Json = nlohmann::json;
  std::vector<std::string> faults;
  std::vector<std::set<std::string>> keys;
  const auto once = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
      faults.push_back("a key appears twice: " + value.dump());
    return true;
  };
  const Json trace = Json::parse(text, once, false);
  if (!trace.is_object() || !trace.contains("traceEvents") || !trace["traceEvents"].is_array())
    return {"not a JSON object with a list traceEvents"};

  struct Bar {
    int64_t begin, end;
  };
  using Row = std::pair<int64_t, int64_t>;  // process, thread
  std::map<Row, std::vector<Bar>> bars;
  std::map<std::string, double> open;  // asynchronous events by category and id
  std::set<Row> rows, named;
  std::set<int64_t> processes;
  for (const Json& e : trace["traceEvents"]) {
    const auto require = [&](bool ok, const char* what) {
      if (!ok) faults.push_back(std::string(what) + ": " + e.dump());
      return ok;
    };
    const auto member = [&](const char* key) { return e.contains(key) ? e[key] : Json(); };
    if (!require(member("name").is_string() && member("name") != "", "no name") ||
        !require(member("ph").is_string(), "no phase") ||
        !require(member("pid").is_number_integer() && member("tid").is_number_integer(),
                 "no process and thread"))
      continue;
    const std::string phase = e["ph"];
    const Row row{e["pid"], e["tid"]};
    if (phase == "M") {
      const std::string name = e["name"];
      const Json args = member("args");
      const bool sorts = name.ends_with("_sort_index");
      require(name == "process_name" || name == "thread_name" || sorts, "unknown metadata");
      require(args.is_object() && (sorts ? args.value("sort_index", Json()).is_number_integer()
                                         : args.value("name", Json()).is_string()),
              "metadata without its value");
      if (name == "process_name") processes.insert(row.first);
      if (name == "thread_name") named.insert(row);
      continue;
    }
    rows.insert(row);
    if (!require(member("ts").is_number() && e["ts"] >= 0, "no time")) continue;
    const auto ns = [](const Json& us) { return std::llround(us.get<double>() * 1e3); };
    if (phase == "X") {
      if (require(member("dur").is_number() && e["dur"] >= 0, "no duration"))
        bars[row].push_back({ns(e["ts"]), ns(e["ts"]) + ns(e["dur"])});
    } else if (phase == "b" || phase == "e") {
      if (!require(member("id").is_string() && member("cat").is_string(), "no id and category"))
        continue;
      const std::string id = e["cat"].get<std::string>() + " " + e["id"].get<std::string>();
      if (phase == "b") require(open.emplace(id, e["ts"]).second, "begun twice");
      else if (require(open.contains(id) && open[id] <= e["ts"], "ended, not begun"))
        open.erase(id);
    } else if (require(phase == "C", "unknown phase")) {
      const Json args = member("args");
      require(args.is_object() && !args.empty() &&
                  std::ranges::all_of(args, [](const Json& v) { return v.is_number(); }),
              "a counter without numbers");
    }
  }
  for (const auto& [id, since] : open) faults.push_back("never ended: " + id);
  for (const Row& row : rows) {
    if (!named.contains(row)) faults.push_back("a thread without a name");
    if (!processes.contains(row.first)) faults.push_back("a process without a name");
  }
  for (auto& [row, all] : bars) {
    std::ranges::sort(all, [](const Bar& a, const Bar& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
    std::vector<int64_t> ends;
    for (const Bar& bar : all) {
      while (!ends.empty() && ends.back() <= bar.begin) ends.pop_back();
      if (!ends.empty() && bar.end > ends.back()) faults.push_back("bars overlap");
      ends.push_back(bar.end);
    }
  }
  return faults;
}

}  // namespace tessera::test
