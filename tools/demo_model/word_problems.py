"""Word problems from own templates. A family is a function of (rng, steps wanted) that gives the question, its steps (sentence, equation, unit),
the answer, the numbers in it and the unit. The name of a family is part of what decides held out or not: keep it."""

import zlib

from resources import NAMES

MALE = "Tom Sam Ben Jack Leo Max Noah Liam Omar Raj Ivan Paul Eric Adam Luke Mark Dan Peter Hugo Felix Oscar Victor Carlos Diego Ahmed Kenji Marco Oliver Ethan Henry James David Simon Frank George Kevin Brian Jason Nathan Arthur".split()

FEMALE = "Anna Lily Emma Mia Zoe Ella Ruth Nina Sara Maya Ivy Rosa Clara Julia Alice Grace Chloe Sofia Maria Laura Diana Elena Fatima Priya Yuki Ingrid Hannah Natalia Olivia Amelia Lucy Jane Kate Betty Carol Helen Wendy Tina Rachel Sandra".split()

OBJECTS = "apples oranges books marbles pencils stickers cookies candies cards coins stamps shells balloons flowers eggs bottles cups plates toys buttons ribbons bananas peaches pears lemons muffins cupcakes donuts crayons notebooks erasers photos tickets keys candles beads rocks stones feathers acorns blocks dolls cars trains puzzles magazines shirts socks hats scarves gloves chairs lamps bricks seeds carrots potatoes tomatoes onions peppers mushrooms cherries grapes plums melons sandwiches pies cakes brownies pretzels badges medals postcards envelopes letters clips pins paintings drawings jars boxes baskets pebbles leaves tulips roses bulbs nails screws bolts tiles".split()

CONTAINERS = (
    ["box", "boxes"],
    ["bag", "bags"],
    ["basket", "baskets"],
    ["jar", "jars"],
    ["shelf", "shelves"],
    ["drawer", "drawers"],
    ["tray", "trays"],
    ["crate", "crates"],
    ["bucket", "buckets"],
    ["packet", "packets"],
    ["case", "cases"],
    ["row", "rows"],
)

PLACE = "store market school park garden library farm bakery museum office factory kitchen garage station beach zoo".split()

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()

MONTHS = "January February March April May June July August September October November December".split()

NUMW = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine", 10: "ten", 12: "twelve"}


def is_held_out(key):
    """One sixteenth of all content, by a hash of what matters in it: evaluation sets come from there and training never does, whatever the seed."""
    return zlib.crc32(key.encode()) % 16 == 0


class Person:

    def __init__(self, rng):
        k = rng.random()
        if k < 0.4:
            self.n, self.he, self.his = (rng.choice(MALE), "he", "his")
        elif k < 0.8:
            self.n, self.he, self.his = (rng.choice(FEMALE), "she", "her")
        else:
            self.n = rng.choice(NAMES)
            self.he, self.his = (self.n, self.n + "'s")

    def He(self, rng):
        return self.n if rng.random() < 0.4 else self.he[0].upper() + self.he[1:]


def two_people(rng):
    a = Person(rng)
    b = Person(rng)
    while b.n == a.n:
        b = Person(rng)
    return (a, b)


def objects(rng, k):
    return rng.sample(OBJECTS, k)


def number(rng, lo=2, hi=100):
    """In [lo, hi], skewed to small ones."""
    if rng.random() < 0.35:
        hi = min(hi, 20)
    return rng.randint(lo, max(lo, hi))


