"""`ingot bench serve` and `ingot bench single` against servers whose timings are known: a scripted Ingot, and one that writes its own record."""

import array
import contextlib
import http.server
import json
import os
import shutil
import ssl
import statistics
import subprocess
import threading
import time
import xml.etree.ElementTree

import pytest
from conftest import BINARY, MODEL, eventually, scripted

# Bounds of one percent on a machine that others use, too: a figure that noise has spoilt is taken again, twice at the most.
pytestmark = pytest.mark.flaky(reruns=2, reruns_delay=2)


def bench(command, *flags, code=0):
    """Runs `ingot bench COMMAND`; its report as JSON, or what it said on standard error when it must fail."""
    done = subprocess.run([str(BINARY), "bench", command, "--quiet", "--json", "-", *map(str, flags)], capture_output=True, text=True, timeout=300)
    assert done.returncode == code, f"exit code {done.returncode}: {done.stderr} {done.stdout[-2000:]}"
    return done.stderr if code == 1 else json.loads(done.stdout)


def load(server, *flags, code=0):
    return bench("serve", "--url", server.url, "--tokenizer", MODEL, *flags, code=code)


def within(value, expected, share=0.01):
    assert abs(value - expected) <= share * expected, f"{value} where {expected} is right"


# -- a server of another make ----------------------------------------------------------------------------------------------------------


