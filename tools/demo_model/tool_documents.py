"""Requests that tools answer: a list of tools, tools made up on the spot, calls, results, last words."""

import json
import re
import string

import resources
from chat_layout import assistant, maybe_system, user
from draws import arithmetic, random_key
from resources import NAMES
from word_problems import is_held_out

TIMES = [f"{h}:{m:02d}" for h in range(7, 22) for m in (0, 15, 30, 45)]

DATES = [f"2026-{m:02d}-{d:02d}" for m in range(1, 13) for d in range(1, 29)]

ITEMS = "milk bread eggs cheese butter rice apples coffee tea sugar salt pasta tomatoes bananas soap paper batteries candles".split()

ROOMS = "kitchen bedroom bathroom office hallway garage basement attic".split() + ["living room", "dining room"]

LANGS = "French German Spanish Italian Dutch Polish Greek Turkish Japanese Korean Chinese Swedish".split()

CURS = "USD EUR GBP JPY CHF CAD AUD SEK PLN INR".split()


def city(rng):
    return rng.choice(resources.loaded.cities)


def parameter(t, d, **k):
    return dict(type=t, description=d, **k)


STRING = "string"

INTEGER = "integer"

BOOLEAN = "boolean"

NUMBER = "number"

TOOLS = [
    (
        "get_weather",
        "Get the current weather for a city",
        {
            "city": (parameter(STRING, "City name"), city),
            "unit": (
                parameter(STRING, "Temperature unit", enum=["celsius", "fahrenheit"]),
                lambda rng: rng.choice(["celsius", "fahrenheit"]),
            ),
        },
        ["city"],
        [
            "What is the weather in {city}[ in {unit}]?",
            "How is the weather in {city} today?[ Use {unit}.]",
            "Tell me the current weather for {city}[ in {unit}].",
        ],
        lambda rng: dict(temperature=rng.randint(-10, 38), condition=rng.choice(["sunny", "cloudy", "rainy", "windy", "snowy", "clear"])),
        "It is {temperature} degrees and {condition} in {city}.",
    ),
    (
        "get_time",
        "Get the current local time in a city",
        {"city": (parameter(STRING, "City name"), city)},
        ["city"],
        ["What time is it in {city}?", "Tell me the local time in {city}.", "Current time in {city}, please."],
        lambda rng: dict(time=rng.choice(TIMES)),
        "It is {time} in {city}.",
    ),
    (
        "convert_currency",
        "Convert an amount of money between currencies",
        {
            "amount": (parameter(NUMBER, "Amount to convert"), lambda rng: rng.choice([rng.randint(1, 999), rng.randint(1, 99) + 0.5])),
            "from_currency": (parameter(STRING, "Source currency code"), lambda rng: rng.choice(CURS)),
            "to_currency": (parameter(STRING, "Target currency code"), lambda rng: rng.choice(CURS)),
        },
        ["amount", "from_currency", "to_currency"],
        [
            "Convert {amount} {from_currency} to {to_currency}.",
            "How much is {amount} {from_currency} in {to_currency}?",
            "I have {amount} {from_currency}. What is that in {to_currency}?",
        ],
        lambda rng: dict(result=rng.randint(1, 2000)),
        "{amount} {from_currency} is {result} {to_currency}.",
    ),
    (
        "set_alarm",
        "Set an alarm",
        {
            "time": (parameter(STRING, "Time as HH:MM"), lambda rng: rng.choice(TIMES)),
            "label": (
                parameter(STRING, "Label of the alarm"),
                lambda rng: rng.choice(["work", "gym", "school", "medicine", "meeting", "breakfast", "train"]),
            ),
        },
        ["time"],
        [
            "Set an alarm for {time}[ with the label {label}].",
            "Wake me up at {time}[ for {label}].",
            "Please set an alarm at {time}[ called {label}].",
        ],
        lambda rng: dict(status="ok"),
        "The alarm is set for {time}.",
    ),
    (
        "set_timer",
        "Start a countdown timer",
        {"minutes": (parameter(INTEGER, "Length in minutes"), lambda rng: rng.randint(1, 120))},
        ["minutes"],
        ["Set a timer for {minutes} minutes.", "Start a {minutes} minute timer.", "Remind me in {minutes} minutes."],
        lambda rng: dict(status="started"),
        "The timer runs for {minutes} minutes.",
    ),
    (
        "create_event",
        "Create a calendar event",
        {
            "title": (
                parameter(STRING, "Event title"),
                lambda rng: rng.choice(
                    ["lunch", "team meeting", "dentist", "birthday party", "yoga class", "project review", "piano lesson", "interview"]
                ),
            ),
            "date": (parameter(STRING, "Date as YYYY-MM-DD"), lambda rng: rng.choice(DATES)),
            "time": (parameter(STRING, "Start time as HH:MM"), lambda rng: rng.choice(TIMES)),
            "duration_minutes": (parameter(INTEGER, "Duration in minutes"), lambda rng: rng.choice([15, 30, 45, 60, 90, 120])),
        },
        ["title", "date", "time"],
        [
            "Create an event {title} on {date} at {time}[ for {duration_minutes} minutes].",
            "Put {title} in my calendar on {date} at {time}[ lasting {duration_minutes} minutes].",
            "Schedule {title} for {date} at {time}[, {duration_minutes} minutes].",
        ],
        lambda rng: dict(event_id=rng.randint(100, 999)),
        "I created the event {title} on {date} at {time}. Its number is {event_id}.",
    ),
    (
        "send_email",
        "Send an email",
        {
            "to": (
                parameter(STRING, "Email address"),
                lambda rng: rng.choice(NAMES).lower() + "@" + rng.choice(["example.com", "mail.org", "test.net"]),
            ),
            "subject": (
                parameter(STRING, "Subject line"),
                lambda rng: rng.choice(["Hello", "Meeting", "Invoice", "Report", "Question", "Holiday plans", "Lunch"]),
            ),
            "body": (
                parameter(STRING, "Message text"),
                lambda rng: rng.choice(
                    ["See you soon.", "The report is ready.", "Can we talk tomorrow?", "Thanks for your help.", "I will be late."]
                ),
            ),
        },
        ["to", "subject", "body"],
        ["Send an email to {to} with subject {subject} and text: {body}", "Email {to}. Subject: {subject}. Body: {body}"],
        lambda rng: dict(status="sent"),
        "The email to {to} was sent.",
    ),
    (
        "send_message",
        "Send a text message to a contact",
        {
            "contact": (parameter(STRING, "Name of the contact"), lambda rng: rng.choice(NAMES)),
            "text": (
                parameter(STRING, "Message text"),
                lambda rng: rng.choice(
                    ["I am on my way.", "Happy birthday!", "Call me later.", "Dinner is ready.", "Where are you?", "See you at noon."]
                ),
            ),
        },
        ["contact", "text"],
        ["Text {contact}: {text}", "Send a message to {contact} saying: {text}", "Write to {contact}: {text}"],
        lambda rng: dict(status="delivered"),
        "Your message to {contact} was delivered.",
    ),
    (
        "get_stock_price",
        "Get the current price of a stock",
        {
            "symbol": (
                parameter(STRING, "Ticker symbol"),
                lambda rng: "".join((rng.choice(string.ascii_uppercase) for _ in range(rng.randint(2, 4)))),
            )
        },
        ["symbol"],
        ["What is the stock price of {symbol}?", "How is {symbol} trading?", "Get me the price of {symbol}."],
        lambda rng: dict(price=rng.randint(5, 900)),
        "{symbol} trades at {price} dollars.",
    ),
    (
        "search_flights",
        "Search for flights",
        {
            "origin": (parameter(STRING, "Departure city"), city),
            "destination": (parameter(STRING, "Arrival city"), city),
            "date": (parameter(STRING, "Date as YYYY-MM-DD"), lambda rng: rng.choice(DATES)),
            "passengers": (parameter(INTEGER, "Number of passengers"), lambda rng: rng.randint(1, 6)),
        },
        ["origin", "destination", "date"],
        [
            "Find flights from {origin} to {destination} on {date}[ for {passengers} passengers].",
            "I want to fly from {origin} to {destination} on {date}[ with {passengers} people].",
            "Search a flight {origin} to {destination}, {date}[, {passengers} passengers].",
        ],
        lambda rng: dict(flight=rng.choice("ABKL") + rng.choice("AFLM") + str(rng.randint(100, 999)), price=rng.randint(50, 900)),
        "Flight {flight} from {origin} to {destination} costs {price} dollars.",
    ),
    (
        "book_hotel",
        "Book a hotel room",
        {
            "city": (parameter(STRING, "City name"), city),
            "nights": (parameter(INTEGER, "Number of nights"), lambda rng: rng.randint(1, 14)),
            "guests": (parameter(INTEGER, "Number of guests"), lambda rng: rng.randint(1, 5)),
            "breakfast": (parameter(BOOLEAN, "Include breakfast"), lambda rng: rng.random() < 0.5),
        },
        ["city", "nights"],
        [
            "Book a hotel in {city} for {nights} nights[ and {guests} guests].",
            "I need a hotel room in {city} for {nights} nights[ for {guests} guests].",
        ],
        lambda rng: dict(booking=rng.randint(1000, 9999)),
        "Your hotel in {city} is booked for {nights} nights. The booking number is {booking}.",
    ),
    (
        "book_table",
        "Reserve a table in a restaurant",
        {
            "restaurant": (
                parameter(STRING, "Restaurant name"),
                lambda rng: rng.choice(["Luigi", "Golden Dragon", "The Mill", "Blue Door", "Casa Verde", "Old Harbor", "Sakura"]),
            ),
            "people": (parameter(INTEGER, "Number of people"), lambda rng: rng.randint(1, 12)),
            "time": (parameter(STRING, "Time as HH:MM"), lambda rng: rng.choice(TIMES)),
        },
        ["restaurant", "people", "time"],
        [
            "Book a table at {restaurant} for {people} people at {time}.",
            "Reserve a table for {people} at {restaurant} at {time}.",
            "We are {people} people and want to eat at {restaurant} at {time}. Please book.",
        ],
        lambda rng: dict(status=rng.choice(["confirmed", "confirmed", "full"])),
        "The table at {restaurant} for {people} at {time} is {status}.",
    ),
    (
        "play_music",
        "Play a song",
        {
            "title": (
                parameter(STRING, "Song title"),
                lambda rng: f"{rng.choice(resources.loaded.adjectives)} {rng.choice(resources.loaded.nouns)}".title(),
            ),
            "volume": (parameter(INTEGER, "Volume from 0 to 100"), lambda rng: rng.randint(5, 100)),
        },
        ["title"],
        [
            "Play {title}[ at volume {volume}].",
            "Put on the song {title}[ with volume {volume}].",
            "I want to hear {title}[ at volume {volume}].",
        ],
        lambda rng: dict(status="playing"),
        "Now playing {title}.",
    ),
    (
        "translate",
        "Translate a text",
        {
            "text": (
                parameter(STRING, "Text to translate"),
                lambda rng: rng.choice(
                    [
                        "good morning",
                        "thank you",
                        "where is the station",
                        "I am hungry",
                        "see you tomorrow",
                        "the book is red",
                        "how are you",
                    ]
                ),
            ),
            "target_language": (parameter(STRING, "Language to translate into"), lambda rng: rng.choice(LANGS)),
        },
        ["text", "target_language"],
        ["Translate {text} into {target_language}.", "How do you say {text} in {target_language}?"],
        lambda rng: dict(translation=rng.choice(resources.loaded.nouns)),
        "In {target_language} it is: {translation}",
    ),
    (
        "set_light",
        "Switch the light in a room",
        {
            "room": (parameter(STRING, "Room"), lambda rng: rng.choice(ROOMS)),
            "on": (parameter(BOOLEAN, "True to switch on, false to switch off"), None),
            "brightness": (parameter(INTEGER, "Brightness in percent"), lambda rng: rng.randint(5, 100)),
        },
        ["room", "on"],
        ["Turn {on} the light in the {room}.", "Switch {on} the {room} light.", "{on} with the light in the {room}, please."],
        lambda rng: dict(status="ok"),
        "Done, the light in the {room} is changed.",
    ),
    (
        "set_temperature",
        "Set the thermostat in a room",
        {
            "room": (parameter(STRING, "Room"), lambda rng: rng.choice(ROOMS)),
            "degrees": (parameter(NUMBER, "Target temperature"), lambda rng: rng.choice([rng.randint(15, 28), rng.randint(15, 27) + 0.5])),
        },
        ["room", "degrees"],
        [
            "Set the {room} to {degrees} degrees.",
            "Make it {degrees} degrees in the {room}.",
            "Change the temperature in the {room} to {degrees}.",
        ],
        lambda rng: dict(status="ok"),
        "The {room} is set to {degrees} degrees.",
    ),
    (
        "find_recipe",
        "Find a recipe",
        {
            "ingredient": (parameter(STRING, "Main ingredient"), lambda rng: rng.choice(ITEMS)),
            "max_minutes": (parameter(INTEGER, "Longest cooking time in minutes"), lambda rng: rng.choice([10, 15, 20, 30, 45, 60])),
        },
        ["ingredient"],
        [
            "Find a recipe with {ingredient}[ that takes at most {max_minutes} minutes].",
            "What can I cook with {ingredient}[ in {max_minutes} minutes]?",
        ],
        lambda rng: dict(recipe=f"{rng.choice(resources.loaded.adjectives)} {rng.choice(['soup', 'salad', 'pie', 'stew', 'cake'])}"),
        "You could make {recipe} with {ingredient}.",
    ),
    (
        "add_to_list",
        "Add an item to a shopping list",
        {
            "item": (parameter(STRING, "Item"), lambda rng: rng.choice(ITEMS)),
            "quantity": (parameter(INTEGER, "How many"), lambda rng: rng.randint(1, 24)),
        },
        ["item", "quantity"],
        [
            "Add {quantity} {item} to my shopping list.",
            "Put {quantity} {item} on the list.",
            "I need {quantity} {item}, add it to the list.",
        ],
        lambda rng: dict(count=rng.randint(1, 30)),
        "I added {quantity} {item}. The list has {count} items.",
    ),
    (
        "get_distance",
        "Distance between two cities",
        {
            "start": (parameter(STRING, "First city"), city),
            "end": (parameter(STRING, "Second city"), city),
            "unit": (parameter(STRING, "Unit", enum=["km", "miles"]), lambda rng: rng.choice(["km", "miles"])),
        },
        ["start", "end"],
        ["How far is it from {start} to {end}[ in {unit}]?", "What is the distance between {start} and {end}[ in {unit}]?"],
        lambda rng: dict(distance=rng.randint(10, 5000)),
        "It is {distance} from {start} to {end}.",
    ),
    (
        "track_package",
        "Track a package",
        {
            "tracking_number": (
                parameter(STRING, "Tracking number"),
                lambda rng: "".join((rng.choice("ABCDEFGH") for _ in range(2))) + str(rng.randint(10000, 999999)),
            )
        },
        ["tracking_number"],
        [
            "Where is my package {tracking_number}?",
            "Track package {tracking_number}.",
            "What is the status of the package {tracking_number}?",
        ],
        lambda rng: dict(status=rng.choice(["in transit", "delivered", "delayed", "at the depot"])),
        "The package {tracking_number} is {status}.",
    ),
    (
        "get_news",
        "Get news headlines",
        {
            "topic": (
                parameter(STRING, "Topic"),
                lambda rng: rng.choice(["sports", "science", "music", "politics", "business", "health", "space", "films"]),
            ),
            "limit": (parameter(INTEGER, "Number of headlines"), lambda rng: rng.randint(1, 10)),
        },
        ["topic"],
        [
            "Show me [{limit} ]headlines about {topic}.",
            "What is new in {topic}?[ Give me {limit} headlines.]",
            "Get [{limit} ]news about {topic}.",
        ],
        lambda rng: dict(
            headline=f"{rng.choice(resources.loaded.adjectives)} {rng.choice(resources.loaded.nouns)} surprises {rng.choice(resources.loaded.cities)}".capitalize()
        ),
        "Here is the news about {topic}: {headline}",
    ),
    (
        "calculate",
        "Evaluate an arithmetic expression",
        {
            "expression": (
                parameter(STRING, "Expression"),
                lambda rng: f"{rng.randint(100, 9999)} {rng.choice('+-*/')} {rng.randint(100, 999)}",
            )
        },
        ["expression"],
        ["Use the calculator: {expression}", "Calculate {expression} with the tool.", "Please evaluate {expression}."],
        lambda rng: dict(result=rng.randint(1, 99999)),
        "The result is {result}.",
    ),
    (
        "random_number",
        "Draw a random number",
        {
            "min": (parameter(INTEGER, "Lowest value"), lambda rng: rng.randint(0, 50)),
            "max": (parameter(INTEGER, "Highest value"), lambda rng: rng.randint(51, 999)),
        },
        ["min", "max"],
        ["Pick a random number between {min} and {max}.", "Roll a number from {min} to {max}."],
        lambda rng: dict(number=rng.randint(1, 999)),
        "The number is {number}.",
    ),
    (
        "read_file",
        "Read a file",
        {
            "path": (
                parameter(STRING, "Path of the file"),
                lambda rng: rng.choice(["/tmp/", "/home/", "data/", "src/", "docs/"])
                + rng.choice(resources.loaded.nouns)
                + rng.choice([".txt", ".py", ".md", ".json", ".csv"]),
            )
        },
        ["path"],
        ["Read the file {path}.", "Show me what is in {path}.", "Open {path}."],
        lambda rng: dict(content=f"{rng.choice(resources.loaded.adjectives)} {rng.choice(resources.loaded.nouns)}"),
        "The file {path} says: {content}",
    ),
    (
        "schedule_meeting",
        "Schedule a meeting with several people",
        {
            "attendees": (
                parameter("array", "Names of the people", items={"type": "string"}),
                lambda rng: rng.sample(NAMES, rng.randint(2, 4)),
            ),
            "date": (parameter(STRING, "Date as YYYY-MM-DD"), lambda rng: rng.choice(DATES)),
        },
        ["attendees", "date"],
        ["Schedule a meeting with {attendees} on {date}.", "Set up a meeting on {date} with {attendees}."],
        lambda rng: dict(room=rng.randint(1, 40)),
        "The meeting on {date} is in room {room}.",
    ),
    (
        "get_user",
        "Look up a user account",
        {"user_id": (parameter(INTEGER, "Number of the user"), lambda rng: rng.randint(1, 99999))},
        ["user_id"],
        ["Look up user {user_id}.", "Who is the user with the number {user_id}?", "Find account {user_id}."],
        lambda rng: dict(name=rng.choice(NAMES), active=rng.random() < 0.7),
        "User {user_id} is {name}.",
    ),
    (
        "cancel_order",
        "Cancel an order",
        {
            "order_id": (parameter(STRING, "Order number"), lambda rng: "#W" + str(rng.randint(1000000, 9999999))),
            "reason": (
                parameter(STRING, "Reason", enum=["no longer needed", "ordered by mistake"]),
                lambda rng: rng.choice(["no longer needed", "ordered by mistake"]),
            ),
        },
        ["order_id", "reason"],
        ["Cancel my order {order_id}, it was {reason}.", "Please cancel order {order_id}. Reason: {reason}."],
        lambda rng: dict(status="cancelled"),
        "The order {order_id} is cancelled.",
    ),
    (
        "get_order",
        "Get the details of an order",
        {"order_id": (parameter(STRING, "Order number"), lambda rng: "#W" + str(rng.randint(1000000, 9999999)))},
        ["order_id"],
        ["What is the status of order {order_id}?", "Show order {order_id}.", "Where is my order {order_id}?"],
        lambda rng: dict(status=rng.choice(["pending", "delivered", "processed"]), items=rng.randint(1, 9)),
        "The order {order_id} is {status} and has {items} items.",
    ),
]