def f_story(rng, nsteps):
    p = Person(rng)
    o = objects(rng, 1)[0]
    cur = number(rng, 3, 200)
    nums = [cur]
    steps = []
    t = [
        rng.choice(
            [
                f"{p.n} has {cur} {o}.",
                f"{p.n} had {cur} {o}.",
                f"{p.n} starts with {cur} {o}.",
                f"There are {cur} {o} in {p.n}'s collection.",
                f"{p.n} owns {cur} {o}.",
            ]
        )
    ]
    for i in range(nsteps):
        kinds = ["add", "sub"]
        if cur <= 150:
            kinds += ["mul"]
        if cur >= 4 and cur % 2 == 0:
            kinds += ["half"]
        if cur <= 60 and rng.random() < 0.5:
            kinds += ["packs"]
        k = rng.choice(kinds)
        q = Person(rng)
        while q.n == p.n:
            q = Person(rng)
        He = p.He(rng)
        if k == "sub" and cur < 3:
            k = "add"
        if k == "add":
            a = number(rng, 2, 200)
            nums.append(a)
            t.append(
                rng.choice(
                    [
                        f"{He} buys {a} more.",
                        f"{He} finds {a} more {o}.",
                        f"{q.n} gives {p.n} {a} {o}.",
                        f"{He} gets {a} more {o} from {q.n}.",
                        f"Then {p.he} bought {a} more {o}.",
                        f"{He} collects {a} more at the {rng.choice(PLACE)}.",
                        f"On {rng.choice(DAYS)} {p.he} received {a} {o}.",
                    ]
                )
            )
            n = cur + a
            steps.append((f"Now {p.n} has", f"{cur} + {a} = {n}", o))
        elif k == "sub":
            a = number(rng, 1, cur - 1)
            nums.append(a)
            t.append(
                rng.choice(
                    [
                        f"{He} gives {a} to {q.n}.",
                        f"{He} loses {a} of them.",
                        f"{He} sells {a} {o}.",
                        f"{He} gives away {a} {o}.",
                        f"Then {p.he} used {a} of them.",
                        f"{q.n} takes {a} of the {o}.",
                        f"{He} drops {a} {o} on the way to the {rng.choice(PLACE)}.",
                    ]
                )
            )
            n = cur - a
            steps.append((f"Then {p.n} has", f"{cur} - {a} = {n}", o))
        elif k == "mul":
            a = rng.choice([2, 2, 3, 3, 4, 5])
            nums.append(a)
            t.append(
                rng.choice(
                    [f"The number of {o} then grows to {a} times as many.", f"After a month {p.he} has {a} times as many {o}."]
                    + ([f"{He} then doubles {p.his} {o}.", f"Then the number of {o} doubles."] if a == 2 else [])
                    + ([f"Then the number of {o} triples."] if a == 3 else [])
                )
            )
            n = cur * a
            steps.append((f"After that {p.n} has", f"{cur} * {a} = {n}", o))
        elif k == "half":
            nums.append(2)
            t.append(
                rng.choice(
                    [f"{He} gives half of them to {q.n}.", f"{He} sells half of the {o}.", f"Then {p.he} gives away half of {p.his} {o}."]
                )
            )
            n = cur // 2
            steps.append((f"Half is left, so {p.n} has", f"{cur} / 2 = {n}", o))
        else:
            a, b = (rng.randint(2, 9), rng.randint(2, 12))
            c = rng.choice(CONTAINERS)
            nums += [a, b]
            t.append(rng.choice([f"{He} buys {a} {c[1]} with {b} {o} in each {c[0]}.", f"{q.n} brings {a} {c[1]} of {b} {o} each."]))
            m = a * b
            n = cur + m
            steps.append((f"The {c[1]} hold", f"{a} * {b} = {m}", o))
            steps.append((f"Now {p.n} has", f"{cur} + {m} = {n}", o))
        cur = n
        if cur > 990:
            break
    t.append(
        rng.choice(
            [
                f"How many {o} does {p.n} have now?",
                f"How many {o} does {p.n} have in the end?",
                f"How many {o} are left with {p.n}?",
                f"How many {o} does {p.he} have?",
            ]
        )
    )
    return (" ".join(t), steps, cur, nums, o)


def f_total2(rng, n):
    a, b = two_people(rng)
    o = objects(rng, 1)[0]
    x, y = (number(rng, 2, 300), number(rng, 2, 300))
    d = rng.choice(DAYS)
    t = rng.choice(
        [
            f"{a.n} has {x} {o} and {b.n} has {y} {o}. How many {o} do they have together?",
            f"{a.n} picked {x} {o} on {d} and {b.n} picked {y}. How many {o} did they pick in total?",
            f"There are {x} {o} on the table and {y} {o} in the box. How many {o} are there altogether?",
            f"At the {rng.choice(PLACE)} {a.n} counted {x} {o} in the morning and {y} in the afternoon. How many {o} did {a.n} count in all?",
        ]
    )
    return (t, [("Together there are", f"{x} + {y} = {x + y}", o)], x + y, [x, y], o)


