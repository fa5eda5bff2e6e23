// SPDX-License-Identifier: Apache-2.0
// The stacks of this process's threads, for a fault that nobody can reproduce.
#pragma once

namespace tessera {

/// Writes the name and the stack of every other thread of this process to `fd`. The signal SIGURG,
/// which is ignored by default, has another handler meanwhile. A thread that does not answer within
/// 200 ms has a line that says so.
void write_stacks(int fd) noexcept;

}  // namespace tessera
