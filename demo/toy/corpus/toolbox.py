"""The tools that `tools` dialogues are about: parameters, how people ask for them, what comes back.

Each tool and parameter has several names, one of which is drawn per dialogue, so that the names in a call can only
come from the schema in the system message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from demo.toy.corpus import names

Value = str | int | float | bool
Draw = Callable[[Random], Value]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument. `key` is its slot in phrasings, `aliases` the names it may have in a schema.

    An optional parameter is only passed when the request says one of `clauses`.
    """

    key: str
    aliases: tuple[str, ...]
    type: str
    description: str
    draw: Draw
    choices: tuple[str, ...] = ()
    clauses: tuple[str, ...] = ()

    @property
    def required(self) -> bool:
        return not self.clauses


@dataclass(frozen=True, slots=True)
class Tool:
    """`asks` and `answers` are format strings over the arguments and, for answers, the result."""

    aliases: tuple[str, ...]
    description: str
    parameters: tuple[Parameter, ...]
    asks: tuple[str, ...]
    result: dict[str, Draw]
    answers: tuple[str, ...]


def whole(low: int, high: int) -> Draw:
    return lambda rng: rng.randint(low, high)


def money(low: int, high: int) -> Draw:
    return lambda rng: rng.randint(low * 100, high * 100) / 100


def one_of(*values: str) -> Draw:
    return lambda rng: rng.choice(values)


def text(key: str, aliases: str, description: str, draw: Draw, *clauses: str) -> Parameter:
    return Parameter(key, tuple(aliases.split()), "string", description, draw, clauses=clauses)


def integer(key: str, aliases: str, description: str, low: int, high: int, *clauses: str) -> Parameter:
    return Parameter(key, tuple(aliases.split()), "integer", description, whole(low, high), clauses=clauses)


def number(key: str, aliases: str, description: str, low: int, high: int, *clauses: str) -> Parameter:
    return Parameter(key, tuple(aliases.split()), "number", description, money(low, high), clauses=clauses)


def choice(key: str, aliases: str, description: str, values: str, *clauses: str) -> Parameter:
    options = tuple(values.split())
    return Parameter(key, tuple(aliases.split()), "string", description, one_of(*options), options, clauses)


SUBJECTS = one_of(
    "quarterly budget",
    "release plan",
    "hiring update",
    "garden party",
    "server outage",
    "design review",
    "travel costs",
    "roof repair",
    "summer school",
    "contract draft",
    "lab results",
    "choir practice",
    "new bicycle rack",
    "tax forms",
    "customer survey",
    "warehouse move",
    "kitchen order",
    "photo archive",
    "safety training",
    "book club",
)
ITEMS = one_of(
    "desk lamp",
    "rain jacket",
    "coffee grinder",
    "hiking boots",
    "wireless mouse",
    "wool blanket",
    "paper shredder",
    "yoga mat",
    "bread knife",
    "garden hose",
    "phone case",
    "backpack",
    "water bottle",
    "notebook",
    "monitor arm",
    "bicycle pump",
    "tea kettle",
    "picture frame",
    "tool box",
    "travel pillow",
)
DISHES = one_of(
    "lentil soup",
    "mushroom risotto",
    "apple pie",
    "fish tacos",
    "spinach lasagne",
    "chicken curry",
    "onion tart",
    "rice noodles",
    "potato salad",
    "pumpkin bread",
    "tomato stew",
    "pancakes",
)
TITLES = one_of(
    "The Glass Harbour",
    "A Winter of Maps",
    "Salt and Cedar",
    "The Last Signal",
    "Quiet Machines",
    "Rivers at Night",
    "The Clockmaker",
    "Nine Lanterns",
    "Under the Orchard",
    "A Field Guide to Rain",
    "The Paper Bridge",
    "Northern Letters",
)
SYMBOLS = one_of(
    "ACME", "BOLT", "CRNE", "DLTA", "EMBR", "FJRD", "GLDN", "HLIX", "IRIS", "JUNO", "KITE", "LUMN", "MOSS", "NOVA"
)
HOSTS = one_of(
    "web-01", "web-02", "db-main", "db-replica", "cache-3", "queue-7", "build-12", "mail-2", "edge-5", "gpu-4"
)
ROOMS = one_of("kitchen", "bedroom", "hallway", "office", "garage", "bathroom", "living room", "nursery", "cellar")

