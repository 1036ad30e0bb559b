"""One rule for secrets, by table, to both sides: what must vanish, and what must stay."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from prefect_cachewatch.common.secrets import (
    LineRedactor,
    is_secret_name,
    redact,
    redact_all,
    redact_argv,
    secret_options,
    secret_values,
    worth_hiding,
)  # fmt: skip

S = "Zq8vW2mK7pXt4rLs"  # no shape tells it: its label must
SECRET_NAMES = [
    "DB_PWD", "SSHPASS", "PGPASSWORD", "DB_PASSWORD_PROD", "dbPassword", "HF_TOKEN", "GITHUB_TOKEN_2", "apiKey",
    "apikey", "AWS_SECRET_ACCESS_KEY", "AccountKey", "CLIENT-SECRET", "SECRET_KEY_BASE", "private-key", "--pass",
    "--passphrase", "--auth", "--cookie", "--credential", "--creds", "authToken", "x-auth-token", "JWT", "PHPSESSID",
    "--sign-key", "sig", "signature", "-Ddb.password", "APITOKEN", "KEY", "PREFECT_API_AUTH_STRING",
]  # fmt: skip
PLAIN_NAMES = [
    "signal", "--design", "monkey", "keyboard", "author", "tokenizer", "TOKENIZERS_PARALLELISM", "max_tokens",
    "tokens", "eos_token", "bos_token_id", "token_count", "compass", "bypass", "passes", "pass_count", "first_pass",
    "cache_key", "public_key", "missing_keys", "keys", "secretary", "cookiecutter", "assign", "signed", "sigma",
    "credits", "KEY_FILE", "SSH_AUTH_SOCK", "AUTH_TYPE", "AWS_ACCESS_KEY_ID", "SECRET_NAME", "--password-file",
    "PATH", "weights", "turkey", "key_id",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_name_for_a_secret_hides_its_value_in_every_form(name):
    assert is_secret_name(name)
    bare = name.lstrip("-") if name != "-Ddb.password" else "db.password"
    for text in (
        f"{bare}={S}",
        f"{bare}: {S}",
        f"x {bare} = {S} y",
        f"export {bare}={S}",
        f'{{"{bare}": "{S}"}}',
        f"{{'{bare}': '{S}', 'n': 1}}",
        f'{{\\"{bare}\\":\\"{S}\\"}}',
        f"{bare}='{S}'",
        f"https://h/p?a=1&{bare}={S}&b=2",
        f"Server=db;{bare}={S};Port=1",
        f"- name: {bare}\n  value: {S}",
        f'{{"name": "{bare}", "value": "{S}"}}',
        f"<{bare}>{S}</{bare}>",
        f"gen --{bare} {S} --layers 3",
        f"gen --{bare}={S} --layers 3",
    ):
        assert S not in redact(text), text
        assert "***" in redact(text)
        if " = " not in text and "\n" not in text and '"name"' not in text:
            assert S not in " ".join(redact_argv(text.split(" "))), text
    assert redact_argv(["gen", f"--{bare}", S, "--layers", "3"]) == ["gen", f"--{bare}", "***", "--layers", "3"]
    assert secret_values({bare: S}) == (S,)


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_a_name_of_something_else_keeps_its_value(name):
    assert not is_secret_name(name)
    bare = name.lstrip("-")
    for text in (f"{bare}={S}", f"{bare}: {S}", f"--{bare} {S}", f'{{"{bare}": "{S}"}}', f"?{bare}={S}&n=1"):
        assert redact(text) == text
    assert redact_argv(["gen", f"--{bare}", S]) == ["gen", f"--{bare}", S]
    assert secret_values({bare: S}) == ()


SHAPES = [
    "nvapi-" + "Ab1_-" * 12, "glpat-abcDEF123456_-xyz000", "AIzaSyA-1234567890abcdefghijklmnopqrstu",
    "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ01234567", "hf_abcdefghijklmnop",
    *(f"{kind}_{'aB3' * 12}" for kind in ("ghp", "gho", "ghs", "ghu", "ghr")),
    "github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuvwxyz0123456789", "AKIAIOSFODNN7EXAMPLE", "ASIAY34FZKBOKMUTVV7A",
    "xox" + "b-123456789012-1234567890123-AbCdEfGhIjKlMnOpQrStUvWx", "xoxe.xoxp-1-Mi0yLTEyMzQ1Njc4OTA",
    "sk-abcdefghijklmnop1234", "sk-proj-abcDEF123_456-ghiJKL", "sk-ant-api03-abcdefghijklmnopqrstuvwxyz",
    "sk_" + "live_4eC39HqLyjWDarjtT1zdp7dc", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.sflKxwRJSMeKKF2QT4",
    "pnu_" + "a1B2" * 9, "npm_" + "a1B2" * 9, "dapi" + "0123456789abcdef" * 2, "xai-" + "aB3" * 12,
    "pplx-" + "aB3" * 12, *(f"{kind}_{'aB3' * 12}" for kind in ("whsec", "glsa", "sntrys", "lin_api", "figd")),
    "ATATT3x" + "aB3" * 12,
]  # fmt: skip


@pytest.mark.parametrize("secret", SHAPES)
def test_a_known_shape_vanishes_without_a_label(secret):
    for text in (
        f"using {secret} now",
        secret,
        f'"{secret}"',
        f"({secret})",
        f"https://h/{secret}/x",
        f"got {secret}.",
    ):
        assert secret not in redact(text)
    assert redact(f"using {secret} now") == "using *** now"
    assert secret not in " ".join(redact_argv(["gen", secret, f"--x={secret}"]))
    assert secret_values({"X": f"a {secret}"}) == (secret,)


HOOK = "T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX"
VANISH = [
    ("https://user:p@ss@host/p", "https://***@host/p"),
    ("s3://key@bucket and http://host/a@b", "s3://***@bucket and http://host/a@b"),
    ("curl -H 'authorization: token abcdef'", "curl -H 'authorization: ***'"),
    (f"POST https://hooks.slack.com/services/{HOOK} 200", "POST https://hooks.slack.com/services/*** 200"),
    ("https://discord.com/api/webhooks/123456/abc-DEF_ghi", "https://discord.com/api/webhooks/***"),
    ("curl -u user:hunter2 https://h/x", "curl -u user:*** https://h/x"),
    ("curl --user 'user:hunter2' https://h", "curl --user 'user:***' https://h"),
    ("Authorization: Basic dXNlcjpwYXNz", "Authorization: ***"),
    ("sent Basic dXNlcjpwYXNz", "sent Basic ***"),
    ("{'Authorization': 'Bearer abc.def'}", "{'Authorization': '***'}"),
    ("Cookie: a=b; session=cdef", "Cookie: ***"),
    ("postgresql+asyncpg://prefect:s3cret@db:5432/prefect", "postgresql+asyncpg://***@db:5432/prefect"),
    ("redis://:s3cret@host:6379/0", "redis://***@host:6379/0"),
    ("https://acc.blob.core.windows.net/c?sv=2022&sig=aB%2Fc%3D&se=2026", "https://acc.blob.core.windows.net/c?sv=2022&sig=***&se=2026"),
    ("Server=tcp:db,1433;User ID=me;Password=pw-1;Encrypt=True;", "Server=tcp:db,1433;User ID=me;Password=***;Encrypt=True;"),
    ('{"password": "two words, and a comma", "n": 1}', '{"password": "***", "n": 1}'),
    ('{"password": "a \\" quote", "n": 1}', '{"password": "***", "n": 1}'),
    ("password: correct horse battery staple", "password: ***"),
    ("ran sshpass with --password hunter2 and more", "ran sshpass with --password *** and more"),
    ("user[password]=hunter2", "user[password]=***"),
    ("password => 'hunter2'", "password => '***'"),
    ("token=b'abcdef'", "token=b'***'"),
    ("password=123456", "password=***"),
    ("auth_url=https://h/?token=abc1", "auth_url=https://h/?token=***"),
    ("mysql -u root -phunter2 db", "mysql -u root -p*** db"),
    ("sshpass -p 'hunter2 x' ssh h", "sshpass -p '***' ssh h"),
    ("docker login -u me -p hunter2 reg", "docker login -u me -p *** reg"),
    ("redis-cli -h h -a hunter2 ping", "redis-cli -h h -a *** ping"),
    ("the password is hunter2, keep it", "the password is ***, keep it"),
    ("machine h login me password hunter2", "machine h login me password ***"),
    (f"aws configure set aws_secret_access_key {S}", "aws configure set aws_secret_access_key ***"),
    (f"password: |\n  {S}\n  {S}\nnext: line", "password: |\n  ***\n  ***\nnext: line"),
    (f"  token: >-\n    {S}\n  name: x", "  token: >-\n    ***\n  name: x"),
    (f"token%3D{S}", "token%3D***"),
    ("  - token: abcdef", "  - token: ***"),
    ("ftp://me:hunt/er/2@host/x", "ftp://***@host/x"),
    ("https://outlook.office.com/webhook/a-b/IncomingWebhook/c", "https://outlook.office.com/webhook/***"),
    ("https://h/x?key=0123456789abcdef0123456789abcdef", "https://h/x?key=***"),
    ("key: Zq8vW2mK7pXt4rLs", "key: ***"),
    ("pass: hunter2", "pass: ***"),
    ("--pass conv-fusion-2", "--pass ***"),
    ("got hf_Ab3dEf7h now", "got *** now"),
    ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "aws_secret_access_key = ***"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "shown"), VANISH)
def test_a_secret_of_another_form_vanishes_and_the_rest_stays(text, shown):
    assert redact(text) == shown


STAY = [
    "signal=9", "--signal 9", "killed by signal: 9", "sig=9", "sig: SIGTERM", "layer 3 of 80 done: 4.2 GB/s",
    "tokens: 4096", "tokens/s: 31.2", "token: 1532/4096", "eos_token=</s>", "next token: hello world",
    "loading tokenizer: llama", "key: layers.0.attention.weight", "KeyError: 'model.layers.0'", "missing key: lm_head.weight",
    "key=value", "--key model=llama-70b", "cache key: 3f2a1c", "pass 3: loss 0.2", "pass=2", "pass: ok", "first pass: 3 s",
    "auth: ok", "auth: none", "auth=required", "token: invalid", "token=None", "password: required", "password=***",
    "password=", "password: ", "password=$DB_PWD", "token: <redacted>", "author: Jane", "authenticated: true",
    "PWD=/work/dir", "OLDPWD=/tmp", "SSH_AUTH_SOCK=/run/agent.1", "TOKEN_FILE=/run/secrets/token", "compass: north",
    "hf_hub_download(repo)", "hf_transfer is on", "sk-learn", "task-manager1", "disk-usage12345", "risk-assessment-2024",
    "basic configuration done", "Basic information", "bearer authentication failed", "http://host/a@b", "git@github.com:x/y",
    "mailto:me@example.org", "12:34:56 done", "a1b2c3d4e5f60718293a4b5c6d7e8f90", "sha256:" + "ab" * 32, "AKIA", "AIza",
    "https://hooks.slack.com", "https://discord.com/api/docs", "tokenization: 3 s", "max_tokens=128", "curl -u", "ls -u /x",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----", "secretary: Ann", "monkey=banana", "design=modern",
    "keyboard: qwerty", "cookiecutter: x", "whiskey=12345", "x-request-id: abc123def456", "signature: (int) -> str",
    "Time to first token: 0.31 s", "ms_per_token=12.3", "token budget: 4096", "use_auth_token=False", "pad_token='[PAD]'",
    "Setting `pad_token_id` to `eos_token_id`:2 for open-end generation.", "auth: skipped", "COOKIE=1", "k_proj: (1024, 4096)",
    "kv_cache: key=torch.float16", "enter password:\nloading model", "password changed", "XAUTHORITY=/home/u/.Xauthority",
    "token_classification: x", "commit: 8f14e45fceea167a5a36dedd4bea2543", "tokenizer.json: 100%", "decode token: 31.2 ms",
    "sig=0x1f", "signature: conv2d(x)", "sk_layers_000123", "pk_embedding_v12.bin", "http://h:8000/a/b@c", "http://h:80",
    "hf_llama38b", "hf_llama2_7b", "hf_mixtral8", "key 0123456789abcdef0123456789abcdef", "cache hit for key " + "ab12" * 16,
    "key: 8f14e45fceea167a5a36dedd4bea2543", "key=" + "9c" * 20, "pass: conv-fusion-2", "running pass: dead.code-elim",
    "auth.py:31", "forward (secret.py:112)", "tests/test_password.py: 3 passed",
    "see --token for how to log in", "--token is required", "sigma=0.5", "sigmoid: 0.1", "assigned: 3",
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"\x1b[36mHF_TOKEN\x1b[0m=\x1b[35m{S}\x1b[0m x", "HF_TOKEN=*** x"),
        (f"\x1b[1mtoken\x1b[22m: \x1b[38;5;4m{S}\x1b[0m", "token: ***"),
        (f"{S[:5]}\x1b[0m{S[5:]}", "***"),
        ("\x1b[32mlayer 3\x1b[0m", "\x1b[32mlayer 3\x1b[0m"),
    ],
)
def test_a_secret_vanishes_whatever_its_colours_and_what_is_none_keeps_them(text, shown):
    assert redact(text, [S]) == shown


@pytest.mark.parametrize("text", STAY)
def test_what_is_no_secret_stays(text):
    assert redact(text) == text


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["curl", "-u", "me:pw", "https://h"], ["curl", "-u", "me:***", "https://h"]),
        (["curl", "-ume:pw"], ["curl", "-ume:***"]),
        (["curl", "-H", "Authorization: Bearer abc def"], ["curl", "-H", "Authorization: ***"]),
        (["curl", "-H", "X-Api-Key: abc1"], ["curl", "-H", "X-Api-Key: ***"]),
        (["x", "Authorization:", "abc"], ["x", "Authorization:", "***"]),
        (["mysql", "-phunter2", "-u", "root"], ["mysql", "-p***", "-u", "root"]),
        (["sshpass", "-p", "word", "ssh", "h"], ["sshpass", "-p", "***", "ssh", "h"]),
        (["docker", "login", "-u", "me", "-p", "s3cret-1"], ["docker", "login", "-u", "me", "-p", "***"]),
        (["gen", "-p", "hunter2"], ["gen", "-p", "***"]),
        (["gen", "-p", "8080"], ["gen", "-p", "8080"]),
        (["docker", "run", "-p", "8080:80"], ["docker", "run", "-p", "8080:80"]),
        (["docker", "run", "-u", "1000:1000"], ["docker", "run", "-u", "1000:1000"]),
        (["mkdir", "-p", "build42"], ["mkdir", "-p", "build42"]),
        (["gen", "--password", "two words"], ["gen", "--password", "***"]),
        (["gen", "--token", "-x9f8e7d6"], ["gen", "--token", "***"]),
        (["gen", "--password", "--next"], ["gen", "--password", "--next"]),
        (
            ["gen", "--token-file", "/run/t", "--tokenizer", "llama"],
            ["gen", "--token-file", "/run/t", "--tokenizer", "llama"],
        ),
        (["kill", "--signal", "9", "--design", "a", "--monkey", "b", "--keyboard", "c"], None),
        (
            ["sh", "-c", "curl -u me:pw x; gen --password hunter2 y"],
            ["sh", "-c", "curl -u me:*** x; gen --password *** y"],
        ),
        (["env", "DB_PWD=hunter2", "gen"], ["env", "DB_PWD=***", "gen"]),
    ],
)
def test_a_command_line_loses_its_secrets_and_nothing_else(argv, shown):
    assert redact_argv(argv) == (argv if shown is None else shown)


BODY = ["MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQ" + f"{n:02}" + "xY/+Zw7abcde" for n in range(12)]
PEM = ["-----BEGIN PRIVATE KEY-----", *BODY, "c2hvcnQ=", "-----END PRIVATE KEY-----"]


@pytest.mark.parametrize("prefix", ["", "2026-01-01 00:00:00 INFO ", "    "])
@pytest.mark.parametrize("kind", ["PRIVATE KEY", "RSA PRIVATE KEY", "OPENSSH PRIVATE KEY", "PGP PRIVATE KEY BLOCK"])
@pytest.mark.parametrize("part", [slice(None), slice(0, 6), slice(8, None)])
def test_a_private_key_vanishes_whatever_part_of_it_is_there(prefix, kind, part):
    lines = [prefix + line.replace("PRIVATE KEY", kind) for line in PEM][part]
    shown = redact("\n".join(["before", *lines, "after"])).split("\n")
    assert len(shown) == len(lines) + 2
    assert (shown[0], shown[-1]) == ("before", "after")
    assert not any(body[:30] in line or "c2hvcnQ" in line for body in BODY for line in shown)


def test_a_private_key_without_either_end_vanishes_and_digests_stay():
    assert redact("\n".join(BODY)) == "\n".join(["***"] * len(BODY))
    digests = "\n".join(f"{n:064x}" for n in range(10))
    assert redact(digests) == digests
    one_line = '{"key_pem": "' + "\\n".join(PEM) + '"}'
    assert BODY[3] not in redact(one_line)


@pytest.mark.parametrize("cut", range(1, len(PEM)))
def test_a_private_key_over_two_pieces_of_a_log_vanishes(cut):
    redactor = LineRedactor()
    shown = redactor.lines(["a", *PEM[:cut]]) + redactor.lines([*PEM[cut:], "b", "token: invalid"])
    assert len(shown) == len(PEM) + 3
    assert not any(body[:30] in line or "c2hvcnQ" in line for body in BODY for line in shown)
    assert shown[-2:] == ["b", "token: invalid"]


def test_values_of_the_environment_are_found_and_spoil_nothing():
    env = {
        "DB_PWD": "hunter22", "SSHPASS": "swordfish", "A_TOKEN": "short", "B_TOKEN": "123456", "C_TOKEN": "/run/secrets/x",
        "D_PASSWORD": "python", "AUTH": "disabled", "PWD": "/work/here", "MONKEY": "bananas-42", "SIGNAL": "SIGTERM",
        "DATABASE_URL": "postgres://me:p%40ss-word@db/x", "E_KEY": 'a "q" b', "PEM_KEY": "\n".join(PEM), "LONG_TOKEN": "9" * 20,
    }  # fmt: skip
    found = set(secret_values(env))
    assert {"hunter22", "swordfish", "p%40ss-word", "p@ss-word", 'a "q" b', 'a \\"q\\" b', "9" * 20, *BODY} <= found
    assert (
        found & {"short", "123456", "/run/secrets/x", "python", "disabled", "/work/here", "bananas-42", "SIGTERM"}
        == set()
    )
    assert worth_hiding(["1", "true", "hunter22", "prefect"]) == ("hunter22",)
    assert redact("got hunter22 and " + BODY[2], secret_values(env)) == "got *** and ***"


def test_the_options_that_hold_secrets_are_named_and_their_values_are_not():
    argv = [
        "gen", "--password", "hunter2", "--api-key=abc123", "x", "ghp_0123456789abcdef", "-u", "me:pw",
        "DB_PWD=xyz12",
    ]  # fmt: skip
    assert secret_options(argv) == ["--password", "--api-key", "argument 5", "-u", "DB_PWD"]
    assert secret_options(["gen", "--max-tokens", "128", "--key", "model=llama", "signal=9"]) == []


@pytest.mark.parametrize(
    "word",
    ["key", "a", "eyJ-", "-eyJ", "key==", "key=/", "\n", " \n", "a://", "token=", "a@", "a-", "bearer ", "://a@", "=", '"', "\\", "\\'", "token:\n", "name: key ",
     "-----BEGIN PRIVATE KEY-----\n", "Ab1/" * 16 + "\n", "<a>", "--key ", "key'", "-u a:", "cookie:", "name=token,value"],
)  # fmt: skip
def test_a_hostile_line_is_redacted_in_no_time(word):
    line = word * (40_000 // len(word))
    began_s = time.process_time()
    redact(line)
    assert time.process_time() - began_s < 5


WRAPPED = [
    (f"a {S[:7]}\n{S[7:]} b", "a ***\n*** b"),
    (f"a {S[:1]}\r\n    {S[1:]} b", "a ***\r\n    *** b"),
    (f"a {S[:4]}\n{S[4:9]}\n{S[9:]} b", "a ***\n***\n*** b"),
    (f"\u2502 x {S[:7]} \u2502\n\u2502 {S[7:]}   \u2502", "\u2502 x *** \u2502\n\u2502 ***   \u2502"),
    (f"curl -H x:{S[:7]}\\\n{S[7:]}", "curl -H x:***\\\n***"),
    (f"{S[:7]}\n{S[7:]} {S} {S[:3]}\n{S[3:]}", "***\n*** *** ***\n***"),
    (f"{S[:7]}\nnot {S[7:]}", None),
    ("layer 3\nlayer 4", None),
]


@pytest.mark.parametrize(("text", "shown"), WRAPPED)
def test_a_known_secret_that_a_line_end_cuts_vanishes(text, shown):
    assert redact(text, [S, "hunter22"]) == (text if shown is None else shown)


def test_a_known_secret_over_two_pieces_of_a_log_shows_half_at_most():
    redactor = LineRedactor([S])
    assert redactor.lines(["a", S[:7]])[0] == "a"
    assert redactor.lines([S[7:], "b"]) == ["***", "b"]


@dataclass(frozen=True)
class _Told:
    name: str
    sizes: tuple[int, ...]
    below: list[dict[str, object]]


def test_secrets_vanish_from_every_text_of_a_structure():
    told = _Told(f"/c/{S}", (1, 2), [{f"k{S}": (S, None, 3.5)}, {"token": "kept"}])
    assert redact_all(told, [S]) == _Told("/c/***", (1, 2), [{"k***": ("***", None, 3.5)}, {"token": "kept"}])


@pytest.mark.parametrize("break_at", ["\n", " \n", "\u2502"])
def test_many_lines_with_known_secrets_take_no_time(break_at):
    text = (f"x{break_at}" + " " * 30 + "|") * 2000 + " " * 40_000 + S
    began_s = time.process_time()
    assert S not in redact(text, [S, "a" * 20, "hunter22"])
    assert time.process_time() - began_s < 5
