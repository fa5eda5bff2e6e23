// SPDX-License-Identifier: Apache-2.0
// The rooms of libtessera_sweep.so. To add one: give it a `<room>_sweep.cu` and its line here.
#include "tessera/kernels/sweep.h"

namespace tessera {

void sweep_matmul(Sweep& sweep);
void sweep_rms_norm(Sweep& sweep);
void sweep_swiglu(Sweep& sweep);

}  // namespace tessera

void tessera_sweep(tessera::Sweep& sweep) {
  tessera::sweep_matmul(sweep);
  tessera::sweep_rms_norm(sweep);
  tessera::sweep_swiglu(sweep);
}