def invented_tool(rng):
    """A tool that is in no list, so that names must be read from the prompt."""
    v = rng.choice(
        "open close find create update delete check list start stop count show save load move copy rename merge assign approve".split()
    )
    n = rng.choice(resources.loaded.nouns)
    name = f"{v}_{n}".replace("-", "_").replace(" ", "_").lower()
    ps = {}
    pn = rng.sample(
        "name id count color size level mode owner code label price weight owner_name group limit priority region note target source speed width height tag active".split(),
        rng.randint(1, 4),
    )
    for p in pn:
        k = rng.choice([STRING, STRING, INTEGER, NUMBER, BOOLEAN, "enum"])
        if p in ("id", "count", "size", "level", "price", "weight", "limit", "speed", "width", "height"):
            k = rng.choice([INTEGER, INTEGER, NUMBER])
        if p == "active":
            k = BOOLEAN
        if k == STRING:
            ps[p] = (
                parameter(STRING, f"The {p.replace('_', ' ')}"),
                lambda rng: rng.choice([rng.choice(resources.loaded.nouns), rng.choice(NAMES), random_key(rng)]),
            )
        elif k == INTEGER:
            ps[p] = (parameter(INTEGER, f"The {p.replace('_', ' ')}"), lambda rng: rng.randint(0, 9999))
        elif k == NUMBER:
            ps[p] = (
                parameter(NUMBER, f"The {p.replace('_', ' ')}"),
                lambda rng: rng.choice([rng.randint(0, 500), round(rng.random() * 100, 1)]),
            )
        elif k == BOOLEAN:
            ps[p] = (parameter(BOOLEAN, f"The {p.replace('_', ' ')}"), lambda rng: rng.random() < 0.5)
        else:
            e = rng.sample(resources.loaded.nouns, 3)
            ps[p] = (parameter(STRING, f"The {p.replace('_', ' ')}", enum=e), lambda rng, e=e: rng.choice(e))
    f = rng.choice([0, 1, 2])

    def phrase():
        if f == 0:
            return f"{v.capitalize()} the {n} with " + " and ".join((f"{p.replace('_', ' ')} {{{p}}}" for p in pn)) + "."
        if f == 1:
            return f"Please {v} the {n}: " + ", ".join((f"{p} = {{{p}}}" for p in pn)) + "."
        return f"Call {name} with " + ", ".join((f"{p} {{{p}}}" for p in pn)) + "."

    return (
        name,
        f"{v.capitalize()} the {n}",
        ps,
        pn,
        [phrase()],
        lambda rng: rng.choice(
            [
                dict(status="ok"),
                dict(status="ok", id=rng.randint(1, 999)),
                dict(status="failed", error=f"{rng.choice(resources.loaded.nouns)} not found"),
            ]
        ),
        None,
    )


