"""Gradients through jitted functions: of arguments, of tensors from outside, to any order."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from jit_corpus import Jit, add_program, attempt, grad, program, show, vector, weights
from jit_training import OPTIMIZERS, batch, loss_of, mlp

import genesis
from genesis import nn, optim

# ---- models whose loss and optimizer are outside


def _trained(make: Callable[[], Any], inputs: Callable[[int], Any], optimizer: str) -> Any:
    def run(jit: Jit) -> Any:
        genesis.manual_seed(2)
        model = make()
        opt = OPTIMIZERS[optimizer](model.parameters())
        forward = jit(model)
        seen = []
        for k in range(6):
            y = forward(inputs(k))
            y = y[0] if isinstance(y, tuple) else y
            loss = (y**2).mean()
            loss.backward()
            seen.append((show(loss), show(y), weights(model)))
            opt.step()
            opt.zero_grad()
        return seen

    return run


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        y, (h, _) = self.lstm(x)
        return self.head(y[:, -1] + h[0])


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding=1)
        self.norm = nn.BatchNorm2d(2)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Any) -> Any:
        y = genesis.max_pool2d(genesis.relu(self.norm(self.conv(x))), 2)
        return self.head(y.flatten(1))


def _images(k: int) -> Any:
    return genesis.arange(32).reshape(2, 1, 4, 4).to(genesis.float32) * 0.05 * (k + 1) - 0.5


def _sequences(k: int) -> Any:
    return (genesis.arange(12).reshape(2, 2, 3).to(genesis.float32) - 6) * 0.1 * (k + 1)


MODELS: dict[str, tuple[Callable[[], Any], Callable[[int], Any]]] = {
    "mlp": (mlp, lambda k: batch(k)[0]),
    "cnn": (Convolutional, _images),
    "lstm": (Recurrent, _sequences),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
        lambda k: genesis.cat([_sequences(k), _sequences(k)[..., :1]], -1),
    ),
    "dropout": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)),
        lambda k: batch(k)[0],
    ),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2)),
        lambda k: genesis.tensor([[k % 5, 1], [2, (k + 3) % 5]]),
    ),
    "layer norm": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU()),
        lambda k: batch(k)[0],
    ),
}
for name, (make, inputs) in MODELS.items():
    for optimizer in ("sgd", "adam"):
        add_program(f"jitted {name}, {optimizer} outside", _trained(make, inputs, optimizer))


@program
def loss_jitted_with_the_model(jit: Jit) -> Any:
    model = mlp()
    jitted = jit(lambda x, y: loss_of(model, x, y))
    opt = optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for k in range(6):
        opt.zero_grad()
        loss = jitted(*batch(k))
        loss.backward()
        opt.step()
        seen.append((show(loss), weights(model)))
    return seen


@program
def forward_method_jitted(jit: Jit) -> Any:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 2)

        @jit
        def forward(self, x: Any) -> Any:
            return genesis.tanh(self.inner(x))

    genesis.manual_seed(0)
    model = Net()
    seen = []
    for k in range(4):
        model(batch(k)[0]).sum().backward()
        seen.append(weights(model))
    return seen


@program
def jitted_layer_in_a_plain_model(jit: Jit) -> Any:
    model = mlp()
    middle = jit(model[0])
    seen = []
    for k in range(4):
        x = batch(k)[0].requires_grad_()
        y = model[2](genesis.tanh(middle(x * 2)))
        (y**2).sum().backward()
        seen.append((show(y), grad(x), weights(model)))
    return seen


@program
def forward_attribute_replaced_by_a_jitted_one(jit: Jit) -> Any:
    model = mlp()
    model[0].forward = jit(model[0].forward)
    seen = []
    for k in range(4):
        (model(batch(k)[0]) ** 2).sum().backward()
        seen.append(weights(model))
    return seen


@program
def two_jitted_halves(jit: Jit) -> Any:
    model = mlp()
    first, second = jit(lambda x: genesis.tanh(model[0](x))), jit(model[2])
    opt = optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for k in range(6):
        opt.zero_grad()
        loss = (second(first(batch(k)[0])) ** 2).mean()
        loss.backward()
        opt.step()
        seen.append((show(loss), weights(model)))
    return seen


# ---- of arguments and of tensors from outside


def _slopes(jit: Jit, f: Callable[..., Any], calls: int = 4, **options: Any) -> Any:
    """Gradients of the one tensor argument of a function, whose results are summed."""
    jitted = jit(f, **options)
    seen = []
    for k in range(calls):
        x = vector(1.0 + k, 2.0, -0.5 * k, grad=True)
        y = jitted(x)
        y.sum().backward()
        seen.append((show(y), grad(x)))
    return seen


ONE_ARGUMENT: dict[str, Callable[[Any], Any]] = {
    "square": lambda x: x * x,
    "identity": lambda x: x,
    "clone": lambda x: x.clone(),
    "view": lambda x: x.reshape(3, 1),
    "slice": lambda x: x[1:],
    "detached part": lambda x: x * x.detach(),
    "where": lambda x: genesis.where(x > 1, x * 2, x * x),
    "cumsum": lambda x: genesis.cumsum(x, 0),
    "max": lambda x: x.max() * x,
    "norm": lambda x: x / (x.norm() + 1),
    "softmax": lambda x: genesis.softmax(x, 0) * vector(1, 2, 3),
    "index": lambda x: x[genesis.tensor([0, 0, 2])],
    "cat": lambda x: genesis.cat([x, x * 2]),
    "double": lambda x: x.to(genesis.float64) * 2,
    "sort": lambda x: genesis.sort(x)[0] * vector(1, 2, 3),
    "in place on a copy": lambda x: x.clone().mul_(2).add_(1),
    "in place on a slice of a copy": lambda x: _set_first(x.clone(), x[1] * 3),
    "constant added": lambda x: x + genesis.ones(3) * 2,
}


def _set_first(x: Any, value: Any) -> Any:
    x[0] = value
    return x


for name, f in ONE_ARGUMENT.items():
    add_program(f"gradient of {name}", lambda jit, f=f: _slopes(jit, f))


@program
def gradients_of_several_arguments(jit: Jit) -> Any:
    f = jit(lambda a, b, c: (a * b).sum() + (b * c).sum())
    seen = []
    for wants in [
        (True, True, True),
        (True, False, True),
        (False, True, False),
        (True, True, True),
    ]:
        a, b, c = (vector(k, 2, 3).requires_grad_(w) for k, w in zip((1, 2, 3), wants, strict=True))
        y = f(a, b, c)
        y.backward()
        seen.append((show(y), grad(a), grad(b), grad(c)))
    return seen


@program
def no_argument_wants_a_gradient(jit: Jit) -> Any:
    f = jit(lambda a: a * 2)
    seen = []
    for wants in (False, True, False, True):
        a = vector(1, 2).requires_grad_(wants)
        y = f(a)
        seen.append((show(y), y.is_leaf, y.grad_fn is None))
    return seen


@program
def results_have_a_grad_fn(jit: Jit) -> Any:
    model = mlp()
    f = jit(model)
    return [
        (y.requires_grad, y.grad_fn is None, y.is_leaf) for y in (f(batch(k)[0]) for k in range(3))
    ]


@program
def gradient_of_a_closed_over_tensor(jit: Jit) -> Any:
    w = vector(1, 2, 3, grad=True)
    f = jit(lambda x: (w * x).sum())
    seen = []
    for k in range(5):
        f(vector(1, k, 2)).backward()
        seen.append(grad(w))
        if k == 2:
            w.grad = None
    return seen


@program
def closed_over_tensor_updated_between(jit: Jit) -> Any:
    w = vector(1, 2, 3, grad=True)
    f = jit(lambda x: (w * w * x).sum())
    seen = []
    for k in range(5):
        loss = f(vector(1, k, 2))
        loss.backward()
        seen.append((show(loss), grad(w)))
        with genesis.no_grad():
            w -= 0.1 * w.grad
        w.grad = None
    return seen


@program
def closed_over_tensor_that_is_not_a_leaf(jit: Jit) -> Any:
    w = vector(1, 2, 3, grad=True)
    seen = []
    for k in range(4):
        scaled = w * (k + 1)
        f = jit(lambda x, scaled=scaled: (scaled * x).sum())
        f(vector(1, 2, 3)).backward()
        seen.append(grad(w))
    return seen


@program
def one_function_with_a_rebound_non_leaf(jit: Jit) -> Any:
    w = vector(1, 2, 3, grad=True)
    scaled = w * 1
    f = jit(lambda x: (scaled * x).sum())
    seen = []
    for k in range(4):
        scaled = w * (k + 1)
        f(vector(1, 2, 3)).backward()
        seen.append(grad(w))
    return seen


@program
def gradient_of_a_keyword_argument(jit: Jit) -> Any:
    f = jit(lambda x, *, w, scale=2.0: (x * w).sum() * scale)
    seen = []
    for k in range(4):
        w = vector(k, 1, 2, grad=True)
        f(vector(1, 2, 3), w=w, **({"scale": 3.0} if k == 2 else {})).backward()
        seen.append(grad(w))
    return seen


@program
def gradient_of_tensors_in_containers(jit: Jit) -> Any:
    f = jit(lambda d, t: {"a": d["x"] * t[0], "b": [t[1] * 2, d["x"]]})
    seen = []
    for k in range(4):
        a, b, c = vector(k, 1, grad=True), vector(2, 3, grad=True), vector(4, 5, grad=True)
        y = f({"x": a}, [b, c])
        (y["a"].sum() + y["b"][0].sum() * 2).backward()
        seen.append((show(y), grad(a), grad(b), grad(c)))
    return seen


@program
def some_results_unused(jit: Jit) -> Any:
    f = jit(lambda x: (x * 2, x * x, x.sum()))
    seen = []
    for k in range(6):
        x = vector(k, 1, 2, grad=True)
        y = f(x)
        y[k % 3].sum().backward()
        seen.append(grad(x))
    return seen


@program
def results_used_in_two_backwards(jit: Jit) -> Any:
    f = jit(lambda x: (x * 2, x * x))
    seen = []
    for k in range(3):
        x = vector(k, 1, 2, grad=True)
        a, b = f(x)
        a.sum().backward(retain_graph=True)
        seen.append(grad(x))
        b.sum().backward()
        seen.append(grad(x))
    return seen


@program
def retain_graph(jit: Jit) -> Any:
    f = jit(lambda x: (x**3).sum())
    seen = []
    for k in range(3):
        x = vector(k, 1, 2, grad=True)
        y = f(x)
        y.backward(retain_graph=True)
        y.backward()
        seen.append(grad(x))
        seen.append(attempt(y.backward))
        seen.append(grad(x))
    return seen


@program
def backward_with_a_given_gradient(jit: Jit) -> Any:
    f = jit(lambda x: x * x)
    seen = []
    for k in range(4):
        x = vector(1, 2, 3, grad=True)
        f(x).backward(vector(k, 1, -1))
        seen.append(grad(x))
    return seen


@program
def backward_of_a_vector_raises(jit: Jit) -> Any:
    f = jit(lambda x: x * x)
    return [attempt(f(vector(1, 2, grad=True)).backward) for _ in range(3)]


@program
def a_later_backward_than_the_next_call(jit: Jit) -> Any:
    f = jit(lambda x: (x**3).sum())
    xs = [vector(k, 1, 2, grad=True) for k in range(4)]
    ys = [f(x) for x in xs]
    for y in reversed(ys):
        y.backward()
    return [grad(x) for x in xs]


@program
def argument_changed_before_backward(jit: Jit) -> Any:
    f = jit(lambda x, y: (x * y).sum())
    seen = []
    for k in range(3):
        x, y = vector(1, 2, grad=True), vector(3, 4 + k)
        loss = f(x, y)
        y.mul_(10)
        seen.append(attempt(loss.backward))
    return seen


@program
def weight_changed_before_backward(jit: Jit) -> Any:
    w = vector(1, 2)
    f = jit(lambda x: (x * w).sum())
    seen = []
    for _ in range(3):
        x = vector(1, 2, grad=True)
        loss = f(x)
        with genesis.no_grad():
            w.mul_(2)
        seen.append(attempt(loss.backward))
    return seen


@program
def chain_of_calls(jit: Jit) -> Any:
    w = vector(0.5, -0.5, 1, grad=True)
    f = jit(lambda h: genesis.tanh(h * w))
    seen = []
    for k in range(3):
        h = vector(1, k, 2, grad=True)
        y = h
        for _ in range(4):
            y = f(y)
        y.sum().backward()
        seen.append((show(y), grad(h), grad(w)))
    return seen


@program
def under_no_grad(jit: Jit) -> Any:
    w = vector(1, 2, 3, grad=True)
    f = jit(lambda x: x * w)
    seen = []
    for k in range(6):
        if k % 2:
            with genesis.no_grad():
                y = f(vector(1, 2, 3))
            seen.append((show(y), y.requires_grad))
        else:
            y = f(vector(1, 2, 3))
            y.sum().backward()
            seen.append((show(y), grad(w)))
    return seen


@program
def under_inference_mode(jit: Jit) -> Any:
    w = vector(1, 2, 3, grad=True)
    f = jit(lambda x: x * w)
    seen = []
    for k in range(4):
        with genesis.inference_mode(k % 2 == 1):
            y = f(vector(1, 2, 3))
        seen.append((show(y), y.requires_grad))
    return seen


@program
def no_grad_inside(jit: Jit) -> Any:
    def f(x: Any) -> Any:
        with genesis.no_grad():
            a = x * 2
        return a * x, a

    f = jit(f)
    seen = []
    for k in range(3):
        x = vector(k, 1, grad=True)
        y, a = f(x)
        y.sum().backward()
        seen.append((grad(x), a.requires_grad, y.requires_grad))
    return seen


@program
def decorated_with_no_grad(jit: Jit) -> Any:
    w = vector(1, 2, grad=True)

    @jit
    @genesis.no_grad()
    def f(x: Any) -> Any:
        return x * w

    @genesis.no_grad()
    @jit
    def g(x: Any) -> Any:
        return x * w

    return [(show(f(vector(k, 1))), show(g(vector(k, 1)))) for k in range(3)]


@program
def enable_grad_inside_no_grad(jit: Jit) -> Any:
    w = vector(1, 2, grad=True)

    @jit
    def f(x: Any) -> Any:
        with genesis.enable_grad():
            return (x * w).sum()

    seen = []
    for k in range(3):
        with genesis.no_grad():
            y = f(vector(k, 1))
        y.backward()
        seen.append((show(y), grad(w)))
    return seen


@program
def grad_mode_read_inside(jit: Jit) -> Any:
    f = jit(lambda x: x * 2 if genesis.is_grad_enabled() else x * 3)
    seen = []
    for k in range(4):
        with genesis.set_grad_enabled(k % 2 == 0):
            seen.append(show(f(vector(1, 2))))
    return seen


@program
def requires_grad_read_inside(jit: Jit) -> Any:
    f = jit(lambda x: x * 2 if x.requires_grad else x * 3)
    return [show(f(vector(1, 2, grad=k % 2 == 0))) for k in range(4)]


@program
def detach_inside(jit: Jit) -> Any:
    f = jit(lambda x: (x.detach() * x, x.detach()))
    seen = []
    for k in range(3):
        x = vector(k, 1, grad=True)
        y, d = f(x)
        y.sum().backward()
        seen.append((grad(x), show(d)))
    return seen


# ---- backward inside


@program
def backward_inside_on_an_argument(jit: Jit) -> Any:
    def f(x: Any) -> Any:
        y = (x**3).sum()
        y.backward()
        return y

    f = jit(f)
    seen = []
    x = vector(1, 2, 3, grad=True)
    for k in range(5):
        y = f(x)
        seen.append((show(y), grad(x)))
        if k == 2:
            x.grad = None
    other = vector(3, 2, 1, grad=True)
    f(other)
    return seen, grad(other), grad(x)


@program
def gradients_of_arguments_share_no_memory(jit: Jit) -> Any:
    def f(x: Any) -> Any:
        (x * 2).sum().backward()

    f = jit(f)
    xs = [vector(k, 1, grad=True) for k in range(4)]
    for x in xs:
        f(x)
    xs[0].grad.mul_(10)
    return [grad(x) for x in xs]


@program
def gradient_read_inside(jit: Jit) -> Any:
    def f(x: Any) -> Any:
        (x**3).sum().backward()
        g = x.grad
        return g * 2

    f = jit(f)
    x = vector(1, 2, grad=True)
    return [(show(f(x)), grad(x)) for _ in range(4)]


@program
def gradient_of_an_argument_set_inside(jit: Jit) -> Any:
    def f(x: Any, y: Any) -> None:
        x.grad = y * 2

    f = jit(f)
    x = vector(1, 2, grad=True)
    seen = []
    for k in range(3):
        f(x, vector(k, 1))
        seen.append(grad(x))
    return seen


@program
def gradient_of_an_argument_removed_inside(jit: Jit) -> Any:
    def f(x: Any) -> Any:
        had = x.grad is not None
        x.grad = None
        return had

    f = jit(f)
    x = vector(1, 2, grad=True)
    seen = []
    for k in range(4):
        if k % 2:
            x.grad = vector(3, 4)
        seen.append((f(x), grad(x)))
    return seen


@program
def whether_a_gradient_is_there(jit: Jit) -> Any:
    w = vector(1, 2, grad=True)
    f = jit(lambda x: x * 2 if w.grad is None else x + w.grad)
    seen = []
    for k in range(6):
        if k == 2:
            w.grad = vector(5, 6)
        if k == 4:
            w.grad = None
        seen.append(show(f(vector(1, 2))))
    return seen


@program
def inner_gradient_step(jit: Jit) -> Any:
    def adversarial(x: Any, w: Any) -> Any:
        x = x.detach().requires_grad_()
        loss = (x * w).pow(2).sum()
        (g,) = genesis.autograd.grad(loss, x)
        return x + 0.1 * g.sign()

    f = jit(adversarial)
    return [show(f(vector(1, k, -1), vector(1, -2, 3))) for k in range(4)]


@program
def new_leaf_inside(jit: Jit) -> Any:
    def f(x: Any) -> Any:
        w = genesis.ones(3, requires_grad=True)
        loss = (w * x).sum() ** 2
        loss.backward()
        return w.grad, w

    f = jit(f)
    return [show(f(vector(1, k, -1))) for k in range(4)]


@program
def retain_grad_inside(jit: Jit) -> Any:
    def f(x: Any) -> Any:
        h = x * 2
        h.retain_grad()
        (h**2).sum().backward()
        return h.grad

    f = jit(f)
    seen = []
    for k in range(4):
        x = vector(1, k, grad=True)
        seen.append((show(f(x)), grad(x)))
    return seen


@program
def retain_grad_of_a_result(jit: Jit) -> Any:
    f = jit(lambda x: x * 2)
    seen = []
    for k in range(3):
        x = vector(1, k, grad=True)
        y = f(x)
        y.retain_grad()
        (y**2).sum().backward()
        seen.append((grad(x), grad(y)))
    return seen


# ---- second order


@program
def second_order_through_jit(jit: Jit) -> Any:
    f = jit(lambda x: (x**3).sum())
    seen = []
    for k in range(4):
        x = vector(1, k, 2, grad=True)
        (g,) = genesis.autograd.grad(f(x), x, create_graph=True)
        (h,) = genesis.autograd.grad(g.sum(), x)
        seen.append((show(g), show(h)))
    return seen


@program
def third_order_through_jit(jit: Jit) -> Any:
    f = jit(lambda x: (x**4).sum())
    seen = []
    for k in range(3):
        x = vector(1, k, 2, grad=True)
        (g,) = genesis.autograd.grad(f(x), x, create_graph=True)
        (h,) = genesis.autograd.grad(g.sum(), x, create_graph=True)
        (i,) = genesis.autograd.grad(h.sum(), x)
        seen.append((show(g), show(h), show(i)))
    return seen


@program
def second_order_inside(jit: Jit) -> Any:
    def f(x: Any) -> Any:
        (g,) = genesis.autograd.grad((x**3).sum(), x, create_graph=True)
        (h,) = genesis.autograd.grad(g.sum(), x)
        return g, h

    f = jit(f)
    return [show(f(vector(1, k, 2, grad=True))) for k in range(4)]


@program
def first_order_inside_second_outside(jit: Jit) -> Any:
    def f(x: Any) -> Any:
        (g,) = genesis.autograd.grad((x**3).sum(), x, create_graph=True)
        return g

    f = jit(f)
    seen = []
    for k in range(4):
        x = vector(1, k, 2, grad=True)
        f(x).sum().backward()
        seen.append(grad(x))
    return seen


def _penalised(model: Any, x: Any) -> Any:
    x = x.detach().requires_grad_()
    y = model(x)
    (g,) = genesis.autograd.grad(y.sum(), x, create_graph=True)
    return (y**2).mean() + ((g.norm() - 1) ** 2).mean()


@program
def gradient_penalty_inside(jit: Jit) -> Any:
    model = mlp()
    opt = optim.SGD(model.parameters(), lr=0.05)

    @jit
    def step(x: Any) -> Any:
        opt.zero_grad()
        loss = _penalised(model, x)
        loss.backward()
        opt.step()
        return loss

    return [(show(step(batch(k)[0])), weights(model)) for k in range(5)]


@program
def gradient_penalty_through_a_jitted_model(jit: Jit) -> Any:
    model = mlp()
    jitted = jit(model)
    opt = optim.SGD(model.parameters(), lr=0.05)
    seen = []
    for k in range(5):
        opt.zero_grad()
        loss = _penalised(jitted, batch(k)[0])
        loss.backward()
        opt.step()
        seen.append((show(loss), weights(model)))
    return seen


@program
def jitted_penalty_with_backward_outside(jit: Jit) -> Any:
    model = mlp()
    penalty = jit(lambda x: _penalised(model, x))
    seen = []
    for k in range(4):
        loss = penalty(batch(k)[0])
        loss.backward()
        seen.append((show(loss), weights(model)))
    return seen


@program
def hessian_vector_product(jit: Jit) -> Any:
    def hvp(x: Any, v: Any) -> Any:
        (g,) = genesis.autograd.grad((x**3).sum() + (x[0] * x[1]), x, create_graph=True)
        (h,) = genesis.autograd.grad((g * v).sum(), x)
        return h

    f = jit(hvp)
    return [show(f(vector(1, k, grad=True), vector(1, -1))) for k in range(4)]


# ---- functions, hooks, nesting


class Clipped(genesis.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, limit: float) -> Any:
        ctx.save_for_backward(x)
        ctx.limit = limit
        return x.clamp(-limit, limit)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * (1 + x.abs()) * ctx.limit, None


@program
def custom_function_through_jit(jit: Jit) -> Any:
    return _slopes(jit, lambda x: Clipped.apply(x * 2, 1.5))


@program
def custom_function_inside(jit: Jit) -> Any:
    def f(x: Any, limit: float) -> Any:
        Clipped.apply(x * 2, limit).sum().backward()
        return x.grad

    f = jit(f)
    return [show(f(vector(1, k, -3, grad=True), 1.0 + k % 2)) for k in range(5)]


@program(may_refuse=True)
def custom_function_with_a_counter(jit: Jit) -> Any:
    calls: list[str] = []

    class Counted(genesis.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            calls.append("forward")
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            calls.append("backward")
            return g * 3

    f = jit(lambda x: Counted.apply(x))
    seen = []
    for k in range(4):
        x = vector(k, 1, grad=True)
        f(x).sum().backward()
        seen.append((grad(x), list(calls)))
    return seen


@program
def straight_through(jit: Jit) -> Any:
    return _slopes(jit, lambda x: (x.round() - x).detach() + x)


@program
def hook_on_a_parameter_before(jit: Jit) -> Any:
    w = vector(1, 2, grad=True)
    w.register_hook(lambda g: g * 10)
    f = jit(lambda x: (w * x).sum())
    seen = []
    for k in range(3):
        f(vector(k, 1)).backward()
        seen.append(grad(w))
    return seen


@program
def hook_on_a_parameter_inside(jit: Jit) -> Any:
    w = vector(1, 2, grad=True)
    w.register_hook(lambda g: g * 10)

    @jit
    def f(x: Any) -> None:
        (w * x).sum().backward()

    seen = []
    for k in range(3):
        f(vector(k, 1))
        seen.append(grad(w))
    return seen


@program
def hook_added_and_removed_later(jit: Jit) -> Any:
    w = vector(1, 2, grad=True)

    @jit
    def f(x: Any) -> None:
        (w * x).sum().backward()

    seen = []
    handle = None
    for k in range(6):
        if k == 2:
            handle = w.register_hook(lambda g: g * 10)
        if k == 4:
            handle.remove()
        w.grad = None
        f(vector(k, 1))
        seen.append(grad(w))
    return seen


@program(may_refuse=True)
def hook_on_an_intermediate_inside(jit: Jit) -> Any:
    def f(x: Any) -> Any:
        h = x * 2
        h.register_hook(lambda g: g * 3)
        return (h * h).sum()

    f = jit(f)
    seen = []
    for k in range(4):
        x = vector(k, 1, grad=True)
        f(x).backward()
        seen.append(grad(x))
    return seen


@program
def hook_that_writes_outside(jit: Jit) -> Any:
    norms: list[Any] = []
    w = vector(1, 2, grad=True)
    w.register_hook(lambda g: norms.append(g.norm()))

    @jit
    def f(x: Any) -> None:
        (w * x).sum().backward()

    for k in range(4):
        f(vector(k, 1))
    return show(norms), grad(w)


@program
def hook_on_a_result(jit: Jit) -> Any:
    f = jit(lambda x: x * 2)
    seen: list[Any] = []
    for k in range(3):
        x = vector(k, 1, grad=True)
        y = f(x)
        y.register_hook(lambda g: seen.append(show(g)))
        (y * y).sum().backward()
        seen.append(grad(x))
    return seen


@program
def post_accumulate_hook(jit: Jit) -> Any:
    w = vector(1, 2, grad=True)

    def update(p: Any) -> None:
        with genesis.no_grad():
            p -= 0.1 * p.grad
        p.grad = None

    w.register_post_accumulate_grad_hook(update)

    @jit
    def f(x: Any) -> Any:
        loss = ((w * x) ** 2).sum()
        loss.backward()
        return loss

    return [(show(f(vector(k, 1))), show(w), grad(w)) for k in range(5)]


@program
def module_hooks_added_later(jit: Jit) -> Any:
    model = mlp()
    f = jit(lambda x: model(x))
    seen = []
    handles: list[Any] = []
    for k in range(8):
        if k == 2:
            handles.append(model[0].register_forward_hook(lambda m, a, y: y * 2))
        if k == 4:
            handles.append(model.register_forward_pre_hook(lambda m, a: (a[0] + 1,)))
        if k == 6:
            handles.pop(0).remove()
        model.zero_grad()
        y = f(batch(k)[0])
        y.sum().backward()
        seen.append((show(y), weights(model)))
    return seen


@program
def module_hook_that_collects(jit: Jit) -> Any:
    model = mlp()
    found: list[Any] = []
    model[0].register_forward_hook(lambda m, a, y: found.append(y.detach()))
    f = jit(model)
    for k in range(4):
        f(batch(k)[0])
    return show(found)


@program
def module_backward_hook(jit: Jit) -> Any:
    model = mlp()
    model[0].register_full_backward_hook(
        lambda m, gi, go: tuple(g * 2 if g is not None else g for g in gi)
    )
    f = jit(lambda x: model(x))
    seen = []
    for k in range(4):
        x = batch(k)[0].requires_grad_()
        f(x).sum().backward()
        seen.append((grad(x), weights(model)))
    return seen


@program
def nested_jit(jit: Jit) -> Any:
    w = vector(1, 2, 3, grad=True)
    inner = jit(lambda x: genesis.tanh(x * w))
    outer = jit(lambda x: inner(inner(x)) + inner(x * 2))
    seen = []
    for k in range(4):
        x = vector(1, k, 2, grad=True)
        y = outer(x) if k % 2 else inner(x)
        y.sum().backward()
        seen.append((show(y), grad(x), grad(w)))
    return seen


@program
def nested_jit_with_backward_inside(jit: Jit) -> Any:
    w = vector(1, 2, 3, grad=True)
    inner = jit(lambda x: (x * w * w).sum())

    @jit
    def outer(x: Any) -> Any:
        loss = inner(x)
        loss.backward()
        return loss

    seen = []
    for k in range(4):
        seen.append((show(outer(vector(1, k, 2))), grad(w)))
        seen.append(show(inner(vector(1, 1, 1))))
    return seen


@program
def jit_of_a_jitted_function(jit: Jit) -> Any:
    f = jit(jit(lambda x: x * 2))
    return [show(f(vector(k, 1))) for k in range(3)]


@program
def jitted_method_with_gradients(jit: Jit) -> Any:
    class Scaled:
        def __init__(self, k: float) -> None:
            self.w = vector(k, 1, grad=True)

        @jit
        def loss(self, x: Any) -> Any:
            return (self.w * x).sum()

    a, b = Scaled(1), Scaled(2)
    seen = []
    for k in range(4):
        a.loss(vector(k, 1)).backward()
        b.loss(vector(k, 2)).backward()
        seen.append((grad(a.w), grad(b.w)))
    return seen


@program
def accumulation_over_two_calls(jit: Jit) -> Any:
    model = mlp()
    f = jit(model)
    seen = []
    for k in range(3):
        loss = (f(batch(k)[0]) ** 2).mean() + (f(batch(k + 1)[0]) ** 2).mean()
        loss.backward()
        seen.append(weights(model))
    return seen


@program
def the_same_tensor_as_two_arguments(jit: Jit) -> Any:
    f = jit(lambda a, b: (a * b * b).sum())
    seen = []
    for k in range(4):
        x, y = vector(1, k, grad=True), vector(2, 3, grad=True)
        f(x, x if k % 2 else y).backward()
        seen.append((grad(x), grad(y)))
    return seen


@program
def a_parameter_as_argument_and_by_name(jit: Jit) -> Any:
    w = vector(1, 2, grad=True)
    f = jit(lambda x: (x * w).sum())
    seen = []
    for k in range(4):
        f(w if k % 2 else vector(3, 4)).backward()
        seen.append(grad(w))
    return seen


@program
def views_of_arguments_returned(jit: Jit) -> Any:
    f = jit(lambda x: (x[1:], x.reshape(2, 2), x))
    seen = []
    for k in range(3):
        x = vector(k, 1, 2, 3)
        a, b, c = f(x)
        a.mul_(10)
        seen.append((show(x), show(b), c is x))
    return seen


@program
def views_of_arguments_with_gradients(jit: Jit) -> Any:
    f = jit(lambda x: x[1:])
    seen = []
    for k in range(3):
        x = vector(k, 1, 2, 3, grad=True)
        h = x * 2
        v = f(h)
        v.mul_(3)
        h.sum().backward()
        seen.append((show(h), grad(x)))
    return seen


@program(may_refuse=True)
def in_place_on_an_argument_with_gradients(jit: Jit) -> Any:
    def f(h: Any) -> None:
        h.mul_(h.detach() + 1)

    f = jit(f)
    seen = []
    for k in range(3):
        x = vector(k, 1, 2, grad=True)
        h = x * 2
        f(h)
        h.sum().backward()
        seen.append((show(h), grad(x)))
    return seen


@program
def in_place_on_a_leaf_raises(jit: Jit) -> Any:
    def f(x: Any) -> Any:
        x.mul_(2)
        return x

    f = jit(f)
    return [attempt(f, vector(1, 2, grad=k % 2 == 0)) for k in range(4)]


@program
def integer_arguments(jit: Jit) -> Any:
    table = genesis.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], requires_grad=True)
    f = jit(lambda i, n: table[i] * n)
    seen = []
    for k in range(5):
        y = f(genesis.tensor([k % 3, 0]), 1 + k % 2)
        y.sum().backward()
        seen.append((show(y), grad(table)))
    return seen


@program
def checkpointed(jit: Jit) -> Any:
    class Checkpoint(genesis.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, w: Any) -> Any:
            ctx.save_for_backward(x, w)
            return genesis.tanh(x * w)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            saved = [t.detach().requires_grad_() for t in ctx.saved_tensors]
            with genesis.enable_grad():
                y = genesis.tanh(saved[0] * saved[1])
            return genesis.autograd.grad(y, saved, g)

    w = vector(1, 2, 3, grad=True)
    f = jit(lambda x: Checkpoint.apply(x, w))
    seen = []
    for k in range(4):
        x = vector(1, k, 2, grad=True)
        f(x).sum().backward()
        seen.append((grad(x), grad(w)))
    return seen


@program
def frozen_parameters_in_a_jitted_model(jit: Jit) -> Any:
    model = mlp()
    f = jit(model)
    seen = []
    for k in range(6):
        model[0].requires_grad_(k not in (1, 2))
        model[2].requires_grad_(k != 2)
        y = f(batch(k)[0])
        if y.requires_grad:
            y.sum().backward()
        seen.append((show(y), weights(model)))
    return seen


@program
def gradient_of_a_buffer(jit: Jit) -> Any:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("k", vector(2, 3))

        def forward(self, x: Any) -> Any:
            return x * self.k

    model = Scaled()
    f = jit(model)
    seen = []
    for k in range(5):
        if k == 2:
            model.k.requires_grad_()
        if k == 4:
            model.k = vector(5, 5)
        y = f(vector(1, 2))
        if y.requires_grad:
            y.sum().backward()
        seen.append((show(y), grad(model.k)))
    return seen


@program
def jitted_step_and_jitted_model_share_weights(jit: Jit) -> Any:
    model = mlp()
    forward = jit(model)
    opt = optim.SGD(model.parameters(), lr=0.1)

    @jit
    def step(x: Any, y: Any) -> Any:
        opt.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        opt.step()
        return loss

    seen = []
    for k in range(6):
        if k % 2:
            seen.append(show(step(*batch(k))))
        else:
            opt.zero_grad()
            loss = (forward(batch(k)[0]) ** 2).mean()
            loss.backward()
            opt.step()
        seen.append(weights(model))
    return seen


@program
def results_that_alias_each_other(jit: Jit) -> Any:
    def f(x: Any) -> Any:
        y = x * 2
        return y, y.reshape(2, 2), y[1:]

    f = jit(f)
    seen = []
    for k in range(3):
        y, a, b = f(vector(k, 1, 2, 3))
        y.mul_(10)
        b.add_(1)
        seen.append((show(y), show(a), show(b)))
    return seen


@program
def results_that_alias_with_gradients(jit: Jit) -> Any:
    def f(x: Any) -> Any:
        y = x * 2
        return y, y[1:]

    f = jit(f)
    seen = []
    for k in range(3):
        x = vector(k, 1, 2, grad=True)
        y, v = f(x)
        (y.sum() + (v * v).sum()).backward()
        seen.append(grad(x))
    return seen


@program
def arrays_and_tensors_mixed(jit: Jit) -> Any:
    from genesis import ndarray as nd

    f = jit(lambda x, a: (x * 2, a + 1))
    seen = []
    for k in range(3):
        x = vector(k, 1, grad=True)
        y, b = f(x, nd.array([1.0, float(k)]))
        y.sum().backward()
        seen.append((grad(x), show(b)))
    return seen


@program
def loss_without_gradient_raises(jit: Jit) -> Any:
    f = jit(lambda x: x.sum())
    return [attempt(f(vector(1, 2, grad=k % 2 == 1)).backward) for k in range(4)]


@program
def backward_inside_of_what_needs_none_raises(jit: Jit) -> Any:
    def f(x: Any) -> None:
        x.sum().backward()

    f = jit(f)
    return [attempt(f, vector(1, 2, grad=k % 2 == 1)) for k in range(4)]


@program
def graph_used_twice_inside_raises(jit: Jit) -> Any:
    def f(x: Any) -> None:
        y = (x * x).sum()
        y.backward()
        y.backward()

    f = jit(f)
    seen = []
    for _ in range(3):
        x = vector(1, 2, grad=True)
        seen.append((attempt(f, x), grad(x)))
    return seen


@program
def autocast_inside(jit: Jit) -> Any:
    model = mlp()

    @jit
    def f(x: Any) -> Any:
        with genesis.autocast("cpu", dtype=genesis.bfloat16):
            return model(x).to(genesis.float32)

    seen = []
    for k in range(3):
        y = f(batch(k)[0])
        y.sum().backward()
        seen.append(show(y)[:3])
    return seen


@program
def autocast_outside(jit: Jit) -> Any:
    model = mlp()
    f = jit(model)
    seen = []
    for k in range(4):
        with genesis.autocast("cpu", dtype=genesis.bfloat16, enabled=k % 2 == 1):
            y = f(batch(k)[0])
        seen.append(show(y)[:3])
    return seen


@program
def backward_of_results_with_nothing_in_common(jit: Jit) -> Any:
    w, v = vector(1, 2, grad=True), vector(3, 4, grad=True)

    @jit
    def f(x: Any) -> Any:
        shared = v * v
        return w * w * x, shared * x, shared + x, v + x

    seen = []
    for order in ((0, 1, 3), (1, 2), (3, 3, 0), (2, 0, 2), (0, 0), (1, 3, 3, 1)):
        results = f(vector(5, 6))
        w.grad = v.grad = None
        seen += [(attempt(results[k].sum().backward), grad(w), grad(v)) for k in order]
    return seen


@program
def second_derivatives_of_results_with_nothing_in_common(jit: Jit) -> Any:
    w, v = vector(1, 2, grad=True), vector(3, 4, grad=True)
    f = jit(lambda x: (w * w * w * x, v * v * v * x))
    seen = []
    for _ in range(3):
        a, b = f(vector(5, 6))
        (ga,) = genesis.autograd.grad(a.sum(), w, create_graph=True)
        (gb,) = genesis.autograd.grad(b.sum(), v, create_graph=True)
        seen.append((attempt(ga.sum().backward), attempt(gb.sum().backward), grad(w), grad(v)))
        w.grad = v.grad = None
    return seen


@program
def detached_before_its_data_is_replaced(jit: Jit) -> Any:
    w = vector(1, 2, grad=True)
    holder = SimpleNamespace(before=None)

    @jit
    def f(x: Any) -> Any:
        holder.before = w.detach()
        w.data = w.data * 0.5
        return x * 2

    return [(show(f(vector(1, 2))), show(holder.before), show(w)) for _ in range(4)]


@program
def hooks_registered_inside_on_leaves(jit: Jit) -> Any:
    w, v = vector(1, 2, grad=True), vector(1, 2, grad=True)

    @jit
    def f(x: Any) -> Any:
        w.register_hook(lambda g: g * 2)
        v.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(3))
        (w * v * x).sum().backward()
        return x

    return [(show(f(vector(1, 2))), grad(w), grad(v)) for _ in range(4)]


@program
def hooks_removed_inside(jit: Jit) -> Any:
    w = vector(1, 2, grad=True)
    hook = w.register_hook(lambda g: g * 3)

    @jit
    def f(x: Any) -> Any:
        hook.remove()
        (w * x).sum().backward()
        return x

    seen = []
    for _ in range(3):
        seen.append((show(f(vector(1, 2))), grad(w)))
        hook = w.register_hook(lambda g: g * 3)
    return seen


def _detached(w: Any, x: Any) -> Any:
    leaf = x.detach()[1:].requires_grad_()
    leaf.name = "leaf"
    return leaf, leaf * 3


def _named(w: Any, x: Any) -> Any:
    y = w[1:]
    y.name = "view"
    return y, x[:]


def _replaced(w: Any, x: Any) -> Any:
    before = w[1:]
    w.data = w.data * 0.5
    return before, w[1:], w[:], w.view(3, 1)[1:]


def _without(w: Any, x: Any) -> Any:
    with genesis.no_grad():
        y = w[1:]
    return y, y[:1], x[1:]


def _with(w: Any, x: Any) -> Any:
    with genesis.enable_grad():
        return w[1:], x[1:][:1]


def _hooked_leaf(w: Any, x: Any) -> Any:
    leaf = x.detach().clone().requires_grad_()
    leaf.register_hook(lambda g: g * 2)
    leaf.register_post_accumulate_grad_hook(lambda p: p.grad.add_(1))
    return leaf, leaf * w


#: Views that a function makes of tensors that are there, and leaves of its own.
VIEWS: dict[str, Callable[[Any, Any], Any]] = {
    "all of it": lambda w, x: (x[:], w[:]),
    "the same shape": lambda w, x: (x.view(3), w.reshape(3), x.permute(0), w.expand(3), x[...]),
    "views of views": lambda w, x: (x[:][1:], w.view(3, 1)[:, 0][1:], x.expand(2, 3)[1]),
    "view and more": lambda w, x: (x[1:], x[1:] * w[:2], x),
    "of a detached one": _detached,
    "with an attribute": _named,
    "of replaced data": _replaced,
    "without gradients": _without,
    "with gradients": _with,
    "leaf with hooks": _hooked_leaf,
}


def _viewing(f: Callable[[Any, Any], Any], argument: str, enabled: bool) -> Callable[[Jit], Any]:
    def run(jit: Jit) -> Any:
        w = vector(1, 2, 3, grad=True)
        jitted = jit(lambda x: f(w, x))
        seen = []
        for k in range(4):
            x = vector(k, 1, 2, grad=argument != "plain")
            given = x * 1 if argument == "computed" else x
            with genesis.set_grad_enabled(enabled):
                results = jitted(given)
            seen.append([(show(y), y.is_leaf, getattr(y, "name", None)) for y in results])
            wanted = [(y * (n + 2)).sum() for n, y in enumerate(results) if y.requires_grad]
            if wanted:
                sum(wanted[1:], wanted[0]).backward()
            seen.append((grad(w), grad(x), [grad(y) for y in results if y.is_leaf]))
            results[0].detach().add_(1)
            seen.append((show(w), show(given)))
        return seen

    return run


for name, f in VIEWS.items():
    for argument in ("leaf", "plain", "computed"):
        add_program(f"view {name} of a {argument} argument", _viewing(f, argument, True))
    add_program(f"view {name} under no_grad", _viewing(f, "leaf", False))


def _heard(how: Callable[[Any], Any]) -> Callable[[Jit], Any]:
    def run(jit: Jit) -> Any:
        def f(x: Any) -> Any:
            y = x[1:]
            how(y)
            return y

        jitted, seen = jit(f), []
        for _ in range(3):
            x = vector(1, 2, grad=True)
            y = jitted(x)
            y.sum().backward()
            seen.append((grad(x), grad(y)))
        return seen

    return run


add_program("hook on a view inside", _heard(lambda y: y.register_hook(lambda g: g * 2)), True)
add_program("retain_grad of a view inside", _heard(lambda y: y.retain_grad()), True)


def _zeroed(y: Any, w: Any, t: Any, x: Any) -> Any:
    y.zero_()
    return y


def _in_part(y: Any, w: Any, t: Any, x: Any) -> Any:
    y[0] = t * 2
    return y * t


def _between(y: Any, w: Any, t: Any, x: Any) -> Any:
    with genesis.no_grad():
        t.mul_(0.5)
    z = (t * w).exp() * x
    z.zero_()
    with genesis.no_grad():
        t.add_(0.25)
    return y + z


#: What overwrites a value that gradients go through: they read what no result depends on.
OVERWRITES: dict[str, Callable[..., Any]] = {
    "zeroed": _zeroed,
    "filled and used": lambda y, w, t, x: y.fill_(3.0) * w,
    "copied": lambda y, w, t, x: y.copy_(x * t) + w,
    "in part": _in_part,
    "used before": lambda y, w, t, x: y * y + y.zero_(),
    "after what it was made of": _between,
}


def _overwriting(change: Callable[..., Any], second: bool, lay: Any) -> Callable[[Jit], Any]:
    def run(jit: Jit) -> Any:
        w, t = vector(1, 2, grad=True), vector(-2, -1)
        jitted = jit(lambda x: change((t * w).exp() * x, w, t, x))
        seen = []
        for n in (2, 2, 3, 4):
            y = jitted(lay(n))
            loss = (y * y).sum() + y.sum()
            if second:
                (g,) = genesis.autograd.grad(loss, w, create_graph=True)
                loss = (g * g).sum()
            if loss.requires_grad:
                loss.backward()
            seen.append((show(y), show(w), grad(w)))
        return seen

    return run


LAID: dict[str, Callable[[int], Any]] = {
    "whole": lambda n: genesis.full((n, 2), 1.0 / n),
    "part": lambda n: genesis.full((n + 1, 2), 1.0 / n)[1:],
    "transposed": lambda n: genesis.full((2, n), 1.0 / n).t(),
}
for name, change in OVERWRITES.items():
    for layout, lay in LAID.items():
        add_program(f"overwritten {name}, {layout}", _overwriting(change, False, lay))
    add_program(f"overwritten {name}, second order", _overwriting(change, True, LAID["whole"]))


# ---- what was made before the call, written as it is


@program
def an_argument_with_a_history_is_copied(jit: Jit) -> Any:
    w = vector(1, 2, grad=True)

    @jit
    def f(x: Any) -> Any:
        return genesis.zeros(2).copy_(x)

    seen = []
    for k in range(4):
        f(w * (k + 1)).sum().backward()
        seen.append(grad(w))
    return seen


@program
def what_has_a_history_outside_is_copied(jit: Jit) -> Any:
    w = vector(1, 2, grad=True)
    held = SimpleNamespace(before=w * 3, now=vector(0, 0))

    @jit
    def f(x: Any) -> Any:
        held.now = held.now.detach()
        held.now.copy_(held.before)
        held.before = x * w
        return x

    seen = []
    for k in range(5):
        f(vector(k, 1))
        seen.append((show(held.now), show(held.before)))
        held.now.sum().backward(retain_graph=True)
        seen.append(grad(w))
    return seen
