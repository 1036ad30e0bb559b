"""Names and lines from strangers: shown, and never obeyed; secrets taken out."""

import html
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_cachewatch.common.text import for_html, for_markdown, for_terminal, markdown_code

HOSTILE = {
    "escape sequence": ("a\x1b[2J\x1b]0;title\x07b", r"a\x1b[2J\x1b]0;title\x07b"),
    "newlines": ("a\r\nb\tc", r"a\r\nb\tc"),
    "delete and C1": ("a\x7f\x9bb", r"a\x7f\x9bb"),
    "right-to-left override": ("gpj\u202eexe", r"gpj\u202eexe"),
    "isolates": ("\u2066x\u2069", r"\u2066x\u2069"),
    "zero width": ("a\u200b\u200d\ufeffb", r"a\u200b\u200d\ufeffb"),
    "line separator": ("a\u2028b", r"a\u2028b"),
    "private and unassigned": ("\ue000\U000e0001", r"\ue000\U000e0001"),
    "no UTF-8": (b"w\xff\xfe.bin".decode("utf-8", "surrogateescape"), r"w\xff\xfe.bin"),
    "lone surrogate": ("a\ud800b", r"a\ud800b"),
    "harmless": ("größe-模型 ✓.tensorbin", "größe-模型 ✓.tensorbin"),
}


@pytest.mark.parametrize(("name", "shown"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_name_is_shown_as_escapes(name, shown):
    assert for_terminal(name) == shown


def test_a_long_name_is_cut_with_a_mark():
    assert for_terminal("x" * 300) == "x" * 254 + "…"
    assert for_terminal("x" * 255) == "x" * 255
    assert len(for_terminal("\x1b" * 300, 20)) == 20


@given(st.text())
def test_nothing_a_terminal_obeys_comes_through(name):
    shown = for_terminal(name, 10**6)
    assert all(unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") for char in shown)
    shown.encode("utf-8")


@given(st.text(alphabet=st.sampled_from("<>&\"'a;#x3c\x00")))
def test_html_comes_back_as_the_text_that_was_shown(name):
    shown = for_html(name, 10**6)
    assert not set("<>\"'") & set(shown)
    assert html.unescape(shown) == for_terminal(name, 10**6)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("[x](javascript:alert)", r"\[x\](javascript:alert)"),
        ("**b** _i_ `c` ~~s~~ |", r"\*\*b\*\* \_i\_ \`c\` \~\~s\~\~ \|"),
        ("<img src=x>&lt;", "&lt;img src=x&gt;&amp;lt;"),
        ("![a](b)", r"\!\[a\](b)"),
        ("https://evil.example", r"https:\/\/evil.example"),
        ("www.evil.example", r"www\.evil.example"),
        ("me@evil.example", r"me\@evil.example"),
        ("a\nb", r"a\\nb"),
    ],
)
def test_a_name_in_markdown_makes_no_markup_and_no_link(name, shown):
    assert for_markdown(name) == shown


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("layers.0.w1", "`layers.0.w1`"),
        ("a`b", "``a`b``"),
        ("`", "`` ` ``"),
        ("```x", "```` ```x ````"),
        ("", "`  `"),
        ("sh -c 'a | b'", "`sh -c 'a | b'`"),
    ],
)
def test_a_code_span_holds_any_name(name, shown):
    assert markdown_code(name) == shown


@given(st.text(alphabet="`|\\ a"))
def test_a_code_span_is_never_closed_from_inside(name):
    shown = markdown_code(name, 10**6)
    fence = shown[: len(shown) - len(shown.lstrip("`"))]
    inside = shown[len(fence) : -len(fence)]
    assert shown.endswith(fence)
    assert fence not in inside
