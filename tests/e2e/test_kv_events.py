"""KV events over ZeroMQ: a subscriber that keeps a mirror of the prefix cache must equal it, with the hash recomputed in Python.

Symptoms: partial blocks or parents that were never announced (vllm#58119), a hash that differs from process to process, evicted blocks that a
router still counts on, missed messages that nobody can get back, a flush or a restart that leaves the router with a cache that is gone.
"""

import itertools
import json
import random
import re
import signal
import struct
import subprocess
import time

import httpx
import msgpack
import pytest
import xxhash
import zmq
from conftest import BINARY, MODEL, Stream, counted, eventually, free_port, running, scripted, text_of

PAGE = 16


def block_hash(parent, token_ids):
    seed = 0x696E676F74 if parent is None else parent
    return xxhash.xxh3_64_intdigest(struct.pack(f"<{len(token_ids)}i", *token_ids), seed=seed)


def hashes_of(tokens):
    hashes = []
    for begin in range(0, len(tokens) - PAGE + 1, PAGE):
        hashes.append(block_hash(hashes[-1] if hashes else None, tokens[begin : begin + PAGE]))
    return hashes


class Mirror:
    """What a router would know. Checks the rules of docs/kv_events.md at every event."""

    def __init__(self, endpoint, replay, topic):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.setsockopt_string(zmq.SUBSCRIBE, topic)
        self.socket.connect(endpoint)
        self.replay_endpoint = replay
        self.topic = topic
        self.next = 0  # the number that must come
        self.blocks = {}  # rank -> hash -> (parent, tokens, media)
        self.last = {}  # number -> payload
        self.heard = 0  # messages that came by themselves
        self.replayed = 0
        self.restarts = 0

    def hear(self, seconds=0.0):
        """Takes what has come, for so long; asks for what was missed."""
        deadline, heard = time.monotonic() + seconds, self.heard
        while self.socket.poll(max(int((deadline - time.monotonic()) * 1000), 0)):
            topic, number, payload = self.socket.recv_multipart()
            assert topic.decode() == self.topic and len(number) == 8
            number = int.from_bytes(number, "big")
            if number < self.next and payload != self.last.get(number):
                self.restarted()
            if number > self.next:
                self.catch_up()
            if number == self.next:
                self.apply(payload)
                self.heard += 1
        if self.heard == heard:
            self.catch_up()  # a message that came before the subscription was there leaves no gap when it was the last one
        return self

    def restarted(self):
        self.blocks, self.last, self.next = {}, {}, 0
        self.restarts += 1

    def catch_up(self):
        """Asks for the last message that is here, too: a server that has another one of that number was restarted."""
        answers = self.replay(max(self.next - 1, 0))
        if self.next > 0:
            if not answers or answers[0] != (self.next - 1, self.last[self.next - 1]):
                self.restarted()
                answers = self.replay(0)
            else:
                answers = answers[1:]
        for number, payload in answers:
            assert number == self.next, "what is kept is whole"
            self.apply(payload)
            self.replayed += 1

    def replay(self, start):
        answers = []
        with self.context.socket(zmq.DEALER) as dealer:
            dealer.connect(self.replay_endpoint)
            dealer.send_multipart([b"", start.to_bytes(8, "big")])
            while True:
                assert dealer.poll(10_000), "no end of the replay"
                empty, number, payload = dealer.recv_multipart()
                assert empty == b""
                if not payload:
                    assert int.from_bytes(number, "big", signed=True) == -1
                    return answers
                answers.append((int.from_bytes(number, "big"), payload))

    def apply(self, payload):
        self.last[self.next] = payload
        self.next += 1
        timestamp, events, rank = msgpack.unpackb(payload)
        assert abs(timestamp - time.time()) < 120
        known = self.blocks.setdefault(rank, {})
        for kind, *event in events:
            if kind == "AllBlocksCleared":
                known.clear()
            elif kind == "BlockRemoved":
                hashes, medium = event
                for name in hashes:
                    known[name][2].remove(medium)
                    if not known[name][2]:
                        del known[name]
                        assert all(parent != name for parent, _, _ in known.values()), "a child outlives its parent"
            else:
                assert kind == "BlockStored"
                hashes, parent, tokens, size, lora, medium = event
                assert lora is None and medium in ("GPU", "CPU")
                assert len(tokens) == size * len(hashes), "a partial block"
                for i, name in enumerate(hashes):
                    block = tokens[i * size : (i + 1) * size]
                    assert name == block_hash(parent, block)
                    assert parent is None or parent in known, "a parent that was never announced"
                    entry = known.setdefault(name, (parent, block, set()))
                    assert medium not in entry[2], "stored twice"
                    entry[2].add(medium)
                    parent = name

    def pages(self, medium, rank=0):
        return sum(medium in media for _, _, media in self.blocks.get(rank, {}).values())

    def chains(self, rank=0):
        """The token ids of every path from a first block to a last one."""
        known = self.blocks.get(rank, {})
        parents = {parent for parent, _, _ in known.values()}
        for leaf in known.keys() - parents:
            tokens, name = [], leaf
            while name is not None:
                parent, block, _ = known[name]
                tokens, name = block + tokens, parent
            yield tokens

    def close(self):
        self.context.destroy(linger=0)


