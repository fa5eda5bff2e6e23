// SPDX-License-Identifier: Apache-2.0
// The whole library for programs that want one include.
#pragma once

#include "tessera/autograd/autograd.h"
#include "tessera/core/tensor.h"
#include "tessera/dist/comm_trace.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/run.h"
#include "tessera/dist/local_region.h"
#include "tessera/dist/planner/planner.h"
#include "tessera/dist/visualize.h"
#include "tessera/dist/world.h"
#include "tessera/kernels/rooms.h"
#include "tessera/models/llama3/llama3.h"
#include "tessera/nn/attention.h"
#include "tessera/nn/containers.h"
#include "tessera/nn/layers.h"
#include "tessera/nn/module.h"
#include "tessera/nn/optim/adamw.h"
#include "tessera/nn/optim/clip.h"
#include "tessera/nn/optim/sgd.h"
#include "tessera/nn/parameters.h"
#include "tessera/train/run/trainer.h"
