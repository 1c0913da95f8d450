"""B129: a secret in names is always masked in the same way; ordinary names and texts are unchanged."""

from __future__ import annotations

import subprocess
import sys

import pytest

from queenright.instrumentation.identity import check_session_id, clean_name
from queenright.instrumentation.redaction import hide, redact

# Invented, and assembled here, so that secret scanners do not report them.
AWS = "wJalrXUtnFEMI" + "/K7MDENG/bPxRfiCY" + "EXAMPLEKEY"
AZURE = "Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4z" * 3
ORDINARY_NAMES = [
    "deep_research_agent",
    "anthropic/claude-sonnet-4-5",
    "claude-sonnet-4-5@20250929",
    "us.anthropic.claude-3-5-sonnet-20241022-v2:0",
    "gpt-4o-mini-2024-07-18",
    "accounts/fireworks/models/llama-v3p1-405b-instruct",
    "projects/x/locations/us-central1/publishers/google/models/gemini-2.5-pro",
    "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude",
    "01a203cf-bf30-7a62-b250-6dcbba84f828",
    "01ARZ3NDEKTSV4RRFFQ69G5FAV",
    "0af7651916cd43dd8448eb211c80319c",
    "da39a3ee5e6b4b0d3255bfef95601890afd80709",
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "V1StGXR8_Z5jdHi6B-myT",
    "call_abcDEF123ghiJKL456mnoPQR",
    "toolu_01A09q90qw90lq917835lq9",
    "msg_01XFDUDYJgAACzvnptvVoYEL",
    "resp_68a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f607",
    "thread_BLzZPVHdo2xcVUDpQGAbcDEF",
    "pod-7d9c5b8f6d-x2x9z",
    "run:2025-11-22T15:04:05Z",
    "mcp__github__create_pull_request",
    "packages/Web2/src/Components/ButtonGroup",
    "get_secret",
    "rotate_api_key",
    "password-reset-bot",
    "token_counter",
    "alice@example.com",
    "ConnectionRefusedError",
    "openai.AuthenticationError",
    "агент поиска",
]
ORDINARY_TEXTS = [
    "the password is incorrect",
    "password is required",
    "Password was not set.",
    "password field is empty",
    "your password is too short",
    "password reset done, password policy of 2024",
    "passwd root",
    "passwd file is missing, passwd entry not found, password single-sign-on",
    "/etc/passwd swarm",
    "password reset",
    "password field",
    "password must be changed",
    "password authentication failed for user",
    "the password is: missing",
    *(f"password is {word}" for word in ("required", "incorrect", "invalid", "wrong", "missing", "expired")),
    "usage: login <user> <password> [options]",
    "each <token>s",
    '<property name="user" value="bob"/>',
    '<property name="token_count" value="5"/>',
    '{\\"user\\":\\"bob\\",\\"tokens\\":\\"5\\"}',
    "path=packages/Web2/src/Components/ButtonGroup",
    "sha=da39a3ee5e6b4b0d3255bfef95601890afd80709",
    "docker run -u 1000:1000 image",
    "curl -u https://example.org/x",
    "mysql -u root -p",
    "<token>s are counted</b>",
    "tokens used: 512",
    "commit da39a3ee5e6b4b0d3255bfef95601890afd80709 fixes it",
    "the password was wrong",
    "reset your password please",
    "password authentication failed; enter the password again",
    "change the password to continue",
    "I forgot the password to the server",
    "password was reset as requested, password was sent to your email",
    "use password login instead, username and password fields, username and password combination",
    "password is a string, password is 12 characters long, password is case-sensitive",
    "the access token is revoked, the access token is used by others, the api key is for staging",
    "the api key is OPENAI_API_KEY",
    "max output token was set to 4096, the token is 128000 long",
    "the token is 'else', expected token is identifier",
    "secret is missing in the namespace, secret was created in us-east-1",
    "integrity sha512-" + ("z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXc" * 3)[:86] + "==",
]
SECRET_TEXTS = [
    ("passwd {}", "hunter22"),
    ("password is {}.", "hunter22"),
    ("the password is {}", "correcthorse"),
    ("the passwd was {}!", "Sw0rdfish"),
    ('password "{}" was refused', "hunter22"),
    ("curl -u bob:{} https://example.org", "hunter22"),
    ("curl -sSu bob:{} https://example.org", "hunter22"),
    ('curl https://example.org --user "bob:{}"', "hunter22"),
    ("sshpass -p {} ssh bob@host", "hunter22"),
    ("mysql -u root -p{} shop", "hunter22"),
    ("<password>{}</password>", "hunter22"),
    ('<db:password type="plain">{}</db:password>', "hunter22"),
    ("<apiKey>{}</apiKey>", "hunter22"),
    ("the key is {}.", AWS),
    ("{}", AWS),
    ("account key {}", AZURE[:86] + "=="),
    *((f"{before}={{}}", AWS) for before in ("key", "sk", "?k", "https://x.example/?k", "a=1&k")),
    ("k={}", AZURE[:86] + "=="),
    ("passwd {}", "swordfish"),
    ("passwd {}", "correcthorse"),
    ("passwd {}", "Xy7kQ"),
    ("password {}", "correct-horse-battery"),
    ("the password is: {}", "hunter2"),
    ("password is {}", "zaq"),
    ("curl https://x \\\n -u admin:{}", "s3cret"),
    ("curl https://x \\\r\n -u admin:{}", "s3cret"),
    ("curl https://x \\ \n -u admin:{}", "s3cret"),
    ("<password><![CDATA[{}]]></password>", "hunter2"),
    ("<password><![CDATA[{}", "hunt]er2"),
    ("<password>{}", "hunter2"),
    ("<password>{}</pass", "hunter2"),
    ("&lt;password&gt;{}&lt;/password&gt;", "hunter2"),
    ("&lt;password&gt;{}", "hunter2"),
    ('<property name="password" value="{}"/>', "hunter2"),
    ('{{"name": "DB_PASSWORD", "value": "{}"}}', "hunter2"),
    (r"{{\"password\":\"{}\"}}", "hunter2"),
    (r"{{\"password\": \"{}\", \"a\": 1}}", "two words"),
    (r"{{\\\"password\\\":\\\"{}\\\"}}", "hunter2"),
    ("pat {}", AZURE[:76] + "AZDO" + "a1B2"),
    (r"{{\"password\": \"{}\"}}", "it's-a-secret"),
    (r"{{\"password\": \"{}\"}}", r"it\'s-a-secret"),
    (r"{{\'password\': \'{}\'}}", 'say-"friend"'),
    (r"{{\\\"password\\\": \\\"{}\\\"}}", "it's-a-secret"),
    ('{{"password": "{}", "a": 1}}', "swordfish " * 400),
    (r"{{\"password\": \"{}\", \"a\": 1}}", "swordfish " * 400),
    (r'{{"text": "the password is \"{}\""}}', "two words"),
    ("the password is '{}' now", "two words"),
    ("password is {}", "it's-a-secret"),
    ("password was set to {}", "swordfish"),
    ("the password has just been changed to: {}", "swordfish"),
    ("please change the password to {}.", "swordfish"),
    ("DB_PASSWORD was set to {} for today", "swordfish"),
    (r"first\npassword is {}", "swordfish"),
    ("password of user bob is {}", "swordfish"),
    ("password for admin: {}", "hunter22"),
    ("the api key is {}", "swordfish"),
    ("the API key was rotated to {}.", "swordfish"),
    ("your secret key is {}", "swordfish"),
    ("use api key {} to", "swordfish12"),
    ("my token: {}", "swordfish"),
    ("my token is {}", "swordfish"),
    ("the secret token was {}", "ab12cd34"),
    ("log in as bob, password {}", "swordfish"),
    ("log in with password {}", "swordfish"),
    ("ssh bob@host, the password {}\n", "swordfish"),
    ("machine x login bob password {}", "swordfish"),
    ("password {}", "swordfish"),
]