def f_diff(rng, n):
    a, b = two_people(rng)
    o = objects(rng, 1)[0]
    x = number(rng, 5, 400)
    y = number(rng, 1, x - 1)
    t = rng.choice(
        [
            f"{a.n} has {x} {o}. {b.n} has {y} {o}. How many more {o} does {a.n} have than {b.n}?",
            f"{a.n} read {x} pages and {b.n} read {y} pages. How many more pages did {a.n} read?",
            f"A {rng.choice(PLACE)} had {x} {o}. {y} of them were sold. How many {o} are left?",
            f"{a.n} needs {x} {o}. {a.He(rng)} already has {y}. How many more {o} does {a.n} need?",
        ]
    )
    w = "pages" if "pages" in t else o
    return (t, [("The difference is", f"{x} - {y} = {x - y}", w)], x - y, [x, y], w)


def f_groups(rng, n):
    a = Person(rng)
    o = objects(rng, 1)[0]
    c = rng.choice(CONTAINERS)
    x, y = (rng.randint(2, 25), rng.randint(2, 20))
    t = rng.choice(
        [
            f"{a.n} has {x} {c[1]}. Each {c[0]} holds {y} {o}. How many {o} does {a.n} have?",
            f"There are {x} {c[1]} of {o} with {y} {o} in each. How many {o} are there in total?",
            f"{a.n} packs {y} {o} into each {c[0]} and fills {x} {c[1]}. How many {o} were packed?",
        ]
    )
    st = [("In total there are", f"{x} * {y} = {x * y}", o)]
    ans = x * y
    nums = [x, y]
    if n >= 2:
        k = rng.choice(["sub", "add", "share"])
        if k == "sub":
            z = number(rng, 1, ans - 1)
            t2 = rng.choice([f"{z} of the {o} are given away.", f"{z} {o} get lost.", f"Then {z} {o} are sold."])
            q = f"How many {o} remain?"
            st.append(("After that there are", f"{ans} - {z} = {ans - z}", o))
            nums.append(z)
            ans -= z
        elif k == "add":
            z = number(rng, 1, 150)
            t2 = rng.choice([f"Another {z} {o} are added.", f"{z} loose {o} are put with them."])
            q = f"How many {o} are there now?"
            st.append(("Now there are", f"{ans} + {z} = {ans + z}", o))
            nums.append(z)
            ans += z
        else:
            ds = [d for d in range(2, 13) if ans % d == 0]
            if not ds:
                return f_groups(rng, 1)
            z = rng.choice(ds)
            t2 = f"The {o} are shared equally among {z} children."
            q = f"How many {o} does each child get?"
            st.append(("Each child gets", f"{ans} / {z} = {ans // z}", o))
            nums.append(z)
            ans //= z
        i = t.rfind(". ")
        t = t[: i + 2] + t2 + " " + q
    return (t, st, ans, nums, o)


def f_share(rng, n):
    a = Person(rng)
    o = objects(rng, 1)[0]
    k, e = (rng.randint(2, 12), rng.randint(2, 40))
    x = k * e
    t = rng.choice(
        [
            f"{a.n} shares {x} {o} equally among {k} friends. How many {o} does each friend get?",
            f"{x} {o} are packed into {k} equal groups. How many {o} are in each group?",
            f"{a.n} puts {e} {o} in each bag. {a.He(rng)} has {x} {o}. How many bags does {a.n} need?",
        ]
    )
    if "bags does" in t:
        return (t, [("The number of bags is", f"{x} / {e} = {k}", "bags")], k, [x, e], "bags")
    return (t, [("Each gets", f"{x} / {k} = {e}", o)], e, [x, k], o)


