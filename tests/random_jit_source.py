"""Random programs with state, as source text: what `random_jit` runs with jit and without.

A program is a module. It declares state (numbers, tensors, containers, objects, closures, modules,
optimizers), functions that use it, some of them jitted, and then calls those and changes the state
in between. Numbers are multiples of powers of two, so that hardly anything is rounded, and tensors
have two elements, so that everything fits everything.

Code is put together from forms. In a form "{}" is the name of something of a kind, and "<N>" is
filled with a number, "<T>" with a tensor, "<C>" with a condition, "<K>" with a constant, "<V>" with
a new tensor, "<n>" and "<t>" with a short number and a short tensor, and "<I {}.t>" with a write to
what it names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from random import Random

Lines = list[str]
Forms = Mapping[str, Sequence[str]]

CONSTANTS = ("0.5", "2.0", "-1.0", "1.0", "3", "1", "0", "-2", "1.5", "4.0")

#: How something of a kind is declared.
DECLARED = {
    "number": ("K", "<K>"),
    "tensor": ("T", "<V>"),
    "list": ("L", "[<K>, <K>]"),
    "tensors": ("V", "[<V>]"),
    "dict": ("D", '{"n": <K>, "t": <V>}'),
    "deque": ("Q", "deque([1.0, 0.5], maxlen=3)"),
    "set": ("S", "{1, 2}"),
    "array": ("A", "np.array([1.0, 0.5], np.float32)"),
    "config": ("C", 'SimpleNamespace(rate=<K>, name="a", t=<V>)'),
    "modulefile": ("F", "module(RATE=<K>, W=<V>)"),
    "object": ("O", "Box(<K>, <V>)"),
    "module": ("M", "Net()"),
    "pair": ("E", "Point(<V>, <K>)"),
}
WEIGHTS = (3, 3, 2, 2, 2, 1, 1, 1, 2, 1, 3, 2, 2)

#: Numbers to be had from something of a kind.
NUMBERS: Forms = {
    "number": ["{}", "{}"],
    "object": ["{}.n", "{}.n", "{}.k", "{}.twice", '{}.__dict__["n"]', "len(vars({}))"],
    "pair": ["{}.n", "{}[1]"],
    "config": ["{}.rate", "{}.rate"],
    "module": ["{}.scale"],
    "modulefile": ["{}.RATE", "{}.RATE"],
    "dict": ['{}["n"]', '{}.get("z", 1.0)', "len({})"],
    "list": ["len({})", "sum({})", "({}[0] if {} else 2.0)", "({}[-1] if {} else 2.0)"],
    "deque": ["len({})", "sum({})", "({}[0] if {} else 2.0)"],
    "set": ["len({})", "sum({})"],
    "tensors": ["len({})"],
    "array": ["float({}[0])", "float({}[1])"],
}
COMBINED_NUMBERS = (
    "(<n> + <n>)", "(<n> - <n>)", "(<n> * 0.5)", "max(<n>, <n>)", "min(<n>, <n>)", "abs(<n>)",
    "(<n> if <C> else <n>)", "(lambda v: v + 1)(<n>)",
)  # fmt: skip

#: Tensors to be had from something of a kind.
TENSORS: Forms = {
    "tensor": ["{}", "{}", "{}"],
    "object": ["{}.t", "{}.t", "({}.h if {}.h is not None else {}.t)"],
    "config": ["{}.t", 'vars({})["t"]'],
    "pair": ["{}.a", "{}._replace(n=<n>).a"],
    "dict": ['{}["t"]', '{}["t"]'],
    "tensors": ["({}[0] if {} else vec(1, 1))", "({}[-1] if {} else vec(1, 1))"],
    "module": ["{}.w", "{}.buf", "{}.plain"],
    "modulefile": ["{}.W"],
    "array": ["genesis.tensor({})"],
}
COMBINED_TENSORS = (
    "({} + {})", "({} - {})", "({} * {})", "({} + <N>)", "({} - <N>)", "({} * <N>)", "({} * <N>)",
    "(-{})", "({}.clone())", "({}.detach())", "genesis.relu({})", "({}.flip(0))", "({}[:])",
    "({} if <C> else {})", "({} * <K>)", "({} * <K>)",
)  # fmt: skip
CALLED_TENSORS: Forms = {
    "function": ["{}(<t>, <N>)", "{}(<t>, <N>)"],
    "module": ["{}(<t>)"],
    "object": ["{}.scaled(<t>)", "{}.kept(<t>)"],
    "tensors": ["sum({}, <t>)"],
}

CONDITIONS: Forms = {
    "number": ["isinstance({}, int)", "isinstance({}, float)"],
    "list": ["len({}) % 2", "1 in {}"],
    "tensors": ["len({}) % 2"],
    "deque": ["len({}) % 2", "0.5 in {}"],
    "set": ["1 in {}", "2 in {}"],
    "dict": ["len({}) % 2", '"z" in {}'],
    "object": ["{}.h is None", "{}.h is not None", "{}.h is <t>", 'hasattr({}, "late")'],
    "config": ['{}.name == "a"', '"late" in {}.__dict__'],
    "pair": ["{}.a is <t>", "{} is {}"],
    "tensor": ["{}.requires_grad"],
    "module": ["{}.training"],
}

#: Changes of something of a kind. "{}" alone before a sign of assignment is bound anew.
WRITES: Forms = {
    "number": ["{} = <N>", "{} += <K>"],
    "tensor": ["{} = <T>", "<I {}>"],
    "object": [
        "{}.n = <N>", "{}.n += <N>", "{}.t = <T>", "{}.h = <T>", "{}.h = <t>", "{}.h = None",
        "<I {}.t>", "{}.items.append(<N>)", "{}.items.append(<T>)", "{}.t, {}.h = <t>, {}.t",
        "{}.late = <N>", "{}.late = <T>", 'if hasattr({}, "late"): del {}.late',
        "{}.items = [<t>, <N>]", '{}.__dict__["n"] = <N>', "vars({}).update(h=<T>, n=<n>)",
        'vars({}).pop("late", None)', "{}.__dict__.setdefault('late', <t>)",
        "setattr({}, 't', <T>)", "Box.k = <N>",
    ],
    "pair": ["{} = Point(<T>, <N>)", "{} = {}._replace(n=<N>)", "<I {}.a>"],
    "dict": [
        '{}["n"] = <N>', '{}["n"] += <N>', '{}["t"] = <T>', '{}["z"] = <N>', '{}.pop("z", None)',
        '{}.setdefault("z", <N>)', "{}.update(n=<N>, t=<T>)", '<I {}["t"]>',
        '{}.setdefault("log", []).append(<t>)',
    ],
    "list": [
        "{}.append(<N>)", "if {}: {}.pop()", "if {}: {}[0] = <N>", "if {}: {}[-1] = <N>",
        "{}.reverse()", "{}.extend([1, 0.5])", "{}.clear()", "{}.sort()", "{}.insert(0, <N>)",
        "{}.extend(v * 2 for v in (1.0, <n>))", "{}.extend(map(abs, [<n>]))",
        "{}[1:] = (v for v in (0.5, <n>))", "heapq.heappush({}, <n>)", "heapq.heapify({})",
        "bisect.insort({}, <n>)", "operator.iadd({}, [<n>])",
    ],
    "deque": ["{}.append(<N>)", "if {}: {}.popleft()", "{}.rotate(1)", "{}.extend([1, 0.5])"],
    "tensors": [
        "{}.append(<T>)", "{}.append(<t>)", "if {}: {}.pop()", "if {}: {}.pop(0)",
        "if {}: {}[0] = <T>", "if {}: <I {}[-1]>", "{}.extend(<t> * v for v in (1.0, <n>))",
    ],
    "set": [
        "{}.add(5)", "{}.discard(2)", "{}.add(<K>)", "{}.update(v for v in (1, 7))",
    ],
    "module": [
        "{}.scale = <N>", "{}.plain = <T>", "{}.buf = <T>", "<I {}.buf>", "{}.train()", "{}.eval()",
    ],
    "config": [
        "{}.rate = <N>", '{}.name = "b"', '{}.name = "a"', "{}.t = <T>", "vars({})['rate'] = <N>",
        "{}.__dict__.update({'t': <T>}, late=<n>)",
    ],
}  # fmt: skip
#: Changes that are made between calls only.
OUTER_WRITES: Forms = {
    "modulefile": ["{}.RATE = <K>", "{}.W = <V>"],
    "tensor": [
        "try_(lambda: {}.requires_grad_())", "try_(lambda: {}.requires_grad_(False))",
        "{}.grad = None",
    ],
    "helper": ["{}.__defaults__ = (<K>, <K>)", "{} = lambda x, n=1.0, k=2.0: x * n - k"],
    "array": ["{}[0] = <N>", "{}[1] = <N>"],
    "object": ["Box.k = <K>"],
}  # fmt: skip
IN_PLACE = (
    "{}.add_(<n>)", "{}.add_(<t>)", "{}.mul_(<n>)", "{}.mul_(<t>)", "{}.sub_(<t>)", "{}.zero_()",
    "{}.copy_(<t>)", "{}[0] = <n>",
)  # fmt: skip

#: Parts of a step of training; P0 is the parameter.
TRAINING = (
    "(((<t>).detach() - P0) * P0).sum().backward()",
    "(((<t>).detach() - P0) * P0).sum().backward()",
    "(((<t>) - P0) * P0).sum().backward()",
    "opt0.step()",
    "opt0.step()",
    "opt0.zero_grad()",
    "opt0.zero_grad(set_to_none=False)",
    "P0.grad = None",
    "if P0.grad is not None: P0.grad.mul_(0.5)",
    "if P0.grad is not None: P0.grad = P0.grad * 0.5",
    "P0.data = P0.data * 0.5",
    "with genesis.no_grad(): P0.sub_(<t>)",
    'opt0.param_groups[0]["lr"] = 0.25',
    'opt0.param_groups[0]["lr"] = 0.125',
)

LOCALS = {
    "tensor": ("a", "<T>"),
    "number": ("n", "<N>"),
    "object": ("b", "Box(<N>, <T>)"),
    "dict": ("d", '{"n": <N>, "t": <T>}'),
    "list": ("l", "[v + 1 for v in (1.0, <n>, <n>) if v != <n>]"),
    "tensors": ("v", "[<T>, <T>]"),
}

#: Statements that use several features; "{}" is a local tensor.
SEVERAL = (
    "{} = sum([<t> * v for v in (1.0, <N>)], {})",
    "{} = sum((<t> * v for v in range(2)), {})",
    "{} = {} * w if (w := <N>) else {}",
    "*_, {} = {} * 2, <t>",
    "match <N>:\n    case 1 | 2: {} = <t>\n    case float(): {} = <t>\n    case _: {} = {} - 1",
    "f0 = lambda y, k=<n>: y * k + <t>\n{} = f0({})",
    "def f0(*args, **kw):\n    return sum(args, <t>) * kw.get('k', <n>)\n{} = f0({}, {}, k=2.0)",
    "def f0(*args, **kw):\n    return sum(args, <t>) * kw.get('k', <n>)\n{} = f0({})",
    "def f0(m):\n    for j in range(m): yield <t> * j\n{} = sum(f0(2), {})",
    "class Local:\n    k = <n>\n    def f(self, y): return y * self.k\n{} = Local().f({})",
    "{} = functools.reduce(lambda p, q: p + q, [{}, <t>])",
)
#: What jit may refuse.
WILD = (
    "{} = {} * next(numbers)", "{} = {} * pseudo.random()", "{} = {} * {}.sum().item()",
    "print('called')",
)  # fmt: skip

RESULTS = (
    "<T>", "<T>", "<T>", "<t>", "<T>, <N>", '{"a": <T>, "n": <N>}', "[<T>, <t>]", "Pair(<T>, <N>)",
    "Box(<N>, <T>)", "(<T>).sum()", "None", "Point(<T>, <N>)", "<N>", "genesis.rand(2) + <T>",
    "(<t>, (<t>, <N>))",
)  # fmt: skip

FORWARDS = (
    ["return x * self.w + self.scale"],
    ["self.buf = self.buf * 0.5 + x", "return self.buf * self.w"],
    ["self.count += 1", "return x * self.w * self.count"],
    ["self.buf.add_(x.detach())", "return x * self.scale + self.buf * self.w"],
    ["self.plain = x", "return (x - self.buf) * self.w"],
    ["return x * self.w if self.training else x - self.buf"],
)


def indented(lines: Lines) -> Lines:
    """Lines one level deeper."""
    return ["    " + line for line in lines]


class Scope:
    """The names that code in one place may use, by kind."""

    def __init__(self, outer: Scope | None = None) -> None:
        self.names = {} if outer is None else {k: list(v) for k, v in outer.names.items()}
        self.globals: set[str] = set() if outer is None else set(outer.globals)
        self.cells: set[str] = set()  # variables of the function around
        self.rebound: set[str] = set()  # those of both that are assigned to
        self.depth = 0  # of blocks
        self.loops = 0
        self.is_module = False
        self.calls = True  # whether methods may be called

    def add(self, kind: str, name: str) -> str:
        """A name of a kind."""
        self.names.setdefault(kind, []).append(name)
        return name

    def of(self, kind: str) -> list[str]:
        """The names of a kind."""
        return self.names.get(kind, [])

    def forms(self, forms: Forms) -> list[str]:
        """Forms with all names that they may have."""
        return [
            form.replace("{}", name)
            for kind, several in forms.items()
            for name in self.of(kind)
            for form in several
        ]

    def declarations(self) -> Lines:
        """What a function says about names at its head."""
        cells, others = sorted(self.rebound & self.cells), sorted(self.rebound - self.cells)
        lines = [f"nonlocal {', '.join(cells)}"] if cells else []
        return [*lines, f"global {', '.join(others)}"] if others else lines


class Writer:
    """Writes one program."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.trains = self.chance(0.3)
        self.wild = self.chance(0.08)
        self.counts: dict[str, int] = {}
        self.module = Scope()
        self.module.is_module = True
        self.jitted: list[tuple[str, list[str]]] = []  # names, and the kinds of their parameters

    def chance(self, probability: float) -> bool:
        """Whether something happens."""
        return self.random.random() < probability

    def new(self, prefix: str) -> str:
        """A new name."""
        n = self.counts.get(prefix, 0)
        self.counts[prefix] = n + 1
        return f"{prefix}{n}"

    # ---- expressions

    def filled(self, s: Scope, form: str, depth: int = 2) -> str:
        """A form with what its places stand for."""

        def fill(place: re.Match[str]) -> str:
            kind = place[1]
            if kind == "N":
                return self.number(s)
            if kind == "n":
                return self.number(s, 0)
            if kind == "T":
                return self.tensor(s, depth)
            if kind == "t":
                return self.tensor(s, min(1, depth))
            if kind == "C":
                return self.condition(s)
            if kind == "K":
                return self.random.choice(CONSTANTS)
            if kind == "V":
                return f"vec({self.random.choice(CONSTANTS)}, {self.random.choice(CONSTANTS)})"
            target = kind.removeprefix("I ")
            return self.filled(s, self.random.choice(IN_PLACE).replace("{}", target), 1)

        return re.sub(r"<([NnTtCKV]|I [^>]*)>", fill, form)

    def number(self, s: Scope, depth: int = 1) -> str:
        """An expression that gives a Python number."""
        if depth and self.chance(0.4):
            return self.filled(s, self.random.choice(COMBINED_NUMBERS))
        return self.random.choice([*s.forms(NUMBERS), *self.random.sample(CONSTANTS, 2)])

    def tensor(self, s: Scope, depth: int = 2) -> str:
        """An expression that gives a tensor of two elements."""
        if not depth or self.chance(0.3):
            return self.random.choice(s.forms(TENSORS) or ["vec(1, 2)"])
        if self.chance(0.25) and s.calls and (calls := s.forms(CALLED_TENSORS)):
            return self.filled(s, self.random.choice(calls), depth - 1)
        form = self.random.choice(COMBINED_TENSORS)
        form = re.sub(r"\{\}", lambda _: self.tensor(s, depth - 1), form)
        return self.filled(s, form)

    def condition(self, s: Scope) -> str:
        """An expression that gives whether to do something."""
        sign = self.random.choice((">", "<", "==", "!=", "<="))
        compared = f"<n> {sign} <n>"
        form = self.random.choice([*s.forms(CONDITIONS), compared, compared])
        text = self.filled(s, form, 0)
        return f"not ({text})" if self.chance(0.15) else text

    # ---- statements

    def block(self, s: Scope, most: int = 3) -> Lines:
        """Some statements."""
        return [line for _ in range(self.random.randint(1, most)) for line in self.statement(s)]

    def statement(self, s: Scope) -> Lines:
        """A statement, which may be of several lines."""
        if self.trains and s.of("optimizer") and self.chance(0.25):
            return [self.filled(s, self.random.choice(TRAINING))]
        if not s.is_module and s.depth < 2 and self.chance(0.3):
            compound = (self.branch, self.loop, self.attempt, self.context, self.several)
            return self.random.choice(compound)(s)
        if not s.is_module and self.chance(0.35):
            return self.local(s)
        return self.write(s)

    def local(self, s: Scope) -> Lines:
        """A local variable. One that is made in a block may not be there after it."""
        known = [n for n in s.of("tensor") if n[0] in "xa"]
        if known and (s.depth or self.chance(0.3)):
            return [f"{self.random.choice(known)} = {self.tensor(s)}"]
        kind = "tensor" if s.depth or self.chance(0.4) else self.random.choice(list(LOCALS))
        prefix, form = LOCALS[kind]
        text = self.filled(s, form)
        return [f"_ = {text}" if s.depth else f"{s.add(kind, self.new(prefix))} = {text}"]

    def write(self, s: Scope) -> Lines:
        """A change of state."""
        forms = s.forms(WRITES) + (s.forms(OUTER_WRITES) if s.is_module else [])
        forms = [form for form in forms if not form.startswith(("P0 ", "<I P0"))]
        if not forms:
            return [f"_ = {self.tensor(s)}"]
        text = self.filled(s, self.random.choice(forms))
        name = re.match(r"(\w+) \+?= ", text)
        if name and name[1] in s.globals | s.cells:
            s.rebound.add(name[1])
        return [text]

    # ---- statements of several lines

    def inner(self, s: Scope, write: Callable[[Scope], Lines]) -> Lines:
        """What is written in a block; names made there are not known after it."""
        before = {k: list(v) for k, v in s.names.items()}
        s.depth += 1
        lines = write(s)
        s.depth -= 1
        s.names = before
        return indented(lines)

    def branch(self, s: Scope) -> Lines:
        """An if statement."""
        lines = [f"if {self.condition(s)}:", *self.inner(s, self.block)]
        if self.chance(0.3):
            lines += [f"elif {self.condition(s)}:", *self.inner(s, self.block)]
        return [*lines, "else:", *self.inner(s, self.block)] if self.chance(0.5) else lines

    def loop(self, s: Scope) -> Lines:
        """A loop over a few values; none in a loop."""
        if s.loops:
            return self.branch(s)
        forms = ["for i in range(2):", "for i in range(int(<n>) % 3):"]
        forms += [f"for i in list({v}):" for v in (*s.of("list"), *s.of("deque"))]
        forms += [f"for _, u in zip(range(3), {v}):" for v in s.of("tensors")]
        head = self.filled(s, self.random.choice(forms))

        def body(s: Scope) -> Lines:
            s.add("tensor", "u") if " u in" in head else s.add("number", "i")
            lines = self.block(s, 2)
            if self.chance(0.15):
                lines.append(f"if {self.condition(s)}: {self.random.choice(('break', 'continue'))}")
            return lines

        s.loops += 1
        lines = [head, *self.inner(s, body)]
        s.loops -= 1
        return lines

    def attempt(self, s: Scope) -> Lines:
        """A try statement."""

        def risky(s: Scope) -> Lines:
            error = self.random.choice(("Stop", "Stop", "Stop", "KeyError"))
            return [
                *self.block(s, 2),
                f"if {self.condition(s)}: raise {error}(1)",
                *self.block(s, 1),
            ]

        lines = ["try:", *self.inner(s, risky), "except Stop:", *self.inner(s, self.block)]
        if self.chance(0.3):
            lines += ["finally:", *self.inner(s, lambda s: self.block(s, 1))]
        return lines

    def context(self, s: Scope) -> Lines:
        """A with statement."""
        forms = ["with genesis.no_grad():", *(f"with {o}:" for o in s.of("object"))]
        return [self.random.choice(forms), *self.inner(s, self.block)]

    def several(self, s: Scope) -> Lines:
        """A statement that uses several features."""
        targets = [n for n in s.of("tensor") if n.startswith("x")]
        if not targets:
            return self.write(s)
        form = self.random.choice(WILD if self.wild and self.chance(0.4) else SEVERAL)
        name = self.new("f")
        return [
            self.filled(s, line.replace("{}", targets[0]).replace("f0", name))
            for line in form.split("\n")
        ]

    # ---- functions and classes

    def body(self, s: Scope, most: int, results: Sequence[str] = ("<T>",)) -> Lines:
        """What stands in a function."""
        lines = self.block(s, most)
        choices = [
            *results,
            *(name for kind in ("object", "dict", "tensors", "pair") for name in s.of(kind)),
        ]
        form = self.random.choice(choices if len(results) > 1 else results)
        result = self.filled(s, form)
        return [*s.declarations(), *lines, f"return {result}"]

    def box(self) -> Lines:
        """The class of objects, whose methods are random."""
        s = Scope(self.module)
        s.add("object", "self")
        s.add("tensor", "x")
        s.calls = False
        scaled = self.tensor(s)
        kept = self.block(s, 2)
        return [
            "class Box:",
            "    k = 2.0",
            "    def __init__(self, n, t):",
            "        self.n, self.t, self.h, self.items = n, t, None, [1.0]",
            *(["    @jit"] if self.chance(0.2) else []),
            "    def scaled(self, x):",
            f"        return {scaled}",
            "    def kept(self, x):",
            *indented(indented([*s.declarations(), *kept])),
            f"        self.{self.random.choice(('h', 't', 'late'))} = x",
            "        return x * self.n",
            "    @property",
            "    def twice(self): return self.n * 2",
            "    def __enter__(self): self.n += 1",
            "    def __exit__(self, *_): self.n -= 1",
        ]

    def net(self) -> Lines:
        """The class of modules."""
        return [
            "class Net(nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
            "        self.w = nn.Parameter(vec(1, 2))",
            "        self.scale, self.count, self.plain = 2.0, 0, vec(1, 1)",
            '        self.register_buffer("buf", vec(0, 1))',
            "    def forward(self, x):",
            *indented(indented(self.random.choice(FORWARDS))),
        ]

    def closure(self) -> Lines:
        """A function with variables of its own."""
        s = Scope(self.module)
        name = self.new("c")
        s.add("tensor", "x")
        s.add("number", "n")
        s.cells = {s.add("number", "count"), s.add("tensor", "held")}
        body = self.body(s, 2)
        self.module.add("function", name)
        return [
            f"def make_{name}():",
            "    count, held = 0, vec(0.5, 2.0)",
            *(["    @jit"] if self.chance(0.2) else []),
            "    def inner(x, n=1.0):",
            *indented(indented(body)),
            "    return inner",
            f"{name} = make_{name}()",
        ]

    def helper(self) -> Lines:
        """A function at the top, which a jitted one may call."""
        s = Scope(self.module)
        name = self.new("h")
        s.add("tensor", "x")
        s.add("number", "n")
        s.add("number", "k")
        lines = [f"def {name}(x, n=1.0, k=2.0):", *indented(self.body(s, 3))]
        self.module.add("helper", name)
        if self.chance(0.2):
            self.module.add("function", f"jitted_{name}")
            return [*lines, f"jitted_{name} = jit({name})"]
        self.module.add("function", name)
        return lines

    def step(self) -> Lines:
        """A jitted function."""
        s = Scope(self.module)
        name = self.new("step")
        others = ("number", "number", "default", "tensor", "dict", "object", "list", "tensors",
                  "pair")  # fmt: skip
        kinds = ["tensor", *self.random.choices(others, k=self.random.randint(0, 2))]
        kinds.sort(key="default".__eq__)
        parameters = []
        for k, kind in enumerate(kinds):
            p = s.add(
                "number" if kind == "default" else kind, f"{'x' if kind == 'tensor' else 'p'}{k}"
            )
            parameters.append(f"{p}=1.5" if kind == "default" else p)
        lines = [
            "@jit",
            f"def {name}({', '.join(parameters)}):",
            *indented(self.body(s, 4, RESULTS)),
        ]
        if kinds == ["tensor"]:
            self.module.add("function", f"(lambda x, n: first({name}(x)) * n)")
        self.jitted.append((name, kinds))
        return lines

    # ---- the program

    def declare(self) -> Lines:
        """State at the top."""
        s = self.module
        kinds = self.random.choices(list(DECLARED), WEIGHTS, k=self.random.randint(2, 5))
        lines: Lines = []
        for kind in sorted(["tensor", *kinds], key=list(DECLARED).index):
            prefix, form = DECLARED[kind]
            lines.append(f"{s.add(kind, self.new(prefix))} = {self.filled(s, form)}")
        if self.trains:
            s.add("tensor", "P0")
            s.add("optimizer", "opt0")
            rule = self.random.choice(("SGD", "SGD", "Adam", "RMSprop"))
            momentum = ", momentum=0.5" if rule == "SGD" and self.chance(0.5) else ""
            lines.append("P0 = vec(1, 0.5).requires_grad_()")
            lines.append(f"opt0 = optim.{rule}([P0], lr=0.5{momentum})")
        s.globals = {name for names in s.names.values() for name in names}
        return lines

    def argument(self, kind: str) -> str:
        """What is passed for a parameter of a kind; nothing for some defaults."""
        s = self.module
        if kind == "default":
            return self.random.choice(("", "2.0"))
        if kind == "number":
            return self.random.choice(("1.0", "2.0", self.number(s, 0)))
        known = [name for name in s.of(kind) if name != "P0"]
        if known and self.chance(0.2 if kind == "tensor" else 0.6):
            return self.random.choice(known)
        text = self.filled(s, DECLARED[kind][1])
        return f"{text}.requires_grad_()" if kind == "tensor" and self.chance(0.15) else text

    def call(self) -> str:
        """A call of a jitted function."""
        name, kinds = self.random.choice(self.jitted)
        arguments = [a for kind in kinds if (a := self.argument(kind))]
        see = "see_elsewhere" if self.chance(0.1) else "see"
        return f"{see}({', '.join([name, *arguments])})"

    def calls(self) -> Lines:
        """Calls, and changes between them."""
        first = self.call()
        lines: Lines = []
        for k in range(self.random.randint(4, 6)):
            lines.append(first if k == 1 else self.call())
            if self.chance(0.2):
                lines.append("pull()")
            if k and self.chance(0.6):
                lines += self.write(self.module)
        return lines

    def program(self) -> str:
        """The whole text."""
        declared = self.declare()  # first, so that methods know the names
        lines = self.box() + (self.net() if self.module.of("module") else []) + declared
        for _ in range(self.random.randint(0, 2)):
            lines += self.random.choice((self.closure, self.helper, self.helper))()
        for _ in range(self.random.choice((1, 1, 2))):
            lines += self.step()
        return "\n".join([*lines, *self.calls()]) + "\n"


def source(seed: int) -> str:
    """The random program of a seed."""
    return Writer(seed).program()
