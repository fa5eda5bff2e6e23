// SPDX-License-Identifier: Apache-2.0
// Settings of the calling rank for the lifetime of an object: whether gradients are recorded, and
// the path of the running module.
#pragma once

#include "tessera/core/context.h"

#include <string>
#include <utility>

namespace tessera {

/// Turns recording on or off during its lifetime.
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

/// Turns recording off during its lifetime.
class NoGrad : public GradMode {
 public:
  NoGrad() : GradMode(false) {}
};

/// Adds a name to the module path during its lifetime.
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
