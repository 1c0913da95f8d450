"""
Keys in the formats of the services that issue them.

The formats are from the documentation of each service and from secret scanners (gitleaks, detect-secrets).
All values are invented, and assembled here, so that scanners do not report them.
"""

from __future__ import annotations

import json

import pytest

from queenright.instrumentation.redaction import MASK, redact

HEX = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
LETTERS = "Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4z"
UPPER = "AB3DEF6HIJ9KLM2NOP5QRS8TUV1WXY4Z"
LONG = LETTERS * 3

SHAPES = {
    "OpenAI": f"sk-{LETTERS}",
    "OpenAI project": f"sk-proj-{LONG}",
    "Anthropic": f"sk-ant-api03-{LONG}AA",
    "OpenRouter": f"sk-or-v1-{HEX}{HEX}",
    "Hugging Face": f"hf_{LETTERS}",
    "Groq": f"gsk_{LETTERS}",
    "Replicate": f"r8_{LETTERS}",
    "Fireworks": f"fw_{LETTERS}",
    "Perplexity": f"pplx-{LONG[:48]}",
    "xAI": f"xai-{LONG}",
    "NVIDIA": f"nvapi-{LONG[:64]}",
    "Tavily": f"tvly-dev-{LETTERS}",
    "LangSmith": f"lsv2_pt_{HEX}_0123456789",
    "E2B": f"e2b_{HEX}01234567",
    "Bedrock": f"ABSK{LONG}{LONG}==",
    "AWS access key id": f"AKIA{UPPER[:16]}",
    "AWS temporary key id": f"ASIA{UPPER[:16]}",
    "AWS marketplace": "amzn.mws.0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0",
    "Alibaba": f"LTAI{LETTERS[:20]}",
    "Google API": f"AIza{LETTERS}abc",
    "Google OAuth token": f"ya29.{LONG}",
    "Google OAuth secret": f"GOCSPX-{LETTERS[:28]}",
    "Azure client secret": f"Ab38Q~{LETTERS}",
    "DigitalOcean": f"dop_v1_{HEX}{HEX}",
    "Heroku": f"HRKU-AA{LONG[:58]}",
    "Fly": f"fo1_{LONG[:43]}",
    "Databricks": f"dapi{HEX}",
    "PlanetScale": f"pscale_tkn_{LETTERS}",
    "Supabase": f"sbp_{HEX}01234567",
    "OpenShift": f"sha256~{LONG[:43]}",
    "GitHub": f"ghp_{LETTERS}abcd",
    "GitHub app": f"ghs_{LETTERS}abcd",
    "GitHub fine-grained": f"github_pat_{LONG[:22]}_{LONG[:59]}",
    "GitLab": f"glpat-{LETTERS[:20]}",
    "GitLab runner": f"glrt-{LETTERS[:20]}",
    "GitLab deploy": f"gldt-{LETTERS[:20]}",
    "Atlassian": f"ATATT3xFfGF0{LONG}",
    "Sourcegraph": f"sgp_{HEX}01234567",
    "Sentry": f"sntryu_{HEX}{HEX}",
    "npm": f"npm_{LETTERS}abcd",
    "PyPI": f"pypi-AgEIcHlwaS5vcmc{LONG}",
    "RubyGems": f"rubygems_{HEX}0123456789abcdef",
    "Docker": f"dckr_pat_{LETTERS[:27]}",
    "Artifactory": f"AKCp{LONG[:69]}",
    "Pulumi": f"pul-{HEX}01234567",
    "Linear": f"lin_api_{LETTERS}abcdefgh",
    "Postman": f"PMAK-{HEX[:24]}-{HEX}01",
    "Vault": f"hvs.{LONG}",
    "Terraform": f"{LETTERS[:14].lower()}.atlasv1.{LONG[:60]}",
    "Doppler": f"dp.pt.{LONG[:43]}",
    "Grafana": f"glsa_{LETTERS}_0f1e2d3c",
    "New Relic": f"NRAK-{UPPER[:27]}",
    "Dynatrace": f"dt0c01.{UPPER[:24]}.{UPPER}{UPPER}",
    "1Password": f"ops_eyJ{LONG}{LONG}{LONG}",
    "age": f"AGE-SECRET-KEY-1{UPPER}{UPPER[:26]}",
    "Slack bot": f"xoxb-123456789012-1234567890123-{LETTERS[:24]}",
    "Slack app": f"xapp-1-A0123456789-1234567890123-{HEX}",
    "Telegram": f"1234567890:AA{LETTERS}a",
    "Discord": f"M{LETTERS[:24]}.Gh1jKl.{LONG[:30]}",
    "SendGrid": f"SG.{LETTERS[:22]}.{LONG[:43]}",
    "Twilio": f"SK{HEX}",
    "Mailgun": f"key-{HEX}",
    "Mailchimp": f"{HEX}-us14",
    "Brevo": f"xkeysib-{HEX}{HEX}-{LETTERS[:16]}",
    "Stripe": f"sk_live_{LETTERS[:24]}",
    "Stripe restricted": f"rk_prod_{LETTERS[:24]}",
    "Stripe webhook": f"whsec_{LETTERS}",
    "Square": f"sq0atp-{LETTERS[:22]}",
    "Facebook": f"EAAM{LONG}{LONG[:20]}",
    "Shopify": f"shpat_{HEX}",
    "Shippo": f"shippo_live_{HEX}01234567",
    "Notion": f"ntn_{LONG[:46]}",
    "Figma": f"figd_{LONG[:40]}",
    "Airtable": f"pat{LETTERS[:14]}.{HEX}{HEX}",
    "JWT": f"eyJhbGciOiJIUzI1NiJ9.eyJ{LETTERS}.{LETTERS}",
}

