// SPDX-License-Identifier: Apache-2.0
// The ranks at the front of each stage's mesh are one pipeline, so that tensors go from there to
// the first rank.
#include "tessera/models/pipeline/whole.h"

#include "tessera/core/scopes.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/point_to_point.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/models/pipeline/pipelined_model.h"

#include <algorithm>
#include <map>

namespace tessera::models {
LanguageModel& whole_of(LanguageModel& model) {
  auto* pipelined = dynamic_cast<PipelinedModel*>(&model);
  return pipelined ? pipelined->whole() : model;
}

std::vector<nn::NamedParameter> whole_tensors(LanguageModel& model) {
  std::vector<nn::NamedParameter> own = nn::model_tensors(model);
  LanguageModel& whole = whole_of(model);
  if (&whole == &model) return own;
  std::map<std::string_view, Tensor> here;
  for (const auto& [name, t] : own) here.emplace(name, t);
  std::vector<nn::NamedParameter> all = nn::model_tensors(whole);
  for (auto& [name, t] : all) {
    const auto at = here.find(name);
    t = at == here.end() ? Tensor() : at->second;
  }
  return all;
}

std::vector<std::string> names_elsewhere(LanguageModel& model) {
  std::vector<std::string> names;
  for (const auto& [name, t] : whole_tensors(model))
    if (!t.defined()) names.push_back(name);
  return names;
}

void save_whole(LanguageModel& model, const std::string& path, const io::Metadata& metadata,
                io::FileMode mode) {
  auto* const pipelined = dynamic_cast<PipelinedModel*>(&model);
  if (!pipelined) return nn::save(model, path, metadata, mode);
  const NoGrad guard;
  const nn::PipelineRanks& ranks = pipelined->ranks();
  const bool first = ranks.rank() == 0;
  const bool front = std::ranges::all_of(nn::model_tensors(model), nn::is_first_of_mesh,
                                         &nn::NamedParameter::tensor);
  const std::vector<nn::NamedParameter> forms = nn::model_tensors(pipelined->whole());
  std::vector<nn::NamedParameter> written = whole_tensors(model);
  for (size_t i = 0; i < written.size(); ++i) {
    auto& [name, t] = written[i];
    const int holder = pipelined->holder_of(name);
    const bool holds = holder == ranks.rank();
    if (holds) t = to_device(contiguous(t.is_distributed() ? full_tensor(t) : t.detach()), kCpu);
    if (front && holds && !first) send(ranks.along, ranks.axis, t, 0)->wait();
    if (!front || !first) t = Tensor();
    if (!front || !first || holds) continue;
    t = empty(forms[i].tensor.shape(), forms[i].tensor.dtype());
    recv(ranks.along, ranks.axis, t, holder)->wait();
  }
  if (front && first) io::write_safetensors(path, written, metadata, mode);
}

}  // namespace tessera::models
