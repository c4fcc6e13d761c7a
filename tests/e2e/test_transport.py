"""How clients reach the server: TLS, unix socket, keys, pages of other origins, the access log, and a stop while the model is loaded.

Symptoms: a key that cannot be read is found out by the first client, a browser page that may do what it should not, a request in the log that
nobody can find again, a limit that does not hold under TLS, SIGTERM that is ignored until the model is loaded.
"""

import contextlib
import json
import os
import re
import signal
import socket
import ssl
import stat
import subprocess
import threading

import httpx
import openai
import pytest
import trustme
from conftest import BINARY, MODEL, NAME, eventually, running


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pki")
    ca = trustme.CA()
    certificate = ca.issue_cert("127.0.0.1", "localhost")
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
    for i, blob in enumerate(certificate.cert_chain_pems):
        blob.write_to_path(str(folder / "cert.pem"), append=i > 0)
    return folder


class Started:
    """A server that does not say "ready: http://127.0.0.1:PORT", which conftest.Server waits for."""

    def __init__(self, *flags, ready):
        self.process = subprocess.Popen([str(BINARY), "serve", str(MODEL), "--served-model-name", NAME, *flags], stderr=subprocess.PIPE, text=True)
        self.lines = []
        self.reader = threading.Thread(target=lambda: self.lines.extend(iter(self.process.stderr.readline, "")), daemon=True)
        self.reader.start()
        self.found = eventually(lambda: re.search(ready, self.log()) or self.process.poll() is not None, 60, self.log)
        assert self.found is not True, self.log()

    def log(self):
        return "".join(list(self.lines))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(20)
        self.reader.join(5)


def tls_server(pki, *flags):
    files = ("--ssl-certfile", str(pki / "cert.pem"), "--ssl-keyfile", str(pki / "key.pem"))
    return Started("--host", "127.0.0.1", "--port", "0", *files, *flags, ready=r"ready: https://127\.0\.0\.1:(\d+)/v1")


def test_openai_client_over_tls_streaming_and_not(pki):
    with tls_server(pki) as server:
        trust = ssl.create_default_context(cafile=pki / "ca.pem")
        url = f"https://127.0.0.1:{server.found[1]}/v1"
        with httpx.Client(verify=trust, timeout=60) as http:
            client = openai.OpenAI(base_url=url, api_key="none", http_client=http, max_retries=0)
            options = dict(model=NAME, messages=[{"role": "user", "content": "What is 3 + 4?"}], max_tokens=24, temperature=0)
            whole = client.chat.completions.create(**options).choices[0].message
            pieces = [c.choices[0].delta for c in client.chat.completions.create(stream=True, **options) if c.choices]
            assert "".join(p.content or "" for p in pieces) == (whole.content or "")
            streams = []
            threads = [
                threading.Thread(target=lambda: streams.append("".join(c.choices[0].text for c in client.completions.create(model=NAME, prompt="Say:", max_tokens=40, temperature=0, stream=True) if c.choices)))
                for _ in range(16)
            ]
            [t.start() for t in threads]
            [t.join(60) for t in threads]
            assert len(streams) == 16 and len(set(streams)) == 1
        with pytest.raises(httpx.ConnectError):
            httpx.get(url + "/models")  # a client that does not know the CA refuses
        with pytest.raises(httpx.HTTPError):
            httpx.get(url.replace("https", "http") + "/models", timeout=20)
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.set_ciphers("ALL:@SECLEVEL=0")
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
        with socket.create_connection(("127.0.0.1", int(server.found[1]))) as raw, pytest.raises((ssl.SSLError, ConnectionError)):
            old.wrap_socket(raw)


