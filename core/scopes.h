// SPDX-License-Identifier: Apache-2.0
// What holds for the calling rank while an object lives: whether gradients are recorded, and the
// name of the part of the program that runs.
#pragma once

#include "tessera/core/context.h"

#include <string>
#include <utility>

namespace tessera {

/// Turns recording on or off while it lives.
class GradMode {
 public:
  explicit GradMode(bool enabled) : context_(Context::current()), before_(context_.grad_enabled) {
    context_.grad_enabled = enabled;
  }
  ~GradMode() { context_.grad_enabled = before_; }
  GradMode(const GradMode&) = delete;
  GradMode& operator=(const GradMode&) = delete;

 private:
  Context& context_;
  bool before_;
};

/// Nothing is recorded while it lives.
class NoGrad : public GradMode {
 public:
  NoGrad() : GradMode(false) {}
};

/// Names the part of the program that runs while it lives.
class ModuleScope {
 public:
  explicit ModuleScope(std::string name) : context_(Context::current()) {
    context_.module_path.push_back(std::move(name));
  }
  ~ModuleScope() { context_.module_path.pop_back(); }
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;

 private:
  Context& context_;
};

}  // namespace tessera