TOOLS: tuple[Tool, ...] = (
    Tool(
        ("get_weather", "weather_forecast", "lookup_weather"),
        "Get the weather forecast for a place.",
        (
            text("city", "city location place", "The name of the place", names.place),
            choice("unit", "unit units", "Temperature unit", "celsius fahrenheit", "in {unit}", "using {unit}"),
            integer(
                "days", "days num_days", "Days ahead", 1, 10, "for the next {days} days", "looking {days} days ahead"
            ),
        ),
        (
            "What's the weather like in {city}",
            "How will the weather be in {city}",
            "Do I need an umbrella in {city}",
            "Give me a forecast for {city}",
        ),
        {
            "condition": one_of("light rain", "clear sky", "heavy snow", "fog", "scattered clouds", "strong wind"),
            "temperature": whole(-12, 38),
        },
        (
            "In {city} you can expect {condition} and {temperature} degrees.",
            "The forecast for {city} is {condition}, with a temperature of {temperature}.",
        ),
    ),
    Tool(
        ("send_email", "compose_mail", "mail_message"),
        "Send an email to one person.",
        (
            text("to", "to recipient address", "Address of the recipient", names.email),
            text("subject", "subject title", "Subject line", SUBJECTS),
            choice(
                "priority",
                "priority importance",
                "How urgent it is",
                "low normal high",
                "with {priority} priority",
                "and mark it {priority} priority",
            ),
        ),
        (
            "Send an email to {to} about the {subject}",
            "Please write to {to} about the {subject}",
            "Can you mail {to}, subject {subject}",
        ),
        {"message_id": names.code_number, "status": one_of("sent", "queued")},
        (
            "Your email about the {subject} to {to} was {status} as {message_id}.",
            "Done: the message {message_id} to {to} is {status}.",
        ),
    ),
    Tool(
        ("create_event", "add_calendar_event", "schedule_meeting"),
        "Put an event into the calendar.",
        (
            text("title", "title summary name", "What the event is about", SUBJECTS),
            text("date", "date day", "Date as YYYY-MM-DD", names.iso_date),
            text("time", "time start_time start", "Start as HH:MM", names.clock),
            integer(
                "minutes",
                "duration_minutes minutes length",
                "Length in minutes",
                15,
                180,
                "for {minutes} minutes",
                "lasting {minutes} minutes",
            ),
        ),
        (
            "Put a meeting about the {title} on {date} at {time}",
            "Schedule the {title} for {date} at {time}",
            "I need a slot on {date} at {time} for the {title}",
        ),
        {"event_id": names.code_number, "conflicts": whole(0, 3)},
        (
            "The {title} is in your calendar on {date} at {time}, with {conflicts} conflicts.",
            "I booked {date} at {time} for the {title}; the event is {event_id}.",
        ),
    ),
    Tool(
        ("convert_currency", "exchange_rate", "currency_converter"),
        "Convert an amount of money into another currency.",
        (
            number("amount", "amount value", "How much", 1, 5000),
            choice("source", "from source base", "Currency to convert from", "EUR USD GBP JPY CHF SEK INR BRL"),
            choice("target", "to target quote", "Currency to convert to", "EUR USD GBP JPY CHF SEK INR BRL"),
        ),
        (
            "How much is {amount} {source} in {target}",
            "Convert {amount} {source} to {target}",
            "I have {amount} {source}, what is that in {target}",
        ),
        {"converted": money(1, 9000), "rate": money(0, 9)},
        (
            "{amount} {source} is {converted} {target} at a rate of {rate}.",
            "At {rate} you get {converted} {target} for {amount} {source}.",
        ),
    ),
    Tool(
        ("search_flights", "find_flight", "flight_search"),
        "Search for flights between two places.",
        (
            text("origin", "origin from departure", "Where the flight starts", one_of(*names.CITIES)),
            text("destination", "destination to arrival", "Where the flight ends", one_of(*names.CITIES)),
            text("date", "date travel_date", "Date as YYYY-MM-DD", names.iso_date),
            integer(
                "seats", "seats passengers", "Number of travellers", 1, 9, "for {seats} people", "with {seats} seats"
            ),
        ),
        (
            "Find me a flight from {origin} to {destination} on {date}",
            "I want to fly from {origin} to {destination} on {date}",
            "Which flights go from {origin} to {destination} on {date}",
        ),
        {"flight": names.code_number, "price": money(40, 1200), "departs": names.clock},
        (
            "Flight {flight} leaves {origin} at {departs} and costs {price}.",
            "The best offer to {destination} is {flight} at {departs} for {price}.",
        ),
    ),
    Tool(
        ("book_hotel", "reserve_room", "hotel_booking"),
        "Reserve a hotel room.",
        (
            text("city", "city town location", "Where to stay", names.place),
            text("arrival", "check_in arrival start_date", "First night as YYYY-MM-DD", names.iso_date),
            integer("nights", "nights stay_nights", "How many nights", 1, 14),
            choice(
                "room",
                "room_type room",
                "Kind of room",
                "single double suite family",
                "in a {room} room",
                "and make it a {room} room",
            ),
        ),
        (
            "Book a hotel in {city} from {arrival} for {nights} nights",
            "I need a room in {city} for {nights} nights starting {arrival}",
        ),
        {"confirmation": names.code_number, "total": money(60, 2500)},
        (
            "Your stay in {city} is confirmed as {confirmation} and costs {total}.",
            "I reserved {nights} nights in {city} for {total}; the confirmation is {confirmation}.",
        ),
    ),
    Tool(
        ("get_stock_price", "stock_quote", "quote_lookup"),
        "Get the latest price of a share.",
        (
            text("symbol", "symbol ticker", "Ticker symbol", SYMBOLS),
            text("date", "date as_of", "Day as YYYY-MM-DD", names.iso_date, "on {date}", "as of {date}"),
        ),
        ("What is {symbol} trading at", "Tell me the share price of {symbol}", "How much is one share of {symbol}"),
        {"price": money(2, 900), "change_percent": money(-6, 6)},
        ("{symbol} stands at {price}, a change of {change_percent} percent.", "One share of {symbol} costs {price}."),
    ),
    Tool(
        ("track_parcel", "parcel_status", "shipment_lookup"),
        "Find out where a parcel is.",
        (
            text("parcel", "tracking_number parcel_id shipment", "Number on the label", names.code_number),
            choice(
                "carrier",
                "carrier company",
                "Who carries it",
                "post express freight courier",
                "sent by {carrier}",
                "it went by {carrier}",
            ),
        ),
        ("Where is my parcel {parcel}", "Please track {parcel}", "Has the shipment {parcel} arrived"),
        {
            "place": names.place,
            "status": one_of("in transit", "delivered", "at customs", "out for delivery"),
            "updated": names.iso_date,
        },
        (
            "Parcel {parcel} is {status} in {place}, last seen on {updated}.",
            "As of {updated}, {parcel} is {status} at {place}.",
        ),
    ),
    Tool(
        ("create_ticket", "open_issue", "file_report"),
        "Open a ticket for the support team.",
        (
            text(
                "summary",
                "summary title headline",
                "One line about the problem",
                one_of(
                    "printer jams",
                    "login fails",
                    "page loads slowly",
                    "invoice is wrong",
                    "door badge rejected",
                    "screen flickers",
                    "backup did not run",
                    "phone has no sound",
                    "export is empty",
                    "video call drops",
                ),
            ),
            choice("severity", "severity priority level", "How bad it is", "minor major critical"),
            text(
                "owner",
                "assignee owner",
                "Who should look at it",
                names.person,
                "and assign it to {owner}",
                "for {owner} to handle",
            ),
        ),
        (
            "Open a {severity} ticket: {summary}",
            "File a {severity} report saying {summary}",
            "There is a {severity} problem, {summary}",
        ),
        {"ticket": names.code_number, "queue_position": whole(1, 40)},
        (
            'I opened ticket {ticket} for "{summary}"; it is number {queue_position} in the queue.',
            "Ticket {ticket} is filed as {severity}.",
        ),
    ),
    Tool(
        ("query_orders", "find_orders", "order_search"),
        "Look up the orders of a customer.",
        (
            text("customer", "customer customer_name client", "Name of the customer", names.person),
            choice(
                "status",
                "status state",
                "Only orders in this state",
                "open shipped returned cancelled",
                "that are {status}",
                "limited to {status} ones",
            ),
            integer(
                "limit",
                "limit max_results",
                "How many at most",
                1,
                50,
                "at most {limit} of them",
                "but no more than {limit}",
            ),
        ),
        ("Show me the orders of {customer}", "Which orders did {customer} place", "List orders for {customer}"),
        {"found": whole(0, 30), "latest": names.code_number},
        (
            "{customer} has {found} such orders, the latest being {latest}.",
            "I found {found} orders for {customer}; the newest is {latest}.",
        ),
    ),
    Tool(
        ("play_music", "start_playback", "music_player"),
        "Play a piece of music in a room.",
        (
            text("title", "title track song", "What to play", TITLES),
            text("room", "room zone speaker", "Where to play it", ROOMS),
            integer(
                "volume",
                "volume loudness",
                "Volume in percent",
                5,
                100,
                "at {volume} percent volume",
                "with the volume at {volume}",
            ),
        ),
        ("Play {title} in the {room}", "I'd like to hear {title} in the {room}", "Put on {title} in the {room}"),
        {"playing": lambda rng: True, "length_seconds": whole(90, 600)},
        ("{title} is now playing in the {room}; it takes {length_seconds} seconds.", "Enjoy {title} in the {room}."),
    ),
    Tool(
        ("set_thermostat", "set_temperature", "heating_control"),
        "Set the heating of a room.",
        (
            text("room", "room zone", "Which room", ROOMS),
            integer("degrees", "degrees target temperature", "Degrees Celsius", 14, 26),
            text(
                "until", "until end_time", "Until when, HH:MM", names.clock, "until {until}", "but only until {until}"
            ),
        ),
        (
            "Set the {room} to {degrees} degrees",
            "Make the {room} {degrees} degrees warm",
            "I want {degrees} degrees in the {room}",
        ),
        {"current": whole(10, 25), "minutes_to_target": whole(5, 90)},
        (
            "The {room} is at {current} degrees and will reach {degrees} in {minutes_to_target} minutes.",
            "Heating the {room} to {degrees} degrees now.",
        ),
    ),
    Tool(
        ("translate_text", "translate", "translation"),
        "Translate a short text.",
        (
            text(
                "text",
                "text input content",
                "What to translate",
                one_of(
                    "Where is the station?",
                    "The meeting is cancelled.",
                    "Thank you for your help.",
                    "Please close the window.",
                    "I will arrive tomorrow.",
                    "How much does it cost?",
                    "The bridge is closed today.",
                    "We need two tickets.",
                    "My bag is lost.",
                    "See you next week.",
                ),
            ),
            choice(
                "language",
                "target_language language to",
                "Language to translate into",
                "German French Spanish Italian Polish Turkish Dutch Finnish Portuguese",
            ),
        ),
        (
            'Translate "{text}" into {language}',
            'How do you say "{text}" in {language}',
            'What is "{text}" in {language}',
        ),
        {"characters": whole(12, 60), "confidence": money(0, 1)},
        (
            'Here is your {language} version of "{text}", with a confidence of {confidence}.',
            "The {language} text has {characters} characters.",
        ),
    ),
    Tool(
        ("search_products", "find_product", "catalogue_search"),
        "Search the shop's catalogue.",
        (
            text("query", "query search_text keywords", "What to look for", ITEMS),
            number(
                "limit",
                "max_price price_limit budget",
                "Highest price",
                5,
                300,
                "under {limit}",
                "costing less than {limit}",
            ),
            choice(
                "order",
                "sort_by order",
                "Order of results",
                "price rating newest",
                "sorted by {order}",
                "ordered by {order}",
            ),
        ),
        ("I am looking for a {query}", "Do you have a {query}", "Find me a {query}"),
        {"sku": names.code_number, "price": money(4, 290), "in_stock": whole(0, 80)},
        (
            "We have a {query} for {price}, article {sku}, with {in_stock} in stock.",
            "Article {sku} is a {query} at {price}.",
        ),
    ),
    Tool(
        ("restart_service", "service_restart", "bounce_process"),
        "Restart a service on a machine.",
        (
            text("host", "host machine server", "Which machine", HOSTS),
            text(
                "service",
                "service process unit",
                "Which service",
                one_of("nginx", "postgres", "redis", "worker", "scheduler", "mailer", "indexer", "gateway"),
            ),
            integer(
                "delay",
                "delay_seconds delay wait",
                "Seconds to wait first",
                1,
                300,
                "after {delay} seconds",
                "with a delay of {delay} seconds",
            ),
        ),
        ("Restart {service} on {host}", "Please bounce {service} on {host}", "{service} on {host} hangs, restart it"),
        {"pid": whole(200, 65000), "status": one_of("running", "starting", "failed")},
        ("{service} on {host} is {status} with process {pid}.", "The restart is done; {service} is {status}."),
    ),
    Tool(
        ("get_metrics", "read_metric", "query_monitoring"),
        "Read a measurement of a machine.",
        (
            text("host", "host machine node", "Which machine", HOSTS),
            choice("metric", "metric series measure", "What to read", "cpu memory disk network latency errors"),
            integer(
                "window",
                "window_minutes minutes range",
                "Minutes to look back",
                5,
                240,
                "over the last {window} minutes",
                "for {window} minutes back",
            ),
        ),
        ("What is the {metric} of {host}", "Show {metric} on {host}", "How is {metric} doing on {host}"),
        {"average": money(0, 100), "peak": money(50, 200)},
        (
            "On {host} the {metric} averages {average} with a peak of {peak}.",
            "{metric} on {host}: {average} on average, {peak} at most.",
        ),
    ),
    Tool(
        ("find_recipe", "recipe_search", "suggest_recipe"),
        "Find a recipe.",
        (
            text("dish", "dish recipe name", "What to cook", DISHES),
            integer("people", "servings people portions", "For how many", 1, 12),
            choice(
                "diet",
                "diet restriction",
                "Diet to respect",
                "vegan vegetarian halal kosher",
                "and keep it {diet}",
                "it should be {diet}",
            ),
        ),
        (
            "How do I make {dish} for {people} people",
            "I want to cook {dish} for {people}",
            "Find a recipe for {dish} that serves {people}",
        ),
        {"minutes": whole(15, 150), "ingredients": whole(4, 18)},
        (
            "This {dish} takes {minutes} minutes and needs {ingredients} ingredients.",
            "For {people} people, {dish} needs {minutes} minutes.",
        ),
    ),
    Tool(
        ("set_reminder", "add_reminder", "remind_me"),
        "Remind the user of something.",
        (
            text("about", "text about message", "What to be reminded of", SUBJECTS),
            text("time", "time at when", "When, HH:MM", names.clock),
            text("day", "day weekday", "On which day", one_of(*names.WEEKDAYS), "on {day}", "this {day}"),
        ),
        (
            "Remind me about the {about} at {time}",
            "Set a reminder for the {about} at {time}",
            "At {time} I have to think of the {about}",
        ),
        {"reminder_id": names.code_number, "active": lambda rng: True},
        ("I will remind you about the {about} at {time}.", "Reminder {reminder_id} is set for {time}."),
    ),
    Tool(
        ("transfer_money", "send_payment", "bank_transfer"),
        "Transfer money to another account.",
        (
            text("name", "recipient payee name", "Who gets the money", names.person),
            number("amount", "amount sum", "How much", 1, 900),
            text(
                "reference",
                "reference purpose note",
                "Purpose of the payment",
                SUBJECTS,
                "for the {reference}",
                "with the note {reference}",
            ),
        ),
        ("Transfer {amount} to {name}", "Please pay {name} {amount}", "Send {amount} to {name}"),
        {"transaction": names.code_number, "balance": money(10, 9000)},
        (
            "I sent {amount} to {name}; your balance is now {balance}.",
            "Transaction {transaction} moved {amount} to {name}.",
        ),
    ),
    Tool(
        ("get_directions", "route_planner", "find_route"),
        "Find a way from one place to another.",
        (
            text("start", "start origin from", "Where to begin", names.place),
            text("goal", "end destination to", "Where to arrive", names.place),
            choice(
                "mode",
                "mode travel_mode vehicle",
                "Means of travel",
                "car train bicycle bus walking",
                "by {mode}",
                "going by {mode}",
            ),
        ),
        (
            "How do I get from {start} to {goal}",
            "Show me the way from {start} to {goal}",
            "Plan a route from {start} to {goal}",
        ),
        {"kilometres": whole(2, 900), "minutes": whole(5, 700)},
        (
            "From {start} to {goal} it is {kilometres} kilometres, about {minutes} minutes.",
            "You need {minutes} minutes to reach {goal}.",
        ),
    ),
    Tool(
        ("library_search", "find_book", "book_catalogue"),
        "Search the library's books.",
        (
            text("title", "title book", "Title of the book", TITLES),
            text("author", "author writer", "Who wrote it", names.person, "by {author}", "written by {author}"),
        ),
        ("Does the library have {title}", "I am looking for the book {title}", "Can I borrow {title}"),
        {"shelf": names.code_number, "copies": whole(0, 7)},
        ("{title} is on shelf {shelf}, {copies} copies are left.", "There are {copies} copies of {title}."),
    ),
    Tool(
        ("run_query", "execute_sql", "database_query"),
        "Count rows of a database table.",
        (
            choice(
                "table",
                "table relation",
                "Which table",
                "customers invoices sessions payments devices articles visits employees",
            ),
            text(
                "column",
                "column field",
                "Column to filter on",
                one_of("country", "city", "status", "owner", "created_by"),
            ),
            text("value", "value equals", "Value to look for", names.place),
        ),
        (
            "How many {table} have {column} {value}",
            "Count the {table} whose {column} is {value}",
            "In {table}, how often is {column} equal to {value}",
        ),
        {"rows": whole(0, 90000), "milliseconds": whole(1, 900)},
        (
            "There are {rows} {table} where {column} is {value}.",
            "I counted {rows} rows in {milliseconds} milliseconds.",
        ),
    ),
    Tool(
        ("book_table", "reserve_table", "restaurant_booking"),
        "Reserve a table in a restaurant.",
        (
            text(
                "restaurant",
                "restaurant venue place",
                "Name of the restaurant",
                lambda rng: f"{rng.choice(('Cafe', 'Bistro', 'Trattoria', 'Tavern'))} {names.stem(rng)}",
            ),
            integer("guests", "guests party_size people", "How many guests", 1, 14),
            text("time", "time at", "When, HH:MM", names.clock),
            text(
                "name", "name booked_for", "Name for the booking", names.person, "under the name {name}", "for {name}"
            ),
        ),
        (
            "Reserve a table for {guests} at {restaurant} at {time}",
            "We are {guests} and want to eat at {restaurant} at {time}",
        ),
        {"booking": names.code_number, "table": whole(1, 40)},
        (
            "Table {table} at {restaurant} is yours at {time}.",
            "Booking {booking}: {guests} guests at {restaurant}, {time}.",
        ),
    ),
    Tool(
        ("update_contact", "edit_contact", "save_contact"),
        "Change an entry of the address book.",
        (
            text("name", "name contact person", "Whose entry", names.person),
            text("email", "email mail address", "New email address", names.email),
        ),
        (
            "Change the email of {name} to {email}",
            "{name} now uses {email}, please save that",
            "Update {name}: the address is {email}",
        ),
        {"saved": lambda rng: True, "version": whole(2, 60)},
        ("{name} is saved with {email}.", "The entry of {name} now says {email}."),
    ),
)