TEMPLATES = [
    "{}",
    "401 Unauthorized: {} was refused",
    "retrying with key={}.",
    '{{"header": "{}", "n": 1}}',
    "https://api.example.com/v1?x=1&k={}&y=2",
    "('{}',)",
    '{{"raw": "line\\\\n{}"}}',
    "redirect=https%3A%2F%2Fx.example%2F%3Fk%3D{}",
    "\\u003c{}\\u003e",
]


@pytest.mark.parametrize("service", SHAPES)
def test_key_with_a_known_format_is_masked_everywhere(service: str) -> None:
    """B16: secrets in the evidence are redacted."""
    key = SHAPES[service]
    for template in TEMPLATES:
        text = redact(template.format(key), 2_000)

        assert MASK in text, template
        assert not any(key[at : at + 12] in text for at in range(0, len(key) - 12, 4)), template


@pytest.mark.parametrize("service", SHAPES)
def test_key_in_json_is_masked_once(service: str) -> None:
    text = redact(json.dumps({"said": f"a\n{SHAPES[service]}\tb"}), 2_000)

    assert SHAPES[service] not in text
    assert redact(text, 2_000) == text


@pytest.mark.parametrize(
    "invisible_character", ["\u200b", "\u00ad", "\u202e", "\U000e0041", "\ufeff", "\u2060", "\x00"]
)
def test_invisible_characters_do_not_hide_a_key(invisible_character: str) -> None:
    key = SHAPES["OpenAI"]
    key_with_invisible_character = key[:6] + invisible_character + key[6:]

    assert redact(f"key {key_with_invisible_character} refused") == f"key {MASK} refused"


@pytest.mark.parametrize(
    "text",
    [
        "commit 0f1e2d3c4b5a69788796a5b4c3d2e1f001234567 on main",
        "session 6f9619ff-8b86-d011-b42d-00c04fc964ff ended",
        "queenright.runtime.nodes.event_loop line 331",
        "sha256:0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0",
        "Task-2024-11-21T14:04:20.123Z finished at https://example.com/a/b/c?page=12",
        "/usr/lib/python3.11/site-packages/queenright/judge/monitoring_tools.py",
        "claude-sonnet-4-5-20250929 and gpt-4.1-mini-2025-04-14",
        "deep_research_agent: search was called 12 times with the same arguments and result",
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
        "risk-assessment-of-the-whole-project, disk-space-usage-report, task-list-of-today-and-tomorrow",
    ],
)
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert redact(text) == text