def tool_schema(t):
    """As it stands in a request."""
    return dict(
        type="function",
        function=dict(
            name=t[0], description=t[1], parameters=dict(type="object", properties={k: v[0] for k, v in t[2].items()}, required=list(t[3]))
        ),
    )


def shown(v):
    return ("yes" if v else "no") if isinstance(v, bool) else ", ".join(v[:-1]) + " and " + v[-1] if isinstance(v, list) else str(v)


def make_call(rng, t):
    """A request in words, and the arguments that it holds."""
    _, _, ps, _, phrases, _, _ = t
    txt = rng.choice(phrases)
    args = {}

    def opt(m):
        return m.group(1) if rng.random() < 0.5 else ""

    txt = re.sub("\\[([^\\]]*)\\]", opt, txt)
    for k in ps:
        if "{" + k + "}" in txt:
            if ps[k][1] is None:
                v = rng.random() < 0.5
                sv = "on" if v else "off"
                sv = sv.capitalize() if txt.startswith("{" + k) else sv
            else:
                v = ps[k][1](rng)
                sv = shown(v)
            args[k] = v
            txt = txt.replace("{" + k + "}", sv)
    return (txt, args)


def final_text(t, args, res):
    """What the assistant says once it has a call's result."""
    if t[6] is None:
        if res.get("status") == "failed":
            return f"That failed: {res['error']}."
        return f"Done. The id is {res['id']}." if "id" in res else "Done."
    d = {k: shown(v) for k, v in args.items()}
    d.update({k: shown(v) for k, v in res.items()})
    return t[6].format(**d)


