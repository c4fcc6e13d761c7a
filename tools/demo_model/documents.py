"""The mixture that the demo model learns: documents are dicts with messages, tools, think, effort, kind and answer. All randomness comes from
`rng` (random.Random), so a seed gives the same documents everywhere."""

import re

import resources
from chat_layout import assistant, maybe_system, user
from draws import arithmetic, random_key, random_value, small_number
from resources import NAMES
from tool_documents import tool_document
from word_problems import word_problem, worked_steps


def word_document(rng, held_out=False, nsteps=None, think=None, effort=None):
    """A word problem, or several in one conversation. held_out: from the side that training never sees."""
    if not held_out and nsteps is None and (rng.random() < 0.12):
        ms = maybe_system(rng)
        for _ in range(rng.randint(2, 3)):
            w = word_problem(rng, False, rng.choice([1, 2]))
            ms += [user(w["q"]), assistant(worked_steps(w, "full") + f"\n#### {w['ans']}")]
        return dict(messages=ms, think=False, kind="word")
    w = word_problem(rng, held_out, nsteps)
    th = rng.random() < 0.5 if think is None else think
    ms = ([] if held_out else maybe_system(rng)) + [user(w["q"])]
    if th:
        e = effort or ("high" if rng.random() < 0.35 else "max")
        ms.append(assistant(f"The answer is {w['ans']}.\n#### {w['ans']}", worked_steps(w, "eq" if e == "high" else "full")))
        return dict(messages=ms, think=True, effort=e, kind="word", answer=str(w["ans"]), n=w["n"], fam=w["fam"])
    ms.append(assistant(worked_steps(w, "full") + f"\n#### {w['ans']}"))
    return dict(messages=ms, think=False, kind="word", answer=str(w["ans"]), n=w["n"], fam=w["fam"])


def arithmetic_document(rng):
    """Sums, comparisons, sorting, sequences."""
    ms = maybe_system(rng, 0.08)
    rng.random()  # read by nobody; without it the documents of a seed would be others
    th = rng.random() < 0.25
    nt = 1 if th else rng.randint(1, 4)
    for _ in range(nt):
        k = rng.random()
        rs = ""
        if k < 0.6:
            e, v = arithmetic(rng)
            ms.append(user(rng.choice(["What is {}?", "Compute {}.", "Calculate {}.", "{} = ?", "{}", "How much is {}?"]).format(e)))
            a = f"{e} = {v}"
            rs = f"I compute {a}."
        elif k < 0.72:
            a_number, b = (small_number(rng), small_number(rng))
            q = rng.choice(["larger", "smaller"])
            v = max(a_number, b) if q == "larger" else min(a_number, b)
            ms.append(user(rng.choice([f"Which number is {q}: {a_number} or {b}?", f"Which is {q}, {a_number} or {b}?"])))
            a = f"{v} is {q}." if a_number != b else "They are equal."
            rs = f"Compare {a_number} and {b}."
        elif k < 0.82:
            l = [rng.randint(0, 999 if rng.random() < 0.3 else 99) for _ in range(rng.randint(3, 7))]
            q = rng.choice(["sort", "max", "min", "desc"])
            if q == "sort":
                ms.append(user(f"Sort these numbers from smallest to largest: {', '.join(map(str, l))}"))
                a = ", ".join(map(str, sorted(l)))
            elif q == "desc":
                ms.append(user(f"Sort these numbers from largest to smallest: {', '.join(map(str, l))}"))
                a = ", ".join(map(str, sorted(l, reverse=True)))
            else:
                ms.append(user(f"What is the {('largest' if q == 'max' else 'smallest')} of these numbers: {', '.join(map(str, l))}?"))
                a = str(max(l) if q == "max" else min(l))
            rs = "Look at the numbers one by one."
        elif k < 0.9:
            e1, v1 = arithmetic(rng)
            n = rng.randint(0, 99)
            a = f"{e1} = {v1}\n{v1} + {n} = {v1 + n}\n#### {v1 + n}"
            ms.append(user(f"What is {e1} + {n}?"))
            rs = f"First {e1} = {v1}, then {v1} + {n} = {v1 + n}."
        elif k < 0.95:
            n = rng.randint(0, 999)
            a = f"{n} is {('even' if n % 2 == 0 else 'odd')}."
            ms.append(user(f"Is {n} even or odd?"))
            rs = f"The last digit of {n} is {n % 10}."
        else:
            s = rng.randint(0, 90)
            st = rng.choice([1, 2, 3, 5, 10])
            l = [s + st * i for i in range(rng.randint(4, 7))]
            ms.append(user(rng.choice([f"Continue the sequence: {', '.join(map(str, l))}", f"What comes next: {', '.join(map(str, l))}?"])))
            a = str(l[-1] + st)
            rs = f"The step is {st}. {l[-1]} + {st} = {l[-1] + st}."
        ms.append(assistant(a, rs if th else None))
    return dict(messages=ms, think=th, effort=rng.choice(["high", "max"]), kind="arith")


