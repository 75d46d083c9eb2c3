"""Resets of emulated engines, and who needs which key."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from helpers import HANGS_S
from servers.emulated.callers import Prompts, eventually, running

from hitlab.servers.emulated.config import EmulatedConfig, Faults


def test_vllm_resets_when_idle_and_says_false_while_blocks_are_held(prompts: Prompts) -> None:
    prompt = prompts.draw(100)
    with ThreadPoolExecutor() as pool, running("vllm", Faults(hang_post=2)) as caller:
        assert caller.cached(prompt) == 0
        held = pool.submit(caller.cached, prompt)
        assert caller.server.hanging.wait(HANGS_S)
        reply = caller.reset()
        assert (reply.status_code, reply.json()) == (200, {"success": False})
        caller.server.release()
        assert held.result(HANGS_S) == 96
        assert not caller.server.hanging.is_set()
        assert caller.reset().json() == {"success": True}
        assert caller.cached(prompt) == 0
        assert caller.counted() == (300, 96)


def test_sglang_flushes_when_idle_refuses_when_busy_and_waits_when_asked(prompts: Prompts) -> None:
    prompt = prompts.draw(100)
    with ThreadPoolExecutor() as pool, running("sglang", Faults(hang_post=2)) as caller:
        assert caller.cached(prompt) == 0
        held = pool.submit(caller.cached, prompt)
        assert caller.server.hanging.wait(HANGS_S)
        assert (caller.reset().status_code, caller.reset().text) == (400, "Flush cache failed.\n")
        assert "Timed out" in caller.http.post("/flush_cache?timeout=0.001").text
        with httpx.Client(base_url=caller.server.base_url, timeout=HANGS_S) as other:
            other.get("/model_info")  # so that the server reads the flush before the calls below
            waiting = pool.submit(other.get, f"/flush_cache?timeout={HANGS_S}")
            assert eventually(lambda: caller.total("sglang:http_requests_total", endpoint="/flush_cache") == 4)
            caller.server.release()
            assert held.result(HANGS_S) == 99
            assert waiting.result(HANGS_S).status_code == 200
        assert caller.http.post("/flush_cache?timeout=x").status_code == 400
        assert caller.cached(prompt) == 0


def test_without_development_mode_vllm_has_no_reset_and_no_server_info() -> None:
    with running("vllm", dev_mode=False) as caller:
        assert [caller.reset().status_code, caller.http.get("/server_info").status_code] == [404, 404]
    with running("vllm") as caller:
        info = caller.http.get("/server_info", params={"config_format": "json"}).json()
        assert info["vllm_config"]["cache_config"]["block_size"] == 16
        assert isinstance(caller.http.get("/server_info").json()["vllm_config"], str)


def test_before_0_26_a_reset_does_not_say_whether_it_happened() -> None:
    with running("vllm", version="0.25.1") as caller:
        assert (caller.reset().status_code, caller.reset().content) == (200, b"")


def test_sglang_0_5_5_says_flushed_also_when_it_refuses() -> None:
    with running("sglang", Faults(reset="busy"), version="0.5.5") as caller:
        assert (caller.reset().status_code, caller.reset().text) == (400, "Cache flushed.\n")


@pytest.mark.parametrize(
    ("name", "path", "open_to"),
    [
        ("vllm", "/v1/models", {"api"}),
        ("vllm", "/metrics", {None, "api", "admin"}),
        ("vllm", "/reset_prefix_cache", {None, "api", "admin"}),
        ("sglang", "/server_info", {"api"}),
        ("sglang", "/nosuch", {"api"}),
        ("sglang", "/flush_cache", {"admin"}),
        ("sglang", "/health", {None, "api", "admin"}),
        ("sglang", "/metrics", {None, "api", "admin"}),
    ],
)
def test_who_needs_which_key(name: str, path: str, open_to: set[str | None]) -> None:
    with running(name, api_key="api", admin_key="admin") as caller:
        for key in (None, "api", "admin"):
            headers = {"authorization": f"Bearer {key}"} if key else {}
            reply = caller.http.request("POST" if "reset" in path else "GET", path, headers=headers)
            assert (reply.status_code != 401) == (key in open_to)
            if reply.status_code == 401:
                assert reply.json() == {"error": "Unauthorized"}


def test_a_flush_takes_the_api_key_where_there_is_no_admin_key() -> None:
    with running("sglang", api_key="api") as caller:
        assert caller.reset().status_code == 401
        assert caller.http.post("/flush_cache", headers={"authorization": "Bearer api"}).status_code == 200


def test_keys_are_in_no_repr() -> None:
    assert "secret" not in repr(EmulatedConfig(16, 100, "1.0", api_key="secret", admin_key="secret"))
