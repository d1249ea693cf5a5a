"""The live page of a service on a lab, in a headless Chromium: a cable is cut in the middle of a chat, and mended."""

import shutil
import socket
import time

import pytest

from tests.kit.languages import make_tiny
from tests.lab.conftest import lab_up, write_cluster
from tests.lab.services import COLUMNS, PLANNED_GIB, TOKENS, serving
from tests.launch.serve.chromium import NAME, Page, chromium

BOARDS = {"gflops": (13, 13, 10), "mbps": 940}
HOSTS = ("pi-0", "pi-1", "pi-2")
LOST = "pi-1"
RED_S = 6.0  # at most, from a cut cable to a red board


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with lab_up("page", tmp_path_factory.mktemp("page"), "--ssh", memory_gib=1, **BOARDS) as lab:
        yield lab


@pytest.fixture
def service(lab, tmp_path):
    """Return the address of a service with a chat model."""
    model = make_tiny(tmp_path / "tiny", COLUMNS).path
    cluster = write_cluster(tmp_path / "planned.toml", memory_gib=PLANNED_GIB, **BOARDS)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with serving(lab, tmp_path, port, "--model", model, "--cluster", cluster):
        yield f"http://127.0.0.1:{port}/"


def ask(page):
    """Ask something in a new chat."""
    page.click("#chat-clear")
    page.js(f"document.querySelector('#chat-most').value = {TOKENS}")
    page.click("#chat-text")
    page.type("why is the sky blue?")
    page.press("Enter")


def answer(page):
    """Wait for the end of the answer; return its text."""
    page.until("document.querySelector('#chat-send').checkVisibility()")
    assert not page.js("document.querySelector('#chat-error').checkVisibility()")
    return page.text("#chat-log .assistant .body")


def until_state(page, board, state):
    cards = "[...document.querySelectorAll('.card')]"
    page.until(f"{cards}.find((card) => card.innerText.startsWith('{board}'))?.dataset.state === '{state}'")


def until_runs_on(page, *boards):
    """Wait until the newest event of where the model runs names these boards."""
    runs = "[...document.querySelectorAll('#events span')].find((event) => event.innerText.includes(' runs on '))"
    page.until(f"{runs}?.innerText.endsWith(' runs on {', '.join(boards)}')")


def pictures(page, name):
    """Keep what the whole page looks like at two widths."""
    for width in (400, 1600):
        page.looks(width, "light")
        page.picture(f"lab-{name}-{width}")
        assert page.js("document.documentElement.scrollWidth") <= width


@pytest.mark.skipif(shutil.which(NAME) is None, reason=f"{NAME} is missing: apt-get install {NAME}")
def test_a_cut_cable_turns_its_board_red_and_the_chat_goes_on(lab, service):
    with chromium() as browser:
        page = Page(browser)
        page.open(service)
        for host in HOSTS:
            until_state(page, host, "alive")
        until_runs_on(page, *HOSTS[:2])
        ask(page)
        calm = answer(page)
        for host in HOSTS[:2]:
            page.shows("#chat-log .assistant .who", host)
        pictures(page, "calm")

        ask(page)
        page.until("document.querySelector('#chat-log .assistant .body')?.innerText.length > 20")
        lab.lab("cut", LOST)
        cut = time.monotonic()
        until_state(page, LOST, "lost")
        red_s = time.monotonic() - cut
        assert page.js("document.querySelector('#chat-stop').checkVisibility()")  # the chat is not over
        pictures(page, "cut")
        assert answer(page) == calm
        until_runs_on(page, HOSTS[0], HOSTS[2])
        pictures(page, "without")

        lab.lab("mend", LOST)
        until_state(page, LOST, "alive")
        until_runs_on(page, *HOSTS[:2])
        pictures(page, "back")
        ask(page)
        assert answer(page) == calm
        assert page.errors == []
    assert red_s < RED_S
