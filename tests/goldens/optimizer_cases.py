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


ADAMW = dict(lr=1e-2, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)
SGD = dict(lr=0.1, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False)
# Options of all parameters, then what the biases have instead, in a group of their own.
OPTIMIZERS = {
    "adamw": (ADAMW, {}),
    "adamw_groups": (ADAMW, dict(lr=3e-2, weight_decay=0.0)),
    "adamw_gaps": (ADAMW, {}),
    "sgd": (SGD | dict(weight_decay=0.01), {}),
    "sgd_momentum": (SGD | dict(lr=0.05, momentum=0.9, dampening=0.3), {}),
    "sgd_nesterov": (SGD | dict(lr=0.05, momentum=0.8, nesterov=True), {}),
    "sgd_groups": (SGD | dict(lr=0.05, momentum=0.9), dict(lr=0.02, momentum=0.0)),
    "sgd_gaps": (SGD | dict(lr=0.05, momentum=0.9, dampening=0.5), {}),
}


def optimizers(g):
    """Losses and last parameters of 20 steps of a net of two layers; in the cases with gaps b1 has
    no gradient in the steps 0, 3, 6, ... and w2 none before step 5."""
    for case, (options, of_biases) in OPTIMIZERS.items():
        shapes = dict(w1=(16, 8), b1=(16,), w2=(1, 16), b2=(1,))
        starts = {name: g.randn(*shape, scale=0.3) for name, shape in shapes.items()}
        x, target = g.randn(32, 8), g.randn(32, 1)
        g.put(case, x=x, target=target, **starts)
        p = {name: torch.nn.Parameter(start.double()) for name, start in starts.items()}

        def group(names, options):
            options = dict(options)
            if "beta1" in options:
                options["betas"] = options.pop("beta1"), options.pop("beta2")
            return dict(params=[p[name] for name in names], **options)

        kind = torch.optim.AdamW if case.startswith("adamw") else torch.optim.SGD
        optimizer = kind([group(("w1", "w2"), options), group(("b1", "b2"), options | of_biases)])
        losses = []
        for step in range(20):
            hidden = torch.tanh(torch.nn.functional.linear(x.double(), p["w1"], p["b1"]))
            y = torch.nn.functional.linear(hidden, p["w2"], p["b2"])
            loss = (y - target.double()).square().mean()
            losses.append(loss.detach())
            optimizer.zero_grad()
            loss.backward()
            if case.endswith("_gaps") and step % 3 == 0:
                p["b1"].grad = None
            if case.endswith("_gaps") and step < 5:
                p["w2"].grad = None
            optimizer.step()
        g.put(case, loss=torch.stack(losses), **{f"final_{name}": t for name, t in p.items()})
        g.attrs(case, **options, **{f"bias_{k}": v for k, v in (options | of_biases).items()})


ROOMS = {"adamw": adamw, "clip_grad_norm": clip_grad_norm, "optimizers": optimizers}
