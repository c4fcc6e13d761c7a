"""/metrics, read by Prometheus' own parser: the names that routers and dashboards look for, and figures that agree with the answers.

Row ids in comments: public bug reports of other servers, replayed.
"""

import concurrent.futures
import random
import threading

import httpx
import pytest
from conftest import COUNTING, NAME, Stream, counted, eventually, scrape, scripted, text_of, total
from prometheus_client.parser import text_string_to_metric_families

ENDLESS = {"max_tokens": 4000, "ignore_eos": True}


def families(server) -> dict:
    return {family.name: family for family in text_string_to_metric_families(server.get("/metrics").text)}


def growing(server) -> dict:
    """The samples that may never shrink: of counters and of histograms."""
    return {(s.name, frozenset(s.labels.items())): s.value for family in families(server).values() if family.type in ("counter", "histogram")
            for s in family.samples}


@pytest.fixture(scope="module")
def idle_server():
    with scripted("--step-ms", "10") as s:
        yield s


def test_the_text_is_what_prometheus_reads(idle_server):
    response = idle_server.get("/metrics")
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = list(text_string_to_metric_families(response.text))
    assert len(found) > 30 and all(f.samples and f.documentation and f.type in ("counter", "gauge", "histogram") for f in found)
    names = [(s.name, frozenset(s.labels.items())) for f in found for s in f.samples]
    assert len(names) == len(set(names)), "no series twice"
    assert all(name.startswith(("vllm:", "ingot:")) for name, _ in names)


def test_the_names_that_llm_d_reads_are_there_and_move(idle_server):
    found = families(idle_server)
    for name in ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:cache_config_info"):
        assert found[name].type == "gauge" and all(s.labels["model_name"] == NAME for s in found[name].samples)
    (config,) = found["vllm:cache_config_info"].samples
    assert (config.value, config.labels["block_size"], config.labels["num_gpu_blocks"]) == (1, "16", str(idle_server.health()["total_pages"]))
    assert config.labels["enable_prefix_caching"] == "True"

    before = scrape(idle_server)
    assert total(before, "vllm:kv_cache_usage_perc") == 0
    prompt, pages = "filler " * 400 + "Count after 0", idle_server.health()["total_pages"]
    length = idle_server.count(prompt)
    with Stream(idle_server, prompt, **ENDLESS) as stream:
        assert stream.event()["choices"][0]["text"] == "1"

        def used_and_length():
            """Of a scrape in whose midst no step ended: the stream goes on, and each figure is read on its own."""
            samples = scrape(idle_server)
            assert total(samples, "vllm:num_requests_running") == 1
            used = total(samples, "vllm:kv_cache_usage_perc") * pages
            generated = total(samples, "vllm:generation_tokens_total") - total(before, "vllm:generation_tokens_total")
            agree = used == pytest.approx(total(samples, "ingot:pages", state="private")) and total(samples, "ingot:pages") == pages
            return agree and (length + generated) / 16 - 1 <= used <= (length + generated) / 16 + 2 and (used, length + generated)

        used, tokens = eventually(used_and_length, 30)
        assert tokens > length >= 400 and used >= 400 // 16
    eventually(idle_server.idle)
    samples = scrape(idle_server)
    assert total(samples, "vllm:kv_cache_usage_perc") == total(samples, "vllm:num_requests_running") == 0
    assert total(samples, "ingot:cancelled_requests_total", stage="decode") == 1


