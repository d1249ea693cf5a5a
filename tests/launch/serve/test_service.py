"""What is not a model's: refusals, keys, origins, health, metrics, events."""

import functools
import json
import re
import socket

import httpx
import openai
import pytest

from launch.serve.keys import check_address, is_local, read_keys
from solver.base.errors import HeptiError
from tests.kit.fake_service import running
from tests.launch.serve.conftest import connect, patient
from tests.launch.serve.test_openai import HI


def formatted(schema):
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}


KEY = "a-key-of-more-than-16"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("chat/completions", {"messages": HI}, "model"),
        ("chat/completions", {"model": 7, "messages": HI}, "model"),
        ("chat/completions", {"model": "tiny"}, "messages"),
        ("chat/completions", {"model": "tiny", "messages": []}, "messages"),
        ("chat/completions", {"model": "tiny", "messages": ["hi"]}, "messages[0]"),
        ("chat/completions", {"model": "tiny", "messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ("chat/completions", {"model": "tiny", "messages": [{"role": "user"}]}, "messages[0].content"),
        (
            "chat/completions",
            {"model": "tiny", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content",
        ),
        ("chat/completions", {"model": "tiny", "messages": HI, "max_tokens": 0}, "max_tokens"),
        ("chat/completions", {"model": "tiny", "messages": HI, "max_tokens": 1.5}, "max_tokens"),
        ("chat/completions", {"model": "tiny", "messages": HI, "max_tokens": True}, "max_tokens"),
        ("chat/completions", {"model": "tiny", "messages": HI, "max_tokens": 10**4000}, "max_tokens"),
        ("chat/completions", {"model": "tiny", "messages": HI, "temperature": 2.1}, "temperature"),
        ("chat/completions", {"model": "tiny", "messages": HI, "temperature": "hot"}, "temperature"),
        ("chat/completions", {"model": "tiny", "messages": HI, "temperature": 10**400}, "temperature"),
        ("chat/completions", {"model": "tiny", "messages": HI, "top_k": 257}, "top_k"),
        ("chat/completions", {"model": "tiny", "messages": HI, "stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ("chat/completions", {"model": "tiny", "messages": HI, "stop": [""]}, "stop"),
        ("chat/completions", {"model": "tiny", "messages": HI, "stop": "\ud800"}, "stop"),
        ("chat/completions", {"model": "tiny", "messages": HI, "seed": 2**63}, "seed"),
        ("chat/completions", {"model": "tiny", "messages": HI, "stream": "yes"}, "stream"),
        ("chat/completions", {"model": "tiny", "messages": HI, "stream_options": 1}, "stream_options"),
        ("chat/completions", {"model": "tiny", "messages": HI, "n": 2}, "n"),
        ("chat/completions", {"model": "tiny", "messages": HI, "tools": [{"type": "function"}]}, "tools[0]"),
        ("chat/completions", {"model": "tiny", "messages": HI, "tool_choice": "required"}, "tool_choice"),
        (
            "chat/completions",
            {"model": "tiny", "messages": HI, "response_format": {"type": "yaml"}},
            "response_format.type",
        ),
        (
            "chat/completions",
            {"model": "tiny", "messages": HI, "response_format": {"type": "json_schema"}},
            "response_format.json_schema.schema",
        ),
        (
            "chat/completions",
            {"model": "tiny", "messages": HI, "response_format": formatted({"type": "board"})},
            "response_format",
        ),
        ("chat/completions", {"model": "tiny", "messages": HI, "top_logprobs": 2}, "top_logprobs"),
        ("chat/completions", {"model": "tiny", "messages": HI, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("chat/completions", {"model": "tiny", "messages": HI, "frequency_penalty": 1}, "frequency_penalty"),
        ("chat/completions", {"model": "tiny", "messages": HI, "chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ("chat/completions", {"model": "tiny", "messages": HI, "chat_template_kwargs": {"messages": 1}}, "messages"),
        ("chat/completions", {"model": "mini", "messages": HI}, "model"),
        ("completions", {"model": "tiny"}, "prompt"),
        ("completions", {"model": "tiny", "prompt": []}, "prompt"),
        ("completions", {"model": "tiny", "prompt": [-1]}, "prompt"),
        ("completions", {"model": "tiny", "prompt": [10**30]}, "prompt"),
        ("completions", {"model": "tiny", "prompt": "\ud800"}, "prompt"),
        ("completions", {"model": "tiny", "prompt": "the", "logprobs": 21}, "logprobs"),
        ("embeddings", {"model": "mini"}, "input"),
        ("embeddings", {"model": "mini", "input": []}, "input"),
        ("embeddings", {"model": "mini", "input": ""}, "input"),
        ("embeddings", {"model": "mini", "input": ["the", 5]}, "input[1]"),
        ("embeddings", {"model": "mini", "input": [[5], [True]]}, "input[1]"),
        ("embeddings", {"model": "mini", "input": [5, 10**9]}, "input"),
        ("embeddings", {"model": "mini", "input": [[]]}, "input[0]"),
        ("embeddings", {"model": "mini", "input": ["a"] * 2049}, "input"),
        ("embeddings", {"model": "mini", "input": "the", "dimensions": 41}, "dimensions"),
        ("embeddings", {"model": "mini", "input": "the", "encoding_format": "int8"}, "encoding_format"),
        ("embeddings", {"model": "mini", "input": "the", "encoding_format": ["float"]}, "encoding_format"),
        ("embeddings", {"model": "classifier", "input": "the"}, "model"),
        ("embeddings", {"model": "tiny", "input": "the"}, "model"),
        ("classifications", {"model": "mini", "input": "the"}, "model"),
        ("classifications", {"model": "vit", "input": "the board"}, "image"),
        ("classifications", {"model": "vit", "image": "/etc/passwd"}, "image"),
        ("classifications", {"model": "vit", "image": "https://a.b/c,d"}, "image"),
        ("classifications", {"model": "vit"}, "image"),
    ],
)  # fmt: skip
def test_a_wrong_body_is_a_bad_request_that_names_the_field(service, path, body, param):
    answer = httpx.post(f"{service.url}/v1/{path}", content=json.dumps(body))

    error = answer.json()["error"]
    assert answer.status_code == 400, error
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert error["message"]
    assert "\n" not in error["message"]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "the body is not JSON at line 1, column 1: send an object"),
        (b"{", "the body is not JSON at line 1, column 2: send an object"),
        (b'{"model":\n nothing}', "the body is not JSON at line 2, column 2: send an object"),
        (b"[1]", "the body must be a JSON object, not "),
        (b"null", "the body must be a JSON object, not "),
        (b'{"model": NaN}', "the body is not JSON: NaN is no number"),
        (b'{"model": "\xe9"}', "the body is not UTF-8 at byte 11"),
        (b"\xff\xfe\xfd", "the body is not UTF-16"),
        (b"[" * 100_000, "the body is nested too deeply"),
        (b'{"a": ' + b"9" * 5000, "the body has a number of more than 4300 digits"),
    ],
)
@pytest.mark.parametrize("path", ["chat/completions", "embeddings", "classifications"])
def test_what_is_no_json_object_is_a_bad_request_that_says_why(service, path, body, complaint):
    answer = httpx.post(f"{service.url}/v1/{path}", content=body)

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_json"
    assert answer.json()["error"]["message"].startswith(complaint)


DEEP = functools.reduce(lambda inner, _: [inner], range(900), 1)


@pytest.mark.parametrize(
    ("path", "body", "complaint", "code"),
    [
        ("chat/completions", {}, "messages is missing", "missing_required_parameter"),
        (
            "chat/completions",
            {"messages": HI, "response_format": {"type": "xml"}},
            "response_format.type is xml, must be",
            "invalid_value",
        ),
        (
            "chat/completions",
            {"messages": HI, "max_tokens": 2.5},
            "max_tokens is 2.5, must be a whole number",
            "invalid_type",
        ),
        (
            "chat/completions",
            {"messages": HI, "max_tokens": "9" * 200},
            f"max_tokens is {'9' * 100} …, must be",
            "invalid_type",
        ),
        ("completions", {"prompt": "a", "max_tokens": DEEP}, "max_tokens is a list, must be", "invalid_type"),
        ("completions", {"prompt": [1, "a"]}, "prompt[1] must be a token id, not a string", "invalid_type"),
    ],
)
def test_a_refusal_says_what_was_sent(service, path, body, complaint, code):
    answer = httpx.post(f"{service.url}/v1/{path}", json={"model": "tiny", **body})

    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(complaint)
    assert answer.json()["error"]["code"] == code


def test_a_long_path_is_not_sent_back_whole(service):
    assert len(httpx.get(f"{service.url}/{'a' * 10_000}").json()["error"]["message"]) < 400


@pytest.mark.parametrize(
    ("path", "body", "complaint", "code"),
    [
        ("embeddings", {"input": []}, "input is empty: give one at least", "empty_array"),
        ("embeddings", {"input": [[5], []]}, "input[1] is empty: it has no tokens", "empty_array"),
        ("embeddings", {"input": " "}, "input is empty: it has no text", "empty_string"),
        ("embeddings", {"input": ["the", ""]}, "input[1] is empty: it has no text", "empty_string"),
        ("embeddings", {"input": ["a"] * 2049}, "input has 2049 entries, at most 2048 are taken", "array_too_long"),
        ("completions", {"prompt": []}, "prompt is empty: it has no tokens", "empty_array"),
        ("completions", {"prompt": [[]]}, "prompt is empty: it has no tokens", "empty_array"),
    ],
)
def test_what_is_empty_or_too_long_is_said_to_be_so(service, path, body, complaint, code):
    model = "mini" if path == "embeddings" else "tiny"
    error = httpx.post(f"{service.url}/v1/{path}", json={"model": model, **body}).json()["error"]

    assert (error["message"], error["code"]) == (complaint, code)


def test_a_conversation_without_a_message_is_said_to_be_one(service):
    answer = httpx.post(f"{service.url}/v1/chat/completions", json={"model": "tiny", "messages": []})

    assert answer.json()["error"]["message"].startswith("messages is empty")


def test_a_damaged_form_is_a_bad_request(service):
    for kind in ("multipart/form-data", "multipart/form-data; boundary=x"):
        for body in (b"", b"--x", b"--x\r\n\r\n", b"--x\r\ncontent-disposition: form-data; name=model\r\n\r\nvit"):
            answer = httpx.post(
                f"{service.url}/v1/classifications", content=body, headers={"content-type": kind}, timeout=10
            )
            assert answer.status_code == 400, body


@pytest.mark.parametrize(
    ("fields", "files", "param", "words"),
    [
        ({}, {"image": b"x"}, "model", "model is missing, it must be a string"),
        ({"model": "vit", "image": "cat.png"}, {"other": b"x"}, "image", "-F image=@FILE"),
    ],
)
def test_a_form_without_a_model_or_a_file_says_so(service, fields, files, param, words):
    answer = httpx.post(f"{service.url}/v1/classifications", data=fields, files=files)

    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, "missing_required_parameter")
    assert words in error["message"]


def test_a_list_of_no_images_has_none(service):
    answer = httpx.post(f"{service.url}/v1/classifications", json={"model": "vit", "image": []})

    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "image is empty: give one at least"


def test_paths_and_methods_that_there_are_not_have_errors_of_the_same_shape(service):
    for path in ("/v1/images", "/etc/passwd", "/static/../app.py", "/static/%2e%2e/app.py", "/v1/models/../../x"):
        answer = httpx.get(service.url + path)
        assert answer.status_code == 404, path
        assert "there is nothing at /" in answer.json()["error"]["message"]
    answer = httpx.get(f"{service.url}/v1/embeddings")
    assert answer.status_code == 405
    assert answer.json()["error"]["message"] == "/v1/embeddings is asked by POST, not by GET"


def test_the_page_is_served_without_a_key_and_nothing_beside_it(texts, tmp_path, monkeypatch):
    page = tmp_path / "page"
    page.mkdir()
    (page / "index.html").write_text("<title>Hepti</title>")
    (page / "page.js").write_text("1;")
    (tmp_path / "secret").write_text("TREASURE")
    (page / "link").symlink_to(tmp_path / "secret")
    monkeypatch.setattr("launch.serve.app.PAGE", page)
    with running(patient, texts, keys=(KEY,)) as service:
        assert "Hepti" in httpx.get(service.url).text
        assert httpx.get(f"{service.url}/static/page.js").text == "1;"
        for path in ("link", "../secret", "%2e%2e/secret", "..%2fsecret", "/etc/passwd", "page.js/../../secret"):
            with socket.create_connection(service.url.removeprefix("http://").split(":")) as one:
                one.sendall(f"GET /static/{path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
                answer = b"".join(iter(lambda: one.recv(1 << 16), b""))
            assert b" 404 " in answer.split(b"\r\n")[0], path
            assert b"TREASURE" not in answer


def test_a_key_is_asked_for_and_never_told(texts):
    with running(patient, texts, keys=(KEY, "another-key-of-the-file")) as service:
        with connect(service, api_key="wrong") as client, pytest.raises(openai.AuthenticationError) as caught:
            client.models.list()
        with connect(service, api_key=KEY) as client:
            assert client.models.list().data
        with connect(service, api_key="another-key-of-the-file") as client:
            assert client.models.list().data

        assert caught.value.code == "invalid_api_key"
        assert KEY not in str(caught.value)
        for path in ("/metrics", "/events", "/v1/models", "/v1/nothing"):
            assert httpx.get(service.url + path).status_code == 401
        for path in ("/health", "/version"):
            assert httpx.get(service.url + path).status_code == 200
        # Whoever has the key may call the machine as he likes.
        named = {"host": "board.local", "authorization": f"Bearer {KEY}"}
        assert httpx.get(f"{service.url}/v1/models", headers=named).status_code == 200


def test_pages_from_elsewhere_may_not_ask(service):
    elsewhere = {"origin": "https://elsewhere.example"}
    assert httpx.get(f"{service.url}/v1/models", headers=elsewhere).json()["error"]["code"] == "wrong_origin"
    assert httpx.get(f"{service.url}/v1/models", headers={"origin": "null"}).status_code == 403
    assert httpx.get(f"{service.url}/v1/models", headers={"origin": service.url}).status_code == 200
    # A name of elsewhere that was made to lead here.
    assert httpx.get(f"{service.url}/v1/models", headers={"host": "elsewhere.example"}).status_code == 403


def test_another_address_than_this_machine_s_needs_a_key():
    for host in ("127.0.0.1", "localhost", "::1", "[::1]", "127.1.2.3"):
        check_address(host, ())
    for host in ("0.0.0.0", "::", "", "10.0.0.5", "board.local", "localhost.example"):
        assert not is_local(host)
        check_address(host, (KEY,))
        with pytest.raises(HeptiError, match="there is no key"):
            check_address(host, ())


def test_keys_come_from_a_file_of_one_s_own_or_the_environment(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"{KEY}\n\n{KEY}-2\n")
    path.chmod(0o644)
    with pytest.raises(HeptiError, match="other users"):
        read_keys(path)
    path.chmod(0o600)

    assert read_keys(path) == (KEY, f"{KEY}-2")
    assert read_keys(None, {"HEPTI_API_KEY": KEY}) == (KEY,)
    assert read_keys(None, {}) == ()
    with pytest.raises(HeptiError, match="has 5 characters: at least 16"):
        read_keys(None, {"HEPTI_API_KEY": "short"})
    path.write_text("\n")
    with pytest.raises(HeptiError, match="has no key"):
        read_keys(path)
    with pytest.raises(HeptiError, match="cannot read"):
        read_keys(tmp_path / "none")


def test_health_says_why_not(own):
    assert httpx.get(f"{own.url}/health").json() == {"status": "ok"}

    own.service.models["mini"].state, own.service.models["mini"].reason = "replanning", "pi-3 is silent"
    answer = httpx.get(f"{own.url}/health")

    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == "mini: replanning, pi-3 is silent"


def test_health_says_once_what_keeps_several_models(own):
    tiny, mini, vit = (own.service.models[name] for name in ("tiny", "mini", "vit"))
    tiny.state = vit.state = "replanning"
    tiny.reason = vit.reason = "pi-3 is silent"
    mini.state = "loading"
    answer = httpx.get(f"{own.url}/health")

    assert answer.json()["error"]["message"] == "tiny, vit: replanning, pi-3 is silent; mini: loading"


def test_the_version_is_told(service):
    assert httpx.get(f"{service.url}/version").json() == {"version": "0.1.0"}


def test_prometheus_reads_what_was_asked_and_how_boards_are(own):
    with connect(own) as client:
        client.completions.create(model="tiny", prompt=[5, 6, 7], max_tokens=4)
        client.embeddings.create(model="mini", input="the", encoding_format="float")
    text = httpx.get(f"{own.url}/metrics").text
    found = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}

    assert found['hepti_prompt_tokens_total{model_name="tiny"}'] == 3
    assert found['hepti_generation_tokens_total{model_name="tiny"}'] == 4
    assert found['hepti_requests_total{finished_reason="length",model_name="tiny"}'] == 1
    assert found['hepti_requests_total{finished_reason="done",model_name="mini"}'] == 1
    assert found['hepti_time_to_first_token_seconds_count{model_name="tiny"}'] == 1
    assert found['hepti_inter_token_latency_seconds_count{model_name="tiny"}'] == 3
    assert found['hepti_e2e_request_latency_seconds_count{model_name="tiny"}'] == 1
    assert found['hepti_num_requests_running{model_name="tiny"}'] == 0
    assert found['hepti_num_requests_waiting{model_name="tiny"}'] == 0
    assert found['hepti_model_ready{model_name="tiny"}'] == 1
    assert found['hepti_restarts_total{model_name="tiny"}'] == 1
    assert "started again, behind a loss, a refusal, or with boards that are back" in text
    assert found['hepti_replans_total{model_name="tiny"}'] == 2
    assert found['hepti_rank_compute_seconds_total{board="pi-0",model_name="tiny",rank="0"}'] == 1.5
    assert found['hepti_rank_wait_seconds_total{board="pi-0",model_name="tiny",rank="0"}'] == 0.5
    assert found['hepti_rank_sent_bytes_total{board="pi-0",model_name="tiny",rank="0"}'] == 100
    assert found['hepti_rank_compute_seconds_total{board="pi-1",model_name="tiny",rank="1"}'] == 2.5
    assert found['hepti_rank_received_bytes_total{board="pi-1",model_name="tiny",rank="1"}'] == 100
    assert found['hepti_board_up{board="pi-0"}'] == 1
    assert found['hepti_board_temperature_celsius{board="pi-0"}'] == 55
    assert found['hepti_board_memory_free_bytes{board="pi-0"}'] == 1 << 30
    assert not [name for name in found if not re.match(r"hepti_", name)]


def test_events_tell_the_state_at_once_and_when_it_changes(own):
    with httpx.stream("GET", f"{own.url}/events", timeout=10) as answer:
        events = (json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line[:1] == "d")
        assert next(events)["requests"] == []

        with httpx.stream(
            "POST", f"{own.url}/v1/completions", json={"model": "slow", "prompt": "the", "stream": True}, timeout=10
        ):
            own.until(lambda: own.service.models["slow"].journal.running == 1)
            event = next(event for event in events if event["requests"])
            own.service.models["slow"].state = "replanning"

            async def tell():
                async with own.service.changed:
                    own.service.changed.notify_all()

            own.do(tell())
            states = ({model["name"]: model["state"] for model in event["models"]} for event in events)
            assert next(state for state in states if state["slow"] != "ready")["slow"] == "replanning"

    assert event["requests"][0]["model"] == "slow"
    assert event["requests"][0]["tokens"] == 0
    assert event["boards"][0]["name"] == "pi-0"
    assert answer.headers["content-type"].startswith("text/event-stream")
