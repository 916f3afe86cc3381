"""What support chats are about: kinds of product, what goes wrong with them, and what helps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """`symptoms` as a customer tells them, one `question` an agent asks with its `answers`, and `steps` in order."""

    symptoms: tuple[str, ...]
    question: str
    answers: tuple[str, ...]
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Product:
    kind: str
    problems: tuple[Problem, ...]


def _problem(symptoms: str, question: str, answers: str, steps: str) -> Problem:
    return Problem(tuple(symptoms.split("|")), question, tuple(answers.split("|")), tuple(steps.split("|")))


PRODUCTS: tuple[Product, ...] = (
    Product("router", (
        _problem("the internet drops every few minutes|my connection keeps dying|pages stop loading all the time", "Which colour is the light on the front?", "it is red|it blinks orange|green, but it flickers", "unplug the power cable, wait thirty seconds and plug it back in|move it away from the microwave and other radios|open the settings page and change the channel to automatic|install the latest firmware from the settings page"),
        _problem("I forgot the admin password|the settings page does not accept my password", "Have you ever changed the password printed on the label?", "yes, last year|no, I never touched it|I am not sure", "look for the label on the bottom and try the password printed there|press the reset button with a pin for ten seconds|log in with the default password and choose a new one"),
        _problem("the wireless signal is weak upstairs|I get no signal in the bedroom", "How far is the bedroom from the device?", "two floors up|about twelve metres|just behind a thick wall", "turn both antennas so that they point straight up|place it higher, on a shelf rather than on the floor|switch the bedroom devices to the slower but wider band|add a repeater halfway up the stairs"),
    )),
    Product("coffee machine", (
        _problem("the coffee comes out cold|my coffee is only lukewarm", "How long do you let it warm up?", "not at all|about a minute|until the light stops blinking", "run one cup of hot water through it before brewing|clean the limescale with a descaling tablet|set the temperature to high in the menu"),
        _problem("it leaks water underneath|there is a puddle below it every morning", "Does it leak while brewing or when it stands still?", "only while brewing|all night long|I have not looked", "push the water tank down until it clicks|check the rubber ring below the tank for cracks|empty the drip tray and dry the sensor|replace the rubber ring; I can send one free of charge"),
        _problem("the grinder makes a terrible noise|it sounds as if it grinds stones", "When did you last clean the grinder?", "never|last month|a year ago, I think", "switch it off and empty the beans|remove the upper ring and brush out the old powder|set the grinder two steps coarser and try a few beans"),
    )),
    Product("printer", (
        _problem("it prints only blank pages|every page comes out empty", "Do you see ink when you open the lid?", "yes, all tanks are half full|the black one looks empty|I cannot tell", "take the cartridges out and remove the yellow tape|run the head cleaning twice from the tools menu|print a test page and compare the colours|replace the black cartridge"),
        _problem("paper gets stuck in the back|it jams after every third sheet", "What kind of paper do you use?", "thick photo paper|the cheap one from the supermarket|plain paper, nothing special", "open the rear cover and pull the paper out slowly with both hands|clean the grey rollers with a damp cloth|load no more than forty sheets|set the paper type in the print dialog to match your paper"),
        _problem("my computer says it is offline|I cannot print from my laptop any more", "Are both of them in the same network?", "I think so|the laptop was moved to a new network|yes, I checked", "restart the device and then the laptop|remove it from the list of devices and add it again|give it a fixed address in the network menu"),
    )),
    Product("phone", (
        _problem("the battery is empty by noon|it loses half its charge over night", "How old is the battery?", "three years|I bought it in spring|it was a gift, I do not know", "open the battery page and look which app uses most|turn off background refresh for that app|lower the brightness and switch on dark mode|book a battery replacement at our shop"),
        _problem("the screen does not react to my finger|I cannot swipe any more", "Is there a protective film on the glass?", "yes, a new one|no film|an old film with a crack", "clean the glass with a soft dry cloth|remove the film and try again|hold the power button for fifteen seconds to restart it|switch on the glove mode in the display settings"),
        _problem("photos no longer upload|my pictures are missing on the computer", "How much storage is left in your account?", "it says zero|about half|where do I see that", "sign out of the photo account and sign in again|delete large videos you no longer need|allow uploads over mobile data in the settings|leave the phone on the charger for one night"),
    )),
    Product("washing machine", (
        _problem("it stops in the middle of the cycle|it shows an error and stands still", "Which code is shown on the display?", "it says E4|F12, I believe|nothing at all", "close the water tap and clean the small sieve in the hose|empty the filter behind the lower flap|choose the drain programme and wait until it ends|start a short cycle without clothes"),
        _problem("it shakes like mad when spinning|the machine walks through the bathroom", "Have the transport bolts been removed?", "what bolts|yes, by the installer|I am not sure", "take out the four bolts on the back if they are still there|turn the feet until it stands level|wash fewer heavy pieces at once"),
        _problem("the clothes smell musty|there is a bad smell from the drum", "At which temperature do you usually wash?", "always cold|at thirty degrees|at forty, mostly", "run an empty cycle at ninety degrees|wipe the rubber seal and leave the door open|clean the detergent drawer under running water"),
    )),
    Product("vacuum robot", (
        _problem("it cannot find its dock|it stops under the sofa every day", "Is the dock standing against a wall?", "no, in the middle of the room|yes, in the hall|behind a curtain", "leave half a metre of free space on both sides of the dock|wipe the two metal contacts with a dry cloth|delete the map and let it learn the rooms again"),
        _problem("it leaves dust in the corners|the floor is still dirty afterwards", "When did you change the brush?", "never|two months ago|last week", "cut the hair from the main brush|tap out the filter, but do not wash it|set the suction to strong in the app|replace the side brush"),
        _problem("the app does not see it|I lost the connection to the app", "Did you change the name of your network?", "yes, yesterday|no|my son did something", "press both buttons until you hear a tone|connect your phone to the slower band first|add the device again with the code under the lid"),
    )),
    Product("headphones", (
        _problem("only the left side works|I hear nothing on the right", "Does it happen with another device as well?", "yes, with my tablet too|only with the laptop|I have not tried", "move the balance to the middle in the sound settings|put both pieces into the case for a minute|reset them by holding both sides for eight seconds|clean the small grid with a dry brush"),
        _problem("they keep disconnecting|the sound breaks off when I walk around", "Where do you carry the phone?", "in my back pocket|in a metal case|on the table", "carry the phone on the same side as the main piece|forget other paired devices|install the update in the companion app"),
    )),
    Product("e-bike", (
        _problem("the motor does not help uphill|the motor cuts out on steep roads", "How full is the battery at that moment?", "nearly empty|about eighty percent|two bars", "clean the sensor next to the rear wheel|check that the magnet on the spoke has not moved|choose the strongest mode before the hill|have the software updated by a dealer"),
        _problem("the brakes squeal|the front brake is awfully loud", "Does it squeal when it is dry, too?", "only in the rain|always|mostly in the morning", "clean the disc with alcohol|brake hard ten times from a moderate speed|replace the pads if they are thinner than one millimetre"),
        _problem("the display stays dark|the display does not switch on", "Does the battery show its own lights?", "yes, three of them|no lights at all|one blinks", "take the battery out and put it back until it clicks|charge it for two hours with the original charger|check the plug under the handlebar"),
    )),
    Product("smart lock", (
        _problem("the door does not unlock from my phone|the app says the door is busy", "Are you standing in front of the door?", "yes, right here|no, I am at work|a few metres away", "switch the radio of your phone off and on again|replace all four batteries at the same time|calibrate the lock in the app with the door open"),
        _problem("it unlocks by itself|the door was open this morning", "Do you use the automatic unlocking?", "yes|I do not think so|maybe my wife does", "turn off automatic unlocking in the app|look at the log to see which key was used|remove old phones from the list of keys|change the master code"),
    )),
    Product("photo app", (
        _problem("it crashes when I open an album|the app closes right after the start", "Which version do you have?", "the newest|version seven|how do I see that", "empty the cache in the settings of the app|restart the phone|remove the app and install it again; your pictures stay in your account"),
        _problem("I was charged twice|there are two payments on my card", "Do you have more than one account?", "no, only one|perhaps an old one|yes, one for work", "check both accounts under the payment page|cancel the plan of the account you do not use|I will refund the second payment within five days"),
        _problem("I want to cancel my plan|I do not need the subscription any more", "Did you subscribe on our page or in a shop?", "on your page|through the phone's shop|I do not remember", "open the account page and choose cancel|confirm the message that we send you|download your pictures before the end of the month"),
    )),
    Product("oven", (
        _problem("cakes burn at the bottom|everything is black below and raw above", "On which level do you bake?", "the lowest|in the middle|it depends", "use the level in the middle|lower the temperature by twenty degrees|choose heat from above and below rather than hot air"),
        _problem("the door does not close any more|there is a gap at the top of the door", "Did you clean the door lately?", "yes, I took it off|no|a year ago", "open the door fully and check that both hinges are locked|clean the seal with warm water|order a new seal with the number on the frame"),
    )),
    Product("heating control", (
        _problem("the bathroom stays cold|one room does not get warm", "Which temperature does the display show?", "twenty one, but it is colder|it shows a snowflake|it is empty", "press the wheel for five seconds to calibrate the valve|replace the two batteries|release the air from the radiator with a key"),
        _problem("it heats during the night|the schedule is ignored", "Who changed the schedule last?", "nobody|I did, on Sunday|my neighbour helped", "check that the clock shows the right time|delete the holiday programme|copy the schedule of Monday to the other days"),
    )),
)  # fmt: skip
