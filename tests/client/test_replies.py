"""Answers that no engine gives: each is one line that says so, and none is taken for tokens."""

import pytest
import respx
from client.callers import PROMPT, URL, ask

from hitlab.client.dialect import Completion
from hitlab.errors import (
    MetricsError,
    RequestRefusedError,
    ResetRefusedError,
    ServerError,
)

pytestmark = pytest.mark.usefixtures("server", "no_waiting")

VLLM_GOOD = {"choices": [{"text": ""}], "usage": {"prompt_tokens": 97}}
USAGE = {"prompt_tokens": 97, "prompt_tokens_details": {"cached_tokens": 0}}
DEEP = b"[" * 200_000


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"error": {"message": "model overloaded"}}', "an answer without a completion: model overloaded"),
        (b'{"usage": {"prompt_tokens": 97}}', "an answer without a completion"),
        (b'{"usage": {"prompt_tokens": 97}, "choices": []}', "an answer without a completion"),
        (b'{"choices": [{}]}', "an answer without a completion"),
        (b"<html>login</html>", "an answer that no vLLM gives: <html>login</html>"),
        (b"", "an answer that no vLLM gives: an empty body"),
        (b"[1]", "an answer that no vLLM gives: Expected `object`, got `array`"),
        (b'{"usage": "x", "choices": [{}]}', r"\$.usage"),
        (b'{"usage": {}, "choices": [{}]}', "prompt_tokens"),
        (b'{"usage": {"prompt_tokens": "97"}, "choices": [{}]}', r"\$.usage.prompt_tokens"),
        (b'{"usage": {"prompt_tokens": -97}, "choices": [{}]}', r"\$.usage.prompt_tokens"),
        (b'{"usage": {"prompt_tokens": 97}, "choices": "abc"}', r"\$.choices"),
        (b'{"usage": {"prompt_tokens": 97}, "choices": [null]}', r"\$.choices"),
        (b'{"usage": {"prompt_tokens": 97, "prompt_tokens_details": [1]}, "choices": [{}]}', "prompt_tokens_details"),
        (
            b'{"usage": {"prompt_tokens": 97, "prompt_tokens_details": {"cached_tokens": "96"}}, "choices": [{}]}',
            "cached_tokens",
        ),
        (b'{"usage": {"prompt_tokens": 97}, "choices": [{"token_ids": "abc"}]}', "token_ids"),
        (DEEP, "an answer that no vLLM gives"),
        (b'{"error": ' + DEEP, "an answer that no vLLM gives"),
    ],
)
def test_vllm_answer_that_is_no_completion_is_a_refused_request(server: respx.Router, body: bytes, says: str) -> None:
    server.post("/v1/completions").respond(content=body)
    with pytest.raises(RequestRefusedError, match=says) as caught:
        ask(lambda client: client.complete(PROMPT))
    assert str(caught.value).startswith(f"{URL}/v1/completions: a prompt of 97 tokens got ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"error": {"message": "aborted"}}', "an answer without a completion: aborted"),
        (b'{"meta_info": [1]}', r"\$.meta_info"),
        (b'{"meta_info": {"prompt_tokens": 97, "finish_reason": "stop"}}', "finish_reason"),
        (b'{"meta_info": {"prompt_tokens": 97}, "output_ids": 5}', "output_ids"),
        (b'{"meta_info": {"prompt_tokens": "97"}}', "prompt_tokens"),
        (b'[{"meta_info": {"prompt_tokens": 97}}]', "an answer that no SGLang gives"),
        (DEEP, "an answer that no SGLang gives"),
    ],
)
def test_sglang_answer_that_is_no_completion_is_a_refused_request(server: respx.Router, body: bytes, says: str) -> None:
    server.post("/generate").respond(content=body)
    with pytest.raises(RequestRefusedError, match=says):
        ask(lambda client: client.complete(PROMPT), engine="sglang")


@pytest.mark.parametrize(
    ("engine", "path", "body"),
    [
        ("vllm", "/v1/completions", b'{"error": "busy"}'),
        ("sglang", "/generate", b'[{"error": "busy"}]'),
        ("sglang", "/generate", b'{"error": "busy"}'),
    ],
)
def test_post_of_several_prompts_without_completions_is_refused_too(
    server: respx.Router, engine: str, path: str, body: bytes
) -> None:
    server.post(path).respond(content=body)
    with pytest.raises(RequestRefusedError, match="a POST of 2 prompts got an answer"):
        ask(lambda client: client.complete_together([PROMPT, PROMPT]), engine=engine)


