"""GET /openapi.json says what the server does: a property-based client finds no 5xx, and the documents name the same fields."""

import os
import pathlib
import re
import subprocess
import sys

import httpx
import pytest
from conftest import NAME, ROOT, scripted


@pytest.fixture(scope="module")
def small():
    # Answers count without end: the context bounds them.
    with scripted("--context-length", "192", "--max-running-requests", "32", "--max-total-tokens", "16384") as server:
        yield server


@pytest.fixture(scope="module")
def document(small):
    return small.get("/openapi.json").json()


def schema(document, path) -> dict:
    reference = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    return document["components"]["schemas"][reference.rsplit("/", 1)[1]]


BASE = {"/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}, "/v1/completions": {"prompt": "x", "max_tokens": 1}}


@pytest.mark.parametrize("path", BASE)
def test_each_documented_field_is_known_and_no_other(small, document, path):
    for name in schema(document, path)["properties"]:
        response = httpx.post(small.url + path, json={name: None, **BASE[path]})
        assert response.status_code == 200, (name, response.text)
    unknown = httpx.post(small.url + path, json={"frobnicate": None, **BASE[path]})
    assert unknown.status_code == 400 and unknown.json()["error"]["code"] == "unknown_field"


def test_fields_that_the_parsers_read_are_documented(document):
    """In the document, or named in docs/api.md as refused."""
    words = set(re.findall(r"[A-Za-z_]+", (ROOT / "docs" / "api.md").read_text()))
    names = set()
    for path in BASE:
        names |= set(schema(document, path)["properties"])
    for source in ("generation_fields.cc", "conversation_fields.cc", "openai_request.cc"):
        path = pathlib.Path(__file__).resolve().parents[2] / "src" / "serve" / source
        if path.exists():
            names |= set(re.findall(r'\bfields_?\.(?:get|boolean|integer|number|string|strings|token_ids|only)\("([a-z_]+)"', path.read_text()))
    assert len(names) > 60 and not names - words, sorted(names - words)


def test_each_documented_path_is_there(small, document):
    for path, methods in document["paths"].items():
        for method in methods:
            response = httpx.request("OPTIONS", small.url + re.sub(r"\{.*\}", NAME, path))
            assert method.upper() in response.headers.get("allow", ""), (path, method, response.status_code, response.headers)


def test_a_property_based_client_finds_no_5xx(small, tmp_path):
    """Schemathesis: bodies that follow the document, and bodies that nearly do. The same ones in every run: no limit of time, one worker."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", small.url + "/openapi.json", "--checks", "not_a_server_error", "--max-examples", "40",
               "--phases", "fuzzing", "--mode", "all", "--workers", "1", "--seed", "20260930", "--request-timeout", "30",
               "--exclude-path", "/health_generate", "--suppress-health-check", "all", "--continue-on-failure"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, env={**os.environ, "NO_COLOR": "1"})
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert httpx.post(small.url + "/v1/completions", json=BASE["/v1/completions"]).status_code == 200