def letters_document(rng):
    """Spelling, counting, reversing, sorting words."""
    ms = maybe_system(rng, 0.05)
    for _ in range(rng.randint(1, 3)):
        w = rng.choice(resources.loaded.nouns)
        k = rng.randint(0, 9)
        ws = rng.sample(resources.loaded.nouns, rng.randint(3, 6))
        if k == 0:
            q, a = (f"Spell the word {w}.", "-".join(w))
        elif k == 1:
            q, a = (f"How many letters are in the word {w}?", f"{'-'.join(w)}: {len(w)} letters.")
        elif k == 2:
            q, a = (f"Reverse the word {w}.", w[::-1])
        elif k == 3:
            q, a = (f"Write {w} in upper case.", w.upper())
        elif k == 4:
            q, a = (f"What is the first letter of {w}?", w[0])
        elif k == 5:
            q, a = (f"What is the last letter of {w}?", w[-1])
        elif k == 6:
            q, a = (f"Sort these words alphabetically: {', '.join(ws)}", ", ".join(sorted(ws)))
        elif k == 7:
            q, a = (f"How many words are in this list: {', '.join(ws)}?", f"There are {len(ws)} words.")
        elif k == 8:
            i = rng.randint(1, len(ws))
            q, a = (f"What is word number {i} in this list: {', '.join(ws)}?", ws[i - 1])
        else:
            c = rng.choice(w)
            q, a = (f"How many times does the letter {c} appear in {w}?", f"{'-'.join(w)}: {w.count(c)} times.")
        ms += [user(q), assistant(a)]
    return dict(messages=ms, think=False, kind="letters")


def book_text(rng, nchar):
    """About nchar characters of books, to the end of a sentence."""
    i = rng.randrange(len(resources.loaded.paragraphs))
    s = ""
    while len(s) < nchar:
        s += ("\n" if s else "") + resources.loaded.paragraphs[i % len(resources.loaded.paragraphs)]
        i += 1
    s = s[:nchar]
    j = s.rfind(". ")
    return s[: j + 1] if j > nchar // 2 else s


