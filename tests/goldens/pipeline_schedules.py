#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pipeline schedules of torch.distributed.pipelining: what each rank computes, without idle steps, and all that it
does (gathers, messages, reductions), as sums (FNV-1a of the texts) and one of each in full.

pipeline_schedules.py > pipeline_schedules.json
"""
import json

from torch.distributed.pipelining import schedules as torch_schedules
from torch.distributed.pipelining.stage import _PipelineStageBase

RANKS, MICRO_BATCHES = range(2, 9), list(range(1, 17)) + [20, 24, 32]
SINGLE = {"GPipe": torch_schedules.ScheduleGPipe, "1F1B": torch_schedules.Schedule1F1B}
MULTI = {"LoopedBFS": torch_schedules.ScheduleLoopedBFS,
         "Interleaved1F1B": torch_schedules.ScheduleInterleaved1F1B,
         "InterleavedZeroBubble": torch_schedules.ScheduleInterleavedZeroBubble,
         "ZBVZeroBubble": torch_schedules.ScheduleZBVZeroBubble,
         "DualPipeV": torch_schedules.ScheduleDualPipeV}
V_SHAPED = ["ZBVZeroBubble", "DualPipeV"]


class Stage(_PipelineStageBase):
    """As much of a stage as a schedule asks for."""

    def __init__(self, ranks, stages):
        self.submod, self.group, self.group_rank = None, None, 0
        self.group_size, self.num_stages, self.stage_index = ranks, stages, 0
        self.has_backward = False

    def _create_grad_recv_info(self, *_):
        raise NotImplementedError

    _prepare_forward_infra = _prepare_backward_infra = _create_grad_recv_info


def computed(name, ranks, stages_per_rank, micro_batches):
    """What each rank computes, or nothing if torch refuses."""
    stages = ranks * stages_per_rank
    try:
        if name in SINGLE:
            schedule = SINGLE[name](Stage(ranks, stages), micro_batches)
            order = schedule._get_pipeline_order()
        else:
            local = [Stage(ranks, stages) for _ in range(stages_per_rank)]
            order = MULTI[name](local, micro_batches).pipeline_order
    except ValueError:
        return None
    order = {rank: [a for a in order[rank] if a is not None and a.is_compute_op] for rank in range(ranks)}
    if name == "1F1B":  # its last rank counts micro-batches from 1
        last = order[ranks - 1]
        order[ranks - 1] = [a._replace(microbatch_index=a.microbatch_index - 1)
                            if a.computation_type == torch_schedules.FORWARD else a for a in last]
    return order


def everything(order, style, stages, micro_batches):
    place = torch_schedules.generate_stage_to_rank_mapping(len(order), stages, style=style)
    whole = {}
    for rank, own in order.items():
        own = torch_schedules._add_unshard_reshard(list(own))
        whole[rank] = [a for a in torch_schedules._add_reduce_grad(own, micro_batches)
                       if "WAIT" not in str(a)]
    return torch_schedules._add_send_recv(whole, stage_to_rank=place.get, num_stages=stages)


def csv(order):
    return "".join(",".join(map(str, order[rank])) + "\n" for rank in sorted(order))


def sum_of(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return f"{value:016x}"


def main():
    rows, full = [], {}
    for name in [*SINGLE, *MULTI]:
        for ranks in RANKS:
            for stages_per_rank in [1] if name in SINGLE else [2] if name in V_SHAPED else [1, 2, 3]:
                for micro_batches in MICRO_BATCHES:
                    if name == "1F1B" and micro_batches < ranks:
                        continue  # torch refuses them
                    order = computed(name, ranks, stages_per_rank, micro_batches)
                    row = [name, ranks, stages_per_rank, micro_batches]
                    if order is None:
                        rows.append(row + ["refused", ""])
                        continue
                    style = "v" if name in V_SHAPED else "loop"
                    actions = everything(order, style, ranks * stages_per_rank, micro_batches)
                    rows.append(row + [sum_of(csv(order)), sum_of(csv(actions))])
                    if (ranks, micro_batches) == (3, 6) and (stages_per_rank == 2) == (name in MULTI):
                        full[name] = {"stages_per_rank": stages_per_rank, "computes": csv(order),
                                      "actions": csv(actions)}
    text = ",\n ".join(json.dumps(row) for row in rows)
    print('{"full": ' + json.dumps(full, indent=1) + ',\n"rows": [' + text + "]}")


if __name__ == "__main__":
    main()