DICTIONARY_TEXT = """
    butterfly university trinity spring monopoly swordfish dragon monkey sunshine princess football shadow
    master killer pepper freedom welcome kindness basement government station emotion charity family jelly
    belly happiness darkness pudding weed king sting darling vegetable syllable cotton hunted nation honey
    comb"""
DICTIONARY_WORDS = DICTIONARY_TEXT.split()
# Texts in which even an ordinary word is a secret.
WORD_FORMS = [
    "passwd {}",
    "passwd {}.",
    "passwd '{}'",
    "passwd bob {}",
    "passwd root {}",
    "passwd root {} and then",
    "password is {}",
    "Password is {}.",
    "the password is {} now",
    "the password is {} for user bob",
    "the password is still {}",
    "password is called {}",
    "password is: {}",
    "the passphrase was {}!",
    'password was "{}".',
    "The password is '{}'",
    "the pwd is `{}`",
    "password {}",
    'password "{}" was refused',
    "log in with password {}",
    "password = {}",
    "password={}",
    "password: {}",
    "password -> {}",
    "password → {}",
    "token --> {}",
    "password was set to {}",
    "password was set to '{}' today",
    "the password has been changed to {} again",
    "change the password to {}.",
    "change the password to '{}' and go on",
    "the secret is {}",
    "the secret was '{}'",
    "the api key is {}",
    "my token is {}",
    "the client secret is '{}'",
    "passphrase is correct {} battery staple",
    "passphrase is {} battery staple",
    "password was set to correct horse {}",
    "the password is the {} of bob",
    "mysql -u root -p {}",
    "mysql -u root -p {} shop",
    "mysql -u root -p '{}' shop",
    "mysql -u root -p{}",
    'mysql -u root -p "two {}" shop',
    r'{{"text": "<entry key=\"password\">{}</entry>"}}',
    '<entry key="password">{}</entry>',
    '<entry key="db.password"><![CDATA[{}]]></entry>',
    "<property name='api_key' type='text'>{}</property>",
    r'{{"command": "mysql -u root -p\"{}\" shop"}}',
    r'{{"command": "mysql -u root -p \"two {}\" shop"}}',
    r'{{"command": "mysql -u root -p{}"}}',
    r'{{"a": "{{\"command\": \"mysql -p\\\"two {}\\\" shop\"}}"}}',
    '["mysql", "-u", "root", "-p{}"]',
    "mysqladmin -u root -p{} ping",
    r"sshpass -p \"{}\" ssh bob@host",
    "sshpass -p 'two {}' ssh bob@host",
    r"curl -u \"bob:two {}\" https://x",
    r'curl -u "bob:{}" https://x',
    '["deploy", "--password", "{}"]',
    "**Password:** {}",
    "**Password**: {}",
    "__Password:__ {}",
    "***Password:*** {}",
    "<b>Password:</b> {}",
    'password == "{}"',
    'password := "{}"',
    '{{"password": ["{}"]}}',
    "password ->> {}",
    "password ==> {}",
    "passwd bob: {}",
    "password was sent: {}",
    "password was sent: '{}'",
    "the password is again {}",
    "password was changed from foo to {}",
    "password changed from 'foo' to '{}'",
    '<setting name="password"><value>{}</value></setting>',
    '<setting name="password">\n  <value>{}</value>\n</setting>',
]
ORDINARY_SENTENCES = [
    *(
        f"the password is {word}"
        for word in (
            *("wrong", "incorrect", "invalid", "required", "missing", "expired", "correct", "empty", "unset"),
            *("reset", "changed", "unknown", "set", "mandatory", "stored encrypted", "not set", "too weak"),
        )
    ),
    "the password is incorrect for user bob, password is required because the server says so",
    "password is not allowed to contain spaces",
    "password is too short (8 characters at least), password is at least 8 characters long",
    "password is no longer valid; password is the same as before",
    "password is correct but access was denied",
    "password was changed by an administrator yesterday, password was reset successfully",
    "password was rejected by the server, password is wrong, try again",
    "password is incorrect or expired, password is empty or missing",
    "password cannot be blank, password validation failed",
    "Password mismatch",
    "Password authentication is disabled",
    "log in with password authentication",
    "password is being reset, password was found in the log",
    "wrong password for bob: Permission denied",
    "the secret is mounted at /run/secrets, the secret to success is patience",
    "the api key is revoked, the api key is invalid, the access token is rejected",
    "passwd root now",
    "passwd root && reboot",
    "passwd -l bob",
    "mysql -u root -p -h db shop",
    "mysql -u root -p < dump.sql",
    "mysql -P 3306 -u root",
    "$this->password->verify()",
    '<input id="password"/> Log in</form>',
    '{"command": "mysql -u root -p", "shell": true}',
    '{"command": "mysql -u root -p"}',
    "passwd root: Permission denied",
    "the password is wrong: check the caps lock key",
    "the password is invalid since today",
    "`queenright token`: who may ask a service, `password`: the one of the user",
    "the password is again required, the password is again rejected by the server",
    "password was changed from time to time, the password is wrong again use the link",
    '{"tokens": [], "secret": []}',
]