class Plain(http.server.ThreadingHTTPServer):
    """Streams `events` events of `per_event` tokens; writes down when each was sent, and every request."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, ttft=0.0, gap=0.0, events=5, per_event=1, usage=True, fault=None, tls=None):
        super().__init__(("127.0.0.1", 0), Handler)
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.ttft, self.gap, self.events, self.per_event, self.usage, self.fault = ttft, gap, events, per_event, usage, fault
        self.lock = threading.Lock()
        self.bodies, self.records = [], []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def last_records(self, count, of):
        """A client may be done before the record of its last answer is written."""
        eventually(lambda: len(self.records) == of)
        return self.records[-count:]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        body = json.dumps({"data": [{"id": "plain"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        start = time.monotonic()
        s = self.server
        with s.lock:
            s.bodies.append(body)
            number = len(s.bodies)  # 1: the probe
        fault = s.fault if number > 1 and number % 2 == 0 else None
        if fault == "429":
            refusal = json.dumps({"error": {"message": "too many"}}).encode()
            self.send_response(429)
            self.send_header("Content-Length", str(len(refusal)))
            self.end_headers()
            return self.wfile.write(refusal)
        if fault == "reset":
            self.close_connection = True
            return self.connection.shutdown(2)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")  # the end of the connection is the end of the stream
        self.end_headers()
        self.close_connection = True
        sent = []
        with contextlib.suppress(OSError):
            for i in range(s.events):
                due = start + s.ttft + i * s.gap
                time.sleep(max(0, due - time.monotonic()))
                self.event({"choices": [{"index": 0, "text": f" answer{number}-{i}", "finish_reason": None}]})
                sent.append(time.monotonic())
                if fault == "cut" and i == 2:
                    return
                if fault == "error" and i == 2:
                    self.event({"error": {"message": "the engine broke"}})
            self.event({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
            if s.usage:
                tokens = len(body["prompt"].split())
                self.event({"choices": [], "usage": {"prompt_tokens": tokens, "completion_tokens": s.events * s.per_event,
                                                     "prompt_tokens_details": {"cached_tokens": 0}}})
            self.wfile.write(b"data: [DONE]\n\n")
        with s.lock:
            s.records.append({"ttft": sent[0] - start, "span": sent[-1] - sent[0], "e2e": time.monotonic() - start,
                              "gaps": [b - a for a, b in zip(sent, sent[1:])]})

    def event(self, data):
        self.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")


@contextlib.contextmanager
def plain(**options):
    server = Plain(**options)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def test_every_figure_is_the_servers_own_record_to_one_percent():
    with plain(ttft=2.5, gap=0.05, events=41) as server:
        report = load(server, "--workload", "aa-single", "--scale", "0.01", "--output-len", 4100, "--concurrency", 3, "--num-requests", 6)
        records = server.last_records(6, of=1 + 3 + 6)  # behind the probe and the warm-up
    figures = report["figures"]
    assert figures["ok"] == 6 and figures["warmup_requests"] == 3
    for name, of in [("ttft_ms", lambda r: r["ttft"]), ("tpot_ms", lambda r: r["span"] / 40), ("e2e_ms", lambda r: r["e2e"])]:
        within(figures[name]["mean"], 1e3 * statistics.mean(map(of, records)))
        within(figures[name]["max"], 1e3 * max(map(of, records)))
        within(figures[name]["p50"], 1e3 * statistics.median(map(of, records)))
    gaps = [gap for r in records for gap in r["gaps"]]
    within(figures["itl_ms"]["mean"], 1e3 * statistics.mean(gaps))
    assert figures["itl_ms"]["n"] == 6 * 40
    assert figures["output_tokens"] == 6 * 41 and figures["input_tokens"] == 6 * 100
    # Two rounds of three.
    within(figures["output_tok_s"], 6 * 41 / figures["duration_s"], 1e-6)
    within(figures["duration_s"], 2 * statistics.mean(r["e2e"] for r in records), 0.02)
    within(figures["mean_concurrency"], 3, 0.02)
    assert report["kind"] == "ingot bench serve" and report["version"] == 1 and "ttft" in report["definitions"]


def test_itl_counts_events_where_a_server_merges_tokens():
    """P1, of a server that puts four tokens into an event and tells usage alone."""
    with plain(ttft=0.1, gap=0.08, events=26, per_event=4) as server:
        figures = load(server, "--workload", "aa-short", "--scale", "0.02", "--output-len", 5200, "--num-requests", 3)["figures"]
        records = server.last_records(3, of=1 + 1 + 3)
    within(figures["itl_ms"]["p50"], 1e3 * statistics.median(g for r in records for g in r["gaps"]) / 4, 0.05)
    within(figures["itl_ms"]["mean"], figures["tpot_ms"]["mean"], 1e-6)
    within(figures["tpot_ms"]["mean"], 1e3 * statistics.mean(r["span"] for r in records) / 103)
    assert figures["peak_output_tok_s"] >= figures["output_tok_s"]
    assert any("4.00 tokens" in w for w in figures["warnings"])


def test_a_server_without_usage_is_measured_with_a_warning():
    with plain(gap=0.005, events=10, usage=False) as server:
        figures = load(server, "--workload", "aa-short", "--scale", "0.01", "--num-requests", 2)["figures"]
    assert figures["tokens_counted_by"] == "one an event" and figures["output_tokens"] == 20
    assert figures["hit_ratio"] is None
    assert any("usage" in w for w in figures["warnings"])


@pytest.mark.parametrize("fault, kind, detail", [("429", "http 429", "too many"), ("reset", "closed_early", ""), ("cut", "cut short", "after 3 events"),
                                                 ("error", "error event", "the engine broke")])
def test_failed_requests_are_told_by_kind_and_are_in_no_latency(fault, kind, detail):
    with plain(ttft=0.05, events=5, fault=fault) as server:
        report = load(server, "--workload", "aa-short", "--scale", "0.01", "--num-requests", 6, "--warmup-requests", 0, code=3)
    figures = report["figures"]
    assert figures["errors"] == {kind: 3} and figures["ok"] == 3
    assert detail in figures["error_examples"][kind]
    assert figures["ttft_ms"]["n"] == 3
    assert any("3 of 6 requests failed" in w for w in figures["warnings"])


def test_requests_that_take_too_long_end_with_timeout():
    with plain(ttft=5) as server:
        started = time.monotonic()
        done = subprocess.run([str(BINARY), "bench", "serve", "--url", server.url, "--tokenizer", str(MODEL), "--workload", "aa-short", "--timeout", "0.5"],
                              capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "timeout" in done.stderr, done.stderr
    assert time.monotonic() - started < 4


def test_equal_seeds_send_equal_prompts():
    def prompts(seed):
        with plain() as server:
            load(server, "--workload", "article", "--scale", "0.01", "--num-requests", 8, "--rate", 200, "--seed", seed)
            return [b["prompt"] for b in server.bodies[1:]]

    first = prompts(1)
    assert sorted(first) == sorted(prompts(1)) and len(set(first)) == 9
    assert not set(first) & set(prompts(2))
    assert len({" ".join(p.split()[:120]) for p in first + prompts(2)}) == 1, "the shared prefix is that of every run"


def test_an_open_loop_sends_by_the_clock_whatever_comes_back():
    with plain(ttft=0.8, events=2) as server:
        figures = load(server, "--workload", "aa-short", "--scale", "0.01", "--rate", 40, "--arrival", "constant", "--num-requests", 160)["figures"]
    within(figures["sent_rate"], 40)
    assert figures["mean_concurrency"] > 20
    with plain(ttft=0.01, events=2) as server:
        report = load(server, "--workload", "aa-short", "--scale", "0.01", "--rate", 100, "--num-requests", 200)
    gaps = [b["due_ms"] - a["due_ms"] for a, b in zip(report["requests"], report["requests"][1:])]
    assert 7 < statistics.mean(gaps) < 13 and 0.7 < statistics.stdev(gaps) / statistics.mean(gaps) < 1.3
    assert all(r["sent_ms"] >= r["due_ms"] for r in report["requests"])


def test_warm_up_is_left_out_by_count_and_by_time():
    with plain(ttft=0.1, events=2) as server:
        report = load(server, "--workload", "aa-short", "--scale", "0.01", "--num-requests", 10, "--warmup-requests", 2, "--warmup", 0.65)
    figures = report["figures"]
    assert figures["warmup_requests"] + figures["requests"] == 12
    assert [r["warmup"] for r in report["requests"]] == [r["sent_ms"] < 650 or i < 2 for i, r in enumerate(report["requests"])]
    assert 4 <= figures["warmup_requests"] <= 8


def test_an_agents_later_turns_quote_what_the_server_said():
    with plain(events=3) as server:
        report = load(server, "--workload", "agent", "--scale", "0.02", "--turns", 3, "--num-requests", 2, "--concurrency", 2, "--warmup-requests", 0, "--extra-body",
                      '{"marker": 1}')
        bodies = [b["prompt"] for b in server.bodies[1:]]
    assert report["figures"]["requests"] == 6
    for last in [b for b in bodies if b.count("answer") == 6]:
        first = next(b for b in bodies if "answer" not in b and last.startswith(b))
        assert last[len(first):].lstrip().startswith("answer")
    assert sum(b.count("answer") == 6 for b in bodies) == 2
    assert all(b["marker"] == 1 for b in server.bodies)


def test_recorded_loads_are_replayed_at_their_times(tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps({"timestamp": 100 * i, "input_length": 600, "output_length": 5, "hash_ids": [0, i + 1]}) + "\n" for i in range(10)))
    with plain() as server:
        report = load(server, "--workload", f"mooncake:{trace}", "--time-scale", 0.5, "--warmup-requests", 0)
        prompts = [b["prompt"].split() for b in server.bodies[1:]]
    assert [r["due_ms"] for r in report["requests"]] == [50 * i for i in range(10)]
    assert all(len(p) == 600 for p in prompts) and len({tuple(p[:512]) for p in prompts}) == 1 and len({tuple(p) for p in prompts}) == 10
    recorded = tmp_path / "prompts.jsonl"
    recorded.write_text('{"prompt": "one two", "max_tokens": 5}\n{"prompt": "three", "max_tokens": 5}\n')
    with plain() as server:
        load(server, "--workload", f"jsonl:{recorded}", "--concurrency", 1, "--warmup-requests", 0)
        assert [b["prompt"] for b in server.bodies[1:]] == ["one two", "three"]


def test_a_server_behind_tls_is_measured_and_a_false_one_refused(tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", certificate, "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with plain(ttft=0.05, events=5, tls=context) as server:
        url = f"https://localhost:{server.server_address[1]}"
        command = [str(BINARY), "bench", "serve", "--quiet", "--url", url, "--tokenizer", str(MODEL), "--workload", "aa-short", "--scale", "0.01", "--num-requests", "4", "--json", "-"]
        trusting = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, "SSL_CERT_FILE": str(certificate)})
        assert trusting.returncode == 0, trusting.stderr
        assert json.loads(trusting.stdout)["figures"]["ok"] == 4
        wary = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert wary.returncode == 1 and "tls" in wary.stderr and "certificate" in wary.stderr, wary.stderr


def test_the_page_is_well_formed_and_loads_nothing(tmp_path):
    page, a, b = tmp_path / "report.html", tmp_path / "a.json", tmp_path / "b.json"
    for path, gap in [(a, 0.01), (b, 0.02)]:
        with plain(ttft=0.05, gap=gap, events=20) as server:
            path.write_text(json.dumps(load(server, "--workload", "aa-short", "--scale", "0.02", "--num-requests", 40, "--concurrency", 8, "--html", page)))
    text = page.read_text()
    root = xml.etree.ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>"))
    assert len(root.findall(".//svg")) >= 4
    assert not any(word in text for word in ("<script", "<link", "src=", "@import", "url("))
    if chromium := shutil.which("chromium"):
        shown = subprocess.run([chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom", page.as_uri()],
                               capture_output=True, text=True, timeout=120, env={**os.environ, "HOME": str(tmp_path)})
        assert shown.stdout.count("</svg>") == len(root.findall(".//svg")), shown.stderr[-1000:]
        assert "CONSOLE" not in shown.stderr, shown.stderr[-1000:]
    done = subprocess.run([str(BINARY), "bench", "compare", str(a), str(b)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    tpot = next(line for line in done.stdout.splitlines() if line.strip().startswith("TPOT"))
    assert 1.8 < float(tpot.split("x")[1].split()[0]) < 2.2 and "40 pairs" in tpot, done.stdout


# -- scripted Ingot --------------------------------------------------------------------------------------------------------------------


def test_tokens_of_drafts_are_counted_one_by_one(tmp_path):
    """P1 with accept-all drafts: an event is a step of five tokens, about 50 ms apart; just how far, the server writes down."""
    log = tmp_path / "steps"

    def step_ms(steps):
        """Mean time of a step in the last three answers, of so many steps each."""
        ends = array.array("q", log.read_bytes())[-3 * steps:]
        return statistics.mean(ends[i + steps - 1] - ends[i] for i in (0, steps, 2 * steps)) / (steps - 1) / 1e6

    with scripted("--step-ms", "50", "--step-log", str(log), "--speculative-num-steps", "4", "--draft-truth", "1") as server:
        flags = ("--workload", "aa-short", "--scale", "0.05", "--output-len", 2020, "--num-requests", 3)
        for count in ("usage", "logprobs"):
            figures = load(server, *flags, "--count-tokens", count)["figures"]
            within(figures["itl_ms"]["mean"], step_ms(21) / 5)
            within(figures["tpot_ms"]["mean"], step_ms(21) / 5)
            assert figures["events"] < figures["output_tokens"] / 4
            assert figures["peak_output_tok_s"] >= figures["output_tok_s"]
            within(figures["acceptance_length"], 5, 0.02)
            assert figures["tokens_counted_by"] == ("usage" if count == "usage" else "each event")
        alone = load(server, *flags, "--speculation", "off")["figures"]
        within(alone["tpot_ms"]["mean"], step_ms(101))
        assert alone["acceptance_length"] is None


def test_reasoning_is_not_counted_as_prefill():
    """P2: a thinking answer, one token each 50 ms."""
    script = [{"when": "", "say": ["<think>"] + ["a"] * 20 + ["</think>"] + ["b"] * 20, "finish": "stop"}]
    with scripted("--step-ms", "50", script=script) as server:
        figures = load(server, "--endpoint", "chat", "--workload", "aa-short", "--scale", "0.05", "--num-requests", 3, "--output-len", 900, "--no-ignore-eos")["figures"]
    assert figures["ttft_ms"]["max"] < 160
    assert figures["ttft_content_ms"]["min"] > 900
    assert 45 < figures["tpot_ms"]["p50"] < 52
    assert figures["input_tokens"] == 3 * 50, "the template's tokens count as input"
    assert figures["finish_reasons"] == {"stop": 3}


def test_the_hits_asked_for_are_verified_against_cached_tokens():
    flags = ("--workload", "article", "--scale", "0.05", "--rate", 40, "--num-requests", 120, "--warmup-requests", 3)
    with scripted("--step-ms", "5") as server:
        report = load(server, *flags)
        again = load(server, *flags)
    figures = report["figures"]
    assert {r["prompt_tokens"] for r in report["requests"]} == {1000}
    within(figures["asked_hit_ratio"], 0.6)
    within(figures["hit_ratio"], 0.6, 0.03)  # whole pages of 16
    assert not any("cache hits" in w for w in figures["warnings"])
    assert any("cache hits" in w for w in again["figures"]["warnings"]), "the same prompts a second time"
    with scripted("--step-ms", "5", "--disable-radix-cache") as server:
        figures = load(server, *flags)["figures"]
    assert figures["hit_ratio"] == 0 and any("cache hits" in w for w in figures["warnings"])


def test_the_knee_of_a_queue_is_below_its_capacity():
    # One at a time, about 25 steps of 4 ms an answer: 10 requests a second at the most.
    with scripted("--step-ms", "4", "--max-running-requests", "1") as server:
        report = load(server, "--workload", "aa-short", "--scale", "0.02", "--output-len", 1250, "--find-knee", "ttft_p95<=240ms", "--num-requests", 40, "--knee-repeats", 2,
                      "--knee-tolerance", "0.3")
    knee = report["knee"]
    assert knee["is_bounded"] and 2.5 < knee["rate"] < 10.5
    assert knee["interval_95"][0] <= knee["rate"] <= knee["interval_95"][1]
    for row in knee["rows"]:
        figures = row["figures"]
        within(figures["output_tok_s"] / figures["request_s"], 25, 1e-6)
        assert row["holds"] == (figures["ttft_ms"]["p95"] <= 240)


# -- the model -------------------------------------------------------------------------------------------------------------------------


def test_single_stream_of_a_server_of_its_own():
    report = bench("single", "--model", MODEL, "--workload", "aa-short", "--scale", "0.1", "--runs", 2, "--compare-speculation", "--server-flag=--context-length=2048")
    assert [k["name"] for k in report["kinds"]] == ["speculation off", "speculation on"]
    off, on = (k["figures"] for k in report["kinds"])
    assert off["acceptance_length"] is None and on["acceptance_length"] >= 1
    for kind in report["kinds"]:
        within(kind["figures"]["mean_concurrency"], 1, 0.02)
        assert kind["figures"]["ok"] == 2 and kind["tok_s_after_first"]["n"] == 2
        assert {r["prompt_tokens"] for r in kind["requests"]} == {100}


def test_a_client_that_is_killed_leaves_no_server_behind():
    def servers():
        found = subprocess.run(["pgrep", "-f", f"serve {MODEL} --host 127.0.0.1 --port 0 --request-log /dev/null --context-length=1999"], capture_output=True, text=True)
        return found.stdout.split()

    client = subprocess.Popen([str(BINARY), "bench", "serve", "--model", str(MODEL), "--server-flag=--context-length=1999", "--workload", "aa-short", "--scale", "0.1",
                               "--num-requests", "1000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: len(servers()) == 1, 30)
    finally:
        client.kill()
        client.wait()
    eventually(lambda: not servers(), 30)


@pytest.mark.parametrize("flags, says", [
    ((), "--url"),
    (("--url", "http://127.0.0.1:1", "--tokenizer", MODEL, "--workload", "article"), "--rate"),
    (("--url", "http://127.0.0.1:1", "--tokenizer", MODEL, "--workload", "nothing"), "mooncake:FILE"),
    (("--url", "http://127.0.0.1:1", "--tokenizer", MODEL, "--rate", 1), "connect"),
    (("--url", "http://127.0.0.1:1", "--rate", 1), "--tokenizer"),
    (("--url", "http://127.0.0.1:1", "--tokenizer", MODEL, "--rate", 1, "--concurrency", 1), "--concurrency"),
    (("--url", "http://127.0.0.1:1", "--tokenizer", MODEL, "--find-knee", "ttft<=5s"), "percentile"),
    (("--model", "/nowhere", "--rate", 1), "/nowhere"),
])
def test_bad_flags_are_named(flags, says):
    assert says in bench("serve", *flags, code=1)
