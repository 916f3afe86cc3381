"""What invented passages tell: topics, and for each the facts one can state and ask about.

A fact is (what one asks about, phrasings...). Slots: {n} the subject's name, {p} {q} people, {l} {m} places, {y} {z} years,
{c} {d} numbers, {w} an invented word, {t} a date. Every slot is drawn anew per passage.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fact:
    """`question` completes "What does the passage say about ...?"; `sentences` are ways to state the fact."""

    question: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Topic:
    """`names` are format strings for the subject; its first fact always opens the passage."""

    names: tuple[str, ...]
    facts: tuple[Fact, ...]


def _topic(names: str, *facts: tuple[str, ...]) -> Topic:
    return Topic(tuple(names.split("|")), tuple(Fact(question, sentences) for question, *sentences in _frozen(facts)))


def _frozen(facts: tuple[tuple[str, ...], ...]) -> list[tuple]:
    return list(facts)


TOPICS: tuple[Topic, ...] = (
    _topic(
        "{w} Bridge|the {w} Bridge|the Old Bridge of {l}",
        ("the opening of {n}", "{n} was opened on {t} {y} and crosses the river {w} near {l}.", "Since {t} {y}, {n} has carried traffic across the {w} at {l}."),
        ("the length of the bridge", "It is {c} metres long and rests on {d} piers of grey granite.", "With a length of {c} metres it was for {d} years the longest in the region."),
        ("the engineer", "The engineer {p} drew the plans in only {d} weeks, after a first design by {q} had been rejected.", "Its designer, {p}, had learned the trade in {m} under {q}."),
        ("the cost", "The work cost {c} crowns, of which the town of {l} paid less than a third.", "Building it cost {c} crowns and took {d} workers."),
        ("the flood", "In the flood of {z} two arches gave way and were rebuilt in concrete.", "A flood in {z} carried off the eastern ramp, which {q} had warned about."),
        ("traffic today", "Today about {c} vehicles use it every day, most of them on their way to {m}.", "It now carries {c} cyclists a day, and no lorries since {z}."),
        ("the toll", "A toll of {d} pence was collected until {z}, when {p} persuaded the council to end it.", "Until {z} every cart paid {d} pence at the western gate."),
        ("repairs", "Major repairs began in {z} under {q} and are expected to last {d} months.", "The last repair, led by {q}, replaced {c} rivets."),
    ),
    _topic(
        "{w} Observatory|the {w} Observatory|the observatory of {l}",
        ("the founding of {n}", "{n} was founded in {y} by {p} on a hill outside {l}.", "In {y} {p} founded {n}, {d} kilometres from {l}."),
        ("the telescope", "Its main telescope has a mirror of {c} centimetres, ground by {q} in {m}.", "The largest instrument, called the {w}, weighs {c} kilograms."),
        ("the comet", "The comet {w} was discovered there on {t} {z} by {q}.", "On {t} {z} the night assistant {q} found the comet that now bears the name {w}."),
        ("the star catalogue", "A catalogue of {c} stars was compiled there over {d} years.", "Its star catalogue lists {c} entries, each measured at least twice."),
        ("visitors", "Visitors are admitted on the first Friday of each month, at most {d} at a time.", "About {c} visitors a year climb the {d} steps to the dome."),
        ("the dome", "The copper dome turns on {d} iron wheels and can be moved by one person.", "The dome was brought from {m} in {c} pieces and assembled by {p}."),
        ("light pollution", "Since {z} the street lamps of {l} are dimmed at midnight so that observers are not disturbed.", "Because of the lights of {m}, faint objects have not been photographed since {z}."),
        ("its director", "Its present director, {q}, studies variable stars and teaches in {m}.", "{q} has directed the work since {z}."),
    ),
    _topic(
        "{w} Mill|the paper mill of {l}|the {w} Works",
        ("the origin of {n}", "{n} began in {y} as a small workshop in which {p} employed {d} people.", "When {p} bought the site in {y}, {n} had only {d} workers."),
        ("what it makes", "It makes {w} paper, a strong sheet that is used for maps and bank notes.", "Its best known product is a blue cloth called {w}, sold mostly in {m}."),
        ("its output", "In a good year it turns out {c} tonnes, nearly half of it for export.", "Output reached {c} tonnes in {z} and has fallen since."),
        ("the fire", "A fire destroyed the drying hall on {t} {z}, but nobody was hurt.", "After the fire of {t} {z} the roof was rebuilt in steel by {q}."),
        ("water power", "Power came from the river {w} through a canal {c} metres long.", "Until {z} a water wheel of {d} horsepower drove all its machines."),
        ("the strike", "The strike of {z} lasted {d} days and ended with a shorter working week.", "In {z} {c} workers went on strike because {q} had been dismissed."),
        ("its owner", "Since {z} it belongs to a cooperative led by {q}.", "{q}, the present owner, moved the office to {m} in {z}."),
        ("the museum", "One hall is now a museum with {c} objects and a working press.", "The museum in the old boiler house was opened by {q} on {t} {z}."),
    ),
    _topic(
        "the {w} beetle|the {w} finch|the {w} orchid|the {w} moth|the {w} frog",
        ("the first description of {n}", "{n} was first described in {y} by {p}, who found it in the hills near {l}.", "The naturalist {p} described {n} in {y} from {d} specimens taken at {l}."),
        ("where it lives", "It lives only on the island of {m}, in an area of less than {c} hectares.", "It is found between {d} and {c} metres above the sea, mostly in damp woods."),
        ("its size", "An adult measures about {d} millimetres and weighs less than a coin.", "It grows to {d} centimetres, females being slightly larger."),
        ("its food", "It feeds on the seeds of the {w} tree and, in dry years, on moss.", "Its diet consists of small insects that it catches shortly before sunrise."),
        ("its colour", "Young ones are pale green and turn dark copper after {d} weeks.", "A yellow band behind the head tells it from its relative, the {w}."),
        ("threats", "Its greatest threat is the drainage of wetlands, which began in {z}.", "A fungus brought from {m} in {z} has killed most of the southern population."),
        ("the last count", "The last count, made by {q} in {z}, found {c} of them.", "In {z} a team under {q} counted {c} animals in {d} days."),
        ("protection", "It has been protected since {z}, and collecting it costs a fine of {c} crowns.", "A reserve for it was set up near {m} in {z}."),
    ),
    _topic(
        "{p}|{p}|{q}",
        ("the birth of {n}", "{n} was born in {l} on {t} {y}, the youngest of {d} children.", "Born on {t} {y} in {l}, {n} grew up in a house beside the harbour."),
        ("studies", "After school came {d} years of study in {m}, where the chemist {q} was a teacher and friend.", "Studies in {m} ended in {z} with a thesis on the salts of {w}."),
        ("the invention", "The {w} lamp, an invention of {z}, burned for {c} hours without smoke.", "In {z} came the patent for a pump that could lift {c} litres an hour."),
        ("the journey", "A journey of {d} months led through {m} and on to the mines of {w}.", "In {z} a ship named {w} brought the whole family to {m}."),
        ("the book", "The book 'The {w} Question' sold {c} copies and was translated into {d} languages.", "A first book, printed in {m} in {z}, found only {d} readers."),
        ("the prize", "The academy of {m} awarded its gold medal on {t} {z}.", "A prize of {c} crowns was declined in {z} without any explanation."),
        ("the quarrel", "A quarrel with {q} over the discovery of {w} lasted {d} years.", "Letters show that {q} had the same idea {d} months earlier."),
        ("later life", "The last years were spent in {m}, growing roses and repairing clocks.", "A street in {m} has borne the name since {z}."),
    ),
    _topic(
        "{w}|{l}|the town of {w}",
        ("the first mention of {n}", "{n} is first mentioned in a letter of {y}, in which {p} asks for {d} barrels of salt.", "A map of {y} shows {n} as a village of {d} houses."),
        ("its population", "Its population was {c} at the last count, fewer than in {z}.", "About {c} people live there, a quarter of them over sixty."),
        ("the market", "The market is held on the second Saturday of the month and draws traders from {m}.", "At its market, {c} cheeses were sold on a single day in {z}."),
        ("the church tower", "The church tower leans by {d} degrees because it stands on the bed of an old canal.", "The bell in the tower, cast by {q} in {z}, weighs {c} kilograms."),
        ("the railway", "The railway to {m} arrived in {z} and was closed {d} years later.", "Trains to {m} take {d} minutes and run twice an hour."),
        ("the school", "The school, built by {q} in {z}, has {c} pupils.", "Its school of music was founded in {z} with the money of {p}."),
        ("the harbour", "The harbour freezes for about {d} days each winter.", "In {z} the harbour was deepened so that ships of {c} tonnes could enter."),
        ("the festival", "Every year on {t} the people carry a straw figure called {w} to the river.", "The lantern festival, held since {z}, lasts {d} nights."),
        ("the mayor", "The mayor, {q}, was elected in {z} with a majority of {d} votes.", "{q} has been mayor since {z} and lives in {m}."),
    ),
    _topic(
        "the ship {w}|the steamer {w}|the {w}",
        ("the building of {n}", "{n} was built in {y} in the yards of {l} for the merchant {p}.", "Launched on {t} {y} at {l}, {n} was the first iron ship of {p}."),
        ("its cargo", "On most voyages it carried {c} sacks of coffee and a little mail.", "Its cargo was {c} tonnes of {w} wood, bound for {m}."),
        ("the captain", "Captain {q} had sailed for {d} years before taking command.", "The last captain, {q}, kept a diary that is preserved in {m}."),
        ("the storm", "In a storm on {t} {z} it lost its mast and drifted for {d} days.", "The storm of {z} drove it onto a sandbank {c} metres from the shore."),
        ("the crew", "The crew of {d} came mostly from {m}.", "Only {d} of the crew could swim, as {q} noted with surprise."),
        ("the wreck", "The wreck was found in {z} at a depth of {c} metres.", "Divers led by {q} raised the anchor in {z}."),
        ("the record", "It crossed from {l} to {m} in {d} days, a record that stood until {z}.", "Nobody had made the passage to {m} in fewer than {c} hours before."),
        ("the treasure", "A chest with {c} silver coins is said to lie still under the stern.", "The coins found aboard were minted in {m} in {z}."),
    ),
    _topic(
        "the {w} Archive|the museum of {l}|the {w} Library",
        ("the founding of {n}", "{n} was set up in {y} to keep the papers of {p}.", "It was {p} who left {c} books to {l} in {y} and so made {n} possible."),
        ("the collection", "It holds {c} manuscripts, the oldest of which comes from {m}.", "Its collection has grown to {c} objects, though only {d} are on show."),
        ("the building", "The building, a former grain store, has {d} floors and a roof of glass.", "The architect {q} placed the reading room below ground, where the air stays cool."),
        ("the theft", "On {t} {z} a thief took {d} drawings, which were found in {m} three weeks later.", "The theft of {z} was noticed only when {q} asked for the {w} atlas."),
        ("the catalogue", "The catalogue was begun by {q} in {z} and fills {d} volumes.", "Its card catalogue of {c} entries was copied by hand during one winter."),
        ("opening hours", "It is open from Tuesday to Saturday and closes for {d} days in August.", "Readers need a letter from {q} to enter before noon."),
        ("the restoration", "The restoration of the {w} globe took {d} months and cost {c} crowns.", "Since {z} a workshop in the cellar restores water-damaged paper for {m}."),
        ("visitors", "In {z} it had {c} visitors, more than ever before.", "A visitor from {m} once stayed for {d} days without leaving the building."),
    ),
    _topic(
        "the {w} mine|the {w} quarry|the tunnel of {l}",
        ("the beginning of {n}", "Work on {n} began in {y}, after {p} had found a vein of copper near {l}.", "{n} was started in {y} with {d} men and one mule belonging to {p}."),
        ("its depth", "Its deepest shaft reaches {c} metres and ends in a hall full of water.", "At a depth of {c} metres the temperature is always {d} degrees."),
        ("the ore", "The ore contains {d} parts of silver in a thousand, and some {w}.", "From its ore a reddish metal called {w} was smelted in {m}."),
        ("the accident", "In the accident of {t} {z} a wall gave way, and {d} miners waited two days for help.", "After the accident of {z} {q} introduced a second exit."),
        ("the lift", "A lift, installed in {z}, brought up {c} baskets a day.", "The steam lift built by {q} was the first of its kind outside {m}."),
        ("its closing", "It was closed in {z}, when the price of copper had fallen to {d} crowns.", "Since its closing in {z} it serves {m} as a store for cheese."),
        ("the songs", "The miners' songs were written down by {q} and printed in {m}.", "A collection of {d} songs from the mine appeared in {z}."),
        ("the ghost", "An old tale speaks of a woman named {w} who warns the miners with a lamp.", "Children in {l} are told that {w} lives in the lowest gallery."),
    ),
    _topic(
        "the {w} company|{w} and Sons|the firm {w}",
        ("the founding of {n}", "{n} was founded in {l} in {y} by {p} and {q}.", "In {y} {p} started {n} in a garage in {l}, with {d} employees."),
        ("its first product", "Its first product was a pocket scale that could weigh {d} grams.", "The first thing it sold was a radio called {w}, of which {c} were made."),
        ("its revenue", "Revenue reached {c} million in {z}, and {d} per cent of it came from {m}.", "In {z} it earned {c} thousand crowns, its best result so far."),
        ("its staff", "It employs {c} people in {d} countries.", "Of its {c} employees, about half work in {m}."),
        ("the recall", "In {z} it had to recall {c} kettles because of a loose handle.", "The recall of {t} {z} cost more than {c} crowns and {q} resigned."),
        ("the factory", "The factory in {m} runs day and night and uses the heat of the river {w}.", "A second factory was opened in {m} on {t} {z}."),
        ("its head", "{q}, who took over in {z}, had been a pilot for {d} years.", "Under {q} the number of patents rose to {c}."),
        ("the merger", "A merger with {w} of {m} failed in {z} after {d} months of talks.", "In {z} it bought its rival {w} for {c} crowns."),
    ),
    _topic(
        "the {w} method|the {w} process|the {w} experiment",
        ("the discovery of {n}", "{n} was discovered by accident in {y}, when {p} left a glass of {w} on the stove.", "{p} described {n} on {t} {y} in a letter to {q}."),
        ("how it works", "The liquid is heated to {d} degrees, kept still for {c} seconds and then cooled in one step.", "It works by passing air through {d} layers of cloth soaked in {w}."),
        ("its use", "It is used today in {c} laboratories, above all to clean drinking water.", "Bakers in {m} use it to keep bread fresh for {d} days."),
        ("the criticism", "Critics such as {q} object that {d} trials are too few.", "In {z} {q} repeated the work in {m} and found no effect at all."),
        ("the cost", "One run costs about {c} crowns, most of it for electricity.", "Its cost has fallen from {c} to {d} crowns since {z}."),
        ("the danger", "If the pressure exceeds {d} bars, the vessel must be opened by hand.", "The vapour is harmless below {d} degrees but attacks brass above that."),
        ("the improved version", "An improved version by {q} needs only {d} minutes.", "In {z} {q} replaced the glass by {w} steel, which lasts {c} hours."),
        ("the first trial", "The first trial took place in {l} before {d} witnesses.", "At the first public trial, in {m} in {z}, nothing happened for {d} minutes."),
    ),
    _topic(
        "the {w} Orchestra|the choir of {l}|the {w} Theatre",
        ("the beginnings of {n}", "{n} gave its first performance in {l} on {t} {y}, with {d} people in the audience.", "Founded in {y} by {p}, {n} played in a barn near {l} for {d} years."),
        ("the hall", "Its hall seats {c} and is known for an echo of {d} seconds.", "The new hall in {m}, designed by {q}, was opened in {z}."),
        ("the conductor", "{q}, its conductor since {z}, learned the oboe at the age of {d}.", "Under its conductor {q} it travelled to {m} {d} times."),
        ("the recording", "A recording of 'The {w} Night' sold {c} copies.", "Its recording of {z}, made in a single afternoon, is still on sale."),
        ("ticket prices", "A ticket costs {d} crowns, and children under ten pay nothing.", "Since {z} {c} tickets a season are given to schools in {m}."),
        ("the scandal", "In {z} half of the audience left during a piece by {p}.", "The scandal of {t} {z} began when {q} dropped the score."),
        ("its instruments", "It owns a {w} violin that is insured for {c} crowns.", "Among its instruments is a drum from {m}, made of {w} wood."),
        ("its members", "Its {d} members are teachers, nurses and one retired judge.", "To become a member, one has to play {d} pieces behind a curtain."),
    ),
)