def f_shop(rng, n):
    a = Person(rng)
    o1, o2 = objects(rng, 2)
    p1, p2 = (rng.randint(2, 15), rng.randint(2, 15))
    c1, c2 = (rng.randint(2, 12), rng.randint(2, 12))
    s1 = rng.choice([f"{a.n} buys {c1} {o1} for {p1} dollars each", f"{a.n} bought {c1} {o1} at {p1} dollars each"])
    st = [(f"The {o1} cost", f"{c1} * {p1} = {c1 * p1}", "dollars")]
    nums = [c1, p1]
    ans = c1 * p1
    if n == 1:
        return (s1 + rng.choice([". How much does it cost in total?", ". How many dollars is that in total?"]), st, ans, nums, "dollars")
    if n == 2 or rng.random() < 0.3:
        m = ans + number(rng, 1, 100)
        nums.append(m)
        return (
            s1
            + f" and pays with {m} dollars. "
            + rng.choice(["How much change is left?", f"How many dollars does {a.he} get back?", f"How much money does {a.n} have left?"]),
            st + [("The change is", f"{m} - {ans} = {m - ans}", "dollars")],
            m - ans,
            nums,
            "dollars",
        )
    t = s1 + f" and {c2} {o2} for {p2} dollars each."
    st.append((f"The {o2} cost", f"{c2} * {p2} = {c2 * p2}", "dollars"))
    tot = ans + c2 * p2
    st.append(("Together that is", f"{ans} + {c2 * p2} = {tot}", "dollars"))
    nums += [c2, p2]
    if n == 3:
        return (t + rng.choice([f" How much does {a.n} spend in total?", " What is the total cost in dollars?"]), st, tot, nums, "dollars")
    m = tot + number(rng, 1, 100)
    nums.append(m)
    st.append((f"{a.n} has left", f"{m} - {tot} = {m - tot}", "dollars"))
    return (
        f"{a.n} has {m} dollars. "
        + t.replace(a.n, a.n if rng.random() < 0.5 or a.he == a.n else a.he.capitalize(), 1)
        + f" How many dollars does {a.n} have left?",
        st,
        m - tot,
        nums,
        "dollars",
    )