def test_histograms_count_the_finished_requests_and_sums_equal_the_answers_usage():
    script = [{"when": "stop", "say": ["The end."]}]
    with scripted("--speculative-num-steps", "3", "--draft-truth", "0.5", "--max-running-requests", "8", script=script) as server:
        prompts = [f"{'same beginning ' * (i % 7 * 10)}{'stop' if i % 3 == 0 else 'Count after 0'}" for i in range(60)]
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(lambda i: server.complete(prompts[i], max_tokens=1 + i % 40).json(), range(60)))
        usages = [a["usage"] for a in answers]
        prompt, completion = (sum(u[key] for u in usages) for key in ("prompt_tokens", "completion_tokens"))
        cached = sum(u["prompt_tokens_details"]["cached_tokens"] for u in usages)
        assert cached > 0
        eventually(server.idle)
        samples = scrape(server)
        assert total(samples, "vllm:num_preemptions_total") == 0
        assert total(samples, "vllm:prompt_tokens_total") == total(samples, "vllm:request_prompt_tokens_sum") == prompt
        assert total(samples, "vllm:generation_tokens_total") == total(samples, "vllm:request_generation_tokens_sum") == completion
        assert total(samples, "vllm:prefix_cache_queries_total") == prompt and total(samples, "vllm:prefix_cache_hits_total") == cached
        for reason in ("stop", "length", "abort", "error"):
            count = sum(a["choices"][0]["finish_reason"] == reason for a in answers)
            assert total(samples, "vllm:request_success_total", finished_reason=reason) == count
        for name in ("e2e_request_latency_seconds", "time_to_first_token_seconds", "request_queue_time_seconds", "request_prefill_time_seconds",
                     "request_decode_time_seconds", "request_inference_time_seconds", "request_prompt_tokens", "request_generation_tokens",
                     "request_params_max_tokens"):
            assert total(samples, f"vllm:{name}_count") == 60, name
        assert total(samples, "vllm:inter_token_latency_seconds_count") == completion - 60
        assert total(samples, "vllm:request_time_per_output_token_seconds_count") == sum(u["completion_tokens"] >= 2 for u in usages)
        assert total(samples, "vllm:request_params_max_tokens_sum") == sum(1 + i % 40 for i in range(60))
        assert total(samples, "vllm:iteration_tokens_total_count") == total(samples, "ingot:steps_total") > 0
        assert 0 < total(samples, "vllm:spec_decode_num_accepted_tokens_total") < total(samples, "vllm:spec_decode_num_draft_tokens_total")
        assert total(samples, "ingot:http_requests_total", route="/v1/completions", status="200") == 60
        assert total(samples, "ingot:metrics_ignored_total") == 0
        for family in families(server).values():
            if family.type != "histogram":
                continue
            series = {}
            for s in family.samples:
                labels = frozenset((k, v) for k, v in s.labels.items() if k != "le")
                series.setdefault(labels, {}).setdefault(s.name.removeprefix(family.name), []).append(s.value)
            for parts in series.values():
                assert parts["_bucket"] == sorted(parts["_bucket"]) and parts["_bucket"][-1] == parts["_count"][0], family.name


# K1
def test_counters_never_shrink_over_preemptions_cancels_and_rejected_drafts():
    """A pool for two of the twelve clients at most, drafts of which most are wrong, and every fourth client leaves."""
    seen = [0]
    with scripted("--max-total-tokens", "512", "--context-length", "400", "--speculative-num-steps", "4", "--draft-truth", "0.2", "--step-ms", "1") as server:
        done = threading.Event()

        def watch():
            last = growing(server)
            while not done.is_set():
                now = growing(server)
                assert last.keys() <= now.keys(), "a series vanished"
                shrunk = {key: (last[key], now[key]) for key in last if now[key] < last[key]}
                assert not shrunk, shrunk
                last = now
                seen[0] += 1

        def ask(i):
            rng = random.Random(i)
            after = rng.choice(COUNTING)
            with Stream(server, f"{i} {'filler ' * rng.randrange(40)}Count after {after}", max_tokens=200) as stream:
                if i % 4 == 0:
                    for _ in range(rng.randrange(20)):
                        stream.event()
                    return
                events = stream.events()
                assert text_of(events) == counted(after, 200) and events[-1] == "[DONE]"

        with concurrent.futures.ThreadPoolExecutor(13) as pool:
            watcher = pool.submit(watch)
            try:
                for job in [pool.submit(ask, i) for i in range(48)]:
                    job.result()
            finally:
                done.set()
            watcher.result()
        eventually(server.idle)
        samples = scrape(server)
        assert seen[0] > 5
        assert total(samples, "vllm:num_preemptions_total") > 0 and total(samples, "ingot:cancelled_requests_total") > 0
        drafted, accepted = (total(samples, f"vllm:spec_decode_num_{kind}_tokens_total") for kind in ("draft", "accepted"))
        assert 0 < accepted < drafted / 2
        assert total(samples, "vllm:request_success_total") == 48
        assert total(samples, "ingot:metrics_ignored_total") == 0


# K3
def test_a_scrape_never_waits_for_the_step_that_runs():
    script = [{"when": "long step", "say": ["done"], "first_token_seconds": 60}]
    with scripted(script=script) as server, concurrent.futures.ThreadPoolExecutor(1) as pool:
        job = pool.submit(server.complete, "a long step", max_tokens=1)
        eventually(lambda: server.health()["running"] == 1)
        scrapes = [scrape(server) for _ in range(10)]
        assert not job.done(), "a scrape waited for the step"
        figures = [(total(s, "vllm:num_requests_running"), total(s, "ingot:steps_total")) for s in scrapes]
        assert figures == [(1, 1)] * 10, "fresh figures, all along the step"
        server.process.kill()  # nobody waits for the end of it
        with pytest.raises(httpx.HTTPError):
            job.result()


def test_refused_and_unknown_requests_are_counted_by_route(idle_server):
    before = scrape(idle_server)
    assert idle_server.get("/nothing").status_code == 404
    assert idle_server.complete("x", temperature=-1).status_code == 400
    assert idle_server.complete("word " * 20_000).status_code == 400
    after = scrape(idle_server)
    assert total(after, "ingot:rejected_requests_total") == total(before, "ingot:rejected_requests_total") + 3
    assert total(after, "ingot:http_requests_total", route="other", status="404") == 1
    assert total(after, "ingot:http_requests_total", route="/v1/completions", status="400") == 2