@pytest.mark.parametrize("name", ORDINARY_NAMES)
def test_ordinary_name_is_unchanged(name: str) -> None:
    """B129: ids, hashes and model names are not secrets."""
    assert clean_name(name) == name


@pytest.mark.parametrize("text", ORDINARY_TEXTS)
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("form", WORD_FORMS)
def test_dictionary_word_is_masked(form: str) -> None:
    """B129: the ending of a word does not decide whether it is a password."""
    masked_texts = {word: redact(form.format(word)) for word in DICTIONARY_WORDS}

    assert len(masked_texts) == 40
    assert {
        word: text for word, text in masked_texts.items() if word in text or "[redacted]" not in text
    } == {}
    assert all(redact(text) == text for text in masked_texts.values())


def test_password_of_several_words_is_masked_to_the_end_of_the_clause() -> None:
    """B129."""
    text = "the passphrase is correct horse battery staple, and the user is bob"

    assert redact(text) == "the passphrase is [redacted], and the user is bob"
    assert (
        redact("password was honey comb and the user is bob") == "password was [redacted] and the user is bob"
    )


@pytest.mark.parametrize(
    ("text", "masked_text"),
    [
        (r'{"command": "mysql -p\"a b\" shop"}', r'{"command": "mysql -p[redacted] shop"}'),
        (r'{"command": "sshpass -p \"a b\" ssh"}', r'{"command": "sshpass -p [redacted] ssh"}'),
        (r'{"command": "curl -u \"a:b c\" x"}', r'{"command": "curl -u \"a:[redacted]\" x"}'),
        (r'{"env": "\"PASSWORD=butterfly\" x"}', r'{"env": "\"PASSWORD=[redacted]\" x"}'),
        ("**Password:** butterfly", "**Password:** [redacted]"),
        ("password ->> butterfly", "password ->> [redacted]"),
        ("passwd bob: butterfly", "passwd bob: [redacted]"),
        ("password was sent: butterfly", "password was sent: [redacted]"),
        ('curl -u bob:"hunter2" x', "curl -u bob:[redacted] x"),
        ("curl -u bob:'hunter 2' x", "curl -u bob:[redacted] x"),
        (r"curl -u bob:hun\ ter2 x", "curl -u bob:[redacted] x"),
        (r"mysql -phun\"ter2 shop", "mysql -p[redacted] shop"),
        (r"password=ab\"hunter2 x", "password=[redacted] x"),
        (r'{"a": "password=hunter2\" x"}', r'{"a": "password=[redacted]\" x"}'),
        ('{"password": ["hunter2", "c7b"], "b": 1}', '{"password": [[redacted]], "b": 1}'),
        (r"{\"password\": [\"hunter2\", \"c7b\"]}", r"{\"password\": [[redacted]]}"),
        ("password: [hunter2, c7b]", "password: [[redacted]]"),
        ("password was changed from foo1 to bar2", "password was changed from [redacted] to [redacted]"),
    ],
)
def test_mask_covers_the_secret_only(text: str, masked_text: str) -> None:
    """B129: punctuation before the secret and an escaped quote after it are kept."""
    assert redact(text) == masked_text