def test_nulls_and_fields_nobody_asked_for_are_fine(server: respx.Router) -> None:
    choice = {"text": "", "token_ids": None, "finish_reason": None, "logprobs": {"x": [1]}}
    server.post("/v1/completions").respond(json={"choices": [choice], "usage": {**USAGE, "new": [{}]}, "more": 1})
    assert ask(lambda client: client.complete(PROMPT)).completion == Completion(97, 0)
    meta = {"prompt_tokens": 97, "cached_tokens": None, "finish_reason": None, "e2e_latency": 0.1}
    server.post("/generate").respond(json={"meta_info": meta, "output_ids": None, "text": ""})
    assert ask(lambda client: client.complete(PROMPT), engine="sglang").completion == Completion(97, None)


@pytest.mark.parametrize(
    ("engine", "path", "body"),
    [
        ("vllm", "/version", b'"hi"'),
        ("vllm", "/version", b""),
        ("vllm", "/version", DEEP),
        ("vllm", "/v1/models", b'{"data": [1]}'),
        ("vllm", "/v1/models", b'{"data": "x"}'),
        ("vllm", "/v1/models", b'{"data": [{"id": "m", "max_model_len": "32768"}]}'),
        ("sglang", "/server_info", b'{"max_total_num_tokens": "9"}'),
        ("sglang", "/server_info", b'{"chunked_prefill_size": "x"}'),
        ("sglang", "/server_info", b'{"page_size": 0}'),
        ("sglang", "/server_info", b"[]"),
    ],
)
def test_facts_of_a_wrong_shape_are_one_line(server: respx.Router, engine: str, path: str, body: bytes) -> None:
    server.get(path).respond(content=body)
    server.route().respond(404)
    with pytest.raises(ServerError, match=r"an answer that no (vLLM|SGLang) gives") as caught:
        ask(lambda client: client.facts(), engine=engine)
    assert URL in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1"])
def test_gauge_that_is_no_number_of_tokens_is_named(server: respx.Router, value: str) -> None:
    server.get("/metrics").respond(text=f"sglang:max_total_num_tokens {value}\n")
    server.route().respond(404)
    with pytest.raises(MetricsError, match=r"max_total_num_tokens\{\} is"):
        ask(lambda client: client.facts(), engine="sglang")


@pytest.mark.parametrize("label", ["²", "0", "None", "-16", "9" * 5000, "16.0"])
def test_label_that_is_no_size_is_a_size_not_said(server: respx.Router, label: str) -> None:
    server.get("/metrics").respond(text=f'vllm:cache_config_info{{block_size="{label}",num_gpu_blocks="5"}} 1\n')
    server.route().respond(404)
    facts = ask(lambda client: client.facts())
    assert (facts.block_tokens, facts.capacity_tokens) == (None, None)


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (400, b"no", "the server answered 400: no"),
        (429, b'{"error": "slow down"}', "the server answered 429: slow down"),
        (200, b"[true]", "an answer that no vLLM gives"),
        (200, b'{"success": "yes"}', "an answer that no vLLM gives"),
        (200, b"<html>login</html>", "an answer that no vLLM gives: <html>login"),
        (200, DEEP, "an answer that no vLLM gives"),
    ],
)
def test_vllm_reset_that_says_anything_else_is_refused(
    server: respx.Router, status: int, body: bytes, says: str
) -> None:
    route = server.post("/reset_prefix_cache").respond(status, content=body)
    with pytest.raises(ResetRefusedError, match=says):
        ask(lambda client: client.reset())
    assert route.call_count == 1


@pytest.mark.parametrize("status", [301, 302, 303])
def test_reset_that_would_become_a_get_is_refused(server: respx.Router, status: int) -> None:
    server.post("/reset_prefix_cache").respond(status, headers={"Location": "/version"})
    elsewhere = server.get("/version").respond(json={"success": True})
    with pytest.raises(ResetRefusedError, match=str(status)):
        ask(lambda client: client.reset())
    assert not elsewhere.called


@pytest.mark.parametrize("status", [307, 308])
def test_reset_that_stays_a_post_is_followed(server: respx.Router, status: int) -> None:
    server.post("/reset_prefix_cache").respond(status, headers={"Location": "/v2/reset_prefix_cache"})
    server.post("/v2/reset_prefix_cache").respond(json={"success": True})
    assert ask(lambda client: client.reset()).done is True
