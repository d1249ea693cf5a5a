"""What is not a model's: refusals, keys, origins, health, metrics, events."""

import functools
import json
import re
import socket
from pathlib import Path

import httpx
import openai
import pytest

from launch.serve.keys import check_address, is_local, read_keys
from solver.base.errors import HeptiError
from tests.kit import http_refusals
from tests.kit.fake_service import running
from tests.launch.serve.conftest import connect, patient
from tests.launch.serve.test_openai import HI

KEY = "a-key-of-more-than-16"
REFUSED = Path(__file__).parents[1] / "refusals/http.txt"


def test_what_is_refused_is_said_with_its_field_in_one_line(service):
    """Wrong, empty, missing and unsupported fields, what is no JSON, paths and methods that there are not."""
    http_refusals.check(REFUSED, service.url)


@pytest.mark.parametrize(
    "body",
    [b"{", b'{"model":\n nothing}', b'{"model": "\xe9"}', b"\xff\xfe\xfd", b"[" * 100_000, b'{"a": ' + b"9" * 5000],
    ids=["open", "second line", "latin", "utf16", "nested", "digits"],
)
@pytest.mark.parametrize("path", ["chat/completions", "embeddings", "classifications"])
def test_what_no_table_can_hold_is_no_json_object(service, path, body, kept):
    answer = httpx.post(f"{service.url}/v1/{path}", content=body)

    assert answer.json()["error"]["code"] == "invalid_json"
    kept(http_refusals.said(answer))


DEEP = functools.reduce(lambda inner, _: [inner], range(900), 1)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": HI, "max_tokens": 10**4000}),
        ("chat/completions", {"messages": HI, "max_tokens": "9" * 200}),
        ("chat/completions", {"messages": HI, "temperature": 10**400}),
        ("completions", {"prompt": "a", "max_tokens": DEEP}),
        ("embeddings", {"model": "mini", "input": ["a"] * 2049}),
    ],
    ids=["huge", "digits", "hot", "deep", "many"],
)
def test_what_is_too_large_is_not_sent_back_whole(service, path, body, kept):
    answer = httpx.post(f"{service.url}/v1/{path}", content=json.dumps({"model": "tiny", **body}))

    assert answer.status_code == 400
    assert len(answer.text) < 500
    kept(http_refusals.said(answer))


@pytest.mark.parametrize(
    ("fields", "files"), [({}, {"image": b"x"}), ({"model": "vit", "image": "cat.png"}, {"other": b"x"})]
)
def test_a_form_without_a_model_or_a_file_says_so(service, fields, files, kept):
    answer = httpx.post(f"{service.url}/v1/classifications", data=fields, files=files)

    assert answer.json()["error"]["code"] == "missing_required_parameter"
    kept(http_refusals.said(answer))


def test_a_long_path_is_not_sent_back_whole(service):
    assert len(httpx.get(f"{service.url}/{'a' * 10_000}").json()["error"]["message"]) < 400


def test_a_damaged_form_is_a_bad_request(service):
    for kind in ("multipart/form-data", "multipart/form-data; boundary=x"):
        for body in (b"", b"--x", b"--x\r\n\r\n", b"--x\r\ncontent-disposition: form-data; name=model\r\n\r\nvit"):
            answer = httpx.post(
                f"{service.url}/v1/classifications", content=body, headers={"content-type": kind}, timeout=10
            )
            assert answer.status_code == 400, body


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


def test_health_says_once_what_keeps_several_models(own, kept):
    tiny, mini, vit = (own.service.models[name] for name in ("tiny", "mini", "vit"))
    tiny.state = vit.state = "replanning"
    tiny.reason = vit.reason = "pi-3 is silent"
    mini.state = "loading"
    answer = httpx.get(f"{own.url}/health")

    kept(answer.json()["error"]["message"])


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
    assert "started again, after a loss" in text
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
