"""Function words of some languages, which say in which language a text is."""

from __future__ import annotations

import re
from collections import Counter

_ENGLISH = """
a about after all also am an and any are as at be because been before being but by can could did do does for from had
has have he her his how i if in into is it its me might more most must my no nor not of off on only or our out over own
she should so some such than that the their them then there these they this those through to too under until up very
was we were what when where which while who whom whose why will with would you your
"""
_GERMAN = """
aber als am an auch auf aus bei bis da damit dann das dass dem den der des die dies diese dieser doch durch ein eine
einem einen einer eines er es für hat ich ihr im in ist ja kann man mehr mit nach nicht noch nur ob oder ohne schon sein
sich sie sind so über um und uns unter vom von vor war was wenn werden wie wir wird zu zum zur
"""
_FRENCH = """
au aux avec c ce ces cette d dans de des du elle elles en est et être il ils j je l la le les leur leurs lui mais même
n ne nous on ont ou où par pas plus pour qu que qui s sa sans se ses si son sont sur tout très un une vous à été
"""
_SPANISH = """
al algo como con cuando de del desde donde el ella ellos en entre era es esta este esto está fue ha hasta hay la las le
lo los muy más ni no nos o para pero por porque que se ser si sin sobre son su sus también un una y ya
"""
_ITALIAN = """
a al alla anche che chi ci come con da dal dalla degli dei del della delle di e ed era gli ha i il in io l la le lo ma
mi nel nella non o per perché più quando questa questo se sei si sono sua sul suo tra un una è
"""
_DUTCH = """
aan als bij dan dat de deze die dit door een en er het hij hoe ik in is je kan maar met meer mijn naar niet nog of om
onder ook op over te tot uit van veel voor waar was wat we wel werd worden zal ze zich zij zijn zo
"""
_PORTUGUESE = """
a ao aos as até com como da das de do dos e ela ele em entre era essa esse esta este eu foi há isso já mais mas mesmo
muito na nas no nos não o os ou para pela pelo por quando que quem se sem ser seu sua são também um uma é
"""
FUNCTION_WORDS: dict[str, frozenset[str]] = {
    "English": frozenset(_ENGLISH.split()),
    "German": frozenset(_GERMAN.split()),
    "French": frozenset(_FRENCH.split()),
    "Spanish": frozenset(_SPANISH.split()),
    "Italian": frozenset(_ITALIAN.split()),
    "Dutch": frozenset(_DUTCH.split()),
    "Portuguese": frozenset(_PORTUGUESE.split()),
}
_WORD = re.compile(r"[^\W\d_]+")
_LONGEST = 5000  # characters of a text that are looked at
# Least number of different function words, and least share of the words of a text: code and tables have fewer. Single
# letters do not count, which are units, variables and columns.
_FEWEST = 4
_LEAST = 0.25


def language_of(text: str) -> str | None:
    """Return the language of `FUNCTION_WORDS` that a text seems to be in; None if that is not clear."""
    words = Counter(_WORD.findall(text[:_LONGEST].lower()))
    counted = {
        name: [word for word in known if len(word) > 1 and word in words] for name, known in FUNCTION_WORDS.items()
    }
    found = {name: sum(words[word] for word in counted[name]) for name in counted}
    best, second = sorted(found, key=lambda name: -found[name])[:2]
    is_text = len(counted[best]) >= _FEWEST and found[best] >= _LEAST * words.total()
    is_clear = is_text and found[best] > 1.3 * found[second]
    if is_clear:
        return best
    return None
