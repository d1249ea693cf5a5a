"""`python -m launch serve`, but that its boards are fake: fake_serve.py serve --model M."""

from contextlib import nullcontext

from launch import __main__ as launch
from launch.serve import command
from launch.serve.plans import Plans
from launch.watch import boards
from solver.base import stopping
from tests.kit.fake_boards import QUICK, fake_cluster, fake_plan, fake_site

BOARDS = ("pi-0", "pi-1", "pi-2")
command._site = lambda options: nullcontext(fake_site(BOARDS))
Plans._made = fake_plan
boards.Timing = lambda: QUICK
command.find_cluster = lambda name: fake_cluster(BOARDS)

if __name__ == "__main__":
    stopping.run("python -m launch", lambda: launch.main)
