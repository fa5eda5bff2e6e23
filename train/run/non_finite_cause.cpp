// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/run/non_finite_cause.h"

#include "tessera/nn/parameters.h"
#include "tessera/train/monitor/non_finite.h"
#include "tessera/train/ranks/ranks.h"
#include "tessera/train/run/rank_check.h"

#include <fmt/format.h>

#include <vector>

namespace tessera::train {
namespace {

// The least of the texts that ranks have, and who has it: `parameter norm.weight on rank 1`. Empty
// if no rank has one. Collective.
std::string first_of_ranks(const std::string& own) {
  const std::vector<std::string> texts = texts_of_ranks(own);
  std::string first;
  for (const std::string& text : texts)
    if (first.empty() || (!text.empty() && text < first)) first = text;
  if (first.empty() || texts.size() == 1) return first;
  std::vector<int> ranks;
  for (size_t r = 0; r < texts.size(); ++r)
    if (texts[r] == first) ranks.push_back(static_cast<int>(r));
  return concat(first, " on ", ranks_text(ranks));
}

// Empty: all are finite.
std::string parameter_that_is_not(models::LanguageModel& model) {
  std::string own;
  for (const auto& p : nn::named_parameters(model)) {
    if (own.empty() && !all_finite(p.tensor)) own = concat("parameter ", p.name);
  }
  const std::string first = first_of_ranks(own);
  return first.empty() ? first : concat(first, " already is not finite");
}

// Empty: the repeated step did not show it.
std::string first_op(const RunFacts& run, RunParts& parts, int64_t steps) {
  Feed& feed = *parts.feed;
  const StepInput input = feed.next(unwatched());
  const LossScale scale = loss_scale(summed_counts(input, parts.mesh, feed.share(), run.device),
                                     run.config.model.dtype());
  FirstNonFinite watch;
  std::string action;  // of a pipeline
  (void)forward_backward(*parts.model, {input.batches, steps, feed.rows_at_once()}, scale,
                         [&](const StepPart& part, const std::function<void()>& pass) {
                           const bool before = watch.found().empty();
                           pass();
                           if (part.action && before && !watch.found().empty())
                             action = concat(" (", part.text(), " of the schedule)");
                         });
  parts.optimizer->zero_grad();
  // The earliest of all ranks: texts of numbers of one width are in their order.
  const std::string own = watch.found() + action;
  const std::string first =
      first_of_ranks(own.empty() ? own : fmt::format("{:019}{}", watch.ops_before(), own));
  return first.empty() ? first : concat("first made by ", first.substr(19));
}

}  // namespace

std::string non_finite_cause(const RunFacts& run, RunParts& parts, int64_t steps) {
  std::string cause = parameter_that_is_not(*parts.model);
  if (cause.empty()) cause = first_op(run, parts, steps);
  return cause.empty() ? "running the step again did not show it" : cause;
}

}  // namespace tessera::train