@pytest.mark.parametrize(
    "files, says",
    [
        (("--ssl-certfile", "/nowhere.pem", "--ssl-keyfile", "{key}"), "--ssl-certfile /nowhere.pem"),
        (("--ssl-certfile", "{cert}", "--ssl-keyfile", "{ca}"), "--ssl-keyfile"),
        (("--ssl-certfile", "{cert}"), "--ssl-keyfile"),
        (("--ssl-keyfile", "{key}"), "--ssl-certfile"),
    ],
)
def test_a_bad_certificate_or_key_stops_the_start_by_name(pki, files, says):
    names = {"key": pki / "key.pem", "cert": pki / "cert.pem", "ca": pki / "ca.pem"}
    run = subprocess.run([str(BINARY), "serve", str(MODEL), "--port", "0", *(f.format(**names) for f in files)], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and says in run.stderr.splitlines()[-1], run.stderr


@pytest.mark.parametrize("form", ["--uds {}", "--host unix:{}", "--host unix://{}"])
def test_a_unix_socket_serves_and_leaves_nothing_behind(tmp_path, form):
    path = tmp_path / "ingot.sock"
    for _ in range(2):
        with Started(*form.format(path).split(), ready=f"ready: unix:{path} serves") as server:
            assert stat.S_ISSOCK(path.stat().st_mode)
            with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://ingot", timeout=60) as http:
                assert http.get("/health").status_code == 200
                answer = http.post("/v1/completions", json={"prompt": "1 2 3", "max_tokens": 3, "temperature": 0, "ignore_eos": True})
                assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 3
                big = http.post("/v1/completions", content=b"x" * (33 << 20))
                assert big.status_code == 413, "the limits hold here, too"
            if form.startswith("--uds"):
                server.process.kill()  # the next one finds the file of a dead server
        assert path.exists() == form.startswith("--uds")


def test_each_request_is_one_line_in_the_log_and_can_be_found_by_its_name():
    with running() as server:
        answer = httpx.get(server.url + "/v1/models?key=secret", headers={"X-Request-Id": "ticket-17"})
        assert answer.headers["x-request-id"] == "ticket-17"
        made = httpx.get(server.url + "/nowhere").headers["x-request-id"]
        pattern = r"access: GET /v1/models 200 \d+ bytes \d+\.\d ms 127\.0\.0\.1:\d+ ticket-17$"
        eventually(lambda: re.search(pattern, server.log(), re.M) and re.search(f"access: GET /nowhere 404 .* {made}$", server.log(), re.M), what=server.log)
        assert "secret" not in server.log()
    with running("--disable-access-log") as server:
        httpx.get(server.url + "/v1/models")
        server.stop()
        assert "access:" not in server.log()


def test_a_browser_page_may_ask_only_when_allowed_and_its_preflight_needs_no_key():
    preflight = {"Origin": "https://chat.example", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    with running("--api-key", "k", "--cors-allow-origins", "https://chat.example") as server:
        answer = httpx.options(server.url + "/v1/chat/completions", headers=preflight)
        assert answer.status_code == 204 and answer.headers["access-control-allow-origin"] == "https://chat.example"
        assert "authorization" in answer.headers["access-control-allow-headers"]
        assert httpx.options(server.url + "/v1/chat/completions", headers={**preflight, "Origin": "https://evil.example"}).status_code == 403
        refused = httpx.get(server.url + "/v1/models", headers={"Origin": "https://chat.example"})
        assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == "https://chat.example"
        with httpx.stream(
            "POST",
            server.url + "/v1/completions",
            json={"prompt": "a", "max_tokens": 2, "stream": True},
            headers={"Origin": "https://chat.example", "Authorization": "Bearer k"},
        ) as stream:
            assert stream.headers["access-control-allow-origin"] == "https://chat.example"
    with running() as server:
        answer = httpx.get(server.url + "/v1/models", headers={"Origin": "https://chat.example"})
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_a_key_comes_from_a_file(tmp_path):
    file = tmp_path / "key"
    file.write_text("s3cret\n")
    with running("--api-key-file", str(file)) as server:
        assert httpx.get(server.url + "/v1/models").status_code == 401
        assert httpx.get(server.url + "/v1/models", headers={"Authorization": "Bearer s3cret"}).status_code == 200
        assert "s3cret" not in server.log()
    for flags in (("--api-key-file", str(tmp_path / "none")), ("--api-key-file", str(file), "--api-key", "k")):
        run = subprocess.run([str(BINARY), "serve", str(MODEL), "--port", "0", *flags], capture_output=True, text=True, timeout=60)
        assert run.returncode == 1 and "--api-key-file" in run.stderr.splitlines()[-1], run.stderr


def test_deep_json_is_refused_and_the_next_request_is_served(server):
    for body in ("[" * 100_000, '{"a":' * 200 + "1" + "}" * 200, '{"messages": ' + "[" * 300 + "]" * 300 + "}"):
        answer = httpx.post(server.url + "/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400 and "128" in answer.json()["error"]["message"], answer.text
    assert server.complete("1 2", max_tokens=1).status_code == 200


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_while_the_model_is_loaded_ends_the_process_at_once(tmp_path, sig):
    # Nobody reads this pipe, so that a server which opens it to write never comes to the end of loading.
    os.mkfifo(tmp_path / "requests")
    for _ in range(3):
        command = [str(BINARY), "serve", str(MODEL), "--port", "0", "--request-log", str(tmp_path / "requests")]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        # The first line of loading: from here on the signal is this process' own business.
        first = process.stderr.readline()
        assert first, "no line before the end"
        process.send_signal(sig)
        _, rest = process.communicate(timeout=30)
        assert process.returncode == 0 and "while loading: stopped" in rest and "ready:" not in rest, rest


def test_under_tls_a_slow_reader_and_a_hang_up_free_the_engine(pki):
    with tls_server(pki) as server:
        trust = ssl.create_default_context(cafile=pki / "ca.pem")
        port = int(server.found[1])
        body = json.dumps({"model": NAME, "prompt": "a", "max_tokens": 4000, "stream": True, "ignore_eos": True}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        for _ in range(3):
            with contextlib.closing(trust.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="127.0.0.1")) as stream:
                stream.sendall(head + body)
                assert stream.recv(1000).startswith(b"HTTP/1.1 200")
        with httpx.Client(verify=trust, base_url=f"https://127.0.0.1:{port}") as http:
            eventually(lambda: http.get("/health").json()["running"] == 0, 10)
