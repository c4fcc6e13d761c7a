"""Numbers, expressions, keys and values that several kinds of documents draw."""

import resources


def small_number(rng):
    """Mostly small, sometimes up to 9,999."""
    k = rng.random()
    return rng.randint(0, 20) if k < 0.25 else rng.randint(0, 99) if k < 0.6 else rng.randint(0, 999) if k < 0.95 else rng.randint(0, 9999)


def arithmetic(rng):
    """An expression and its value."""
    op = rng.choice("++--**/")
    if op == "+":
        a, b = (small_number(rng), small_number(rng))
        return (f"{a} + {b}", a + b)
    if op == "-":
        a, b = (small_number(rng), small_number(rng))
        if b > a and rng.random() < 0.9:
            a, b = (b, a)
        return (f"{a} - {b}", a - b)
    if op == "*":
        a, b = rng.choice(
            [
                (rng.randint(0, 99), rng.randint(0, 12)),
                (rng.randint(0, 400), rng.randint(0, 9)),
                (rng.randint(2, 30), rng.randint(2, 30)),
                (rng.randint(1, 60), rng.choice([10, 20, 50, 60, 100])),
            ]
        )
        if rng.random() < 0.5:
            a, b = (b, a)
        return (f"{a} * {b}", a * b)
    b = rng.randint(1, 12) if rng.random() < 0.7 else rng.randint(1, 40)
    c = rng.randint(0, 120 if b < 13 else 30)
    return (f"{b * c} / {b}", c)


def random_key(rng):
    """A key of a list to look things up in."""
    k = rng.randint(0, 3)
    if k == 0:
        return f"{rng.choice(resources.loaded.adjectives)}-{rng.choice(resources.loaded.nouns)}"
    if k == 1:
        return f"{rng.choice(resources.loaded.nouns)}_{rng.randint(10, 99)}"
    if k == 2:
        return "".join((rng.choice("abcdefghjkmnpqrstuvwxyz") for _ in range(2))) + str(rng.randint(100, 999))
    return f"{rng.choice(resources.loaded.adjectives)} {rng.choice(resources.loaded.nouns)}"


def random_value(rng):
    """A value there."""
    k = rng.randint(0, 2)
    return (
        str(rng.randint(100, 99999))
        if k == 0
        else (
            rng.choice(resources.loaded.nouns)
            if k == 1
            else "".join((rng.choice("ABCDEFGHKLMNPRSTUVWXYZ") for _ in range(3))) + str(rng.randint(10, 99))
        )
    )
