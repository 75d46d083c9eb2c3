"""Servers of emulated engines: they start, serve several clients, stop at once, and are never taken for real ones."""

import gc
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from helpers import HANGS_S
from servers.emulated.callers import Prompts, both, eventually, running

from hitlab.errors import LaunchError
from hitlab.servers.emulated import server as emulate
from hitlab.servers.emulated.config import EMULATED_HEADER, Faults


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_every_response_says_that_it_is_emulated(name: str, prompts: Prompts) -> None:
    with running(name, Faults(fail_post=2), api_key="key") as caller:
        caller.http.headers["authorization"] = "Bearer key"
        replies = [caller.post(prompts.draw(20)), caller.post(prompts.draw(20)), caller.post([]), caller.reset()]
        replies += [caller.http.get(path) for path in ("/metrics", "/health", "/nosuch", "/v1/models")]
        replies += [caller.http.get("/v1/models", headers={"authorization": "no"})]
        assert [reply.status_code for reply in replies] == [200, 500, 400, 200, 200, 200, 404, 200, 401]
        assert {reply.headers.get(EMULATED_HEADER) for reply in replies} == {"1"}
        assert {reply.headers["server"] for reply in replies} == {"hitlab-emulated"}
        assert replies[-2].json()["data"][0]["owned_by"] == "hitlab-emulated"


def test_versions_end_in_emulated(prompts: Prompts) -> None:
    with running("vllm") as caller:
        assert caller.http.get("/version").json() == {"version": "0.32.0+emulated"}
        assert caller.post(prompts.draw(5)).json()["system_fingerprint"] == "hitlab-emulated"
    with running("sglang") as caller:
        assert caller.http.get("/server_info").json()["version"] == "0.5.23+emulated"


def test_requests_over_sockets_overlap(prompts: Prompts) -> None:
    with running("sglang", blocks=20_000) as caller:
        with ThreadPoolExecutor(8) as pool:
            lengths = list(pool.map(lambda n: len(caller.output([1000 + n] * 50, max_tokens=60)), range(40)))
        assert lengths == [60] * 40
        assert caller.total("sglang:num_running_reqs") == 0
        assert caller.total("sglang:num_requests_total") == 41
        assert caller.reset().status_code == 200


@both
def test_a_client_that_goes_away_frees_its_blocks_and_has_been_counted(name: str, prompts: Prompts) -> None:
    with running(name, Faults(hang_post=1)) as caller:
        before = caller.counted()[0]
        body = caller.http.build_request("POST", caller.path, json=caller.body(prompts.draw(100)))
        with socket.create_connection((body.url.host, body.url.port or 0)) as line:
            line.sendall(b"POST %b HTTP/1.1\r\nhost: x\r\n" % body.url.raw_path)
            line.sendall(b"content-length: %d\r\n\r\n%b" % (len(body.content), body.content))
            assert caller.server.hanging.wait(HANGS_S)
        assert eventually(lambda: _is_reset(caller.reset()))
        assert caller.counted()[0] - before == 100


def test_a_mistake_in_the_emulator_is_an_answer_and_not_a_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def mistaken() -> bool:
        raise ZeroDivisionError

    with running("vllm") as caller:
        monkeypatch.setattr(caller.server.engine.scheduler, "step", mistaken)
        assert caller.post([5]).status_code == 500
    assert "ZeroDivisionError" in caplog.text


def _is_reset(reply: httpx.Response) -> bool:
    return reply.status_code == 200 and "false" not in reply.text


def test_a_stopped_serveris_gone_and_leaves_nothing_behind(prompts: Prompts) -> None:
    threads = threading.active_count()
    server = emulate.start("vllm")
    with httpx.Client(base_url=server.base_url, timeout=HANGS_S) as http:
        http.get("/health").raise_for_status()
        server.stop()
        server.stop()
        with pytest.raises(httpx.TransportError):
            http.get("/health")
    assert threading.active_count() == threads
    gc.collect()  # an unclosed socket or loop would warn, and warnings are errors


def test_stopping_cuts_off_a_request_that_hangs(prompts: Prompts) -> None:
    with ThreadPoolExecutor() as pool:
        with running("vllm", Faults(hang_post=1)) as caller:
            hanging = pool.submit(
                httpx.post, f"{caller.server.base_url}/v1/completions", json={"prompt": [5]}, timeout=HANGS_S
            )
            assert caller.server.hanging.wait(HANGS_S)
        with pytest.raises(httpx.TransportError):
            hanging.result(HANGS_S)
    gc.collect()


def test_a_port_that_is_taken_is_one_clear_error() -> None:
    with emulate.start("vllm") as server:
        port = int(server.base_url.rpartition(":")[2])
        with pytest.raises(LaunchError, match=rf"127\.0\.0\.1:{port}: cannot listen .*; choose another `port`"):
            emulate.start("sglang", port=port)
    gc.collect()


def test_a_response_does_not_wait_for_acknowledgements() -> None:
    # asyncio turns Nagle's algorithm off for sockets that are TCP by name; without, each response takes 40 ms.
    with emulate.listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_ctrl_c_ends_a_served_engine_with_one_word(root: Path) -> None:
    command = [sys.executable, "run.py", "serve", "--engine", "vllm", "--emulate", "--port", "0"]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout
        assert child.stderr
        assert child.stdout.readline().startswith("EMULATED vllm serves at http://127.0.0.1:")
        url = child.stdout.readline().split()[-1]  # the command that measures it ends with the address
        assert httpx.get(f"{url}/version", timeout=HANGS_S).json()["version"].endswith("+emulated")
        child.send_signal(signal.SIGINT)
        assert child.wait(HANGS_S) == 0
        assert child.stdout.read() + child.stderr.read() == "stopped\n"
