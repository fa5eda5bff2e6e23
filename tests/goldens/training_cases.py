# SPDX-License-Identifier: Apache-2.0
"""Golden cases of norms, losses, optimizer steps and f8. ROOMS: file name to the function that fills it."""
import torch
import torch.nn.functional as F

BF16 = torch.bfloat16
F8 = {"f8_e4m3": torch.float8_e4m3fn, "f8_e5m2": torch.float8_e5m2}
IGNORED = -100


def loss(logits, targets, label_smoothing, z_loss):
    logits, targets = logits.flatten(0, -2), targets.flatten()
    total = F.cross_entropy(logits, targets, reduction="sum", ignore_index=IGNORED,
                            label_smoothing=label_smoothing)
    counted = targets != IGNORED
    total = total + z_loss * logits.logsumexp(-1)[counted].square().sum()
    return {"sum": total, "count": counted.sum()}


OPTIONS = (("plain", 0.0, 0.0), ("smoothed", 0.1, 0.0), ("z_loss", 0.0, 1e-2), ("both", 0.2, 1e-3))


def some_targets(g, classes, *shape):
    targets = g.randint(0, classes, *shape)
    targets[0, 1] = targets[-1, -2] = IGNORED
    return {"targets": targets}


def cross_entropy_options(g):
    for case, smoothing, z in OPTIONS[1:]:
        g.record(case, lambda x, t: loss(x, t, smoothing, z), {"logits": g.randn(2, 5, 31, scale=2.0)},
                 some_targets(g, 31, 2, 5), label_smoothing=smoothing, z_loss=z)


def linear_cross_entropy(g):
    def head(smoothing, z):
        return lambda hidden, weight, t: loss(hidden @ weight.mT, t, smoothing, z)

    for case, smoothing, z in OPTIONS:
        g.record(case, head(smoothing, z), {"hidden": g.randn(2, 5, 16), "weight": g.randn(31, 16)},
                 some_targets(g, 31, 2, 5), label_smoothing=smoothing, z_loss=z)
    g.record("bf16", head(0.0, 0.0),
             {"hidden": g.randn(2, 9, 24, dtype=BF16), "weight": g.randn(19, 24, dtype=BF16)},
             some_targets(g, 19, 2, 9), label_smoothing=0.0, z_loss=0.0)


def layer_norm(g):
    for case, shape, weighted, biased, dtype in (("bias", (2, 5, 20), True, True, torch.float32),
                                                 ("no_bias", (5, 37), True, False, torch.float32),
                                                 ("bf16", (4, 24), True, True, BF16),
                                                 ("no_weight", (5, 37), False, False, torch.float32)):
        d = shape[-1]
        inputs = {"x": g.randn(*shape, dtype=dtype, shift=3.0)}
        if weighted:
            inputs["weight"] = g.randn(d, dtype=dtype, scale=0.2, shift=1.0)
        if biased:
            inputs["bias"] = g.randn(d, dtype=dtype)
        g.record(case, lambda x, *parameters: F.layer_norm(x, x.shape[-1:], *parameters, eps=1e-5),
                 inputs, dy_dtype=dtype, eps=1e-5)


def add_rms_norm(g):
    def fn(x, residual, weight):
        total = x + residual
        return {"y": F.rms_norm(total, weight.shape, weight, 1e-5), "sum": total}

    for case, shape, dtype in (("f32", (2, 3, 40), torch.float32), ("bf16", (4, 24), BF16)):
        g.record(case, fn, {"x": g.randn(*shape, dtype=dtype), "residual": g.randn(*shape, dtype=dtype),
                            "weight": g.randn(shape[-1], dtype=dtype, scale=0.2, shift=1.0)},
                 dy_dtype=dtype, eps=1e-5)


def swiglu_limited(g):
    """The gated unit of gpt-oss; scales such that a good part of both operands is beyond the limit."""
    def unit(limit, alpha, shift):
        def fn(gate, up):
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            return gate * torch.sigmoid(alpha * gate) * (up + shift)
        return fn

    for case, limit, alpha, shift, dtype in (("gpt_oss", 7.0, 1.702, 1.0, torch.float32),
                                             ("tight", 1.25, 1.0, 0.0, torch.float32),
                                             ("bf16", 7.0, 1.702, 1.0, BF16)):
        g.record(case, unit(limit, alpha, shift),
                 {"gate": g.randn(3, 37, dtype=dtype, scale=limit),
                  "up": g.randn(3, 37, dtype=dtype, scale=limit)},
                 dy_dtype=dtype, limit=limit, alpha=alpha, up_shift=shift)


def step(g, case, make, dtype=torch.float32, **attributes):
    """Four steps from p0 and p1 with given gradients: keys <case>/{p0,p1,g<n>_<i>,p<n>_<i>}."""
    starts = [g.randn(5, 7, dtype=dtype), g.randn(13, dtype=dtype)]
    params = [torch.nn.Parameter(p.double()) for p in starts]
    optimizer = make(params)
    g.put(case, p0=starts[0], p1=starts[1])
    for n in range(1, 5):
        for i, param in enumerate(params):
            grad = g.randn(*param.shape, dtype=dtype)
            param.grad = grad.double()
            g.put(case, **{f"g{n}_{i}": grad})
        optimizer.step()
        for i, param in enumerate(params):
            g.put(case, **{f"p{n}_{i}": param})
    g.attrs(case, **attributes)


def sgd(g):
    for case, settings in (("plain", dict(lr=0.1, weight_decay=0.1)),
                           ("momentum", dict(lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.1)),
                           ("nesterov", dict(lr=0.1, momentum=0.8, nesterov=True, maximize=True))):
        every = dict(momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False, maximize=False)
        step(g, case, lambda params: torch.optim.SGD(params, **settings), **(every | settings))
    step(g, "bf16", lambda params: torch.optim.SGD(params, lr=0.1), BF16, **(every | dict(lr=0.1)))


def adamw_narrow(g):
    settings = dict(lr=1e-2, eps=1e-8, weight_decay=0.1)
    step(g, "bf16", lambda params: torch.optim.AdamW(params, betas=(0.9, 0.95), **settings), BF16,
         beta1=0.9, beta2=0.95, **settings)


def quantize(g):
    for name, dtype in F8.items():
        limit = torch.finfo(dtype).max
        for rows in (False, True):
            for source in (torch.float32, BF16):
                x = g.randn(4, 19, dtype=source, scale=3.0)
                x[2] = 0
                wide = x.float()
                amax = wide.abs().amax(-1, keepdim=True) if rows else wide.abs().amax()
                scale = torch.where(amax == 0, 1.0, amax / limit)
                case = f"{name}_{'rows' if rows else 'whole'}_{'bf16' if source == BF16 else 'f32'}"
                values = (wide / scale).clamp(-limit, limit).to(dtype)
                g.put(case, x=x, values=values, scale=scale.squeeze(-1) if rows else scale,
                      y=values.float() * scale)
                g.attrs(case, to=name, per_row=rows)


ROOMS = {
    "cross_entropy_options": cross_entropy_options,
    "linear_cross_entropy": linear_cross_entropy,
    "layer_norm": layer_norm,
    "add_rms_norm": add_rms_norm,
    "swiglu_limited": swiglu_limited,
    "sgd": sgd,
    "adamw_narrow": adamw_narrow,
    "quantize": quantize,
}
