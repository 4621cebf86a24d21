"""Creates vectors.txt: the results of PyTorch optimizers and learning-rate schedules, for the tests in this folder.

    python3 -m venv venv && venv/bin/pip install torch numpy
    venv/bin/python vectors.py > vectors.txt

Sgd, Adam, AdamW and Muon are from torch.optim, which lacks Lion, LAMB and LARS: these are implemented here from the
algorithms of their papers, independently of the Rust code. Gradients do not depend on the parameters: they are drawn
from integers, and exact in both float types, so that both programs use the same ones.

    case <name> <f32 or f64> <step>        then a line a tensor: its elements after so many steps
    schedule <name>                        then one line: the learning rate of each step
"""

import math

import torch

STEPS = 100
PRINTED = (1, 10, STEPS)
RATE = 0.02
# Names and shapes: a matrix, a vector, a kernel of a convolution, a matrix of more rows than columns, a scalar.
TENSORS = [("in.weight", (4, 6)), ("in.bias", (5,)), ("conv.weight", (3, 2, 2, 2)), ("head.weight", (6, 3)), ("scale", ())]


def draw(*numbers):
    """Returns a pseudo-random number in [-1, 1) of 16 bits."""
    h = 0x9E3779B9
    for number in numbers:
        h = ((h ^ number) * 0x85EBCA6B + 0xC2B2AE35) & 0xFFFFFFFF
        h ^= h >> 13
    return ((h >> 8) % 65536 - 32768) / 32768


def drawn(stream, tensor, dtype):
    shape = TENSORS[tensor][1]
    elements = [draw(stream, tensor, at) for at in range(math.prod(shape))]
    return torch.tensor(elements, dtype=dtype).reshape(shape)


def groups(name, shape, grouped):
    """Returns the factors of learning rate and weight decay of the parameter group of a tensor."""
    if grouped and name.startswith("head."):
        return 0.5, 1.0
    if grouped and len(shape) < 2:
        return 1.0, 0.0
    return 1.0, 1.0


class Lion:
    """Algorithm 2 of arXiv 2302.06675."""

    def __init__(self, betas, decay):
        self.betas, self.decay = betas, decay

    def step(self, x, g, state, rate, decay):
        b1, b2 = self.betas
        m = state.setdefault("m", torch.zeros_like(x))
        c = b1 * m + (1 - b1) * g
        # As in the authors' code: decayed first, and by one factor.
        x *= 1 - rate * self.decay * decay
        x -= rate * torch.sign(c)
        state["m"] = b2 * m + (1 - b2) * g


class Lamb:
    """Algorithm 2 of arXiv 1904.00962, with phi(z) = z."""

    def __init__(self, betas, eps, decay, vectors):
        self.betas, self.eps, self.decay, self.vectors = betas, eps, decay, vectors

    def step(self, x, g, state, rate, decay):
        b1, b2 = self.betas
        t = state["t"] = state.get("t", 0) + 1
        state["m"] = b1 * state.get("m", 0) + (1 - b1) * g
        state["v"] = b2 * state.get("v", 0) + (1 - b2) * g * g
        r = state["m"] / (1 - b1**t) / ((state["v"] / (1 - b2**t)).sqrt() + self.eps) + self.decay * decay * x
        ratio = 1.0
        if (self.vectors or x.dim() > 1) and x.norm() > 0 and r.norm() > 0:
            ratio = x.norm() / r.norm()
        x -= rate * ratio * r


class Lars:
    """Algorithm 1 of arXiv 1708.03888."""

    def __init__(self, momentum, trust, decay, nesterov, vectors):
        self.momentum, self.trust, self.decay = momentum, trust, decay
        self.nesterov, self.vectors = nesterov, vectors

    def step(self, x, g, state, rate, decay):
        decay *= self.decay
        local = 1.0
        if (self.vectors or x.dim() > 1) and x.norm() > 0 and g.norm() > 0:
            local = self.trust * x.norm() / (g.norm() + decay * x.norm())
        d = rate * local * (g + decay * x)
        u = state["u"] = self.momentum * state.get("u", 0) + d
        x -= self.momentum * u + d if self.nesterov else u


def from_paper(rule, rate):
    def run(parameters, factors):
        states = [{} for _ in parameters]

        def step(gradients):
            for x, g, state, (f, decay) in zip(parameters, gradients, states, factors):
                rule.step(x, g, state, rate * f, decay)

        return step

    return run


def from_torch(kind, rate, decay, matrices=None, **options):
    """Runs torch.optim; `matrices` are the options of Muon, and the others those of AdamW for the rest."""

    def run(parameters, factors):
        def listed(chosen, decay):
            return [
                {"params": [parameters[at]], "lr": rate * factors[at][0], "weight_decay": decay * factors[at][1]}
                for at in chosen
            ]

        everything = range(len(parameters))
        taken = [at for at in everything if matrices is not None and parameters[at].dim() > 1]
        if matrices is not None and matrices.get("without"):
            taken = [at for at in taken if TENSORS[at][0] != matrices["without"]]
        rest = [at for at in everything if at not in taken]
        optimizers = [kind(listed(rest, decay), **options)] if rest else []
        flat = {}
        if taken:
            # torch.optim.Muon accepts matrices only: the kernel of a convolution is viewed as its outputs by all the
            # rest.
            flat = {at: parameters[at].view(parameters[at].shape[0], -1) for at in taken}
            wants = {name: value for name, value in matrices.items() if name != "without"}
            muon_decay = wants.pop("weight_decay")
            lists = [
                {"params": [flat[at]], "lr": rate * factors[at][0], "weight_decay": muon_decay * factors[at][1]}
                for at in taken
            ]
            optimizers.append(torch.optim.Muon(lists, **wants))

        def step(gradients):
            for at, (x, g) in enumerate(zip(parameters, gradients)):
                if at in flat:
                    flat[at].grad = g.reshape(flat[at].shape)
                else:
                    x.grad = g
            for optimizer in optimizers:
                optimizer.step()

        return step

    return run


