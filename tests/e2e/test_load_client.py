"""A load client that people have, unchanged: aiperf (PyPI) from its own command line, streaming, in a venv of its own and without a network.

Symptoms: a load client whose requests are refused, that counts other tokens than it asked for, or that gets no usage along the stream.
Times are for docs/benchmarking.md, not for here: the machine of the tests is busy.
"""

import json
import os
import platform
import subprocess

import pytest
from conftest import MODEL, NAME, ROOT, eventually, scrape

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="crick, which aiperf imports, has wheels for x86-64 alone")

AIPERF = ROOT / ".deps" / "load_client" / "bin" / "aiperf"
REQUESTS, CONCURRENCY, INPUT, OUTPUT = 16, 4, 64, 32
ROUTES = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


@pytest.fixture
def hub(tmp_path):
    """Hugging Face's cache with the demo tokenizer in it as "ingot/demo": offline, aiperf takes tokenizers from there alone."""
    revision = "0" * 40
    repository = tmp_path / "hub" / "models--ingot--demo"
    for folder in ("refs", "snapshots"):
        (repository / folder).mkdir(parents=True)
    (repository / "refs" / "main").write_text(revision)
    (repository / "snapshots" / revision).symlink_to(MODEL)
    return tmp_path


def profile(server, endpoint, hub, *flags):
    """Runs `aiperf profile`: its report, its requests with every event as it came, and each request's figures."""
    out = hub / "artifacts"
    command = [AIPERF, "profile", "--model", NAME, "--url", server.url, "--endpoint-type", endpoint, "--streaming", "--tokenizer", "ingot/demo",
               "--isl", INPUT, "--isl-stddev", 0, "--osl", OUTPUT, "--osl-stddev", 0, "--extra-inputs", "ignore_eos:true", "--use-server-token-count",
               "--request-count", REQUESTS, "--concurrency", CONCURRENCY, "--random-seed", 1, "--export-level", "raw", "--ui", "none",
               "--artifact-dir", out, *flags]
    # It is several processes that import the same modules: their byte code is kept, also where Python is told not to.
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(hub), "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run([*map(str, command)], env=environment, cwd=hub, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stdout[-4000:]} {done.stderr[-2000:]}"
    lines = {name: [json.loads(line) for line in (out / name).read_text().splitlines()] for name in ("profile_export_raw.jsonl", "profile_export.jsonl")}
    return json.loads((out / "profile_export_aiperf.json").read_text()), *lines.values()


def answered(server, endpoint):
    """Requests to this endpoint that were answered with 200 so far."""
    labels = {("route", ROUTES[endpoint]), ("status", "200")}
    return sum(value for (name, have), value in scrape(server).items() if name == "ingot:http_requests_total" and labels <= have)


def events_of(raw):
    """The events of one request as aiperf received them."""
    *events, end = [packet["value"] for response in raw["responses"] for packet in response["packets"] if packet["name"] == "data"]
    assert end == "[DONE]"
    return [json.loads(event) for event in events]


@pytest.mark.parametrize("endpoint", ROUTES)
def test_aiperf_gets_every_answer_and_counts_what_it_asked_for(server, hub, endpoint):
    assert AIPERF.exists(), f"{AIPERF} is missing: tools/setup.sh tests makes it"
    before = answered(server, endpoint)
    # aiperf asks for usage in every event of chat alone; elsewhere it refuses the flag itself.
    flags = ["--per-chunk-usage"] if endpoint == "chat" else []
    report, raw, records = profile(server, endpoint, hub, *flags)

    assert report["request_count"]["avg"] == REQUESTS and report["request_error_rate"]["avg"] == 0 and report["error_summary"] == []
    eventually(lambda: answered(server, endpoint) - before == REQUESTS)
    assert report["total_osl"]["avg"] == REQUESTS * OUTPUT and report["osl_mismatch_count"]["avg"] == 0
    assert len(records) == REQUESTS
    for record in records:
        assert record["metrics"]["output_sequence_length"]["value"] == record["metrics"]["usage_completion_tokens"]["value"] == OUTPUT

    # The prompts were made with the tokenizer by Hugging Face's library and counted by ours; the template of chat adds the same to each.
    lengths = {record["metrics"]["input_sequence_length"]["value"] for record in records}
    if endpoint == "completions":
        assert lengths == {INPUT}
    else:
        assert len(lengths) == 1 and lengths.pop() > INPUT

    assert len(raw) == REQUESTS
    for request in raw:
        options = request["payload"]["stream_options"]
        assert request["status"] == 200 and options["include_usage"]
        usages = [event.get("usage") for event in events_of(request)]
        counts = [usage["completion_tokens"] for usage in usages if usage]
        assert counts[-1] == OUTPUT
        if endpoint == "chat":
            assert options["continuous_usage_stats"]
            assert len(counts) == len(usages) and counts == sorted(counts) and counts[0] == 0
        else:
            assert len(counts) == 1