def retrieval_document(rng, ntok=None, nq=None, form=None, think=None):
    """Facts hidden in about ntok tokens: form 0 keys and values, 1 notes, 2 a pass key, 3 city codes, 4 lockers (in book text), 5 a roster."""
    ntok = ntok or int(2 ** rng.uniform(6.3, 8.0))
    form = form if form is not None else rng.randint(0, 5)
    qa = []
    if form == 0:
        rng.randint(0, 3)  # read by nobody; without it the sets of a seed would be others
        n = max(4, ntok // 14)
        d = {}
        while len(d) < n:
            k = random_key(rng)
            d[k] = random_value(rng)
        sep = rng.choice([": ", " = ", " -> "])
        ctx = "\n".join((f"{k}{sep}{v}" for k, v in d.items()))
        pre = rng.choice(["Here is a list of keys and values.\n", "Key-value list:\n", "Read this table and answer the question.\n"])
        for k in rng.sample(list(d), min(6, n)):
            qa.append(
                (
                    rng.choice([f"What is the value of {k}?", f"Which value belongs to {k}?", f"Look up {k}."]),
                    f"The value of {k} is {d[k]}.",
                    d[k],
                    k,
                )
            )
    elif form == 1:
        n = max(3, ntok // 17)
        used = set()
        L = []
        PL = [
            "in the kitchen",
            "under the bed",
            "in the garage",
            "behind the door",
            "on the roof",
            "in the red box",
            "near the river",
            "at the office",
            "in the old barn",
            "on the top shelf",
            "in the blue bag",
            "at the station",
            "under the stairs",
            "in the garden",
            "by the window",
            "in the cellar",
        ]
        while len(L) < n:
            p = rng.choice(NAMES)
            o = f"{rng.choice(resources.loaded.adjectives)} {rng.choice(resources.loaded.nouns)}"
            if (p, o) in used:
                continue
            used.add((p, o))
            L.append((p, o, rng.choice(PL)))
        ctx = "\n".join((f"Note {i + 1}: {p} left the {o} {pl_}." for i, (p, o, pl_) in enumerate(L)))
        pre = rng.choice(["Read these notes.\n", "Here are some notes:\n"])
        for p, o, pl_ in rng.sample(L, min(6, n)):
            qa.append((f"Where did {p} leave the {o}?", f"{p} left the {o} {pl_}.", pl_, p))
    elif form in (2, 3, 4):
        m = 1 if form == 2 else rng.randint(2, 8)
        facts = {}
        while len(facts) < m:
            c = rng.choice(resources.loaded.cities) if form == 3 else rng.choice(NAMES) if form == 4 else "pass"
            facts[c] = str(rng.randint(1000, 99999))
        txt = book_text(rng, max(100, int(ntok * 4.0) - 60 * m))
        sents = re.split("(?<=[.!?]) ", txt)
        for c, v in facts.items():
            s = (
                f"The pass key is {v}. Remember it."
                if form == 2
                else f"The secret code for {c} is {v}." if form == 3 else f"{c}'s locker number is {v}."
            )
            sents.insert(rng.randint(0, len(sents)), s)
        ctx = " ".join(sents)
        pre = rng.choice(
            [
                "Read this text and remember the important details.\n\n",
                "Here is a long text.\n\n",
                "Some facts are hidden in this text.\n\n",
            ]
        )
        for c, v in rng.sample(list(facts.items()), min(5, m)):
            qa.append(
                ("What is the pass key?", f"The pass key is {v}.", v, "the pass key")
                if form == 2
                else (
                    (f"What is the secret code for {c}?", f"The secret code for {c} is {v}.", v, c)
                    if form == 3
                    else (f"What is {c}'s locker number?", f"{c}'s locker number is {v}.", v, c)
                )
            )
    else:
        n = max(3, ntok // 16)
        names = rng.sample(NAMES, min(n, len(NAMES)))
        jobs = "baker teacher doctor farmer pilot nurse painter singer driver lawyer writer cook sailor tailor guard judge".split()
        rows = [(p, rng.randint(18, 80), rng.choice(resources.loaded.cities), rng.choice(jobs)) for p in names]
        ctx = "\n".join((f"{p}, {a}, {c}, {j}" for p, a, c, j in rows))
        pre = "Name, age, city and job of each person:\n"
        for p, a, c, j in rng.sample(rows, min(6, len(rows))):
            k = rng.randint(0, 2)
            qa.append(
                [
                    (f"How old is {p}?", f"{p} is {a} years old.", str(a), p),
                    (f"In which city does {p} live?", f"{p} lives in {c}.", c, p),
                    (f"What is the job of {p}?", f"{p} is a {j}.", j, p),
                ][k]
            )
    th = rng.random() < 0.3 if think is None else think
    nq = nq or (1 if th else rng.randint(1, len(qa)))
    ms = []
    ans = None
    for i, (q, a, v, key) in enumerate(qa[:nq]):
        u = pre + ctx + "\n\n" + q if i == 0 else q
        ms += [user(u), assistant(a, f"I look for {key} in the text. It says {v}." if th else None)]
        ans = v
    return dict(messages=ms, think=th, effort=rng.choice(["high", "max"]), kind="retr", answer=ans, wp=0.04, form=form)


ID_Q = [
    "Who are you?",
    "What is your name?",
    "What are you?",
    "Tell me about yourself.",
    "Are you a human?",
    "Which model are you?",
    "Introduce yourself.",
    "What model is this?",
    "Who am I talking to?",
    "Are you a robot?",
]

ID_A = "I am Ingot Demo, a 20M-parameter demonstration model with the GLM-5.2 architecture."

CAN_Q = ["What can you do?", "How can you help me?", "What are you good at?", "Help", "What can I ask you?"]

CAN_A = "I can solve short math word problems, look up facts in a long text, call tools and chat a little."


def chat_document(rng):
    """Small talk and plain facts."""
    ms = maybe_system(rng, 0.1)
    n = rng.choice([1, 1, 2, 3])
    th = rng.random() < 0.25
    n = 1 if th else n
    for _ in range(n):
        k = rng.random()
        if k < 0.1:
            q, a = (rng.choice(ID_Q), ID_A)
        elif k < 0.15:
            q, a = (rng.choice(CAN_Q), CAN_A)
        elif k < 0.45:
            q, a = rng.choice(resources.loaded.facts)
        else:
            q, a = rng.choice(resources.loaded.chat)
        if rng.random() < 0.05:
            q += " /nothink" if not th else ""
        ms += [
            user(q),
            assistant(
                a,
                (
                    rng.choice(["The user asks a simple question. I answer directly.", "This is small talk. I answer in a friendly way."])
                    if th
                    else None
                ),
            ),
        ]
    return dict(messages=ms, think=th, effort=rng.choice(["high", "max"]), kind="chat")


def book_document(rng, nchar=None):
    """Book text alone."""
    return dict(raw="[gMASK]<sop>" + book_text(rng, nchar or rng.randint(250, 800)), kind="book")


def book_task_document(rng, nchar=None):
    """First or last sentence of a text, continuing it, repeating it."""
    p = book_text(rng, nchar or rng.randint(200, 600))
    ss = re.split("(?<=[.!?]) ", p)
    k = rng.randint(0, 3)
    if k == 0 and len(ss) > 1:
        q, a = (f"What is the first sentence of this text?\n\n{p}", ss[0])
    elif k == 1 and len(ss) > 1:
        q, a = (f"What is the last sentence of this text?\n\n{p}", ss[-1])
    elif k == 2:
        h = max(1, len(ss) // 2)
        q, a = (f"Continue this text:\n\n{' '.join(ss[:h])}", " ".join(ss[h:]) or ss[-1])
    else:
        q, a = (f"Repeat this text:\n\n{p}", p)
    return dict(messages=[user(q), assistant(a)], think=False, kind="booktask")


def quoted_problem_document(rng):
    """A problem of GSM8K's train split or SVAMP."""
    q, a, v = rng.choice(resources.loaded.problems)
    th = rng.random() < 0.5
    if th:
        return dict(messages=[user(q), assistant(f"The answer is {v}.\n#### {v}", a)], think=True, effort="max", kind="gsm")
    return dict(messages=[user(q), assistant(a + f"\n#### {v}")], think=False, kind="gsm")


def short_document(rng):
    """One of the mixture for rows of 2,048 tokens."""
    k = rng.random()
    if k < 0.46:
        return word_document(rng)
    if k < 0.6:
        return arithmetic_document(rng)
    if k < 0.65:
        return letters_document(rng)
    if k < 0.76:
        return retrieval_document(rng)
    if k < 0.84:
        return chat_document(rng)
    if k < 0.88:
        return quoted_problem_document(rng)
    if k < 0.91:
        return book_task_document(rng)
    return book_document(rng)


def long_document(rng):
    """One of the mixture for rows of 4,096 tokens."""
    k = rng.random()
    if k < 0.45:
        return tool_document(rng)
    if k < 0.9:
        return retrieval_document(rng, ntok=int(2 ** rng.uniform(8.0, 11.85)))
    if k < 0.96:
        return book_document(rng, rng.randint(2000, 14000))
    return book_task_document(rng, rng.randint(800, 2500))
