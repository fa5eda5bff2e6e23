// SPDX-License-Identifier: Apache-2.0
// What the passes share before anything runs: their checks, which name all faults at once and
// communicate nothing, the layouts that they give parameters, and the wrapping itself.
#pragma once

#include "tessera/nn/parallel/unit_impl.h"

namespace tessera::nn::detail {

/// Faults found so far, as one error.
class Faults {
 public:
  explicit Faults(std::string pass) : pass_(std::move(pass)) {}
  template <class... Parts> void add(const Parts&... parts) {
    text_ += (text_.empty() ? "" : "; ") + concat(parts...);
  }
  /// UsageError if there are any.
  void raise() const {
    if (!text_.empty()) fail<UsageError>(pass_, text_);
  }

 private:
  std::string pass_, text_;
};

/// DTypeError unless the dtypes of the policy are floating.
void check_dtypes(std::string_view pass, const MixedPrecision& policy);
/// A module that a pass has wrapped, alone or in its parent.
void find_wrapped(Faults& faults, std::span<Module* const> modules);
/// The same as an error.
void check_unwrapped(const std::string& pass, std::span<Module* const> modules);
/// Axes that the mesh lacks, or that are named twice.
void find_bad_axes(Faults& faults, Mesh mesh, const Bucket::Axes& axes);
/// Parameters that a unit with collectives has already; true for each of them.
std::vector<bool> find_taken(Faults& faults, const std::vector<Unit::Slot>& slots);

UnitOptions options_of(std::string pass, const MixedPrecision& policy, Reshard reshard, Mesh mesh);
/// Gives a parameter or buffer another layout, in place, without communication: values that every
/// rank has are cut, a tensor on the meta device stays there.
void lie_on(Tensor& t, Layout layout);
/// Makes the modules one unit.
void wrap(std::vector<Module*> modules, FreeMembers members, UnitOptions options, Unit::Make make);

}  // namespace tessera::nn::detail