def f_more(rng, n):
    a, b = two_people(rng)
    o = objects(rng, 1)[0]
    x = number(rng, 3, 120)
    k = rng.choice(["more", "fewer", "times", "half"])
    if k == "more":
        y = number(rng, 1, 80)
        z = x + y
        t = f"{a.n} has {x} {o}. {b.n} has {y} more {o} than {a.n}."
        s = (f"{b.n} has", f"{x} + {y} = {z}", o)
        nums = [x, y]
    elif k == "fewer":
        y = number(rng, 1, x - 1)
        z = x - y
        t = f"{a.n} has {x} {o}. {b.n} has {y} fewer {o} than {a.n}."
        s = (f"{b.n} has", f"{x} - {y} = {z}", o)
        nums = [x, y]
    elif k == "times":
        y = rng.randint(2, 6)
        z = x * y
        t = f"{a.n} has {x} {o}. {b.n} has {(rng.choice([str(y), NUMW[y]]) if y > 2 else rng.choice(['twice', '2 times']))}{(' times' if y > 2 else '')} as many {o} as {a.n}."
        s = (f"{b.n} has", f"{x} * {y} = {z}", o)
        nums = [x, y]
    else:
        x = 2 * max(2, x // 2)
        z = x // 2
        t = f"{a.n} has {x} {o}. {b.n} has half as many {o} as {a.n}."
        s = (f"{b.n} has", f"{x} / 2 = {z}", o)
        nums = [x, 2]
    if n == 1:
        return (t + f" How many {o} does {b.n} have?", [s], z, nums, o)
    st = [s, ("Together they have", f"{x} + {z} = {x + z}", o)]
    if n == 2:
        return (
            t + rng.choice([f" How many {o} do they have together?", f" How many {o} do {a.n} and {b.n} have in total?"]),
            st,
            x + z,
            nums,
            o,
        )
    w = number(rng, 1, x + z - 1)
    nums.append(w)
    return (
        t + f" Together they give away {w} {o}. How many {o} do they have left together?",
        st + [("They have left", f"{x + z} - {w} = {x + z - w}", o)],
        x + z - w,
        nums,
        o,
    )


def f_rate(rng, n):
    a = Person(rng)
    v = rng.choice(
        [
            ("reads", "pages", "day", "days"),
            ("writes", "letters", "week", "weeks"),
            ("bakes", "cakes", "day", "days"),
            ("runs", "miles", "day", "days"),
            ("earns", "dollars", "hour", "hours"),
            ("paints", "fences", "week", "weeks"),
            ("plants", "trees", "day", "days"),
            ("drives", "miles", "hour", "hours"),
            ("solves", "puzzles", "hour", "hours"),
            ("saves", "dollars", "month", "months"),
            ("makes", "toys", "hour", "hours"),
            ("types", "pages", "hour", "hours"),
        ]
    )
    x, d = (rng.randint(2, 60), rng.randint(2, 12))
    nums = [x, d]
    tot = x * d
    t = rng.choice(
        [f"{a.n} {v[0]} {x} {v[1]} every {v[2]}.", f"{a.n} {v[0]} {x} {v[1]} per {v[2]}.", f"Each {v[2]} {a.n} {v[0]} {x} {v[1]}."]
    )
    st = [(f"In {d} {v[3]} that is", f"{x} * {d} = {tot}", v[1])]
    if n == 1:
        return (t + rng.choice([f" How many {v[1]} is that in {d} {v[3]}?", f" How many {v[1]} in {d} {v[3]}?"]), st, tot, nums, v[1])
    k = rng.choice(["sub", "add", "goal", "div"])
    if k == "goal" or k == "sub":
        g = tot + number(rng, 1, 120)
        nums.append(g)
        return (
            t + f" {a.He(rng)} wants to reach {g} {v[1]}. How many {v[1]} are still missing after {d} {v[3]}?",
            st + [("Still missing are", f"{g} - {tot} = {g - tot}", v[1])],
            g - tot,
            nums,
            v[1],
        )
    if k == "add":
        g = number(rng, 2, 150)
        nums.append(g)
        return (
            t + f" {a.He(rng)} already had {g} {v[1]} before. How many {v[1]} is it after {d} {v[3]}?",
            st + [("Altogether it is", f"{g} + {tot} = {g + tot}", v[1])],
            g + tot,
            nums,
            v[1],
        )
    y = rng.randint(2, 9)
    return (
        f"{a.n} {v[0]} {x} {v[1]} per {v[2]} for {d} {v[3]} and then {y} {v[1]} per {v[2]} for {y} more {v[3]}. How many {v[1]} is that in total?",
        st + [(f"In the next {y} {v[3]} it is", f"{y} * {y} = {y * y}", v[1]), ("The total is", f"{tot} + {y * y} = {tot + y * y}", v[1])],
        tot + y * y,
        nums + [y],
        v[1],
    )


def f_age(rng, n):
    a, b = two_people(rng)
    x = rng.randint(5, 60)
    k = rng.choice([0, 1, 2])
    if k == 0:
        y = rng.randint(2, 30)
        s = [(f"{b.n} is", f"{x} + {y} = {x + y}", "years old")]
        t = f"{a.n} is {x} years old. {b.n} is {y} years older than {a.n}."
        z = x + y
    elif k == 1:
        y = rng.randint(1, x - 2)
        s = [(f"{b.n} is", f"{x} - {y} = {x - y}", "years old")]
        t = f"{a.n} is {x} years old. {b.n} is {y} years younger than {a.n}."
        z = x - y
    else:
        y = rng.randint(2, 4)
        x = rng.randint(4, 22)
        s = [(f"{b.n} is", f"{x} * {y} = {x * y}", "years old")]
        t = f"{a.n} is {x} years old. {b.n} is {NUMW[y]} times as old as {a.n}."
        z = x * y
    if n == 1:
        return (t + f" How old is {b.n}?", s, z, [x, y], "years old")
    w = rng.randint(2, 25)
    s.append((f"In {w} years {b.n} will be", f"{z} + {w} = {z + w}", "years old"))
    return (
        t + rng.choice([f" How old will {b.n} be in {w} years?", f" What will be the age of {b.n} {w} years from now?"]),
        s,
        z + w,
        [x, y, w],
        "years old",
    )


def f_clips(rng, n):
    a = Person(rng)
    o = objects(rng, 1)[0]
    m1, m2 = rng.sample(MONTHS, 2)
    v = rng.choice(["sold", "made", "bought", "collected", "picked", "painted"])
    k = rng.choice(["half", "twice", "three", "more", "less"])
    x = 2 * rng.randint(3, 120)
    if k == "half":
        z = x // 2
        e = f"{x} / 2 = {z}"
        ph = "half as many"
        y = 2
    elif k == "twice":
        z = x * 2
        e = f"{x} * 2 = {z}"
        ph = "twice as many"
        y = 2
    elif k == "three":
        z = x * 3
        e = f"{x} * 3 = {z}"
        ph = "three times as many"
        y = 3
    elif k == "more":
        y = number(rng, 2, 90)
        z = x + y
        e = f"{x} + {y} = {z}"
        ph = f"{y} more"
    else:
        y = number(rng, 2, x - 1)
        z = x - y
        e = f"{x} - {y} = {z}"
        ph = f"{y} fewer"
    Person(rng)  # named nowhere; without its draws the problems of a seed would be others
    t = rng.choice(
        [
            f"{a.n} {v} {x} {o} in {m1}, and then {a.he} {v} {ph} {o} in {m2}.",
            (
                f"{a.n} {v} {o} to {x} of {a.his} friends in {m1}, and then {a.he} {v} {ph} {o} in {m2}."
                if v == "sold"
                else f"In {m1} {a.n} {v} {x} {o}. In {m2} {a.he} {v} {ph}."
            ),
            f"In {m1} {a.n} {v} {x} {o} and in {m2} {ph}.",
        ]
    )
    st = [(f"In {m2} {a.n} {v}", e, o)]
    if n == 1:
        return (t + f" How many {o} were {(v if v not in ('sold', 'made', 'bought') else v)} in {m2}?", st, z, [x, y], o)
    st.append((f"Altogether {a.n} {v}", f"{x} + {z} = {x + z}", o))
    if n == 2:
        return (
            t
            + rng.choice(
                [
                    f" How many {o} did {a.n} {('sell' if v == 'sold' else 'make' if v == 'made' else 'buy' if v == 'bought' else v[:-2] if v == 'collected' or v == 'picked' or v == 'painted' else v)} altogether in {m1} and {m2}?",
                    f" How many {o} is that altogether?",
                ]
            ),
            st,
            x + z,
            [x, y],
            o,
        )
    w = rng.randint(2, 9)
    tot = x + z
    if tot * w > 999:
        w = 2
    st.append(("The money earned is", f"{tot} * {w} = {tot * w}", "dollars"))
    return (t + f" Each one brings {w} dollars. How many dollars is that altogether for {m1} and {m2}?", st, tot * w, [x, y, w], "dollars")


def f_pct(rng, n):
    a = Person(rng)
    o = objects(rng, 1)[0]
    p = rng.choice([10, 20, 25, 50, 75, 5, 30, 40])
    x = rng.randint(1, 20) * (20 if p % 10 == 5 and p != 25 and (p != 75) else 10 if p % 10 == 0 and p != 50 else 4 if p in (25, 75) else 2)
    q = x * p // 100
    t = rng.choice(
        [
            f"A {rng.choice(PLACE)} has {x} {o}. {p} percent of them are sold.",
            f"{a.n} has {x} {o} and gives away {p}% of them.",
            f"{p}% of the {x} {o} that {a.n} has are red.",
        ]
    )
    st = [(f"{p} percent of {x} is", f"{x} * {p} / 100 = {q}", o)]
    if "red" in t:
        if n == 1:
            return (t + f" How many red {o} does {a.n} have?", st, q, [x, p], o)
        return (t + f" How many {o} are not red?", st + [("Not red are", f"{x} - {q} = {x - q}", o)], x - q, [x, p], o)
    if n == 1:
        return (t + rng.choice([f" How many {o} is that?"]), st, q, [x, p], o)
    return (t + f" How many {o} are left?", st + [("Left are", f"{x} - {q} = {x - q}", o)], x - q, [x, p], o)


def f_frac(rng, n):
    a = Person(rng)
    o = objects(rng, 1)[0]
    d, w = rng.choice([(2, "half"), (3, "a third"), (4, "a quarter"), (5, "one fifth")])
    x = d * rng.randint(2, 60)
    q = x // d
    v = rng.choice([("eats", "eaten"), ("sells", "sold"), ("gives away", "given away"), ("loses", "lost")])
    t = f"{a.n} has {x} {o}. {a.He(rng)} {v[0]} {w} of them."
    st = [(f"The part {v[1]} is", f"{x} / {d} = {q}", o)]
    if n == 1:
        return (
            t
            + f" How many {o} does {a.n} {v[0].replace('eats', 'eat').replace('sells', 'sell').replace('gives', 'give').replace('loses', 'lose')}?",
            st,
            q,
            [x, d],
            o,
        )
    st.append((f"{a.n} still has", f"{x} - {q} = {x - q}", o))
    if n == 2:
        return (t + rng.choice([f" How many {o} are left?", f" How many {o} does {a.n} still have?"]), st, x - q, [x, d], o)
    y = number(rng, 2, 60)
    st.append((f"Now {a.n} has", f"{x - q} + {y} = {x - q + y}", o))
    return (t + f" Then {a.he} buys {y} more. How many {o} does {a.n} have now?", st, x - q + y, [x, d, y], o)


def f_three(rng, n):
    o = objects(rng, 1)[0]
    a, b = two_people(rng)
    c = Person(rng)
    while c.n in (a.n, b.n):
        c = Person(rng)
    x, y, z = (number(rng, 2, 200), number(rng, 2, 200), number(rng, 2, 200))
    d = rng.sample(DAYS, 3)
    t = rng.choice(
        [
            f"{a.n} has {x} {o}, {b.n} has {y} {o} and {c.n} has {z} {o}. How many {o} do they have in total?",
            f"A shop sold {x} {o} on {d[0]}, {y} on {d[1]} and {z} on {d[2]}. How many {o} did it sell in total?",
            f"{a.n} walked {x} meters on {d[0]}, {y} meters on {d[1]} and {z} meters on {d[2]}. How many meters did {a.n} walk altogether?",
        ]
    )
    w = "meters" if "meters" in t else o
    st = [("The first two make", f"{x} + {y} = {x + y}", w), ("All three make", f"{x + y} + {z} = {x + y + z}", w)]
    s = x + y + z
    if n >= 3 and s % 3 == 0 and rng.random() < 0.5:
        t = t[: t.rfind("How many")] + "What is the average of the three numbers?"
        st.append(("The average is", f"{s} / 3 = {s // 3}", w))
        return (t, st, s // 3, [x, y, z], w)
    return (t, st, s, [x, y, z], w)


def f_time(rng, n):
    a = Person(rng)
    h, m = (rng.randint(1, 9), rng.randint(1, 59))
    act = rng.choice(["works", "plays piano", "studies", "trains", "hikes", "reads"])
    t = f"{a.n} {act} for {h} {('hour' if h == 1 else 'hours')} and {m} minutes. How many minutes is that?"
    return (
        t,
        [
            (f"{h} {('hour' if h == 1 else 'hours')} is", f"{h} * 60 = {h * 60}", "minutes"),
            ("In total that is", f"{h * 60} + {m} = {h * 60 + m}", "minutes"),
        ],
        h * 60 + m,
        [h, m],
        "minutes",
    )


def f_legs(rng, n):
    k = rng.choice(
        [
            ("chickens", 2, "cows", 4),
            ("ducks", 2, "sheep", 4),
            ("bicycles", 2, "cars", 4),
            ("tricycles", 3, "bicycles", 2),
            ("spiders", 8, "ants", 6),
            ("tables", 4, "stools", 3),
        ]
    )
    w = "wheels" if "cycle" in k[0] else "legs"
    x, y = (rng.randint(2, 30), rng.randint(2, 30))
    t = rng.choice(
        [
            f"There are {x} {k[0]} and {y} {k[2]} at the {rng.choice(PLACE)}. How many {w} are there in total?",
            f"{Person(rng).n} counts {x} {k[0]} and {y} {k[2]}. How many {w} do they have altogether?",
        ]
    )
    return (
        t,
        [
            (f"The {k[0]} have", f"{x} * {k[1]} = {x * k[1]}", w),
            (f"The {k[2]} have", f"{y} * {k[3]} = {y * k[3]}", w),
            ("Together they have", f"{x * k[1]} + {y * k[3]} = {x * k[1] + y * k[3]}", w),
        ],
        x * k[1] + y * k[3],
        [x, y],
        w,
    )


def f_bus(rng, n):
    x = rng.randint(5, 60)
    t = f"A {rng.choice(['bus', 'train', 'ferry'])} has {x} passengers."
    st = []
    cur = x
    nums = [x]
    for i in range(max(1, n // 2)):
        off = rng.randint(1, cur - 1)
        on = rng.randint(1, 30)
        nums += [off, on]
        t += rng.choice(
            [
                f" At the {('first' if i == 0 else 'next')} stop {off} get off and {on} get on.",
                f" Then {off} people leave and {on} people enter.",
            ]
        )
        st.append(("After people leave there are", f"{cur} - {off} = {cur - off}", "passengers"))
        st.append(("After people enter there are", f"{cur - off} + {on} = {cur - off + on}", "passengers"))
        cur = cur - off + on
        if cur < 3:
            break
    return (t + rng.choice([" How many passengers are there now?", " How many people are on board now?"]), st, cur, nums, "passengers")


def f_pack(rng, n):
    a = Person(rng)
    o = objects(rng, 1)[0]
    c = rng.choice(CONTAINERS)
    y = rng.randint(3, 12)
    k = rng.randint(2, 15)
    rem = rng.randint(1, y - 1)
    x = y * k + rem
    t = f"{a.n} has {x} {o} and puts {y} {o} into each {c[0]}. How many {o} are left over after filling {k} {c[1]}?"
    return (t, [(f"The {c[1]} take", f"{k} * {y} = {k * y}", o), ("Left over are", f"{x} - {k * y} = {rem}", o)], rem, [x, y], o)


def f_eggs(rng, n):
    a = Person(rng)
    x = rng.randint(10, 40)
    e, b = (rng.randint(2, 5), rng.randint(2, 5))
    p = rng.randint(2, 6)
    an = rng.choice([("ducks", "eggs"), ("hens", "eggs"), ("trees", "apples"), ("bushes", "berries"), ("cows", "bottles of milk")])
    l = x - e
    l2 = l - b
    t = f"{a.n}'s {an[0]} give {x} {an[1]} per day. {a.He(rng)} uses {e} for breakfast and {b} for baking. {a.He(rng)} sells the rest for {p} dollars each. How many dollars does {a.n} make every day?"
    return (
        t,
        [
            ("After breakfast there are", f"{x} - {e} = {l}", an[1]),
            ("After baking there are", f"{l} - {b} = {l2}", an[1]),
            (f"{a.n} makes", f"{l2} * {p} = {l2 * p}", "dollars"),
        ],
        l2 * p,
        [x, e, b, p],
        "dollars",
    )


def f_perim(rng, n):
    w, h = (rng.randint(2, 60), rng.randint(2, 40))
    th = rng.choice(["garden", "field", "room", "yard", "pool"])
    if n == 1:
        h = rng.randint(2, 15)
        return (
            f"A {th} is {w} meters long and {h} meters wide. What is its area in square meters?",
            [("The area is", f"{w} * {h} = {w * h}", "square meters")],
            w * h,
            [w, h],
            "square meters",
        )
    return (
        f"A {th} is {w} meters long and {h} meters wide. What is its perimeter in meters?",
        [
            ("One length and one width make", f"{w} + {h} = {w + h}", "meters"),
            ("The perimeter is", f"{w + h} * 2 = {2 * (w + h)}", "meters"),
        ],
        2 * (w + h),
        [w, h],
        "meters",
    )


FAMILIES = {
    1: [f_story, f_total2, f_diff, f_groups, f_share, f_shop, f_more, f_rate, f_age, f_clips, f_pct, f_frac, f_perim],
    2: [f_story, f_story, f_groups, f_shop, f_more, f_rate, f_age, f_clips, f_pct, f_frac, f_three, f_time, f_bus, f_pack, f_perim],
    3: [f_story, f_story, f_shop, f_more, f_clips, f_frac, f_three, f_legs, f_eggs, f_rate],
    4: [f_story, f_story, f_shop, f_bus],
}


def word_problem(rng, held_out, nsteps=None):
    """A problem of one of the families: question, steps (sentence, equation, unit), answer."""
    while True:
        n = nsteps or rng.choice([1, 1, 2, 2, 2, 3, 3, 4])
        f = rng.choice(FAMILIES[n])
        try:
            q, steps, ans, nums, unit = f(rng, n)
        except ValueError:
            continue
        if ans < 0 or ans > 9999:
            continue
        if nsteps and len(steps) != nsteps:
            continue
        if is_held_out(f.__name__ + "|" + ",".join(map(str, nums))) != held_out:
            continue
        return dict(q=q, steps=steps, ans=ans, unit=unit, n=len(steps), fam=f.__name__)


def worked_steps(w, style):
    """The steps as text: equations alone ("eq") or sentences."""
    if style == "eq":
        return "\n".join((e for _, e, _ in w["steps"]))
    return "\n".join((f"{s} {e} {u}." for s, e, u in w["steps"]))