def mirror_of(server):
    found = re.search(r"KV events: topic (\S+) on (\S+), replay on (\S+)", server.log())
    assert found, server.log()
    return Mirror(found[2], found[3], found[1])


CONFIG = {"publisher": "zmq", "endpoint": "tcp://127.0.0.1:*", "replay_endpoint": "tcp://127.0.0.1:*"}


def flags(*more, **config):
    return ("--kv-events-config", json.dumps({**CONFIG, **config}), "--page-size", str(PAGE), *more)


def ask(server, tokens, max_tokens=1):
    response = server.complete(tokens, max_tokens=max_tokens, temperature=0)
    assert response.status_code == 200, response.text
    return response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def prompt(seed, pages):
    return random.Random(seed).choices(range(20, 90), k=pages * PAGE + 3)


def equals_cache(mirror, server):
    """Device pages by number; every path, by asking for it, has its length."""

    def same():
        mirror.hear(0.05)
        state = server.health()
        return server.idle() and mirror.pages("GPU") == state["total_pages"] - state["free_pages"]

    eventually(same, 20, lambda: f"{mirror.pages('GPU')} pages in the mirror, {server.health()}")
    for tokens in list(mirror.chains()):
        cached = ask(server, [*tokens, 19])
        mirror.hear(0.05)
        assert cached == len(tokens), "the mirror has a path that the cache has not"


def test_a_mirror_equals_the_cache_over_evictions_and_knows_the_prompts_hashes():
    # 32 pages: prompts of 1 to 6 pages with common beginnings drive each other out.
    with scripted(*flags("--max-total-tokens", str(32 * PAGE), "--context-length", "256")) as server:
        mirror = mirror_of(server)
        tokens = prompt(0, 3)
        assert ask(server, tokens) == 0
        eventually(lambda: mirror.hear(0.05).pages("GPU") >= 3)
        assert set(hashes_of(tokens)) <= mirror.blocks[0].keys(), "the hash is documented, and anybody can compute it"
        fresh = itertools.count(1000)
        eventually(lambda: ask(server, prompt(next(fresh), 1)) == 0 and mirror.hear(0.05).heard, what=lambda: "nothing comes by itself")
        # A process that is stopped and continued: interrupted system calls end no thread.
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(0.2)
        server.process.send_signal(signal.SIGCONT)
        draw = random.Random(1)
        for _ in range(60):
            base = prompt(draw.randrange(6), 6)
            ask(server, base[: draw.randrange(PAGE, len(base))] + prompt(draw.randrange(100), 1), max_tokens=draw.randrange(1, 40))
        equals_cache(mirror, server)
        evicted = re.search(r"^ingot:\S*evicted\S*\{.*?\} (\S+)$", server.get("/metrics").text, re.M)
        assert float(evicted[1]) > 10, "the test must evict"
        assert mirror.heard > 20
        mirror.close()


