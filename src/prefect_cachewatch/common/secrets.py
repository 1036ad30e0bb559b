"""Recognizes and removes secrets: the one rule for reports, pages, logs, messages, argv and environments.

A name is secret by its words (`DB_PWD`, `--api-key`, `clientSecret`; not `monkey`, `max_tokens` or `--design`). A value
is secret by its name, by a known shape (`ghp_...`, `AKIA...`, a private key), or because the environment held it under
such a name. No file is opened. A secret that neither a name nor a shape reveals is not found.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar, cast
from urllib.parse import quote, unquote

from prefect_cachewatch.common.private_keys import hide_private_keys

HIDDEN = "***"
T = TypeVar("T")
_LONGEST = 4096
_LEAST = 6  # characters; hiding a shorter value of the environment would spoil innocent text


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Words that make a name secret whatever other words it has, except those of _ABOUT.
_STRONG = _set(
    "password passwords passwd passphrase passcode pwd secret secrets credential credentials cred creds apikey apikeys "
    "accesskey secretkey privatekey authtoken accesstoken refreshtoken bearer sshpass dbpass userpass rootpass ftppass "
    "proxypass smtppass pgpass authpass keypass storepass sessionid sessid phpsessid jsessionid authorization"
)
# Words with other meanings too: the value must look like more than a number or an everyday word.
_WEAK = _set("token key auth oauth cookie cookies sig signature pass jwt otp")
_STRONG_END = ("password", "passwd", "passphrase", "secret", "apikey", "authtoken", "accesstoken")
# Words after which the value describes the secret and is not the secret itself.
_ABOUT = _set(
    "file files path paths dir directory sock socket url uri host port name names id ids type types mode method provider "
    "length len count size limit ttl expiry expires expiration timeout age policy required enabled disabled scheme realm "
    "version format alg algorithm server domain prefix suffix field column regex pattern env var arn backend helper "
    "classification classifier usage counter budget speed throughput latency embedding embeddings generation stream shape "
    "dtype bytes map projection proj cache states mask dim heads pool ms us ns "
    "rate per s sec seconds store manager index fingerprint error errors exception py pyx cpp hpp rs"
)
# Words before a token or a key that make it one of text, of a table or of a cache.
_INNOCENT = {
    "token": _set("eos bos pad unk sep cls mask masked stop special next last first prev previous image audio video start end begin "
        "text prompt per each new max min num n total current input output single ending soft draft"),
    "key": _set("cache primary foreign sort public pub partition shard state group row column lookup dedup hot map dict missing "
        "unexpected duplicate weight tensor layer param artifact object metric config any host no every each this "
        "same other build ordering idempotency"),
    "keys": frozenset(),
    "pass": _set("first second third last next one two multi single num each forward backward per optimization"),
    "sig": frozenset(),
    "signature": _set("function method type call graph input output model serving kernel"),
}  # fmt: skip
# Values that are not secrets: a status of one, or words whose removal would blank half a log.
_EVERYDAY = _set(
    "skipped done started loaded loading refreshed renewed granted success successful succeeded passed pending ready open "
    "closed new old updated changed rotated revoked created deleted undefined present absent n/a "
    "none null nil true false yes no on off ok okay empty unset set missing invalid expired required optional rejected "
    "denied failed failure error accepted valid found unknown default auto basic bearer digest negotiate kerberos ntlm "
    "token tokens secret password passwd key auth admin root user guest nobody test testing example changeme dummy "
    "placeholder production development staging release debug info warning localhost enabled disabled always never "
    "hidden redacted masked prompt file env environment keyring vault ask stdin public private anonymous local global "
    "python python3 generator generate cachewatch prefect worker server client service docker model models layers "
    "weights tensor tensors cache caches to is was are and or for the of in not with must from has have by as an at be "
    "flag option given here there this that it its if can cannot could will would should your you we he"
)


class _Late:
    """A pattern that is compiled on first use."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern

    def __getattr__(self, name: str) -> Any:
        method = getattr(re.compile(self._pattern), name)
        setattr(self, name, method)
        return method


