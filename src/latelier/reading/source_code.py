"""The functions and classes of source code as the parts of its text; what is one is guessed, in any language."""

from __future__ import annotations

import re

from latelier.reading.content import LONGEST_NAME
from latelier.reading.records import HEADINGS, Part
from latelier.utils.checks import cut

_SUFFIXES = """
.py .pyi .pyx .js .jsx .mjs .cjs .ts .tsx .vue .svelte .java .kt .kts .scala .groovy .clj .go .rs .c .h .cc .cpp .cxx
.hh .hpp .cs .fs .vb .swift .m .mm .rb .php .pl .pm .lua .r .jl .hs .ml .mli .ex .exs .erl .elm .dart .nim .zig .sh
.bash .zsh .fish .ps1 .bat .sql .proto .graphql .toml .yaml .yml .ini .cfg .conf .cmake .gradle .tf .nix .el .lisp
.mts .cts .cu .cuh .sol .hxx
.scm .asm .s .f .f90 .pas .d .v .sv .vhd
"""
SUFFIXES = frozenset(_SUFFIXES.split())

# A definition by its keyword, by a function as its value, or by parameters and a brace; or other code at the margin.
_DEFINITION = re.compile(
    r"""
    ^(?P<margin>[ \t]*)(?:
        (?:(?:export|default|pub(?:\(\w+\))?|public|private|protected|internal|static|final|abstract|async|sealed|open
            |override|inline|unsafe|virtual|data|local|partial|create|or|replace|temporary)[ \t]+)*
        (?:def|defp|defmodule|class|func|fun|function\*?|fn|interface|struct|enum|trait|impl|module|namespace|object|record
            |type|sub|proc|protocol|extension|table|view|trigger|procedure)(?:<[^>\n]*>)?[ \t]+
        (?:\([^)\n]*\)[ \t]*|if[ \t]+not[ \t]+exists[ \t]+)?
        (?P<named>[\w.$:]+)[?!]?
            (?=[ \t]{0,80}(?:[({:<;=\[]|$|(?:extends|implements|for|struct|interface|is|as|do|where)\b))
        |(?:export[ \t]+)?(?:(?:const|let|var)[ \t]+)?(?P<valued>[\w.$]+)[ \t]*(?:=|<-|:)[ \t]*(?:async[ \t]+)?
            (?:function\b|\([^)\n]*\)[ \t]*=>)
        |(?:[\w<>\[\],.*&:?]+[ \t]+)*?[*&]*
            (?P<braced>(?!(?:if|for|foreach|while|switch|catch|return|else|using|lock|match)\b)[\w:~$]+)
            [ \t]{0,80}\([^;{}()]{0,400}\)[^;{}()=\n]{0,80}\n?[ \t]{0,80}\{
    )|^(?=\w)""",
    re.MULTILINE | re.VERBOSE | re.IGNORECASE,
)
_REMARK = re.compile(r"[ \t]*(?:#(?!include|define|if|end)|//|/?\*|@|--|\[)")
_LEAST_PIECE = 200  # characters of definitions that are a passage of their own; shorter ones are joined


def definitions(text: str) -> tuple[Part, ...]:
    """Return the functions and classes of source code as parts; what is one is guessed, in any language."""
    above: list[tuple[int, str]] = []
    parts = [Part(0)]
    last = 0  # where the last part begins that is a passage of its own
    end = 0  # of the match before, which the remarks above a definition come after
    for found in _DEFINITION.finditer(text):
        name = found["named"] or found["valued"] or found["braced"]
        name = name and cut(name, LONGEST_NAME)
        margin = len((found["margin"] or "").expandtabs(4))
        outer = [each for each in above if each[0] < margin]
        if name is None and parts[-1].headings:
            above = []
            parts.append(Part(found.start()))
        elif name is not None and len(outer) < 2:
            above = [*outer, (margin, name)]
            start = found.start()
            while start > end and _REMARK.match(text, before := text.rfind("\n", end, start - 1) + 1 or end, start):
                start = before
            is_apart = start - last >= _LEAST_PIECE
            last = start if is_apart else last
            parts.append(Part(start, HEADINGS.join(each for _, each in above), is_apart=is_apart))
        end = found.end()
    return tuple(parts)
