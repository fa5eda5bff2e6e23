// SPDX-License-Identifier: Apache-2.0
// The order is the chairman assignment (R. Tijdeman, "The chairman assignment problem", Discrete
// Mathematics 32, 1980): of the sources that are behind by 1 / (2k - 2) rows or more, the one whose
// next row is due first gives the next row. The largest difference from a share is then
// 1 - 1 / (2k - 2), which no order of k sources improves on for all weights. After as many rows as
// the weights sum up to all differences are zero, so the order of one period is kept.
#include "tessera/train/data/mixture.h"

#include "tessera/core/message.h"
#include "tessera/models/config/fields.h"
#include "tessera/nn/io/utf8.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string_view>

namespace tessera::train {
namespace {

constexpr int64_t kMostRows = 1'000'000;  // of a period
constexpr size_t kMostParts = 64, kDecimals = 6, kDigits = 7;

bool all_digits(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// Millionths; none if the text is not a positive number of few digits. Read as text, since 0.7 has
// no exact double.
std::optional<int64_t> millionths(std::string_view text) {
  const size_t point = std::min(text.find('.'), text.size());
  const std::string_view whole = text.substr(0, point);
  std::string decimals(text.substr(std::min(point + 1, text.size())));
  if (whole.size() + decimals.size() == 0 || whole.size() > kDigits || decimals.size() > kDecimals)
    return std::nullopt;
  if (!all_digits(whole) || !all_digits(decimals)) return std::nullopt;
  decimals.resize(kDecimals, '0');
  const int64_t value = std::stoll(concat(whole, decimals));
  return value > 0 ? std::optional(value) : std::nullopt;
}

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

}  // namespace

std::vector<MixturePart> parse_mixture(const std::vector<std::string>& parts,
                                       const std::string& field) {
  constexpr std::string_view kWeight = "weight=";
  std::vector<std::string> faults;
  const auto fault = [&](const auto&... what) {
    faults.push_back(concat("[--", field, "] ", what...));
  };
  std::vector<MixturePart> mixture;
  int64_t divisor = 0, sum = 0;
  for (const std::string& part : parts) {
    std::string_view path = trimmed(part), weight = "1";
    // A path may hold spaces.
    const size_t last = path.rfind(' ') + 1;  // npos + 1 is 0
    if (path.substr(last).starts_with(kWeight)) {
      weight = path.substr(last + kWeight.size());
      path = trimmed(path.substr(0, last));
    }
    const auto value = millionths(weight);
    if (path.empty()) fault('\'', io::excerpt(part), "' has no path; expected 'PATH weight=W'");
    if (!value) {
      fault("'", io::excerpt(part), "': the weight '", io::excerpt(weight),
            "' is not a number above 0 with at most ", kDigits, " digits and ", kDecimals,
            " decimals; expected 'PATH weight=W'");
    }
    mixture.push_back(
        {std::string(path), value.value_or(1), concat(field, '[', mixture.size(), ']')});
    divisor = std::gcd(divisor, mixture.back().weight);
  }
  for (MixturePart& part : mixture) sum += part.weight /= divisor;
  if (mixture.size() > kMostParts)
    fault(mixture.size(), " data sets, expected at most ", kMostParts, "; join some in a folder");
  if (faults.empty() && sum > kMostRows) {
    fault("the weights come out even after ", counted(sum, "row"), ", expected at most ", kMostRows,
          "; round them");
  }
  config::throw_if_any(faults);
  return mixture;
}

Mixture::Mixture(std::span<const int64_t> weights) : weights_(weights.begin(), weights.end()) {
  const int64_t k = std::ssize(weights), sum = std::reduce(weights.begin(), weights.end());
  const int64_t unit = std::max<int64_t>(1, 2 * k - 2);  // differences are counted in 1 / unit
  std::vector<int32_t> given(weights.size());
  for (int64_t n = 1; n <= sum; ++n) {
    size_t next = weights.size();
    int64_t next_slack = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      // Times sum x unit: how far the source is behind, and how far it may fall behind.
      const int64_t behind = unit * (n * weights[i] - given[i] * sum);
      const int64_t slack = (unit - 1) * sum - behind;
      if (k > 1 && behind < sum) continue;
      // The quotient of slack and weight is the number of rows until it is due.
      if (next < weights.size() && slack * weights[next] >= next_slack * weights[i]) continue;
      next = i;
      next_slack = slack;
    }
    sources_.push_back(static_cast<uint8_t>(next));
    before_.push_back(given[next]++);
  }
}

Mixture::Row Mixture::at(int64_t row) const {
  const auto in_period = static_cast<size_t>(row % period());
  const size_t source = sources_[in_period];
  return {source, row / period() * weights_[source] + before_[in_period]};
}

}  // namespace tessera::train