def _late(pattern: str) -> re.Pattern[str]:
    """Compile late: the patterns that hide secrets take 0.3 MB together, and a watch uses them at its end."""
    return cast("re.Pattern[str]", _Late(pattern))


_COLOUR = _late(r"\x1b\[[\d;:]*+[A-Za-z]")
_CASES = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SIGNAL = re.compile(r"SIG[A-Z0-9]+", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?[\d.,_:/%]+(?:e[-+]?\d+)?[a-zA-Z]{0,5}")
_PATH = re.compile(r"(?:~|\.{1,2})?/[^=]*|[A-Za-z]:\\.*")

_DIGEST = re.compile(r"(?:[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64})", re.IGNORECASE)
_MASKED = re.compile(r"\*+|x{3,}|X{3,}|\.{3,}")

# Shapes that reveal a secret without a name.
_SHAPES = re.compile(
    r"\beyJ[\w-]{8,2000}+\.[\w-]{8,}\.[\w-]*"  # JSON web token
    r"|\bhf_(?:[A-Za-z0-9]{16,}|(?![a-z]+\d{1,3}[a-z]?\b)(?=[A-Za-z]*\d)[A-Za-z0-9]{8,})\b|\bapi_org_[A-Za-z0-9]{16,}"
    r"|\b(?:ghp_|gho_|ghs_|ghu_|ghr_|github_pat_|pnu_|pnb_)\w{8,}"
    r"|\bgl(?:pat|ptt|dt|rt|cbt|soat|ft|imt|agent|oas)-[\w.-]{8,}"
    r"|\bnvapi-[\w-]{8,}"
    r"|\bAIza[\w-]{16,}|\bya29\.[\w-]{16,}|\bGOCSPX-[\w-]{16,}"
    r"|\b(?:sk|rk|pk)(?:-(?=[\w-]*(?:\d|[\w-]{20}))[\w-]{8,}|_(?:live|test|prod)_\w{8,})"
    r"|\bxox[a-z]-[\w-]{8,}|\bxox[a-z]\.xox[a-z]-[\w-]{8,}|\bxapp-\d-[\w-]{8,}"
    r"|\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12,}"
    r"|\bnpm_[A-Za-z0-9]{24,}|\bpypi-[\w-]{24,}|\bdckr_(?:pat|oat)_[\w-]{16,}|\bdop_v1_[a-f0-9]{32,}"
    r"|\bshp(?:at|ca|pa|ss)_[a-fA-F0-9]{16,}|\bSG\.[\w-]{16,}\.[\w-]{16,}|\bdapi[a-f0-9]{32}\b|\bgsk_[A-Za-z0-9]{20,}"
    r"|\bhv[sb]\.[\w-]{20,}|\btskey-[\w-]{16,}|\bAGE-SECRET-KEY-1[A-Z0-9]{20,}|\br8_[A-Za-z0-9]{24,}"
    r"|\b(?:xai|pplx)-[A-Za-z0-9]{20,}|\b(?:whsec|glsa|sntry[su]|lin_api|figd|rubygems|sqp)_[\w+/=-]{16,}"
    r"|\bPMAK-[a-f0-9-]{16,}|\bAT(?:ATT|CTT|BB)[\w=-]{20,}|\bdp\.(?:pt|st|ct|sa)\.[\w.-]{20,}"
    r"|\b\d{8,10}:[\w-]{35}\b"  # Telegram's bots
)
_WEBHOOK = _late(
    r"(?i)(\b(?:hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)|(?:\w+\.)?discord(?:app)?\.com/api/(?:v\d+/)?webhooks"
    r"|[\w.-]+\.webhook\.office\.com/webhookb2|outlook\.office(?:365)?\.com/webhook|api\.telegram\.org/bot))[^\s\"'<>]+"
)
_LABELLED = re.compile(r"[\s:=<%]")  # every pattern below contains one of these
_WRAP = _late(r"(?<![ \t|\\\u2502])[ \t|\\\u2502]*+\r?\n[ \t|\u2502]*+")  # a box or a shell may have wrapped the line
_USERINFO = _late(  # a password may contain a /, and what follows a port is a path
    r"(?<![\w+.-])([\w+.-]++://)(?:[^\s/\"'<>]+|[^\s/:@\"'<>]*+:(?!\d*+(?:[/?#]|$))[^\s@\"'<>?]{1,200}+)@"
)
_HEADER = _late(
    r"(?i)(?<![\w-])((?:proxy-)?authorization|(?:set-)?cookie)(\\*[\"']?\s*+[:=]\s*+\\*[\"']?)([^\r\n\"'\\]+)"
)
_BEARER = _late(r"(?i)\b(bearer|basic)([\s:]++)([\w.~+/=-]{6,})")
_USER = _late(r"(?<![\w-])(-u\s*+|--(?:proxy-)?user[ =]\s*+)(\\*[\"']?)([^\s:\"'\\-][^\s:\"'\\]*+:)([^\s\"'\\]+)")
_XML = _late(r"<([\w.:-]{1,80}+)>([^<>\r\n]{1,400}+)</")
_VALUE = (  # up to the closing quote, if there is one
    r"\\+\"(?:[^\"\\\r\n]|\\(?!\"))*+|\\+'(?:[^'\\\r\n]|\\(?!'))*+"
    r"|\"(?:[^\"\\\r\n]|\\.)*+|'(?:[^'\\\r\n]|\\.)*+"
    r"|[^\s\"'&,;]++"
)
_HINT = r"(?=[\w.-]*?(?:tok|sec|pass|pwd|key|auth|cred|cookie|sig|bearer|sessid|sessionid|jwt|otp))"
# Possessive, and only from a word's beginning: a log line of one long word must not take seconds. The value is not
# included, since it may contain labels too: url=https://h/?token=abc.
_LABEL = _late(
    r"(?<![\w.-])([\w.-]++)[\])]?(?:\\*[\"'])?[\])]?[ \t]*+(?:=>|:=|==?|:|%3[dD])[ \t]*+(?:\r?\n[ \t]++)?"
    r"(?:[bruBRU]{1,2}(?=\\*[\"']))?"
)
_VALUE_HERE = _late(_VALUE)
_OPTION = _late(rf"(?i)(?<![\w.-])(--?{_HINT}[\w.-]++)([ \t]++)(?!-)({_VALUE})")
_SAID = _late(  # password is hunter2; machine h login me password hunter2
    rf"(?i)(?<![\w.-])({_HINT}[\w.-]++)(\s++(?:(?:is|was|for [^\s:]{{1,40}}+)[ \t]*+:?[ \t]*+)?)([\w+/=~!@#$%^*-]{{6,}}+)(?![\w.:(])"
)
_BLOCK = _late(  # a multi-line YAML text
    rf"(?im)^([ \t]*+)((?:-[ \t]+)?)({_HINT}[\w.-]++)(:[ \t]*+[|>][-+\d]*+[ \t]*+\r?\n)((?:\1[ \t]++[^\n]*+\n?)++)"
)
_PROGRAM = _late(  # commands whose -p, or -a, is a password
    r"(?<![\w.-])((?:(?:mysql|mariadb|mongo|mongosh)(?:-?(?:dump|admin|sh|import))?|sshpass|smbclient|ipmitool"
    r"|(?:docker|podman|nerdctl|oras|helm|crane|skopeo)[ \t]++(?:registry[ \t]++)?login)[ \t](?:[^\n|;&]{0,200}?[ \t])?-p"
    r"|redis-cli[ \t](?:[^\n|;&]{0,200}?[ \t])?-a)([ \t]*+)(?!-)(\"[^\"\n]*+|'[^'\n]*+|[^\s\"'|;&]++)"
)
_NAMED = _late(  # {"name": "TOKEN", "value": "abc"}, and the same as YAML
    rf"(?i)(\bname\\*[\"']?\s*[:=]\s*\\*[\"']?)({_HINT}[\w.-]++)(\\*[\"']?\s*,?\s*\\*[\"']?value\\*[\"']?\s*[:=]\s*)({_VALUE})"
)
_LINE = _late(rf"(?im)^([^\S\n]*+(?:-\s+|export\s+|#\s*)?)({_HINT}[\w.-]++)(\s*+:\s++)(?![\"'|>])([^\r\n,;\"']+)")
# Commands whose -p is a password, and those whose -p is known not to be one.
_PASSWORD_P = _set("mysql mysqldump mysqladmin mariadb mariadb-dump sshpass mongo mongosh mongodump smbclient ipmitool")
_NO_PASSWORD_P = _set("mkdir cp install tar ssh scp patch ps kill rsync pytest make env sh bash git tmux psql pg_dump redis-cli "
    "nc ncat lsof fio taskset numactl nice touch unzip patchelf perl")  # fmt: skip


@lru_cache(maxsize=4096)
def _words(name: str) -> tuple[str, ...]:
    """Split a name into words, at case changes and at every character that is no letter or digit."""
    return tuple(word.lower() for word in _CASES.findall(name))


@lru_cache(maxsize=4096)
def _grade(name: str) -> int:
    """Grade how secret a name makes its value: 0 not at all, 1 if the value looks secret, 2 in any case."""
    words = _words(name)
    # The last word tells what the value is: token_file, key-id, passwordLength.
    if not words or (len(words) > 1 and words[-1] in _ABOUT):
        return 0
    grade = 0
    for at, word in enumerate(words):
        before = words[at - 1] if at else ""
        if word in _STRONG or word.endswith(_STRONG_END):
            return 2
        if word in ("keys", "tokens"):  # counts of tables or text, unless another word makes them credentials
            found = before in ("api", "access", "auth", "secret", "ssh", "bearer", "refresh")
        else:
            # Words written together: apitoken; tokenizer and monkey are other words.
            found = word in _WEAK or (word.endswith("token") and len(word) > 5) or word.endswith("apikey")
            found = found and before not in _INNOCENT.get(word, ())
        if found:
            grade = max(
                grade, 2 if before in ("api", "access", "secret", "private", "auth", "encryption", "signing") else 1
            )
    return grade


def is_secret_name(name: str) -> bool:
    """Say whether a variable, option or field names a secret.

    Args:
        name: as written, with words separated by `-`, `_` or a change of case.

    Returns:
        Whether its value must be hidden, unless the value is plainly not a secret.

    Example:
        >>> [is_secret_name(name) for name in ("DB_PWD", "SSHPASS", "clientSecret", "--monkey", "signal", "max_tokens")]
        [True, True, True, False, False, False]
    """
    return _grade(name) > 0


def _is_plain(value: str) -> bool:
    """Say whether a value is a number, a path or an everyday word."""
    return (
        value.lower().rstrip(".:!?)") in _EVERYDAY
        or bool(_NUMBER.fullmatch(value) and (len(value) < 9 or not value.isdigit()))
        or bool(_PATH.fullmatch(value) and "/" in value[1:])
        or bool(_SIGNAL.fullmatch(value))
    )


def _is_hidden(name: str, value: str, in_query: bool = False) -> bool:
    """Say whether a name and its value together are a secret."""
    if re.fullmatch(r"[|>][-+\d]*", value):
        return False  # YAML: the text follows
    value = value.strip("\\\"'()[]{}<>,; ")
    grade = _grade(name)
    if grade and len(value) > _LONGEST:
        return True  # too long to be read by a person, and each label in it would be matched against all the rest
    if not grade or not value or _MASKED.fullmatch(value) or value[0] == "$":
        return False
    if grade == 2:
        # PWD is a directory; DB_PWD is not.
        return not (value.lower() in _EVERYDAY or (name.strip("-").lower() in ("pwd", "oldpwd") and value[0] in "/~."))
    if _is_plain(value):
        return False
    # key: layers.0.weight, auth: accepted; a password under such a name looks the same.
    words = _words(name)
    if words[-1] in ("sig", "signature"):
        return in_query or not re.fullmatch(r"\w{1,11}(?:\(.*)?", value)  # sig=0x1f, signature: conv2d(x)
    return words != ("key",) or (_looks_random(value) and (in_query or not _DIGEST.fullmatch(value)))  # a cache key


def _looks_random(value: str) -> bool:
    return (
        len(value) >= 12
        and bool(re.search(r"\d", value))
        and bool(re.fullmatch(r"[\w+/~-]+={0,2}", value))
        and not (re.fullmatch(r"[a-z]+(?:[._-][a-z\d]+)*", value))
    )


def _hide_labelled(text: str) -> str:
    pieces: list[str] = []
    done = 0
    for label in _LABEL.finditer(text):
        if label.start() < done or not _grade(label[1]):
            continue
        value = _VALUE_HERE.match(text, label.end())
        in_query = text[max(0, label.start() - 1) : label.start()] in ("?", "&")
        if (
            value is None
            or not _is_hidden(label[1], value[0], in_query)
            or (label[0].endswith(": ") and _is_prose(label, value))
        ):
            continue
        pieces += [text[done : label.end()], _shown(value[0])]
        done = value.end()
    return "".join([*pieces, text[done:]]) if pieces else text


def _shown(value: str) -> str:
    """Return the replacement for a hidden value: its opening quote stays, since the closing one was not taken."""
    opening = re.match(r"\\*[\"']", value)
    return f"{opening[0] if opening else ''}{HIDDEN}"


def _option(match: re.Match[str]) -> str:
    name, between, value = match.groups()
    return f"{name}{between}{_shown(value)}" if _is_hidden(name, value) else match[0]


def _is_prose(label: re.Match[str], value: re.Match[str]) -> bool:
    """Say whether the text is prose, as in `next token: hello there`: a word after a weak name, but no YAML line."""
    word = value[0].strip("().,;:!?")
    if _words(label[1]) == ("pass",) and re.fullmatch(r"[a-z]+(?:[._-][a-z\d]+)+", word):
        return True  # a compiler's key, as conv-fusion-2
    if _grade(label[1]) == 2 or not (word.isalpha() and word.islower()):
        return False
    text, start, end = label.string, label.start(), value.end()
    before = text[text.rfind("\n", 0, start) + 1 : start]
    after = text[end : end + 1]
    return bool(before.strip(" \t-#")) or after not in ("", "\n", "\r")


def _named(match: re.Match[str]) -> str:
    head, name, between, value = match.groups()
    if not _grade(name):
        return match[0]
    return f"{head}{name}{between}{_shown(value)}"


def _whole_line(match: re.Match[str]) -> str:
    head, name, between, value = match.groups()
    return f"{head}{name}{between}{HIDDEN}" if _grade(name) == 2 and _is_hidden(name, value.split()[0]) else match[0]


def _said(match: re.Match[str]) -> str:
    name, between, value = match.groups()
    random = bool(re.search(r"\d", value) and re.search(r"[A-Za-z]", value)) and not _NUMBER.fullmatch(value)
    hidden = random and _is_hidden(name, value) and (_grade(name) == 2 or _looks_random(value))
    return f"{name}{between}{HIDDEN}" if hidden else match[0]


def _block(match: re.Match[str]) -> str:
    if not _grade(match[3]):
        return match[0]
    return "".join(match.group(1, 2, 3, 4)) + re.sub(r"(?m)^([ \t]*)\S[^\r\n]*", rf"\1{HIDDEN}", match[5])


def _header(match: re.Match[str]) -> str:
    if "cookie" in match[1].lower() and "=" not in match[3]:
        return match[0]  # COOKIE=1; the rest is a label like others
    return match[0] if match[3].strip().lower() in _EVERYDAY else f"{match[1]}{match[2]}{HIDDEN}"


def _bearer(match: re.Match[str]) -> str:
    scheme, between, value = match.groups()
    if scheme.lower() == "bearer":
        plain = value.lower() in _EVERYDAY or re.fullmatch(
            r"(?i)(?:auth\w*|token\w*|credential\w*|challenge|scheme)", value
        )
        hidden = len(value) >= 8 and not plain
    else:
        try:
            hidden = b":" in base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            hidden = False
    return f"{scheme}{between}{HIDDEN}" if hidden else match[0]


def _xml(match: re.Match[str]) -> str:
    return f"<{match[1]}>{HIDDEN}</" if _is_hidden(match[1], match[2]) else match[0]


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Replace everything in a text that looks like a secret.

    Args:
        text: a log line, URL, message or several lines.
        secrets: values that are known to be secret, replaced wherever they occur.

    Returns:
        The text with each secret replaced by `***`, in as many lines as before. A line with a secret loses its colours.

    Example:
        >>> redact("GET https://me:pw@host/x?token=abc")
        'GET https://***@host/x?token=***'
    """
    if "\x1b[" not in text:
        return _redact(text, secrets)
    bare = _COLOUR.sub("", text)  # a name in one colour, its value in another
    shown = _redact(bare, tuple(secrets))
    return text if shown == bare else shown


def hide(text: str, secrets: Iterable[str]) -> str:
    """Replace known secrets in a text, and nothing that only looks like one.

    Args:
        text: a name, path or sentence.
        secrets: values that are known to be secret, replaced wherever they occur.

    Example:
        >>> hide("/cache/hunter22/a.bin cannot be read", ["hunter22"])
        '/cache/***/a.bin cannot be read'
    """
    longest_first = sorted(filter(None, secrets), key=len, reverse=True)
    for secret in longest_first:
        text = text.replace(secret, HIDDEN)
    return _hide_wrapped(text, longest_first) if longest_first and "\n" in text else text


def _hide_wrapped(text: str, secrets: Sequence[str]) -> str:
    """Hide secrets that are broken across lines: each line's part is replaced."""
    wraps = [(wrap.start(), wrap.end()) for wrap in _WRAP.finditer(text)]
    spans = list(zip([0, *(end for _, end in wraps)], [*(start for start, _ in wraps), len(text)], strict=True))
    bare = "".join(text[start:end] for start, end in spans)
    found = [(at, at + len(secret)) for secret in secrets for at in _places(bare, secret)]
    if not found:
        return text
    hidden: list[tuple[int, int]] = []
    done = 0  # position in the bare text
    for start, end in spans:
        parts = ((max(first, done), min(last, done + end - start)) for first, last in found)
        hidden += [(start + first - done, start + last - done) for first, last in parts if first < last]
        done += end - start
    for start, end in sorted(hidden, reverse=True):
        text = f"{text[:start]}{HIDDEN}{text[end:]}"
    return text


def _places(text: str, part: str) -> Iterator[int]:
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + len(part))