def tool_document(rng, held_out=False, mode=None, think=None):
    """A request, the calls it needs, their results and an answer. mode: one, two, none or multi (several turns)."""
    while True:
        pool = rng.sample(TOOLS, rng.randint(1, 4))
        for _ in range(rng.choice([0, 0, 1, 1, 2])):
            pool.append(invented_tool(rng))
        names = set()
        pool = [t for t in pool if not (t[0] in names or names.add(t[0]))]
        rng.shuffle(pool)
        th = rng.random() < 0.4 if think is None else think
        eff = rng.choice(["high", "max"])
        m = mode or rng.choices(["one", "two", "none", "multi"], [0.55, 0.15, 0.12, 0.18])[0]
        tools = [tool_schema(t) for t in pool]
        ms = [] if held_out else maybe_system(rng, 0.1)
        R = (lambda s: s) if th else lambda s: None
        if m == "none":
            if rng.random() < 0.5:
                q, a = rng.choice(resources.loaded.chat)
            else:
                e, v = arithmetic(rng)
                q, a = (f"What is {e}?", f"{e} = {v}")
            ms += [user(q), assistant(a, R("No tool is needed here."))]
            if held_out != is_held_out("none|" + q):
                continue
            return dict(messages=ms, tools=tools, think=th, effort=eff, kind="tool", answer=dict(calls=[]), wp=0.05)
        turns = rng.randint(2, 3) if m == "multi" and (not th) else 1
        key = ""
        first = None
        for ti in range(turns):
            t = rng.choice(pool)
            q, args = make_call(rng, t)
            calls = [dict(name=t[0], arguments=args)]
            resp = [t[5](rng)]
            fin = final_text(t, args, resp[0])
            if m == "two":
                t2 = t if rng.random() < 0.5 else rng.choice(pool)
                q2, a2 = make_call(rng, t2)
                if t2[0] == t[0] and a2 == args:
                    m = "one"
                else:
                    q = q + rng.choice([" Also: ", " And ", " Then: "]) + q2
                    calls.append(dict(name=t2[0], arguments=a2))
                    resp.append(t2[5](rng))
                    fin += " " + final_text(t2, a2, resp[1])
            key += json.dumps(calls)
            rs = f"The user needs {t[0]}." if len(calls) == 1 else f"The user needs two calls: {calls[0]['name']} and {calls[1]['name']}."
            ms += [user(q), assistant("", R(rs), calls)]
            if first is None:
                first = calls
            if held_out:
                break
            if rng.random() < 0.85 or ti + 1 < turns:
                ms += [dict(role="tool", content=json.dumps(x)) for x in resp] + [assistant(fin, R("The result is there. I answer now."))]
            else:
                break
        if held_out != is_held_out("tool|" + key):
            continue
        return dict(messages=ms, tools=tools, think=th, effort=eff, kind="tool", answer=dict(calls=first), wp=0.05)
