# SPDX-License-Identifier: Apache-2.0
"""Golden cases of optimizer steps and clipping. ROOMS: file name to the function that fills it."""
import torch


def adamw(g):
    """p0 and p1 after each of five steps with given gradients: keys step_<n>/{g0,g1,p0,p1}."""
    settings = dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    starts = [g.randn(5, 7), g.randn(13)]
    params = [torch.nn.Parameter(p.double()) for p in starts]
    optimizer = torch.optim.AdamW(params, **settings)
    g.put("start", p0=starts[0], p1=starts[1])
    for step in range(1, 6):
        grads = [g.randn(*p.shape, scale=10.0 ** (step - 4)) for p in params]
        for param, grad in zip(params, grads):
            param.grad = grad.double()
        optimizer.step()
        g.put(f"step_{step}", g0=grads[0], g1=grads[1], p0=params[0], p1=params[1])
    for i, param in enumerate(params):
        state = optimizer.state[param]
        g.put("final", **{f"exp_avg{i}": state["exp_avg"], f"exp_avg_sq{i}": state["exp_avg_sq"]})
    beta1, beta2 = settings.pop("betas")
    g.attrs("start", beta1=beta1, beta2=beta2, **settings)


def clip_grad_norm(g):
    """Gradients before (g*) and after (c*) torch.nn.utils.clip_grad_norm_; norm is before."""
    for case, max_norm in (("clipped", 1.0), ("untouched", 100.0)):
        before = [g.randn(5, 7), g.randn(13), g.randn(2, 3, 4)]
        params = [torch.nn.Parameter(torch.zeros_like(x, dtype=torch.float64)) for x in before]
        for param, grad in zip(params, before):
            param.grad = grad.double()
        norm = torch.nn.utils.clip_grad_norm_(params, max_norm)
        for i, (grad, param) in enumerate(zip(before, params)):
            g.put(case, **{f"g{i}": grad, f"c{i}": param.grad})
        g.put(case, norm=norm)
        g.attrs(case, max_norm=max_norm)


ROOMS = {"adamw": adamw, "clip_grad_norm": clip_grad_norm}