def _redact(text: str, secrets: Iterable[str]) -> str:
    text = hide_private_keys(hide(text, secrets))
    if "hook" in text or "telegram" in text:
        text = _WEBHOOK.sub(rf"\1/{HIDDEN}", text)
    text = _SHAPES.sub(HIDDEN, text)
    if not _LABELLED.search(text):  # only a path or a name
        return text
    if "://" in text:
        text = _USERINFO.sub(rf"\1{HIDDEN}@", text)
    text = _HEADER.sub(_header, text)
    text = _BEARER.sub(_bearer, text)
    text = _PROGRAM.sub(lambda match: f"{match[1]}{match[2]}{_shown(match[3])}", text)
    text = _USER.sub(rf"\1\2\3{HIDDEN}", text)
    text = _BLOCK.sub(_block, text)
    text = _LINE.sub(_whole_line, text)
    text = _NAMED.sub(_named, text)
    text = _hide_labelled(text)
    text = _OPTION.sub(_option, text)
    text = _SAID.sub(_said, text)
    return _XML.sub(_xml, text) if "</" in text else text


class LineRedactor:
    """Replaces secrets in lines that arrive in pieces; a private key may begin in one piece and end in another.

    Args:
        secrets: values that are known to be secret.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = tuple(secrets)
        self._open = self._last = ""

    def lines(self, lines: Sequence[str]) -> list[str]:
        """Redact the next lines; returns the same number of lines."""
        if not lines:
            return []
        head = [line for line in (self._open, self._last) if line]
        shown = redact("\n".join([*head, *lines]), self._secrets).split("\n")[len(head) :]
        self._last = lines[-1][-_LONGEST:]  # a secret may be cut at its end
        for line in lines:
            if "PRIVATE KEY" in line and "-----" in line:
                began, ended = line.rfind("-----BEGIN"), line.rfind("-----END")
                self._open = "-----BEGIN PRIVATE KEY-----" if began > ended else ""
        return shown


def redact_all(value: T, secrets: Iterable[str] = ()) -> T:
    """Replace secrets in each text of a structure.

    Args:
        value: texts, mappings, lists, tuples and dataclasses of them; other values stay.
        secrets: values that are known to be secret.

    Returns:
        A new structure of the same form.

    Example:
        >>> redact_all({"paths": ["/cache/hunter22/a.bin", 3]}, ["hunter22"])
        {'paths': ['/cache/***/a.bin', 3]}
    """
    return cast("T", _redact_all(value, tuple(secrets)))


def _redact_all(value: object, secrets: tuple[str, ...]) -> object:
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, Mapping):
        return {_redact_all(key, secrets): _redact_all(one, secrets) for key, one in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)([_redact_all(one, secrets) for one in value])
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if field.init]
        return replace(value, **{name: _redact_all(getattr(value, name), secrets) for name in names})
    return value


def redact_argv(argv: Sequence[str], secrets: Iterable[str] = ()) -> list[str]:
    """Replace secrets in a command line, found by value and by the option before them.

    Args:
        argv: the command and its arguments.
        secrets: values that are known to be secret.

    Returns:
        The same number of strings, with secrets replaced.

    Example:
        >>> redact_argv(["curl", "--token", "abc", "--password=x", "f.bin"])
        ['curl', '--token', '***', '--password=***', 'f.bin']
    """
    known = [*secrets]
    programs = {word.rsplit("/", 1)[-1] for word in argv if not word.startswith("-")}
    shown: list[str] = []
    for at, word in enumerate(argv):
        before = argv[at - 1] if at else ""
        if before and _is_operand(before, word, programs):
            user, colon, _ = word.partition(":")
            shown.append(f"{user}:{HIDDEN}" if before in _USER_OPTIONS and colon else HIDDEN)
        elif re.fullmatch(r"-u[^:=\s]+:.+", word):
            shown.append(f"{word.partition(':')[0]}:{HIDDEN}")
        elif word.startswith("-p") and len(word) > 2 and programs & _PASSWORD_P:
            shown.append(f"-p{HIDDEN}")
        else:
            shown.append(_redact_word(word, known))
    return shown


_USER_OPTIONS = ("-u", "--user", "--proxy-user", "-U")


def _redact_word(word: str, known: Sequence[str]) -> str:
    name, equals, value = word.partition("=")
    if equals and re.fullmatch(r"-{0,2}[\w.-]+", name) and _is_hidden(name, value):
        return f"{name}={HIDDEN}"  # the whole argument: it may contain blanks
    return redact(word, known)


def _is_operand(before: str, word: str, programs: set[str]) -> bool:
    """Say whether a word is the secret that the word before it announces."""
    if word.startswith("-") and not (len(word) > 6 and re.search(r"\d", word) and not word.startswith("--")):
        return False
    if before in ("-p", "-P"):
        if before == "-p" and programs & _PASSWORD_P:
            return True
        if programs & _NO_PASSWORD_P or _is_plain(word) or "/" in word or len(word) < _LEAST:
            return False
        return bool(re.search(r"[A-Za-z]", word) and re.search(r"[^A-Za-z.,:_-]", word))
    if before in _USER_OPTIONS:
        return bool(re.fullmatch(r"[^:/\s]+:(?!\d{1,5}$)[^/].*", word, re.DOTALL))
    if before.lower() in ("bearer", "authorization:", "proxy-authorization:"):
        return True
    if before.startswith("-") and "=" not in before:
        return _is_hidden(before, word)
    label = re.fullmatch(r"[\[{]*\\*[\"']?([\w.-]+)\\*[\"']?:", before)  # a header or JSON, split into words
    return label is not None and _is_hidden(label[1], word)


def whole_lines(tail: bytes, wanted: int) -> bytes:
    """Return the end of a log without the cut line at its beginning, which may be the rest of a secret.

    Args:
        tail: the end of the log.
        wanted: the most bytes to return; if that is all of `tail`, its first line counts as cut too.

    Returns:
        Whole lines.

    Example:
        >>> whole_lines(b"oken=abc, third", 12)
        b'third'
    """
    piece = tail[len(tail) - wanted :] if wanted < len(tail) else tail
    if wanted < len(tail) and tail[len(tail) - wanted - 1 : len(tail) - wanted] in (b"\n", b"\r"):
        return piece
    for ends in (b"\n\r", b" "):  # one long line: start at a word's beginning
        if found := re.search(b"[" + ends + b"]", piece):
            return piece[found.end() :]
    return piece[1024:]  # longer than any secret, and without a blank


def secret_options(argv: Sequence[str]) -> list[str]:
    """Name the arguments of a command line that hold secrets, for a warning; their values are never shown.

    Args:
        argv: the command and its arguments.

    Returns:
        Option names, or `argument 3` if it has none; empty if no secret was found.

    Example:
        >>> secret_options(["gen", "--password", "hunter2", "-x", "ghp_0123456789abcdef"])
        ['--password', '-x']
    """
    found: list[str] = []
    for at, (word, shown) in enumerate(zip(argv, redact_argv(argv), strict=True)):
        if word == shown:
            continue
        name = word.partition("=")[0] if "=" in word else ""
        before = argv[at - 1] if at else ""
        if re.fullmatch(r"-{0,2}[\w.-]+", name) and is_secret_name(name):
            found.append(name)
        elif re.fullmatch(r"--?[\w.-]+", before) and shown in (HIDDEN, f"{word.partition(':')[0]}:{HIDDEN}"):
            found.append(before)
        else:
            found.append(f"argument {at}")
    return list(dict.fromkeys(found))


def secret_values(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of an environment that are secret by name or shape, to be removed from every text.

    Args:
        env: the generator's environment.

    Returns:
        Values of at least 6 characters. Paths, numbers and everyday words are left out, since hiding them would spoil
        innocent text. A value of several lines gives each of its lines; each value also comes in its JSON and URL
        forms.

    Example:
        >>> secret_values({"HF_TOKEN": "abcdefgh", "SSH_AUTH_SOCK": "/run/agent.1", "PATH": "/usr/bin:/bin"})
        ('abcdefgh',)
    """
    found: dict[str, None] = {}
    for name, value in env.items():
        if _grade(name) and name not in ("PWD", "OLDPWD"):
            _add(found, value)
        if "://" in value:
            for user in re.findall(r"://([^\s/@]+)@", value):
                password = user.partition(":")[2] or user
                _add(found, password)
                _add(found, unquote(password))
        for match in _SHAPES.finditer(value):
            _add(found, match[0])
    return tuple(found)


def worth_hiding(values: Iterable[str]) -> tuple[str, ...]:
    """Return those known secrets that can be searched for without spoiling innocent text, in all their forms.

    Args:
        values: known secrets, for example those of Secret blocks.

    Returns:
        As `secret_values`.
    """
    found: dict[str, None] = {}
    for value in values:
        _add(found, value)
    return tuple(found)


def _add(found: dict[str, None], value: str) -> None:
    for line in value.splitlines():
        part = line.strip()
        if len(part) < _LEAST or _is_plain(part) or part.startswith("-----"):
            continue
        for form in (part, json.dumps(part)[1:-1], quote(part, safe=""), quote(part)):
            found[form] = None