@pytest.mark.parametrize("text", ORDINARY_SENTENCES)
def test_ordinary_sentence_is_unchanged(text: str) -> None:
    """B129: certain words after "password" are not secrets."""
    assert redact(text) == text


@pytest.mark.parametrize(("text", "secret"), SECRET_TEXTS)
def test_secret_in_text_is_masked(text: str, secret: str) -> None:
    """
    B129: this covers sentences about a password, command-line options, XML elements and bare cloud keys.
    """
    masked_text = redact(text.format(secret))

    assert secret not in masked_text
    assert "[redacted]" in masked_text
    assert redact(masked_text) == masked_text


@pytest.mark.parametrize(("text", "secret"), SECRET_TEXTS)
def test_secret_in_name_is_masked(text: str, secret: str) -> None:
    assert secret not in clean_name(text.format(secret))


def test_masked_names_stay_distinct_and_stable() -> None:
    """B129: identity and grouping work with masked names."""
    first, second = "bot ghp_" + "a1B2" * 6, "bot ghp_" + "c3D4" * 6

    masked_name = clean_name(first)

    assert masked_name.startswith("bot redacted-")
    assert masked_name != clean_name(second)
    assert clean_name(first) == masked_name
    assert clean_name(masked_name) == masked_name


def test_masked_name_is_the_same_in_another_process() -> None:
    name = "ghp_" + "a1B2" * 6
    code = f"from queenright.instrumentation.identity import clean_name; print(clean_name({name!r}))"

    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert output.strip() == clean_name(name)


def test_session_id_with_a_secret_is_masked_and_still_a_folder() -> None:
    assert check_session_id("sk-" + "a1B2" * 6).startswith("redacted-")


def test_hidden_value_is_masked_in_names_seen_before() -> None:
    """B129: a value that becomes hidden later is masked at once, despite the cache of names."""
    name = "the worker of zebra-crossing-7"
    assert clean_name(name) == name

    hide(["zebra-crossing-7"])

    assert clean_name(name).startswith("the worker of redacted-")