def test_a_page_that_only_the_host_has_is_told_so_and_comes_back():
    with scripted(*flags("--max-total-tokens", str(16 * PAGE), "--context-length", "200", "--hicache-size", "0.001")) as server:
        mirror = mirror_of(server)
        first = prompt(0, 8)
        ask(server, first)
        for seed in range(1, 4):
            ask(server, prompt(seed, 8))
        equals_cache(mirror, server)
        eventually(lambda: mirror.hear(0.05).pages("CPU") >= 32)
        media = [mirror.blocks[0][name][2] for name in hashes_of(first)]
        ask(server, prompt(9, 8))
        ask(server, prompt(10, 8))
        eventually(lambda: mirror.hear(0.05) and mirror.blocks[0][hashes_of(first)[-1]][2] == {"CPU"}, what=lambda: str(media))
        assert ask(server, first) == 8 * PAGE
        eventually(lambda: mirror.hear(0.05) and mirror.blocks[0][hashes_of(first)[-1]][2] == {"CPU", "GPU"})
        mirror.close()


def test_a_flush_empties_the_mirror_and_is_refused_while_a_request_runs():
    with scripted(*flags()) as server:
        mirror = mirror_of(server)
        tokens = prompt(0, 4)
        ask(server, tokens)
        assert ask(server, tokens) == 4 * PAGE
        eventually(lambda: mirror.hear(0.05).pages("GPU") == 4)
        assert httpx.post(server.url + "/flush_cache").status_code == 200
        eventually(lambda: mirror.hear(0.05).pages("GPU") == 0)
        assert ask(server, tokens) == 0
        equals_cache(mirror, server)
        mirror.close()
    with scripted(*flags("--step-ms", "30")) as server:
        with Stream(server, prompt(1, 2), max_tokens=4000) as stream:
            first = stream.event()
            refused = httpx.post(server.url + "/flush_cache")
            assert refused.status_code == 400 and "1 requests run or wait" in refused.json()["error"]["message"]
            assert text_of([first, *(stream.event() for _ in range(40))]) == counted("z", 41), "the one that runs is not disturbed"
        eventually(server.idle)
        assert httpx.post(server.url + "/flush_cache").status_code == 200


def test_missed_messages_are_replayed_and_a_restart_is_noticed():
    ports = free_port(), free_port()
    endpoints = {"endpoint": f"tcp://*:{ports[0]}", "replay_endpoint": f"tcp://*:{ports[1]}"}
    mirror = None
    for life in range(2):
        with scripted(*flags(topic="kv@pod@m", **endpoints)) as server:
            if mirror is None:
                for seed in range(5):  # nobody listens yet: these are missed
                    ask(server, prompt(seed, 2))
                mirror = Mirror(f"tcp://127.0.0.1:{ports[0]}", f"tcp://127.0.0.1:{ports[1]}", "kv@pod@m")
            seed = 100

            def heard():
                nonlocal seed
                seed += 1
                ask(server, prompt(seed, 1))
                mirror.hear(0.1)
                return mirror.restarts == life and set(hashes_of(prompt(seed, 1))) <= mirror.blocks.get(0, {}).keys()

            eventually(heard, 30)
            equals_cache(mirror, server)
            assert (hashes_of(prompt(0, 2))[0] in mirror.blocks[0]) == (life == 0)
            assert mirror.replayed > 0
    assert mirror.restarts == 1
    mirror.close()


def test_replicas_are_told_apart_by_rank_in_one_stream():
    with scripted(*flags("--dp", "2")) as server:
        mirror = mirror_of(server)
        tokens = [prompt(seed, 2) for seed in range(8)]
        for each in tokens:
            ask(server, each)
        eventually(lambda: mirror.hear(0.05).pages("GPU", 0) + mirror.pages("GPU", 1) == 16)
        mirror.close()


@pytest.mark.parametrize("config", ['{"publisher": "kafka"}', '{"endpont": "tcp://*:1"}', "zmq", '{"endpoint": "tcp://*:x"}'])
def test_a_config_that_cannot_be_obeyed_stops_the_start(config):
    command = [str(BINARY), "serve", str(MODEL), "--port", "0", "--kv-events-config", config]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and "--kv-events-config" in run.stderr.splitlines()[-1], run.stderr


def test_the_demo_model_publishes_what_it_caches():
    with running(*flags("--context-length", "512")) as server:
        mirror = mirror_of(server)
        tokens = prompt(3, 5)
        ask(server, tokens, max_tokens=20)
        assert ask(server, tokens) == 5 * PAGE
        equals_cache(mirror, server)
        assert set(hashes_of(tokens)) <= mirror.blocks[0].keys()
        mirror.close()