SGD, ADAM, ADAMW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
MUON = dict(momentum=0.95, nesterov=True, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
REST = dict(betas=(0.9, 0.95))
# Name, whether there are parameter groups, and the rule.
CASES = [
    ("sgd", False, from_torch(SGD, RATE, 0.0)),
    ("sgd-decay", True, from_torch(SGD, RATE, 0.1)),
    ("sgd-momentum", True, from_torch(SGD, RATE, 0.1, momentum=0.9)),
    ("sgd-dampening", False, from_torch(SGD, RATE, 0.1, momentum=0.9, dampening=0.3)),
    ("sgd-nesterov", True, from_torch(SGD, RATE, 0.1, momentum=0.9, nesterov=True)),
    ("adam", False, from_torch(ADAM, RATE, 0.0)),
    ("adam-decay", True, from_torch(ADAM, RATE, 0.1, betas=(0.8, 0.95), eps=1e-6)),
    ("adamw", False, from_torch(ADAMW, RATE, 0.01)),
    ("adamw-decay", True, from_torch(ADAMW, RATE, 0.1, betas=(0.8, 0.95), eps=1e-6)),
    ("lion", False, from_paper(Lion((0.9, 0.99), 0.0), RATE)),
    ("lion-decay", True, from_paper(Lion((0.95, 0.98), 0.1), RATE)),
    ("lamb", True, from_paper(Lamb((0.9, 0.999), 1e-6, 0.01, False), RATE)),
    ("lamb-vectors", False, from_paper(Lamb((0.8, 0.95), 1e-6, 0.1, True), RATE)),
    ("lars", True, from_paper(Lars(0.9, 0.001, 0.1, False, False), RATE)),
    ("lars-nesterov", False, from_paper(Lars(0.8, 0.02, 0.0, True, True), RATE)),
    ("muon", True, from_torch(ADAMW, RATE, 0.1, matrices=MUON, **REST)),
    (
        "muon-original",
        False,
        from_torch(
            ADAMW,
            RATE,
            0.1,
            matrices=dict(MUON, nesterov=False, momentum=0.9, adjust_lr_fn="original", without="head.weight"),
            **REST,
        ),
    ),
]


def case(name, grouped, rule, dtype):
    # torch.optim.Muon orthogonalizes in bf16: the rule is compared here, not that rounding.
    torch.bfloat16 = dtype
    parameters = [drawn(0, at, dtype).requires_grad_() for at in range(len(TENSORS))]
    factors = [groups(name, shape, grouped) for name, shape in TENSORS]
    with torch.no_grad():
        step = rule(parameters, factors)
        for number in range(1, STEPS + 1):
            step([drawn(number, at, dtype) for at in range(len(TENSORS))])
            if number in PRINTED:
                print("case", name, "f64" if dtype == torch.float64 else "f32", number)
                for x in parameters:
                    digits = 17 if dtype == torch.float64 else 9
                    print(" ".join(f"{element:.{digits}g}" for element in x.reshape(-1).tolist()))


def schedules():
    """Returns names with functions that create the schedule of an optimizer."""
    S = torch.optim.lr_scheduler

    def warmed_up(after, steps=10, start=0.1):
        def make(optimizer):
            warm_up = S.LinearLR(optimizer, start_factor=start, end_factor=1.0, total_iters=steps)
            return S.SequentialLR(optimizer, [warm_up, after(optimizer)], milestones=[steps])

        return make

    return {
        "constant": lambda o: S.ConstantLR(o, factor=1.0),
        "constant-warm-up": warmed_up(lambda o: S.ConstantLR(o, factor=1.0)),
        "linear": lambda o: S.LinearLR(o, start_factor=1.0, end_factor=0.25, total_iters=80),
        "linear-warm-up": warmed_up(lambda o: S.LinearLR(o, start_factor=1.0, end_factor=0.25, total_iters=70)),
        "cosine": lambda o: S.CosineAnnealingLR(o, T_max=STEPS, eta_min=0.1 * RATE),
        "cosine-warm-up": warmed_up(lambda o: S.CosineAnnealingLR(o, T_max=STEPS - 10, eta_min=0.0)),
        "step": lambda o: S.StepLR(o, step_size=30, gamma=0.1),
        "step-warm-up": warmed_up(lambda o: S.StepLR(o, step_size=30, gamma=0.5)),
        "one-cycle": lambda o: S.OneCycleLR(o, max_lr=RATE, total_steps=STEPS),
        "one-cycle-short": lambda o: S.OneCycleLR(
            o, max_lr=RATE, total_steps=STEPS, pct_start=0.1, div_factor=10.0, final_div_factor=100.0
        ),
    }


def schedule(name, make):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=RATE)
    scheduler = make(optimizer)
    rates = []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if len(rates) < STEPS:
            scheduler.step()
    print("schedule", name)
    print(" ".join(f"{rate:.17g}" for rate in rates))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, grouped, rule in CASES:
        for dtype in (torch.float32, torch.float64):
            case(name, grouped, rule, dtype)
    for name, make in schedules().items():
        schedule(name, make)
